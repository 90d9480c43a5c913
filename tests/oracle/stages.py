"""One rank of a pipeline as ``torch.distributed.pipelining`` itself runs it, without the others: see `ranks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
from torch.utils.checkpoint import checkpoint

from . import models
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


class StageModule(nn.Module):
    """Some blocks of a model, with its start or its end."""

    def __init__(self, model: models.Transformer, blocks: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.by_use: list[str] = []
        self.start = nn.ModuleDict()
        if first:
            self.start["tokens"] = model.tokens
            if model.positions is not None:
                self.start["positions"] = model.positions
            self.start["dropout"] = model.dropout
        self.blocks = nn.ModuleList([model.blocks[n] for n in blocks])
        self.end = nn.ModuleList([x for x in (model.final_norm, model.head) if x is not None]) if last else None

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """In the order of their use, if that is known: gradients of weights apart are made in this order."""
        known = map(self.get_parameter, self.by_use)
        return known if recurse and self.by_use else super().parameters(recurse)

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


def names_by_use(module: nn.Module, x: Tensor) -> list[str]:
    """Names of weights in the order in which they are first used."""
    names = {weight: name for name, weight in module.named_parameters()}
    return [names[weight] for weight in weights_by_use(module, x)]


def blocks_of(stage: int, stages: int, layers: int) -> range:
    """Equal parts, of which the first have one more where they do not divide."""
    ends = [sum(len(part) for part in torch.arange(layers).tensor_split(stages)[:n]) for n in range(stages + 1)]
    return range(ends[stage], ends[stage + 1])


def _loss(y: Tensor, targets: Tensor) -> Tensor:
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
    batch, seq, stages = question["batch"], question["seq"], pp * question["vpp"]
    rank = dist.get_rank(mesh.get_group("pp"))
    numbers = generate_rank_to_stage_mapping(pp, stages, style="v" if name in V_SHAPED else "loop")[rank]
    dtype = torch.float32 if question.get("precision", "fp32") == "fp32" else torch.bfloat16
    model = models.Transformer(spec, seq, question.get("kernel", "eager"), "gpu")
    prepared(model)
    own = seq // mesh["tp"].size() if question.get("sp") else seq
    wide = torch.zeros(batch, own, spec.width, dtype=dtype)
    y = torch.zeros(batch, seq, spec.vocab, dtype=dtype)
    tokens = torch.zeros(microbatches * batch, seq, dtype=torch.int64)
    targets = torch.zeros(microbatches * batch, seq, dtype=torch.int64)
    built: list[PipelineStage] = []
    modules: list[StageModule] = []
    for n in numbers:
        first, last = n == 0, n == stages - 1
        module = StageModule(model, blocks_of(n, stages, spec.layers), first=first, last=last)
        module.by_use = names_by_use(module, tokens[:batch] if first else wide.float())
        for block in module.blocks if question.get("checkpoint") == "block" else ():
            block.forward = partial(checkpoint, block.forward, use_reentrant=True)
        sharded(module)
        modules.append(module)
        stage = PipelineStage(
            module,
            n,
            stages,
            wide.device,
            input_args=tokens[:batch] if first else wide.clone().requires_grad_(),
            output_args=(y if last else wide).clone().requires_grad_(),
            group=mesh.get_group("pp"),
        )
        stage._inference_mode = InferenceMode.STATIC
        built.append(stage)
    of_rank: Any = built[0] if name in SINGLE else built
    schedule: Any = getattr(pipelining, CLASSES[name])(of_rank, microbatches, loss_fn=_loss)
    schedule._warmup_p2p = lambda *_: None
    messages: list[tuple[str, int]] = []
    weights = [weight for module in modules for weight in module.parameters()]
    optimizer = optimizer_of(weights)

    def note(ops: list[Any], desc: str | None = None) -> list[Any]:
        messages.extend((op.op.__name__, op.tensor.untyped_storage().nbytes()) for op in ops)
        return []

    pipelining._batch_p2p = note
    inputs = (tokens,) if 0 in numbers else ()
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
    given += [tokens] * (0 in numbers) + [targets] * (stages - 1 in numbers)
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
