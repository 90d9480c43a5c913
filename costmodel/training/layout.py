"""How a model is laid out over devices: the degree of each axis, and whose conventions a rank follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from costmodel.errors import SettingError, shown
from costmodel.training.schedule import Schedule, ScheduleName
from costmodel.training.schedules import ELSEWHERE, SCHEDULES

Runtime = Literal["torch", "megatron", "deepspeed"]
RUNTIME_SCHEDULES: dict[Runtime, tuple[ScheduleName, ...]] = {
    "torch": get_args(ScheduleName),
    "megatron": ("1f1b", "interleaved-1f1b"),
    "deepspeed": ("1f1b",),
}
"""Orders of a pipeline's micro-batches that a runtime has.

Source: ``torch.distributed.pipelining.schedules``; Megatron-Core, pipeline_parallel/schedules.py
(``get_forward_backward_func``); DeepSpeed, runtime/pipe/schedule.py (``TrainSchedule``).
"""
ContextKind = Literal["all-gather", "ring", "ulysses"]
Plan = tuple[tuple[str, str], ...]
"""Which layers of a module ranks of tp split: (name of modules, style), ``*`` standing for any part of a name."""

VOCAB_MULTIPLE = 128
"""Megatron's vocabulary is filled up to a multiple of this for each rank of tp (``--make-vocab-size-divisible-by``)."""

STYLES = {
    "colwise": "by outputs",
    "rowwise": "by inputs, whose results are summed over ranks",
    "colwise_gather_output": "by outputs, which all ranks then have",
    "colwise_rep": "the same",
    "packed_colwise": "by outputs that are several in one, such as query, key and value",
    "rowwise_split_input": "by inputs, which all ranks have before",
    "rowwise_rep": "the same",
    "embedding_rowwise": "a table by its rows",
    "embedding_colwise": "a table by features, which all ranks then have",
    "replicated_with_grad_allreduce": "not, but its gradients are summed over ranks",
    "replicate": "not",
}
"""What a plan may do with a layer: names of the package ``transformers`` for styles of ``parallelize_module``."""

_MOST_PATTERNS, _LONGEST_PATTERN = 1_000, 200


def plan_of(name: str, value: Any) -> Plan:
    """A plan that is written as a mapping, or as pairs. Raises SettingError."""
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise SettingError(f"{name}={shown(value)} is not 'auto' or styles by name such as {{'*.q_proj': 'colwise'}}")
    if len(pairs) > _MOST_PATTERNS:
        raise SettingError(f"{name} has {len(pairs):,} names: use * for parts of names, and at most {_MOST_PATTERNS:,}")
    for module, style in pairs:
        if not isinstance(module, str) or not 0 < len(module) <= _LONGEST_PATTERN:
            raise SettingError(f"{name} names {shown(module)}, which is no name of a module such as '*.q_proj'")
        if not isinstance(style, str) or len(style) > _LONGEST_PATTERN:
            raise SettingError(f"{name} has {shown(style)} for {module}, which is no style such as 'colwise'")
    return tuple((module, style) for module, style in pairs)


DEGREES = ("tp", "cp", "ep", "fsdp")
"""Settings that are a number of ranks along one axis, each a letter of formulas by the same name."""
OF_DEVICES = (*DEGREES, "dp", "pp", "devices")
"""Settings by which there are more or fewer devices."""


class Layout(NamedTuple):
    """The axes of a mesh of devices, and what is done along each.

    tp: ranks that split each layer's weights. sp: whether activations between those layers are split by tokens over the
    same ranks. split_loss: whether logits stay split by vocabulary and the loss is taken of them so. fsdp: ranks that
    weights, gradients and optimizer states are split over, each with samples of its own. dp: groups of these that each
    have all weights. pp: ranks that have a part of the blocks each, in `vpp` stages, through which micro-batches go in
    the order of `schedule`. split: how many layers each stage has, or the first of each but the first; nothing: equal
    parts. stage: the one stage that is meant; None: all. runtime: whose collectives, buffers and
    copies they are. zero: what is split of that which groups have alike: 0 nothing, 1 optimizer states, 2 gradients
    too, 3 weights too. reshard: whether gathered weights are dropped between forward and backward. wrap: parts whose
    weights are gathered together, beside all that is in none of them. bucket_view: whether gradients are views of the
    buckets they are sent in. cp: ranks that have a part of each sequence, whose attention sees the others' as `cp_kind`
    says. cp_balanced: whether that part is one of the sequence's first half and one of its second, so that masks
    leave each as much to do. ep: ranks, of those that weights are split over, that each have some of the experts,
    whose tokens are sent to them. etp: ranks that split each expert; None: those of tp. plan: which layers of a
    module of `from_torch` ranks of tp split; nothing: those that its own plan has.
    """

    tp: int = 1
    sp: bool = False
    split_loss: bool = False
    fsdp: int = 1
    dp: int = 1
    pp: int = 1
    vpp: int = 1
    split: tuple[int | str, ...] = ()
    schedule: ScheduleName = "1f1b"
    stage: int | None = None
    runtime: Runtime = "torch"
    zero: int = 0
    reshard: bool = True
    bucket_view: bool = False
    cp: int = 1
    cp_kind: ContextKind = "all-gather"
    cp_balanced: bool = True
    ep: int = 1
    etp: int | None = None
    wrap: tuple[str, ...] = ("block",)
    plan: Plan = ()

    @property
    def single(self) -> bool:
        """Whether the one device has the model as PyTorch does."""
        return self.devices == 1 and self.runtime == "torch"

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.tp * self.cp * self.samplers * self.pp

    @property
    def share(self) -> float:
        """What one device does of the work on its samplers' batches."""
        return self.samplers / self.devices

    @property
    def shards(self) -> int:
        """Ranks that weights, gradients and optimizer states are split over: those of one sequence among them.

        PyTorch's trainers split weights over these without `fsdp` too (torchtitan's mesh ``fsdp``, of dp_shard · cp).
        """
        sharded = self.cp > 1 or self.fsdp > 1 or self.zero == 3
        return self.cp * self.fsdp if sharded and self.runtime == "torch" else 1

    @property
    def heads(self) -> int:
        """Ranks that each attend with some of the heads."""
        return self.tp * self.cp if self.cp_kind == "ulysses" else self.tp

    @property
    def expert_tp(self) -> int:
        """Ranks that split each expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def samplers(self) -> int:
        """Ranks, or groups of them that share samples, which have samples of their own."""
        return self.fsdp * self.dp

    def sharded(self) -> Layout:
        """The same as PyTorch does it, which splits gradients (zero 2) and weights (3) by FSDP alone.

        Source: ``torch.distributed.fsdp.ShardingStrategy``: SHARD_GRAD_OP is ZeRO-2, which is FSDP2 with
        ``reshard_after_forward=False``; FULL_SHARD is ZeRO-3.
        """
        if self.runtime != "torch" or self.zero < 2:
            return self
        return self._replace(fsdp=self.dp, dp=1, reshard=self.zero == 3, zero=3 if self.dp == 1 else 0)

    @property
    def megatron(self) -> bool:
        """Whether layers are Megatron's, as those are that DeepSpeed trains over several ranks of tp."""
        return self.runtime == "megatron" or (self.runtime == "deepspeed" and self.tp > 1)

    @property
    def hands_on_parts(self) -> bool:
        """Whether each rank of tp hands its own part of a tensor to the next stage, whose ranks gather it.

        Source: DeepSpeed, ``runtime/pipe/engine.py`` (``is_pipe_partitioned``, ``is_grad_partitioned``).
        """
        return self.runtime == "deepspeed" and self.tp > 1

    @property
    def stages(self) -> int:
        """Stages that the model is cut into."""
        return self.pp * self.vpp

    @property
    def first(self) -> bool:
        """Whether the model's start is here."""
        return self.stage is None or self.stage == 0

    @property
    def last(self) -> bool:
        """Whether the model's end is here."""
        return self.stage is None or self.stage == self.stages - 1

    def pipeline(self, microbatches: int) -> Schedule:
        """The order of a step over so many micro-batches. Raises SettingError."""
        kind = SCHEDULES[self.schedule] if self.runtime == "torch" else ELSEWHERE[self.schedule]
        return kind(self.pp, self.vpp, microbatches)


def multiples_near(size: int, unit: int) -> str:
    """The multiples of a number next to a size, for errors."""
    below = size // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"
