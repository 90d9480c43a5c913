"""One rank of a pipeline as ``torch.distributed.pipelining`` itself runs it, without the others: see `ranks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules as pipelining
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode, generate_rank_to_stage_mapping
from torch.distributed.tensor import DTensor

import costmodel as cm

from . import models, networks
from .test_schedules import CLASSES, SINGLE
from .tracker import Most, weights_by_use

V_SHAPED = ("zbv-zero-bubble", "dualpipev")


class StageCost(NamedTuple):
    """What one rank costs: parameters, bytes of constants, FLOPs, each message as (op, bytes) in order, peaks.

    collectives: each as (op, bytes, devices) in order. counters: bytes of the optimizer's that are
    followed too, though they are on the host.
    """

    params: int
    buffers: int
    total_flops: int
    messages: list[tuple[str, int]]
    most: dict[str, Most]
    collectives: list[tuple[str, int, int]]
    counters: int


class NoModules:
    """FLOPs are not told apart by module."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Part(nn.Module):
    """A method of a model, with those of its modules that it reads."""

    def __init__(self, method: Callable[..., Any], model: nn.Module, but: Sequence[str]) -> None:
        super().__init__()
        self.method = method
        for name, module in model.named_children():
            if name not in but:
                setattr(self, name, module)

    def forward(self, *inputs: Tensor) -> Any:
        return self.method(*inputs)


class Ended(nn.Module):
    """The last block, and what is after it."""

    def __init__(self, model: models.Transformer) -> None:
        super().__init__()
        self.norm, self.dropout = model.final_norm, model.final_dropout
        self.end = Part(model.end, model, STARTS)

    def forward(self, x: Tensor) -> Any:
        y = self.end(self.dropout(x if self.norm is None else self.norm(x)))
        return y._base if y._is_view() and y._base.numel() == y.numel() else y  # views are not detached


STARTS = ("blocks", "tokens", "positions", "segments", "boxes", "embedding_norm", "dropout", "spare", "contact")
ENDS = ("blocks", "head", "summary", "final_norm", "final_dropout", "outward")


class ByUse(nn.Module):
    """What lists its weights in the order of their use, if that is known: gradients of weights apart are made so."""

    by_use: Sequence[str] = ()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        known = map(self.get_parameter, self.by_use)
        return known if recurse and self.by_use else super().parameters(recurse)


class Listed(ByUse, nn.Sequential):
    """Parts of a model, one after another; the first may take several tensors."""

    def forward(self, *inputs: Tensor) -> Any:
        x: Any = inputs
        for part in self:
            x = part(*x) if isinstance(x, tuple) else part(x)
        return x


def parts_of(question: dict[str, Any]) -> tuple[list[nn.Module], tuple[Tensor, ...]]:
    """What a stage may begin with, one after another, and what the first reads."""
    kind, fields, batch = question["kind"], question["fields"], question["batch"]
    kernel = question.get("kernel", "eager")
    if kind == "mlp":
        spec: Any = cm.MLP(**fields)
        model: Any = models.MLP(spec, "gpu")
        hidden, each = [*model.hidden], 3 + (spec.norm != "none")
        layers = [nn.Sequential(*hidden[n : n + each]) for n in range(0, len(hidden), each)]
        return [*layers, model.output], (torch.zeros(batch, spec.sizes[0]),)
    if kind == "cnn":
        x = torch.zeros(batch, *fields["input"])
        return networks.parts(fields["blocks"], x), (x,)
    if kind == "vit":
        from .test_vision_transformer import ViT

        spec = cm.VisionTransformer.of(fields)
        model = ViT(spec, kernel, "gpu")
        names = [name for name, _ in model.named_children()]
        after = ["norm", "pooler", "pooler_norm", "pooler_dropout", "classes", "pool", "other"]
        start = Part(model.start, model, ["blocks", *after])
        end = Part(model.end, model, [name for name in names if name not in after])
        return joined([start, *model.blocks, end]), (torch.zeros(batch, *spec.input),)
    if kind == "imported":
        parts, shape = imported(fields)
        return parts, (torch.zeros(batch, *shape),)
    spec, seq = cm.Transformer.of(fields), question["seq"]
    model = models.Transformer(spec, seq, kernel, "gpu")
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    others = [torch.zeros(batch, seq, dtype=torch.int64)] if spec.segments else []
    return joined([Part(model.start, model, ENDS), *model.blocks, Ended(model)]), (tokens, *others)


class Skipping(nn.Module):
    """Blocks of which the last ones read what the first made, too."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 5)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = early = self.first(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x + early)

    def parts(self) -> list[nn.Module]:
        """It as modules one after another, that hand on what later ones read."""
        count = len(self.layers)
        inner = [Skip(layer, first=n == 0, last=n == count - 1) for n, layer in enumerate(self.layers)]
        return [self.first, *inner, self.last]


class Skip(nn.Module):
    """A layer that hands on what it does not read, and the last one the sum of both."""

    def __init__(self, layer: nn.Module, *, first: bool, last: bool) -> None:
        super().__init__()
        self.layer, self.first, self.last = layer, first, last

    def forward(self, early: Tensor, *x: Tensor) -> Any:
        y = torch.relu(self.layer(early if self.first else x[0]))
        return y + early if self.last else (early, y)


def imported(fields: dict[str, Any]) -> tuple[list[nn.Module], tuple[int, ...]]:
    """Parts of a module that is imported, and the shape of a sample."""
    module, shape = module_of(fields)
    if isinstance(module, Skipping):
        return module.parts(), shape
    if isinstance(module, nn.Sequential):
        return list(module), shape
    return [module.first, *module.layers, module.last], shape


def module_of(fields: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """The module as a whole, and the shape of a sample."""
    from .ranks import Listed as Blocks

    if fields["of"] == "blocks":
        return Blocks(), (4,)
    if fields["of"] == "skipping":
        return Skipping(fields["width"], fields["blocks"]), (4,)
    sizes = fields["sizes"]
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.LayerNorm(outer), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 5)), (sizes[0],)


def joined(parts: list[nn.Module]) -> list[nn.Module]:
    """The start as part of the first block, and the end as part of the last."""
    start, *blocks, end = parts
    first = [Listed(start, blocks[0]), *blocks[1:]]
    return [*first[:-1], Listed(first[-1], end)]


class StageModule(ByUse):
    """Some blocks of a model, with its start or its end."""

    def __init__(self, model: models.Transformer, blocks: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.start = nn.ModuleDict()
        if first:
            self.start["tokens"] = model.tokens
            if model.positions is not None:
                self.start["positions"] = model.positions
            self.start["dropout"] = model.dropout
        self.blocks = nn.ModuleList([model.blocks[n] for n in blocks])
        self.end = nn.ModuleList([x for x in (model.final_norm, model.head) if x is not None]) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.start:
            tokens, x = x, self.start["tokens"](x)
            if "positions" in self.start:
                x = x + self.start["positions"](torch.arange(tokens.shape[1], device=tokens.device))
            x = self.start["dropout"](x)
        for block in self.blocks:
            x = block(x, None, None, None)
        for module in self.end or ():
            x = module(x)
        return x


def names_by_use(module: nn.Module, *inputs: Tensor) -> list[str]:
    """Names of weights in the order in which they are first used."""
    names = {weight: name for name, weight in module.named_parameters()}
    return [names[weight] for weight in weights_by_use(module, *inputs)]


def starts_of(question: dict[str, Any], stages: int, parts: int) -> list[int]:
    """The first part of each stage: as it is asked, or of equal parts, of which the first have one more."""
    if "pp_split" in question:
        counts = question["pp_split"]
        return [sum(counts[:n]) for n in range(stages + 1)]
    return [sum(len(part) for part in torch.arange(parts).tensor_split(stages)[:n]) for n in range(stages + 1)]


class Cut(NamedTuple):
    """A stage: its module, what that reads of a micro-batch and what it makes."""

    module: Any
    reads: tuple[Tensor, ...]
    makes: tuple[Tensor, ...]


def of_transformer(
    question: dict[str, Any], spec: Any, mesh: DeviceMesh, prepared: Callable[[models.Transformer], None]
) -> list[Cut]:
    """Stages of a decoder or encoder with a plain start and end."""
    batch, stages = question["batch"], question["pp"] * question["vpp"]
    seq = question["seq"] // question.get("cp", 1)
    dtype = torch.float32 if question.get("precision", "fp32") == "fp32" else torch.bfloat16
    model = models.Transformer(spec, seq, question.get("kernel", "eager"), "gpu")
    prepared(model)
    own = seq // mesh["tp"].size() if question.get("sp") else seq
    wide = torch.zeros(batch, own, spec.width, dtype=dtype, requires_grad=True)
    y = torch.zeros(batch, seq, spec.vocab, dtype=dtype, requires_grad=True)
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    starts, cuts = starts_of(question, stages, spec.layers), []
    for n in range(stages):
        first, last = n == 0, n == stages - 1
        module = StageModule(model, range(starts[n], starts[n + 1]), first=first, last=last)
        cuts.append(Cut(module, (tokens if first else wide,), (y if last else wide,)))
    return cuts


def of_parts(question: dict[str, Any]) -> list[Cut]:
    """Stages of a model whose parts go one after the other."""
    stages = question["pp"] * question["vpp"]
    parts, reads = parts_of(question)
    starts, cuts = starts_of(question, stages, len(parts)), []
    for n in range(stages):
        module = Listed(*parts[starts[n] : starts[n + 1]])
        y = module(*reads)
        makes = y if isinstance(y, tuple) else (y,)
        cuts.append(Cut(module, reads, makes))
        reads = tuple(x.detach().requires_grad_(x.requires_grad) for x in makes)
    return cuts


def _loss(y: Tensor, targets: Tensor) -> Tensor:
    if y.dim() != 3:
        return F.cross_entropy(y, targets)
    return F.cross_entropy(y.view(-1, y.shape[-1]), targets.view(-1))


def cost(
    question: dict[str, Any],
    spec: Any,
    mesh: DeviceMesh,
    tracker_of: Callable[[list[Tensor]], Any],
    optimizer_of: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    counter: Any,
    prepared: Callable[[models.Transformer], None],
    sharded: Callable[[StageModule], None],
) -> StageCost:
    """Run two steps of one rank, of which the second is looked at: receive buffers are there by then."""
    name, pp, microbatches = question["schedule"], question["pp"], question["accumulate"]
    batch, stages = question["batch"], pp * question["vpp"]
    rank = dist.get_rank(mesh.get_group("pp"))
    numbers = generate_rank_to_stage_mapping(pp, stages, style="v" if name in V_SHAPED else "loop")[rank]
    cuts = of_parts(question) if "kind" in question else of_transformer(question, spec, mesh, prepared)
    y = cuts[-1].makes[0]
    rows = y.shape[:-1] if y.dim() == 3 else (y.shape[0], *y.shape[2:])
    targets = torch.zeros(microbatches * rows[0], *rows[1:], dtype=torch.int64)
    inputs = tuple(torch.zeros(microbatches * batch, *x.shape[1:], dtype=x.dtype) for x in cuts[0].reads)
    built: list[PipelineStage] = []
    modules: list[Any] = []
    for n in numbers:
        module, reads, makes = cuts[n]
        module.by_use = names_by_use(module, *(x.detach().float() if x.is_floating_point() else x for x in reads))
        sharded(module)
        modules.append(module)
        stage = PipelineStage(
            module,
            n,
            stages,
            y.device,
            input_args=tuple(_like(x) for x in reads),
            output_args=tuple(_like(x) for x in makes),
            group=mesh.get_group("pp"),
        )
        stage._inference_mode = InferenceMode.STATIC
        built.append(stage)
    of_rank: Any = built[0] if name in SINGLE else built
    schedule: Any = getattr(pipelining, CLASSES[name])(of_rank, microbatches, loss_fn=_loss)
    schedule._warmup_p2p = lambda *_: None
    messages: list[tuple[str, int]] = []
    weights = [weight for module in modules for weight in module.parameters()]
    optimizer = optimizer_of(weights or [nn.Parameter(torch.zeros(0))])

    def note(ops: list[Any], desc: str | None = None) -> list[Any]:
        messages.extend((op.op.__name__, op.tensor.nbytes) for op in ops)
        return []

    pipelining._batch_p2p = note
    inputs = inputs if 0 in numbers else ()
    named = {"target": targets} if stages - 1 in numbers else {}
    named["return_outputs"] = question.get("return_outputs", True)
    schedule.step(*inputs, **named)
    optimizer.step()
    optimizer.zero_grad()
    for stage in built:
        stage.clear_runtime_states()
    messages.clear()
    counter.mod_tracker = NoModules()  # whose hooks autograd refuses where only inputs get gradients
    with counter:
        schedule.step(*inputs, **named)
    optimizer.zero_grad()
    flops = counter.get_total_flops()
    states = [x for of_weight in optimizer.state.values() for x in of_weight.values() if isinstance(x, Tensor)]
    buffers = [info.buffer for stage in built for infos in (stage.args_recv_info, stage.grad_recv_info)
               for each in infos.values() for info in each if info.buffer is not None]  # fmt: skip
    given = [*weights, *(b for stage in built for b in stage.submod.buffers()), *states, *buffers]
    given += [*inputs, *([targets] if stages - 1 in numbers else [])]
    for stage in built:
        stage.clear_runtime_states()
    messages.clear()
    tracker = tracker_of(given)
    given.clear()  # buffers are dropped for what comes from a stage on the same rank
    buffers.clear()
    with tracker, tracker.resizing():
        for stage in built:
            _in_phases(stage, tracker)
        schedule.step(*inputs, **named)
        tracker.phase = "optimizer"
        optimizer.step()
    params = sum((x.to_local() if isinstance(x, DTensor) else x).numel() for x in weights)
    constants = sum(b.untyped_storage().nbytes() for stage in built for b in stage.submod.buffers())
    counters = sum(x.nbytes for x in states if not x.dim() and x.device.type == tracker.device)
    collectives = [(op, size, devices) for _, op, size, devices in tracker.collectives]
    return StageCost(params, constants, flops, messages, tracker.most, collectives, counters)


def _like(x: Tensor) -> Tensor:
    """As a stage is told of what it reads or makes."""
    return x.detach().requires_grad_(x.requires_grad)


def _in_phases(stage: Any, tracker: Any) -> None:
    """Let the tracker know what runs."""
    for phase, name in (
        ("forward", "forward_one_chunk"),
        ("backward", "backward_one_chunk"),
        ("backward", "backward_weight_one_chunk"),
    ):
        setattr(stage, name, _in_phase(phase, getattr(stage, name), tracker))


def _in_phase(phase: str, run: Callable[..., Any], tracker: Any) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        tracker.phase = phase
        return run(*args, **kwargs)

    return noted
