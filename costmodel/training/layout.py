"""How a model is laid out over devices: the degree of each axis, and whose conventions a rank follows."""

from __future__ import annotations

from typing import Literal, NamedTuple

from costmodel.training.schedules import SCHEDULES, Schedule, ScheduleName

Runtime = Literal["torch", "megatron", "deepspeed"]
ContextKind = Literal["all-gather", "ring", "ulysses"]

VOCAB_MULTIPLE = 128
"""Megatron's vocabulary is filled up to a multiple of this for each rank of tp (``--make-vocab-size-divisible-by``)."""

DEGREES = ("tp", "cp", "ep", "fsdp")
"""Settings that are a number of ranks along one axis, each a letter of formulas by the same name."""


class Layout(NamedTuple):
    """The axes of a mesh of devices, and what is done along each.

    tp: ranks that split each layer's weights. sp: whether activations between those layers are split by tokens over the
    same ranks. split_loss: whether logits stay split by vocabulary and the loss is taken of them so. fsdp: ranks that
    weights, gradients and optimizer states are split over, each with samples of its own. dp: groups of these that each
    have all weights. pp: ranks that have a part of the blocks each, in `vpp` stages, through which micro-batches go in
    the order of `schedule`. stage: the one stage that is meant; None: all. runtime: whose collectives, buffers and
    copies they are. zero: what is split of that which groups have alike: 0 nothing, 1 optimizer states, 2 gradients
    too, 3 weights too. reshard: whether gathered weights are dropped between forward and backward. wrap: parts whose
    weights are gathered together, beside all that is in none of them. bucket_view: whether gradients are views of the
    buckets they are sent in. cp: ranks that have a part of each sequence, whose attention sees the others' as `cp_kind`
    says. cp_balanced: whether that part is one of the sequence's first half and one of its second, so that masks leave
    each as much to do. ep: ranks, of those that weights are split over, that each have some of the experts, whose
    tokens are sent to them.
    """

    tp: int = 1
    sp: bool = False
    split_loss: bool = False
    fsdp: int = 1
    dp: int = 1
    pp: int = 1
    vpp: int = 1
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
    wrap: tuple[str, ...] = ("block",)

    @property
    def single(self) -> bool:
        """Whether the one device has the model as PyTorch does."""
        return self.devices == 1 and self.runtime == "torch"

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.tp * self.cp * self.samplers * self.pp

    @property
    def shards(self) -> int:
        """Ranks that weights, gradients and optimizer states are split over: those of one sequence among them."""
        return self.cp * self.fsdp if self.fsdp > 1 or self.zero == 3 else 1

    @property
    def heads(self) -> int:
        """Ranks that each attend with some of the heads."""
        return self.tp * self.cp if self.cp_kind == "ulysses" else self.tp

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
        return SCHEDULES[self.schedule](self.pp, self.vpp, microbatches)


def multiples_near(size: int, unit: int) -> str:
    """The multiples of a number next to a size, for errors."""
    below = size // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"
