"""One rank of a layout as PyTorch itself runs it, without a cluster: a fake process group answers every collective.

``python -m tests.oracle.ranks`` reads a question as JSON from its input and writes what that rank costs; each rank is a
process of its own, as process groups are kept by name for as long as a process lives.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial, partialmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_param as sharded
import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._functional_collectives import (
    AsyncCollectiveTensor,
    all_to_all_single,
    all_to_all_single_autograd,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
)
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

import costmodel as cm

if TYPE_CHECKING:
    from .test_translator import Translator

from . import models
from .autocasting import GpuAutocast
from .chunked_loss import ChunkedLoss
from .measure import Saved, results_by_operator
from .settings import IN_TORCH
from .tracker import Most, Tracker, weights_by_use
from .vision import stub_operators


class RankCost(NamedTuple):
    """What one rank costs: parameters, FLOPs, bytes kept and of buffers, peaks.

    And each collective as (phase, op, bytes, devices).

    stays: bytes of its weights, gradients of earlier micro-batches, and states of the optimizer but for counters.
    counters: bytes of these where they are on its device, as most are without one that has data.
    """

    params: int
    forward_flops: int
    total_flops: int
    saved: int
    buffers: int
    collectives: list[tuple[str, str, int, int]]
    most: dict[str, Most]
    stays: tuple[int, ...] = (0, 0, 0)
    counters: int = 0


class LocalTracker(Tracker):
    """Follows what one rank has: the local parts of distributed tensors. Notes every collective on the way."""

    def __init__(self, given: list[Tensor], device: str) -> None:
        self._sizes: dict[int, int] = {}
        super().__init__([local(tensor) for tensor in given], device)
        self._weights = []
        self.collectives: list[tuple[str, str, int, int]] = []

    def _follow(self, tensor: Tensor) -> None:
        storage = local(tensor).untyped_storage()
        if tensor.device.type == self.device and storage._cdata not in self._alive:
            self._now += storage.nbytes()
            self._sizes[storage._cdata] = storage.nbytes()
            self._alive[storage._cdata] = weakref.finalize(storage, self._forget, storage._cdata, 0)

    def _forget(self, key: int, size: int) -> None:
        super()._forget(key, self._sizes.pop(key))

    def _pack(self, tensor: Tensor) -> Any:
        saved = super()._pack(local(tensor))
        saved.tensor = tensor.detach()
        return saved

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Follow storages that FSDP2 gives memory and takes it from, which no operator does."""

        def resized(tensor: Tensor, size: int) -> None:
            storage = tensor.untyped_storage()
            if storage.size() != size:
                storage.resize_(size)
                self._follow(tensor)
                self._now += size - self._sizes[storage._cdata]
                self._sizes[storage._cdata] = size

        outer = sharded.alloc_storage, sharded.free_storage
        sharded.alloc_storage = groups.alloc_storage = lambda x: resized(x, x.numel() * x.itemsize)
        sharded.free_storage = lambda tensor: resized(tensor, 0)
        try:
            yield
        finally:
            sharded.alloc_storage, sharded.free_storage = outer
            groups.alloc_storage = sharded.alloc_storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func in WAITS:
            waiting = func(*args, **(kwargs or {}))  # the same memory, though without data it has a storage of its own
            result = args[0].untyped_storage()
            if (end := self._alive.get(result._cdata)) is not None and result is not waiting.untyped_storage():
                end.detach()
                self._forget(result._cdata, result.nbytes())
            self._follow(waiting)
            return waiting
        if func is torch.ops.aten.empty_strided.default:
            return func(*args, **(kwargs or {}))  # of a whole tensor that DTensor asks for its layout
        if func is INDEX_PUT and not torch.is_grad_enabled() and args[0].untyped_storage()._cdata == self._zeros:
            func = torch.ops.aten.index_put_.default  # as backward of an index does it unless a mode looks on
        result = super().__torch_dispatch__(func, types, args, kwargs)
        namespace, op = func.name().split("::")
        if namespace in ("_c10d_functional", "c10d") and op in OPS:
            whole = {"input": args[0], "result": result, "second": args[1], "list": args[0][0]}[OPS[op]]
            if namespace == "_c10d_functional":
                group = dist.distributed_c10d._resolve_process_group(args[-1])
            else:
                group = dist.ProcessGroup.unbox(args[1 if OPS[op] == "list" else 2])
            self.collectives.append((self.phase, NAMES[op], whole.untyped_storage().nbytes(), group.size()))
        return result


INDEX_PUT = torch.ops.aten.index_put.default
WAITS = (
    torch.ops._c10d_functional._wrap_tensor_autograd.default,
    torch.ops._c10d_functional.wait_tensor.default,
)
"""What hands on the result of a collective, in the same memory."""

OPS = {
    "all_reduce": "input",
    "all_gather_into_tensor": "result",
    "reduce_scatter_tensor": "input",
    "all_to_all_single": "input",
    "_allgather_base_": "input",
    "_reduce_scatter_base_": "second",
    "allreduce_": "list",
    "broadcast_": "list",
}
"""Collectives, and which of its tensors is the whole."""

NAMES = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
}


def local(tensor: Tensor) -> Tensor:
    """The part of a distributed tensor that this rank has."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.wait() if isinstance(own, AsyncCollectiveTensor) else own


def _of_local_tensors(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """FLOPs of what runs here, not those of the whole that distributed tensors stand for."""
    if any(issubclass(kind, DTensor) for kind in types):
        return NotImplemented
    return _COUNTED(self, func, types, args, kwargs)


def _real_mesh(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
    """Ranks of a mesh are looked at, which fake tensors do not have."""
    with unset_fake_temporarily():
        _MADE(self, *args, **kwargs)


_MADE = DeviceMesh.__init__
_COUNTED = _FlopCounterMode.__torch_dispatch__


def tensor_plan(model: models.Transformer, *, sp: bool, split_loss: bool) -> dict[str, ParallelStyle]:
    """How tensor parallelism is mostly written for a decoder with ``parallelize_module``."""
    rows = Shard(1) if sp else Replicate()
    placed = model.positions is not None
    first = Replicate() if placed else rows  # positions are of all tokens
    plan: dict[str, ParallelStyle] = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=first)}
    plan |= plan_of_blocks(model, "", sp=sp)
    if sp:
        norms = {name: getattr(model, name) for name in ("embedding_norm", "final_norm")}
        plan |= {name: SequenceParallel(use_local_output=True) for name, norm in norms.items() if norm is not None}
    if model.head is None:
        return plan
    split = Shard(-1) if split_loss else Replicate()
    plan["head.linear"] = ColwiseParallel(input_layouts=rows, output_layouts=split, use_local_output=not split_loss)
    return plan


def plan_of_blocks(model: models.Body, prefix: str, *, sp: bool) -> dict[str, ParallelStyle]:
    """What of `tensor_plan` is of blocks, whose paths start so."""
    rows = Shard(1) if sp else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for n, block in enumerate(model.blocks):
        for name, module in block.named_modules():
            path = f"{prefix}blocks.{n}.{name}"
            if isinstance(module, NORMS) and name.startswith("attention.norms"):
                plan[path] = SequenceParallel(sequence_dim=2, use_local_output=True)  # each rank's heads
            elif isinstance(module, (*NORMS, models.LayerScale)) and sp and not name.startswith("attention."):
                plan[path] = SequenceParallel(use_local_output=True)
            elif isinstance(module, nn.Linear) and not name.endswith(WHOLE):
                into = name.endswith(("output", "down"))
                plan[path] = RowwiseParallel(output_layouts=rows) if into else ColwiseParallel()
            elif isinstance(module, models.Relative):
                plan[f"{path}.biases"] = ColwiseParallel(output_layouts=Shard(-1))
        if sp:
            gathered = PrepareModuleInput(input_layouts=(rows, None), desired_input_layouts=(Replicate(), None))
            plan[f"{prefix}blocks.{n}.attention"] = gathered
            plan[f"{prefix}blocks.{n}.mlp"] = PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate())
    if getattr(model, "relative", None) is not None:
        plan[f"{prefix}relative.biases"] = ColwiseParallel(output_layouts=Shard(-1))
    return plan


NORMS = nn.LayerNorm, models.RMSNorm
WHOLE = "router", "shared_gate", "latent.down", "latent.query_down"
"""Linear layers that every rank has whole."""


def split_by_heads(model: models.Transformer, mesh: DeviceMesh, *, sp: bool, split_loss: bool) -> None:
    """Shard a model over the mesh; its attention sees the heads of this rank."""
    split_heads(model, mesh)
    if sp and model.positions is not None:
        after = "dropout" if model.embedding_norm is None else "embedding_norm"
        whole = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True)
        parallelize_module(model, mesh, {after: whole})
    parallelize_module(model, mesh, tensor_plan(model, sp=sp, split_loss=split_loss))
    if model.spec.tied and model.head is not None:
        model.head.linear.weight = model.tokens.weight


def split_heads(model: models.Body, mesh: DeviceMesh) -> None:
    """Let each attention see the heads of this rank."""
    for block in model.blocks:
        for attention in (block.attention, block.crossing):
            if attention is not None:
                _split_attention(attention, mesh)
        experts = getattr(block.mlp, "experts", None) if block.beside else block.mlp
        if isinstance(experts, models.Experts):
            split_experts(experts, mesh)


def _split_attention(attention: models.Attention, mesh: DeviceMesh) -> None:
    degree = mesh.size()
    heads = attention.spec.heads // degree
    attention.kv_heads //= degree
    attention.widths = [width // degree for width in attention.widths]
    kv = None if attention.spec.latent is not None else attention.kv_heads
    attention.spec = attention.spec.with_fields({"heads": heads, "kv_heads": kv, "head_size": attention.size})
    attention.alibi = attention.alibi[:heads].clone()
    if attention.spec.latent is not None:
        attention.latent.heads = heads
        attention.latent.of_all_heads = Read(mesh)
    if attention.sink is not None:
        attention.sink = models.Sink(heads)


def split_sides(model: Translator, mesh: DeviceMesh, *, split_loss: bool) -> None:
    """Shard an encoder and a decoder over the mesh, with their table or tables."""
    table = RowwiseParallel(input_layouts=Replicate())
    plan: dict[str, ParallelStyle] = {"tokens": table} | ({} if model.targets is model.tokens else {"targets": table})
    for side in ("encoder", "decoder"):
        split_heads(getattr(model, side), mesh)
        plan |= plan_of_blocks(getattr(model, side), f"{side}.", sp=False)
    split = Shard(-1) if split_loss else Replicate()
    plan["head.linear"] = ColwiseParallel(output_layouts=split, use_local_output=not split_loss)
    parallelize_module(model, mesh, plan)
    if model.spec.tied:
        model.head.linear.weight = model.targets.weight


class Read(nn.Module):
    """What all ranks have, read by what is split: its gradients are summed."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x: Tensor) -> Tensor:
        whole = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return whole.to_local(grad_placements=[Partial()])


def split_experts(experts: models.Experts, mesh: DeviceMesh) -> None:
    """Each rank has a share of every expert's hidden features, and the router whole."""
    for part in (experts.gate, experts.up, experts.down):
        if part is not None:
            axis = 2 if part is experts.down else 1
            part.weight = nn.Parameter(part.weight.chunk(mesh.size(), axis)[0].contiguous())
    read = Read(mesh)

    def summed(whole: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        made = DTensor.from_local(whole(read(x), read(weights), chosen), mesh, [Partial()], run_check=False)
        return made.redistribute(placements=[Replicate()]).to_local()

    experts.of_shares = partial(partial, summed)
    experts.applied = experts.of_shares(experts.applied)


def _norm_of_squares(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
    """The GPU's kernel of what a rank has, which does not tell DTensor how it is split."""
    y, inverse = models.fused_rms_norm(local(x), None if weight is None else local(weight))
    ctx.save_for_backward(x, weight, inverse)
    return DTensor.from_local(y, x.device_mesh, x.placements, run_check=False) if isinstance(x, DTensor) else y


def _norm_of_squares_backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
    """As DTensor has it for that kernel: what a rank's tokens say of a weight is to be summed over all ranks."""
    x, weight, _ = ctx.saved_tensors
    if not ctx.needs_input_grad[1]:
        return torch.empty_like(x), None
    if not isinstance(weight, DTensor):
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)
    own = torch.empty_like(weight.to_local())
    return torch.empty_like(x), DTensor.from_local(own, weight.device_mesh, (Partial(),), run_check=False)


def over_contexts(model: models.Transformer, mesh: DeviceMesh, kind: str, *, balanced: bool) -> None:
    """Each rank has a part of every sequence; its attention sees the others' as `context_parallel` has them do."""
    for block in model.blocks:
        attention = block.attention
        if kind == "ulysses":
            attention.fused = partial(by_heads, attention.fused, mesh)
            attention.composed = partial(by_heads, attention.composed, mesh)
            seq = attention.mask.shape[0] * mesh.size()
            attention.mask = attention.mask.new_zeros(seq, seq)
        else:
            attention.fused = partial(around_ring, attention.fused, mesh)
    context_parallel._cp_options.enable_load_balance = balanced
    if kind != "ulysses":
        context_parallel.set_rotate_method({"all-gather": "allgather", "ring": "alltoall"}[kind])
        context_parallel._enable_cp_dtensor_dispatcher()


def _hide_propagation() -> None:
    propagated = ShardingPropagator._propagate_tensor_meta_non_cached
    ShardingPropagator._propagate_tensor_meta_non_cached = partialmethod(_unseen, propagated)


def _unseen(self: ShardingPropagator, propagated: Any, schema: Any) -> Any:
    """Whole tensors that DTensor makes without data to learn of their shapes are no rank's."""
    with _disable_current_modes():
        return propagated(self, schema)


def around_ring(fused: Any, mesh: DeviceMesh, *qkv: Tensor | None) -> Tensor:
    """As `context_parallel` calls attention: with tensors split by tokens."""
    split = (None if x is None else DTensor.from_local(x, mesh, [Shard(2)], run_check=False) for x in qkv)
    return fused(*split).to_local()


def by_heads(mixed: Any, mesh: DeviceMesh, *qkv: Tensor | None) -> Tensor:
    """DeepSpeed-Ulysses: all tokens of some heads in attention, some tokens of all heads outside of it."""
    n = mesh.size()

    def to_heads(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        b, h, t, d = x.shape
        sent = x.transpose(1, 2).reshape(b, t, n, h // n, d).permute(2, 0, 1, 3, 4).contiguous()
        come = all_to_all_single_autograd(sent, None, None, mesh)
        return come.permute(1, 0, 2, 3, 4).reshape(b, n * t, h // n, d).transpose(1, 2)

    y = mixed(*map(to_heads, qkv))
    b, h, t, d = y.shape
    sent = y.transpose(1, 2).reshape(b, n, t // n, h, d).transpose(0, 1).contiguous()
    come = all_to_all_single_autograd(sent, None, None, mesh)
    return come.permute(1, 2, 0, 3, 4).reshape(b, t // n, n * h, d).transpose(1, 2)


class GroupedExperts(models.ExpertLinear):
    """All experts at once, each with as many rows, as a kernel has them that makes each gradient in one piece."""

    busy: int

    @classmethod
    def like(cls, whole: models.ExpertLinear, ranks: int = 1, busy: int | None = None) -> GroupedExperts:
        """A rank's share of experts, of which so many of all ranks have rows."""
        n, features, n_in = whole.weight.shape
        own = cls(n // ranks, n_in, features, bias=whole.bias is not None)
        own.busy = min(n // ranks, n if busy is None else busy)
        for name, weight in list(own.named_parameters()):
            trained = whole.weight.requires_grad
            setattr(own, name, nn.Parameter(weight.detach().to(whole.weight.dtype), trained))
        return own

    def forward(self, x: Tensor) -> Tensor:
        return GroupedProduct.apply(x, self.weight, self.bias, self.busy)


class GroupedProduct(torch.autograd.Function):
    """x Wᵀ + b of each expert's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, busy: int) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.biased, ctx.busy = bias is not None, busy
        rows, met = x.view(busy, -1, x.shape[-1]), weight[:busy].mT
        made = torch.bmm(rows, met) if bias is None else torch.baddbmm(bias[:, None], rows, met)
        return made.view(len(x), -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = g.reshape(ctx.busy, -1, g.shape[-1])
        into = torch.bmm(rows, weight[: ctx.busy]).view(-1, weight.shape[-1])
        if not ctx.needs_input_grad[1]:
            return into, None, None, None
        of_weight = torch.empty_like(weight)
        torch.bmm(rows.mT, x.view(ctx.busy, -1, x.shape[-1]), out=of_weight[: ctx.busy])
        return into, of_weight, rows.sum(1) if ctx.biased else None, None


class SentExperts(nn.Module):
    """Some of the experts: their tokens come from all ranks, evenly, are sorted by expert, and are sent back."""

    def __init__(self, experts: models.Experts, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh, self.spec, self.act, self.dropout = mesh, experts.spec, experts.act, experts.dropout
        count, uneven = experts.spec.experts.count, not experts.spec.experts.capacity_factor
        self.busy = math.ceil(count / experts.spec.experts.imbalance) if uneven else count
        for name in ("gate", "up", "down"):
            whole = getattr(experts, name)
            setattr(self, name, None if whole is None else GroupedExperts.like(whole, mesh.size(), self.busy))
            delattr(experts, name)

    @classmethod
    def instead(cls, experts: models.Experts, mesh: DeviceMesh) -> SentExperts:
        """Let a rank have some of these; the router stays whole."""
        experts.sent_experts = cls(experts, mesh)
        for name in ("gate", "up", "down"):  # under which names weights are known
            object.__setattr__(experts, name, getattr(experts.sent_experts, name))
        applied = partial(cls.applied, experts)
        experts.applied = experts.of_shares(applied) if hasattr(experts, "of_shares") else applied
        return experts.sent_experts

    def applied(self: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Of all experts."""
        b, t, d = x.shape
        out = self.sent_experts(x.view(-1, d)[self.sent(chosen.flatten(), b * t)[0]])
        out = out[self.sent(chosen.flatten(), b * t)[1]]
        k = self.experts.per_token
        return (out.view(-1, k, d) * weights.view(-1, k, 1)).sum(1).view(x.shape)

    def forward(self, rows: Tensor) -> Tensor:
        n = self.mesh.size()
        if not self.spec.experts.capacity_factor:
            with torch.no_grad():
                counts = torch.zeros(self.spec.experts.count, dtype=torch.int64)
                all_to_all_single(counts, None, None, self.mesh)
                del counts
        each, own = len(rows) // self.busy, len(self.up.weight)
        sent = [each * max(0, min(own, self.busy - rank * own)) for rank in range(n)]
        come = [sent[0]] * n  # to the first rank, which has most
        order = torch.arange(sum(come)).view(n, self.up.busy, -1).transpose(0, 1).flatten()
        met = all_to_all_single_autograd(rows, come, sent, self.mesh)[order]
        out = self.down(self.dropout(models.hidden_of(self, met)))[order.argsort()]
        return all_to_all_single_autograd(out, sent, come, self.mesh)


def cost(question: dict[str, Any]) -> RankCost:
    """Run one training step of one rank, after one that warms up PyTorch's caches of how operators are sharded."""
    if "network" in question and "tp" not in question:
        return network_cost(question)
    spec: Any = cm.Transformer.of(question["model"]) if "model" in question else None
    tp, fsdp, cp, dp = (question.get(name, 1) for name in ("tp", "fsdp", "cp", "dp"))
    split_loss = question.get("loss_parallel", False)
    if "pp" in question:
        return _stage_cost(question, spec)
    world, rank = dp * fsdp * cp * tp, question.get("rank", 0)
    if question.get("real", False):
        _join_real_group(world)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (dp, fsdp, cp, tp), mesh_dim_names=("dp", "fsdp", "cp", "tp"))
    _FlopCounterMode.__torch_dispatch__ = _of_local_tensors
    models.FusedRMS.forward = staticmethod(_norm_of_squares)
    models.FusedRMS.backward = staticmethod(_norm_of_squares_backward)
    DeviceMesh.__init__ = _real_mesh
    _hide_propagation()
    if question.get("real", False):
        torch.manual_seed(0)
        return _cost(question, spec, mesh, "cpu", split_loss=split_loss)
    # A resized storage needs a device that has memory, and so does not exist without data.
    with FakeTensorMode(allow_non_fake_inputs=True) if fsdp * cp > 1 else torch.device("meta"):
        if "network" in question:
            return _of_split_network(question, mesh)
        if "module" in question:
            return _of_module(question, mesh)
        if "translator" in question:
            return _of_translator(question, mesh, split_loss=split_loss)
        return _cost(question, spec, mesh, "cpu" if fsdp * cp > 1 else "meta", split_loss=split_loss)


def _join_real_group(world: int) -> None:
    """Be one of as many processes that hand each other what they have, with ``gloo``; the first one answers."""
    folder = tempfile.mkdtemp()
    rank = next((rank for rank in range(1, world) if os.fork() == 0), 0)
    if rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def _stage_cost(question: dict[str, Any], spec: Any) -> Any:
    from . import stages

    pp, dp, fsdp, cp, tp = (question.get(name, 1) for name in ("pp", "dp", "fsdp", "cp", "tp"))
    ranks, shards = dp * fsdp * cp * tp, fsdp * cp
    own = question["rank"] * ranks + question.get("within", 0)
    dist.init_process_group("fake", store=FakeStore(), rank=own, world_size=pp * ranks)
    mesh = init_device_mesh("cpu", (pp, dp, fsdp, cp, tp), mesh_dim_names=("pp", "dp", "fsdp", "cp", "tp"))
    if cp > 1:
        propagated = ShardingPropagator._propagate_tensor_meta_non_cached
        ShardingPropagator._propagate_tensor_meta_non_cached = partialmethod(_unseen, propagated)
    _FlopCounterMode.__torch_dispatch__ = _of_local_tensors
    DeviceMesh.__init__ = _real_mesh
    _hide_propagation()
    models.FusedRMS.forward = staticmethod(_norm_of_squares)
    models.FusedRMS.backward = staticmethod(_norm_of_squares_backward)
    device = "cpu" if shards > 1 else "meta"

    def prepared(model: models.Transformer) -> None:
        if shards > 1:
            _group_experts(model)
        _halve_buffers(question, model)
        if cp > 1:
            over_contexts(model, mesh["cp"], question["cp_kind"], balanced=question["cp_balanced"])
        if tp > 1:
            split_by_heads(model, mesh["tp"], sp=question.get("sp", False), split_loss=False)
        for part, name in _recomputed(question, model):
            setattr(part, name, partial(checkpoint, getattr(part, name), use_reentrant=True))

    def sharded(module: Any) -> None:
        if shards > 1:
            _shard(question, module, *_meshes_of_shards(mesh, question.get("ep", 1)))

    with FakeTensorMode(allow_non_fake_inputs=True) if shards > 1 else torch.device("meta"):
        return stages.cost(
            question,
            spec,
            mesh,
            lambda given: LocalTracker(given, device),
            lambda weights: _optimizer(question, weights),
            FlopCounterMode(display=False),
            prepared,
            sharded,
        )


def _handed_on(sizes: list[int], bucket: Tensor) -> Any:
    """What stands for the sum of a bucket over all ranks: itself. Its size is noted."""
    sizes.append(bucket.numel())
    done: Any = torch.futures.Future()
    done.set_result(bucket)
    return done


def buckets(question: dict[str, Any]) -> list[int]:
    """Elements of each bucket that DistributedDataParallel hands on in its third step, on real tensors."""
    model = models.Transformer(cm.Transformer.of(question["model"]), question["seq"], "eager", "gpu")
    _freeze(question, model)
    _join_real_group(1)
    copies, sizes = DistributedDataParallel(model), list[int]()
    copies.register_comm_hook(None, lambda _, bucket: _handed_on(sizes, bucket.buffer()))
    tokens = torch.zeros(question["batch"], question["seq"], dtype=torch.int64)
    for _ in range(3):
        sizes.clear()
        with _autocast(question):
            loss = F.cross_entropy(copies(tokens), tokens.flatten())
        loss.backward()
    return sizes


def _freeze(question: dict[str, Any], model: models.Transformer) -> None:
    if (lora := question.get("lora")) is not None:
        adapt(model, lora["rank"], lora["targets"])
    for name, weight in model.named_parameters():
        weight.requires_grad &= not any(part in name for part in question.get("freeze", ()))


def _autocast(question: dict[str, Any]) -> AbstractContextManager[Any]:
    dtype = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(question.get("precision", "fp32"))
    return nullcontext() if dtype is None else GpuAutocast(dtype)


def _optimizer(question: dict[str, Any], weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    for path, module in sys.modules.items():
        if path.startswith("torch.optim.") and hasattr(module, "_get_value"):
            vars(module)["_get_value"] = lambda x: 1.0 if isinstance(x, Tensor) else x
    way = {"foreach": question.get("update") == "foreach"} | (
        {"fused": True} if question.get("update") == "fused" else {}
    )
    name, options = IN_TORCH[question.get("optimizer", "sgd")]
    kind = getattr(torch.optim, name)
    if question.get("zero") == 1:
        return ZeroRedundancyOptimizer(weights, kind, lr=0.1, **options, **way)
    return kind(weights, lr=0.1, **options, **way)


POLICIES = {
    "bf16-master": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    "bf16-master-fp32-gradients": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
"""What FSDP2 has for our precisions whose optimizer has copies of its own; the shards are these copies."""


def _halve_buffers(question: dict[str, Any], model: nn.Module) -> None:
    """Let constants be in the type that weights are gathered in."""
    for module in model.modules() if question.get("precision", "fp32") in POLICIES else ():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(torch.bfloat16))


def _shard(question: dict[str, Any], model: Any, over: DeviceMesh, experts: DeviceMesh | None = None) -> None:
    """Split weights over the ranks of a mesh, each block as a unit, and over copies of the model if it has two axes.

    experts: ranks that have a share of each expert, and ranks that each have some of them.
    """
    how: dict[str, Any] = {"mesh": over}
    if (policy := POLICIES.get(question.get("precision", "fp32"))) is not None:
        how["mp_policy"] = policy
    if not question.get("reshard", True):
        how["reshard_after_forward"] = False
    wrap = question.get("wrap", ["block"])
    listed = getattr(model, "blocks", None)
    for block in [m for m in model.modules() if isinstance(m, models.Block)] if listed is None else listed:
        if experts is not None and isinstance(block.mlp, models.Experts):
            few = {"shard_placement_fn": lambda _: Shard(1)} if over.shape[-1] > block.mlp.experts.count else {}
            mesh = experts["dp", "share"] if experts.shape[-4] > 1 else experts["share"]
            fully_shard(SentExperts.instead(block.mlp, experts["ep"]), **{**how, "mesh": mesh, **few})
        for part in [part for part in ("attention", "mlp") if part in wrap]:
            fully_shard(getattr(block, part), **how)
        if "block" in wrap:
            fully_shard(block, **how)
    for part in [part for part in ("tokens", "head") if part in wrap]:
        fully_shard(getattr(model, part), **how)
    fully_shard(model, **how)


def _group_experts(model: nn.Module) -> None:
    """Let experts be one grouped product."""
    for experts in model.modules():
        for name, part in list(experts.named_children()) if isinstance(experts, models.Experts) else ():
            if isinstance(part, models.ExpertLinear):
                setattr(experts, name, GroupedExperts.like(part))


def _meshes_of_shards(mesh: DeviceMesh, ep: int) -> tuple[DeviceMesh, DeviceMesh | None]:
    """Ranks that weights are split over, with copies of the model if there are any; those that experts are."""
    *pp, dp, fsdp, cp, tp = mesh.shape
    shards, stages = fsdp * cp, ["pp"] * len(pp)
    with unset_fake_temporarily():
        names = (*stages, "dp", "share", "ep", "tp")
        split = init_device_mesh("cpu", (*pp, dp, shards // ep, ep, tp), mesh_dim_names=names)
        over = init_device_mesh("cpu", (*pp, dp, shards, tp), mesh_dim_names=(*stages, "dp", "shards", "tp"))
        _ = split["ep"], split["share"]
    return over["dp", "shards"] if dp > 1 else over["shards"], split if ep > 1 else None


def _cost(question: dict[str, Any], spec: Any, mesh: DeviceMesh, device: str, *, split_loss: bool) -> RankCost:
    batch, cp = question["batch"], question.get("cp", 1)
    seq = question["seq"] // cp
    torch.set_default_dtype(torch.bfloat16 if question.get("precision", "fp32") == "bf16" else torch.float32)
    model = models.Transformer(spec, seq, question.get("kernel", "eager"), "gpu")
    if question.get("fsdp", 1) * cp > 1:
        _group_experts(model)
    _freeze(question, model)
    torch.set_default_dtype(torch.float32)
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    others = [torch.zeros(batch, seq, dtype=torch.int64)] if spec.segments else []
    others += [torch.zeros(batch, seq, 4, dtype=torch.int64)] if spec.boxes else []
    rows = batch * seq if spec.head else models.summary_of(spec, batch, seq)[0][0]
    targets = torch.zeros(rows, dtype=torch.int64)
    casting = partial(_autocast, question)
    _halve_buffers(question, model)
    names = {weight: name for name, weight in model.named_parameters()}
    by_use = [names[weight] for weight in weights_by_use(model, tokens, *others)]
    _, fsdp, _, tp = mesh.shape
    for block in model.blocks if question.get("checkpoint") == "operators" else ():
        again = partial(_again_later, block.forward, casting)
        block.forward = partial(_by_operator, again)
    if tp > 1:
        split_by_heads(model, mesh["tp"], sp=question.get("sp", False), split_loss=split_loss)
    if cp > 1:
        over_contexts(model, mesh["cp"], question["cp_kind"], balanced=question["cp_balanced"])
    for part, name in _recomputed(question, model):
        setattr(part, name, partial(checkpoint, partial(_again, getattr(part, name), casting), use_reentrant=True))
    if fsdp * cp > 1:
        _shard(question, model, *_meshes_of_shards(mesh, question.get("ep", 1)))
    elif (ep := question.get("ep", 1)) > 1:
        to = init_device_mesh("cpu", (mesh.shape[0] // ep, ep, tp), mesh_dim_names=("dp", "ep", "tp"))["ep"]
        for block in model.blocks:
            if isinstance(block.mlp, models.Experts):
                SentExperts.instead(block.mlp, to)

    def around() -> AbstractContextManager[Any]:
        return loss_parallel() if split_loss else nullcontext()

    if (chunks := question.get("loss_chunks", 1)) > 1:
        model.head.linear.forward = partial(_chunked_loss, model.head.linear, targets, chunks)

    def taken() -> Tensor:
        with casting():
            y = model(tokens, *others)
            if chunks > 1:
                return y.view(())
            y = y.float() if question.get("loss_precision") == "fp32" else y
            return F.cross_entropy(y, targets, label_smoothing=question.get("label_smoothing", 0.0))

    if question.get("mode") == "inference":
        return _of_inference(model, tokens, device, casting)

    return _of_steps(question, model, by_use, taken, [tokens, *others, targets], device, around)


def _of_module(question: dict[str, Any], mesh: DeviceMesh) -> RankCost:
    """A module of one's own, split by a plan of names; its loss is the mean of what it makes, or of its tokens."""
    from . import plans

    module, x = plans.module_of(question)
    names = {weight: name for name, weight in module.named_parameters()}
    by_use = [names[weight] for weight in weights_by_use(module, x)]
    rows = x.shape if x.dtype == torch.int64 else x.shape[:-1]
    targets = torch.zeros(rows.numel(), dtype=torch.int64)
    plans.split_by_plan(module, mesh["tp"], question["plan"])
    listed = [part for part in module.modules() if isinstance(part, nn.ModuleList)] if "wrap" in question else []
    device = _over_ranks(question, module, [block for part in listed for block in part], mesh)

    def loss() -> Tensor:
        y = module(x)
        return F.cross_entropy(y.view(-1, y.shape[-1]), targets)

    return _of_steps(question, module, by_use, loss, [x, targets], device, nullcontext)


def _of_translator(question: dict[str, Any], mesh: DeviceMesh, *, split_loss: bool) -> RankCost:
    """An encoder-decoder."""
    from .test_translator import Translator

    spec = cm.EncoderDecoder(**question["translator"])
    batch, seq, target = question["batch"], question["seq"], question["target_seq"]
    torch.set_default_dtype(torch.bfloat16 if question.get("precision") == "bf16" else torch.float32)
    model = Translator(spec, seq, target, "eager", "gpu")
    torch.set_default_dtype(torch.float32)
    _halve_buffers(question, model)
    casting = partial(_autocast, question)
    heard = spec.sound is not None
    sound = torch.zeros(batch, spec.value("sound.mel_bins") or 1, 2 * (spec.value("sound.places") or 1))
    source = sound if heard else torch.zeros(batch, seq, dtype=torch.int64)
    tokens = torch.zeros(batch, target, dtype=torch.int64)
    targets = torch.zeros(batch * target, dtype=torch.int64)
    names = {weight: name for name, weight in model.named_parameters()}
    by_use = [names[weight] for weight in weights_by_use(model, source, tokens)]
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    for block in blocks if question.get("checkpoint") == "block" else ():
        block.forward = partial(checkpoint, partial(_again, block.forward, casting), use_reentrant=True)
    if mesh["tp"].size() > 1:
        split_sides(model, mesh["tp"], split_loss=split_loss)
    device = _over_ranks(question, model, blocks, mesh)

    def around() -> AbstractContextManager[Any]:
        return loss_parallel() if split_loss else nullcontext()

    def loss() -> Tensor:
        with casting():
            return F.cross_entropy(model(source, tokens), targets)

    return _of_steps(question, model, by_use, loss, [source, tokens, targets], device, around)


def _of_steps(
    question: dict[str, Any],
    model: nn.Module,
    by_use: list[str],
    loss_of_batch: Callable[[], Tensor],
    inputs: list[Tensor],
    device: str,
    around: Callable[[], AbstractContextManager[Any]],
) -> RankCost:
    """Training steps: one that warms up, one that says what is kept, one of FLOPs, and one that is followed.

    by_use: weights in the order in which forward reads them.
    """
    trained = [weight for weight in map(model.get_parameter, by_use) if weight.requires_grad]
    optimizer = _optimizer(question, trained)
    with around():
        loss_of_batch().backward()
    optimizer.step()
    optimizer.zero_grad()
    weights = list(model.parameters())
    states = [
        x
        for of_weight in getattr(optimizer, "optim", optimizer).state.values()
        for x in of_weight.values()
        if isinstance(x, Tensor)
    ]
    given = [*inputs, *weights, *model.buffers(), *states]
    saved = None
    if question.get("fsdp", 1) == 1:
        with around(), LocalSaved([local(x) for x in given]) as saved:
            loss_of_batch().backward()
        model.zero_grad()
    with around(), FlopCounterMode(display=False) as counter:
        loss = loss_of_batch()
        forward = counter.get_total_flops()
        loss.backward()
    model.zero_grad()
    del loss
    earlier: list[Tensor] = []
    if question.get("accumulate", 1) > 1:
        with around():
            loss_of_batch().backward()
        earlier = [weight.grad for weight in weights if weight.grad is not None]
    with around(), LocalTracker([*given, *earlier], device) as tracker, tracker.resizing():
        loss = loss_of_batch()
        tracker.phase = "backward"
        loss.backward()
        tracker.phase = "optimizer"
        optimizer.step()
    params = sum(local(weight).numel() for weight in weights)
    kept = 0 if saved is None else saved.bytes
    buffers = sum(buffer.untyped_storage().nbytes() for buffer in model.buffers())
    counters = sum(x.nbytes for x in states if not x.dim() and x.device.type == device)
    stays = tuple(_distinct(tensors) for tensors in (weights, earlier, states))
    return RankCost(
        params,
        forward,
        counter.get_total_flops(),
        kept,
        buffers,
        tracker.collectives,
        tracker.most,
        stays,
        counters,
    )


def _by_operator(again: Callable[[], Any], *inputs: Any) -> Any:
    """One run of a block of which results of some operators stay."""
    return checkpoint(again(), *inputs, use_reentrant=False, context_fn=results_by_operator)


def _again_later(body: Any, casting: Callable[[], AbstractContextManager[Any]]) -> Any:
    """A block whose second run is one in backward, which may end before its end."""
    runs: list[None] = []

    def run(*inputs: Any) -> Any:
        runs.append(None)
        if len(runs) == 1:
            return body(*inputs)
        tracker = next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Tracker)), None)
        phase = getattr(tracker, "phase", None)
        if tracker is not None:
            tracker.phase = "recompute"
        try:
            with casting():
                return body(*inputs)
        finally:
            if tracker is not None:
                tracker.phase = phase

    return run


def _again(body: Any, casting: Callable[[], AbstractContextManager[Any]], *inputs: Any) -> Any:
    """What is run again in backward is a phase of its own, and under autocast again, with new copies of weights."""
    if not torch.is_grad_enabled():
        return body(*inputs)
    tracker = _get_current_dispatch_mode()
    phase = getattr(tracker, "phase", None)
    if isinstance(tracker, Tracker):
        tracker.phase = "recompute"
    with casting():
        y = body(*inputs)
    if isinstance(tracker, Tracker):
        tracker.phase = phase
    return y


def _chunked_loss(head: nn.Linear, targets: Tensor, chunks: int, x: Tensor) -> Tensor:
    """The loss of what a head would make."""
    rows = x.reshape(-1, x.shape[-1])
    return ChunkedLoss.apply(rows, targets, head.weight, head.bias, chunks, torch.is_grad_enabled()).view(1, 1)


def _recomputed(question: dict[str, Any], model: models.Transformer) -> Iterator[tuple[nn.Module, str]]:
    """What is run again in backward: modules, and the names of their functions."""
    chosen = question.get("checkpoint", "none")
    for block in model.blocks if chosen not in ("none", "operators") else ():
        if chosen == "block":
            yield block, "forward"
        elif chosen == "selective":
            yield block.attention, "composed"
            yield block.attention, "fused"
        else:  # with what is before and after it, as ``CheckpointWrapper`` has it
            yield from ((getattr(block, part), "_call_impl") for part in chosen)


def adapt(model: models.Transformer, rank: int, targets: Iterable[str]) -> None:
    """Let all be frozen but adapters of these linear layers."""
    model.requires_grad_(False)
    for block in model.blocks:
        for target in targets:
            owner, name = (block.attention, "output") if "." in target else (block.mlp, target)
            linear = getattr(owner, name)
            setattr(owner, name, models.Adapted(linear, rank, None))


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Listed(nn.Module):
    """Blocks in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 5)
        self.layers = nn.ModuleList(Block() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def _over_ranks(question: dict[str, Any], model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh) -> str:
    """Split weights over ranks of fsdp, if there are several; returns the device that this takes."""
    if question.get("fsdp", 1) == 1:
        return "meta"
    how: dict[str, Any] = {"mesh": mesh["dp", "fsdp"] if question.get("dp", 1) > 1 else mesh["fsdp"]}
    if (policy := POLICIES.get(question.get("precision", "fp32"))) is not None:
        how["mp_policy"] = policy
    if not question.get("reshard", True):
        how["reshard_after_forward"] = False
    for module in (*blocks, model):
        fully_shard(module, **how)
    return "cpu"


def _of_split_network(question: dict[str, Any], mesh: DeviceMesh) -> RankCost:
    """An MLP whose layers are split by outputs and by inputs in turn, or a vision transformer whose blocks are."""
    kind, fields = question["network"]
    spec: Any = getattr(cm, kind)(**fields)
    if kind == "MLP":
        model: Any = models.MLP(spec, "gpu")
        linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        ways = zip(linears[: len(linears) // 2 * 2], itertools.cycle([ColwiseParallel, RowwiseParallel]), strict=False)
        plan: dict[str, ParallelStyle] = {name: way() for name, way in ways}
        x = torch.zeros(question["batch"], spec.sizes[0])
    else:
        from .test_vision_transformer import ViT

        model = ViT(spec, "eager", "gpu")
        plan = plan_of_blocks(model, "", sp=False)
        x = torch.zeros(question["batch"], *spec.input)
    names = {weight: name for name, weight in model.named_parameters()}
    by_use = [names[weight] for weight in weights_by_use(model, x)]
    if kind != "MLP":
        split_heads(model, mesh["tp"])
    parallelize_module(model, mesh["tp"], plan)
    device = _over_ranks(question, model, () if kind == "MLP" else model.blocks, mesh)
    targets = torch.zeros(question["batch"], dtype=torch.int64)
    return _of_steps(
        question, model, by_use, lambda: F.cross_entropy(model(x), targets), [x, targets], device, nullcontext
    )


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A network of images or of features, with data, and the shape of one sample."""
    if name == "listed":
        return Listed(), (4,)
    spec: Any = cm.load(name)
    if isinstance(spec, cm.MLP):
        return models.MLP(spec, "gpu"), (spec.sizes[0],)
    module = getattr(stub_operators(), name)()
    for part in module.modules():
        if isinstance(part, nn.ReLU | nn.ReLU6 | nn.Dropout):
            part.inplace = False
    return module, spec.input


def network_cost(question: dict[str, Any]) -> RankCost:
    """A step of one rank of a network whose weights are split, with units by the class of their modules."""
    ranks, batch = question["fsdp"], question["batch"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    DeviceMesh.__init__ = _real_mesh
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, shape = network(question["network"])
        x, targets = torch.zeros(batch, *shape), torch.zeros(batch, dtype=torch.int64)
        names = {weight: name for name, weight in model.named_parameters()}
        by_use = [names[weight] for weight in weights_by_use(model, x)]
        for module in [module for module in model.modules() if type(module).__name__ in question["units"]]:
            fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = _optimizer(question, [model.get_parameter(name) for name in by_use])
        F.cross_entropy(model(x), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        states = [t for each in optimizer.state.values() for t in each.values() if isinstance(t, Tensor)]
        weights, buffers = list(model.parameters()), list(model.buffers())
        with LocalTracker([x, targets, *weights, *buffers, *states], "cpu") as tracker, tracker.resizing():
            loss = F.cross_entropy(model(x), targets)
            tracker.phase = "backward"
            loss.backward()
            tracker.phase = "optimizer"
            optimizer.step()
    counters = sum(t.nbytes for t in states if not t.dim())
    stays = (_distinct(weights), 0, _distinct(states))
    extra = sum(buffer.nbytes for buffer in buffers)
    return RankCost(0, 0, 0, 0, extra, tracker.collectives, tracker.most, stays, counters)


def _distinct(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors, but for counters."""
    storages = [local(tensor).untyped_storage() for tensor in tensors if tensor.dim()]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _of_inference(
    model: models.Transformer, tokens: Tensor, device: str, around: Callable[[], AbstractContextManager[Any]]
) -> RankCost:
    """A forward pass that keeps nothing."""
    shares = list(model.parameters())
    with torch.no_grad():
        with around():
            model(tokens)
        with FlopCounterMode(display=False) as counter, around():
            model(tokens)
        given = [tokens, *shares, *model.parameters(), *model.buffers()]
        with LocalTracker(given, device) as tracker, tracker.resizing(), around():
            result = model(tokens)
    del result
    params = sum(local(weight).numel() for weight in shares)
    buffers = sum(buffer.untyped_storage().nbytes() for buffer in model.buffers())
    forward = counter.get_total_flops()
    return RankCost(params, forward, forward, 0, buffers, tracker.collectives, tracker.most)


class LocalSaved(Saved):
    """What autograd saves of what this rank has."""

    def _pack(self, tensor: Tensor) -> Any:
        packed = super()._pack(local(tensor))
        packed.tensor = tensor.detach()
        return packed


@cache
def _server() -> subprocess.Popen[str]:
    """A process that has imported everything, and forks for each question."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.oracle.ranks"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(question: dict[str, Any]) -> RankCost:
    """The cost of one rank, worked out in a process of its own."""
    answer = answer_to(question)
    answer["collectives"] = [tuple(each) for each in answer["collectives"]]
    answer["stays"] = tuple(answer["stays"])
    return RankCost(**answer)


def answer_to(question: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own says of one rank."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(question) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    if isinstance(answer, str):
        raise RuntimeError(answer)
    answer["most"] = {phase: Most(*most) for phase, most in answer.get("most", {}).items()}
    return answer


def _answer(line: str) -> None:
    try:
        question = json.loads(line)
        answer: Any = {"buckets": buckets(question)} if "buckets" in question else cost(question)._asdict()
    except Exception:
        answer = traceback.format_exc()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _answer(line)
            os._exit(0)
        os.waitpid(child, 0)
