"""What training minimises: the loss that a model ends in, on the model's output or together with its head."""

from __future__ import annotations

from costmodel.errors import SettingError
from costmodel.graph.run import Run
from costmodel.graph.tensor import Call, Tensor
from costmodel.layers.arithmetic import Add
from costmodel.layers.attention import SoftmaxAlong
from costmodel.layers.cast import Cast
from costmodel.layers.linear import Linear
from costmodel.layers.loss import Compared, CrossEntropy, FusedLinearCrossEntropy, MeanSquaredError


def attach_loss(
    run: Run, loss: str | None, output: Tensor | tuple[Tensor, ...], chunks: int = 1, *, in_fp32: bool = False
) -> tuple[Tensor, ...]:
    """End the run in `loss` of `output`, over so many chunks of rows with the head; of several outputs in their sum.

    in_fp32: outputs are cast before. Returns what backward starts from: the loss, or without one all outputs. All that
    this records, casts and sums too, is of the phase "loss". Raises SettingError.
    """
    run.phase = "forward" if loss is None else "loss"
    if loss is None:
        if chunks > 1:
            raise SettingError(f"loss_chunks={chunks} is for training that ends in a loss: leave it out")
        run.outputs = output if isinstance(output, tuple) else run.outputs
        return output if isinstance(output, tuple) else run.outputs or (output,)
    run.outputs = ()
    if in_fp32 and chunks > 1:
        raise SettingError("loss_precision='fp32' casts all logits, which loss_chunks never makes: leave one out")
    if isinstance(output, tuple):
        if chunks > 1:
            raise SettingError(f"loss_chunks={chunks} is for a model with one output, not {len(output)}: leave it out")
        total, *rest = (_of(run, loss, y, f"loss{n}", f"targets{n}", in_fp32) for n, y in enumerate(output, start=1))
        for n, more in enumerate(rest, start=1):
            total = Add()(total, more, name="loss" if n == len(rest) else f"add_loss{n}")
        return (total,)
    if chunks > 1:
        return (_take_chunked(run, loss, output, chunks),)
    return (_of(run, loss, output, "loss", "targets", in_fp32),)


def _of(run: Run, loss: str, output: Tensor, name: str, targets: str, in_fp32: bool) -> Tensor:
    if in_fp32 and output.dtype != "fp32":
        output = Cast("fp32")(output, name=f"{name}.cast")
    if loss != "cross_entropy":
        wanted = run.input(output.shape, name=targets)
        if loss == "mean_squared_error":
            return MeanSquaredError()(output, wanted, name=name)
        if loss == "binary_cross_entropy":
            return Compared("binary_cross_entropy_with_logits", "mean")(output, wanted, name=name)
        likelihoods = SoftmaxAlong(output.shape[1], logarithm=True)(output, name="log_softmax")
        return Compared("kl_div", "mean")(likelihoods, wanted, name=name)
    batch, _, *rest = output.shape
    return CrossEntropy()(output, run.input((batch, *rest), "index", targets), name=name)


def _take_chunked(run: Run, loss: str, output: Tensor, chunks: int) -> Tensor:
    """Take the head back, so that it makes no logits, and run it with the loss."""
    if loss != "cross_entropy":
        raise SettingError(f"loss_chunks={chunks} is for loss 'cross_entropy', not {loss!r}: leave it out")
    head = run.root.entries[-1] if run.root.entries else None
    if not isinstance(head, Call) or not isinstance(head.kind, Linear) or len(output.shape) != 2:
        raise SettingError(f"loss_chunks={chunks} needs a model that ends in one linear layer over rows: leave it out")
    rows = output.shape[0]
    if chunks > rows:
        raise SettingError(f"loss_chunks={chunks} is more than the {int(rows)} rows of logits: use at most {int(rows)}")
    run.root.entries.pop()
    targets = run.input(head.x.shape[:-1], "index", "targets")
    fused = FusedLinearCrossEntropy(head.kind.features, head.kind.bias, chunks)
    return fused(head.x, targets, name="loss", tied=head.stored)
