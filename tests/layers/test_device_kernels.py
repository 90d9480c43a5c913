"""The kernels that layers ask of a device."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm
from costmodel.graph.kernel import Kernel
from costmodel.graph.tape import Tape
from costmodel.layers.arithmetic import Dropout
from costmodel.layers.base import Unary
from costmodel.layers.forms import GroupedMatmul
from costmodel.layers.linear import Matmul
from costmodel.layers.norm import Layernorm
from costmodel.layers.recurrent import Lstm
from costmodel.layers.scan import SelectiveScan
from tests.layers.device_kernels import check_kernels

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("resnet50", {}),
    ("resnet50", {"precision": "fp16-autocast"}),
    ("resnext50_32x4d", {"mode": "inference", "precision": "int8"}),
    ("efficientnet_b0", {"precision": "bf16"}),
    ("gpt2-small", {"seq": 64}),
    ("gpt2-small", {"seq": 64, "attention": "flash", "loss_chunks": 3, "precision": "bf16-autocast"}),
    ("mixtral-8x7b", {"seq": 48, "precision": "fp8"}),
    ("deepseek-v2-lite", {"seq": 32, "checkpoint": "block"}),
    ("t5-small", {"seq": 48, "lora": {"rank": 4, "targets": ["query"]}}),
    ("vit-b-16", {"freeze": "classes"}),
    ("gpt-oss-20b", {"seq": 32, "mode": "inference", "precision": "bf16"}),
]


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=[f"{n}-{len(s)}-{i}" for i, (n, s) in enumerate(MODELS)])
def test_kernels_do_the_work_of_the_layer(name: str, settings: dict[str, Any]) -> None:
    check_kernels(cm.predict(name, batch=3, **settings).tape)


def small(*blocks: Any, **settings: Any) -> cm.Prediction:
    return cm.predict(cm.CNN(input=(8, 4, 4), blocks=list(blocks)), batch=2, loss=None, **settings)


def test_views_launch_nothing_and_copies_once() -> None:
    p = cm.predict("gpt2-small", batch=2, seq=64)
    calls = {call.name: call for call in p.tape.root.calls()}
    for name, launched in (("block.attention.split_query", 0), ("block.attention.merge_heads", 1)):
        assert sum(k.launches for k in calls[name].layer.forward_kernels(calls[name])) == launched


def test_a_linear_layer_is_one_product_forward_and_two_and_a_sum_back() -> None:
    p = cm.predict(cm.MLP(sizes=[6, 10, 4]), batch=5, loss=None)
    calls = [call for call in p.tape.root.calls() if call.layer.kind == "linear"]
    (forward,) = calls[1].layer.forward_kernels(calls[1])
    assert (forward.sort, forward.sizes) == ("product", (1, 5, 4, 10))
    assert forward.flops == 2 * 5 * 4 * 10 + 5 * 4
    assert (forward.read, forward.written) == (4 * (50 + 40 + 4), 4 * 20)
    back = {k.name: k for k in calls[1].layer.backward_kernels(calls[1])}
    assert back["linear backward input"].sizes == (1, 5, 10, 4)
    assert back["linear backward weight"].sizes == (1, 4, 10, 5)
    assert back["linear backward bias"].sort == "reduction"
    assert "linear backward input" not in {k.name for k in calls[0].layer.backward_kernels(calls[0])}


def test_grouped_weight_gradients_are_worked_out_once() -> None:
    p = small({"conv": {"channels": 8, "kernel": 3, "padding": 1, "groups": 8, "bias": False}}, "relu")
    (call,) = [call for call in p.tape.root.calls() if call.layer.kind == "conv"]
    (forward,) = call.layer.forward_kernels(call)
    (weight,) = call.layer.backward_kernels(call)
    assert forward.sizes == (8, 2 * 16, 1, 9)
    assert weight.flops == forward.flops == p.flops.forward
    assert p.flops.backward == 8 * forward.flops  # as PyTorch's counter has it


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_is_a_convolutions_gradient(groups: int) -> None:
    """The same window from 4 channels of 8 × 8 to 6 of 4 × 4, and back (Dumoulin & Visin 2016, §4)."""
    fields = {"kernel": 2, "stride": 2, "groups": groups, "bias": False}
    there, back = (
        cm.predict(cm.CNN(input=image, blocks=["batchnorm", {kind: {**fields, "channels": to}}]), batch=3, loss=None)
        for kind, image, to in (("conv", (4, 8, 8), 6), ("conv_transpose", (6, 4, 4), 4))
    )
    forward, gradient = (_products_of_the_last(p) for p in (there, back))
    assert forward == tuple(reversed(gradient))


def _products_of_the_last(prediction: cm.Prediction) -> tuple[object, object]:
    """The implicit products of the output and of the input's gradient."""
    call = list(prediction.tape.root.calls())[-1]
    (forward,) = call.layer.forward_kernels(call)
    gradient, _ = call.layer.backward_kernels(call)
    return forward.sizes, gradient.sizes


def test_types_decide_the_bytes() -> None:
    fp32, low = (cm.predict("resnet18", batch=2, precision=name) for name in ("fp32", "bf16"))
    (a,), (b,) = (_convolution(p) for p in (fp32, low))
    assert (a.dtype, b.dtype) == ("fp32", "bf16")
    assert a.read == 2 * b.read


def _convolution(prediction: cm.Prediction) -> list[Kernel]:
    call = next(call for call in prediction.tape.root.calls() if call.layer.kind == "conv")
    return list(call.layer.forward_kernels(call))


def test_products_read_both_sides_and_weights_of_few_bits_once_unpacked() -> None:
    """As QLoRA has it (bitsandbytes.functional): a kernel writes the weight in bf16, a product reads it."""
    p = cm.predict("gpt2-small", batch=2, seq=16, precision="nf4", lora={"rank": 4, "targets": ["qkv"]})
    (call,) = [call for call in p.tape.root.calls() if call.name == "block.mlp.up"]
    products = [
        k
        for k in (*call.layer.forward_kernels(call), *call.layer.backward_kernels(call))
        if k.sizes is not None and call.stored["weight"].dtype == p.tape.precision.quantised
    ]
    assert [k.sizes for k in products] == [(1, 32, 3072, 768), (1, 32, 768, 3072)]
    for k in products:
        assert k.read >= 2 * (32 * k.sizes.k + 768 * 3072)
        assert k.written == 2 * 32 * k.sizes.n


def test_only_products_with_weights_unpack_them() -> None:
    p = cm.predict("gpt2-small", seq=8, mode="inference", precision="int8")
    calls = [call for call in p.tape.root.calls() if call.layer.kind in ("linear", "matmul")]
    found = {(call.layer.kind, k.stored) for call in calls for k in call.layer.forward_kernels(call) if k.sizes}
    assert ("linear", "int8") in found
    assert ("matmul", "int8") not in found


def test_dropout_writes_its_mask_and_is_nothing_in_inference() -> None:
    model = cm.CNN(input=(8, 4, 4), blocks=["relu", Dropout(0.5), {"conv": {"channels": 2, "kernel": 1}}])
    train, infer = (cm.predict(model, batch=2, loss=None, mode=mode) for mode in ("train", "inference"))
    found = {}
    for p in (train, infer):
        (call,) = [call for call in p.tape.root.calls() if call.layer.kind == "dropout"]
        found[p.settings.mode] = list(call.layer.forward_kernels(call))
    assert found["inference"] == []
    (kernel,) = found["train"]
    assert kernel.read == 4 * 256
    assert kernel.written in (4 * 256, 5 * 256)  # the mask is kept where something before is trained


def test_fused_attention_works_on_visible_pairs_alone() -> None:
    full, half = (
        next(
            k
            for call in cm.predict(
                "gpt2-small", batch=1, seq=64, attention="flash", attention_pairs=pairs
            ).tape.root.calls()
            for k in call.layer.forward_kernels(call)
            if k.sort == "attention"
        )
        for pairs in ("full", "visible")
    )
    assert full.flops == half.flops
    assert full.sizes == (12, 64, 64, 64)


def test_a_step_back_through_an_lstm_writes_a_gradient_of_every_gate() -> None:
    """By hand: of four gates of 5 units, for 3 samples and 7 steps, in fp32."""
    tape = Tape(training=True, device="gpu")
    given = [tape.tensor(shape, "activation", origin="input") for shape in ((7, 3, 2), (3, 5), (3, 5))]
    tape.record(Lstm(hidden=5), given, None, None)
    call: Any = tape.root.entries[-1]
    through = [k for k in call.layer.backward_kernels(call) if k.sort == "pointwise"]
    assert sum(k.written for k in through) == 4 * (7 * 3 * 4 * 5)


def test_group_norm_reads_its_input_twice_and_layer_norm_once() -> None:
    """A group is too large to stay on the chip between its moments and its scaling; a row is not."""
    (group,) = (c for c in small({"groupnorm": {"groups": 2}}).tape.root.calls() if c.layer.kind == "groupnorm")
    (forward,) = group.layer.forward_kernels(group)
    assert forward.read == 4 * (2 * (2 * 8 * 4 * 4) + 2 * 8)
    tape = Tape(training=True, device="gpu")
    tape.record(Layernorm(), [tape.tensor((6, 8), "activation", origin="input")], None, None)
    row: Any = tape.root.entries[-1]
    assert sum(k.read for k in row.layer.forward_kernels(row)) == 4 * (6 * 8 + 2 * 8)


def test_products_by_groups_read_the_other_side_back() -> None:
    """For rows g and all matrices, for matrices g and all rows: 7 rows of 3, two matrices of 3 × 5."""
    tape = Tape(training=True, device="gpu")
    rows, matrices = (tape.tensor(shape, "activation", requires_grad=True) for shape in ((7, 3), (2, 3, 5)))
    tape.record(GroupedMatmul(), [rows, matrices, tape.tensor((2,), "index", origin="input")], None, None)
    call: Any = tape.root.entries[-1]
    back = {k.name.rpartition(" ")[2]: k for k in call.layer.backward_kernels(call)}
    assert {name: (k.read, k.written) for name, k in back.items()} == {
        "rows": (4 * (7 * 5 + 2 * 3 * 5), 4 * 7 * 3),
        "matrices": (4 * (7 * 5 + 7 * 3), 4 * 2 * 3 * 5),
    }


@pytest.mark.parametrize("tokens", [3, 6])
def test_a_scan_launches_for_each_token(tokens: int) -> None:
    """A product, a sum and a product with c, however many samples, channels and states there are."""
    tape = Tape(training=False, device="gpu")
    a, u = (tape.tensor((2, 5, tokens, 4), "activation", origin="input") for _ in range(2))
    tape.record(SelectiveScan(), [a, u, tape.tensor((2, tokens, 4), "activation", origin="input")], None, None)
    call: Any = tape.root.entries[-1]
    assert sum(k.launches for k in call.layer.forward_kernels(call)) == 3 * tokens


def test_a_scan_begins_from_a_state_of_its_own_shape() -> None:
    tape = Tape(training=False, device="gpu")
    shapes = ((2, 5, 3, 4), (2, 5, 3, 4), (2, 3, 4), (2, 4, 5))
    given = [tape.tensor(shape, "activation", origin="input") for shape in shapes]
    with pytest.raises(cm.CostModelError, match=r"first state \(batch, channels, n\)"):
        tape.record(SelectiveScan(keeps=True), given, None, None)


def test_a_kind_that_forgets_its_kernels_is_refused() -> None:
    from costmodel.layers.base import Layer, layer

    body = {name: getattr(Unary, name) for name in ("check", "output", "workspace", "weights", "buffers")}
    body |= {name: Dropout.__dict__[name] for name in ("forward", "backward", "saved")}
    with pytest.raises(TypeError, match="does not say: backward_kernels, forward_kernels"):
        layer(type("Silent", (Layer,), {**body, "source": "none"}))


@pytest.mark.parametrize(
    ("shape", "added_scaled", "expected"),
    [
        ((3, 5), False, None),
        ((3, 5), True, ("backward scaling", "pointwise", 15)),
        ((5,), False, ("backward sum", "reduction", 15)),
        ((5,), True, ("backward sum", "reduction", 30)),
    ],
)
def test_what_is_added_to_a_product_is_scaled_and_summed_by_a_kernel_of_its_own(
    shape: tuple[int, ...], added_scaled: bool, expected: tuple[str, str, int] | None
) -> None:
    """None where the gradient of it is the incoming one; else it reads that and writes the gradient."""
    tape = Tape(training=True, device="gpu")
    a, b, c = (tape.tensor(s, requires_grad=True) for s in ((3, 4), (4, 5), shape))
    y = Matmul(added_scaled=added_scaled)(a, b, c)
    assert y.maker is not None
    kernels = [k for k in y.maker.layer.backward_kernels(y.maker) if k.sizes is None]
    found = [(k.name.removeprefix("matmul "), k.sort, k.flops, k.read, k.written) for k in kernels]
    assert found == ([] if expected is None else [(*expected, y.bytes, c.bytes)])
