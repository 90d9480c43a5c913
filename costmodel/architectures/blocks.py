"""A transformer's blocks: attention and MLP, with norms around them, added up one after the other or at once.

Blocks need not be alike: each stretch of equal ones is traced once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from costmodel.architectures.attention import Attention, AttentionContext, AttentionSetting
from costmodel.architectures.feedforward import dropped, feed_forward, normed, scaled
from costmodel.architectures.kv_cache import States
from costmodel.architectures.moe import routed, with_experts
from costmodel.architectures.ranks import of_own_tokens
from costmodel.architectures.spec import TransformerSpec
from costmodel.architectures.stages import own_parts
from costmodel.architectures.variants import Variant
from costmodel.graph.recomputation import GROUP
from costmodel.graph.tape import Shared, Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add, LayerScale, Multiply
from costmodel.symbolic.sizes import SymInt, exact_div

if TYPE_CHECKING:
    from costmodel.architectures.altup import Streams

Sublayers = dict[str, Callable[[Tensor], Tensor]]


def body(
    model: TransformerSpec,
    tape: Tape,
    x: Tensor,
    setting: AttentionSetting,
    memory: Tensor | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    """(batch, T, width) → (batch, T, width): all blocks, and the norm and dropout after them.

    memory: (batch, T', width), what an encoder made, to which every block then attends too. tokens: (batch, T), of
    which x was made.
    """
    x = _blocks(model, tape, x, setting, memory, tokens)
    if not tape.layout.last:
        return x
    if model.norm_placement != "post" if model.final_norm is None else model.final_norm:
        x = normed(model, x, "final_norm")
    return dropped(x, model.final_dropout, "final_dropout")


def _blocks(
    model: TransformerSpec,
    tape: Tape,
    x: Tensor,
    setting: AttentionSetting,
    memory: Tensor | None,
    tokens: Tensor | None,
) -> Tensor:
    context = AttentionContext(model, tape, x, setting)
    mixers = {variant: _mixer(model, context, variant) for variant in dict.fromkeys(model.pattern)}
    crossing = {} if memory is None else {"cross_attention": Attention(model, context, memory=memory)}

    shared = Shared(tape) if model.shared_blocks else None

    def block(variant: Variant, x: Tensor) -> Tensor:
        if shared is None:
            return applied(variant, x)
        with tape.sharing(shared):
            return applied(variant, x)

    def applied(variant: Variant, x: Tensor) -> Tensor:
        sublayers: Sublayers = {**mixers[variant], **crossing}
        if variant.feeds:
            fed = partial(feed_forward, model, hidden=variant.hidden or None, sparse=variant.sparse)
            sublayers["mlp"] = partial(routed, model) if variant.routed and not beside else fed
        if streams is not None:
            return streams.block(x, sublayers["attention"], sublayers["mlp"])
        if model.parallel:
            return _parallel(model, x, sublayers)
        x = _sequential(
            model, x, sublayers, normed_first=variant.normed, beside=beside and variant.routed and variant.feeds
        )
        if vectors is not None and model.layer_inputs is not None:
            with tape.scope("token"):
                added = gated_vector(model, x, vectors, model.layer_inputs.width)
            x = Add()(x, added, name="add_token")
        if not model.block_scale:
            return x
        return Multiply()(x, tape.buffer((1,), "activation", tape.within("block_scale")), name="scale_block")

    beside = model.experts is not None and model.experts.beside
    stack = stack_of(model, tape, block)
    vectors = None
    if model.layer_inputs is not None and tokens is not None:
        from costmodel.architectures.layer_inputs import gated_vector, vectors_for_blocks

        inputs, layers = model.layer_inputs, stack.counted(tape)
        vocab = model.vocab if inputs.vocab is None else inputs.vocab
        vectors = vectors_for_blocks(model, tokens, x, layers, inputs.width, vocab)
    streams = None if model.altup is None or tokens is None else _streams(model, tokens, x, stack.counted(tape))
    return stack(tape, x) if streams is None else streams.merged(stack(tape, streams.spread(x)))


def _streams(model: TransformerSpec, tokens: Tensor, x: Tensor, layers: int) -> Streams:
    """What several residual streams share; what is not used is not loaded."""
    from costmodel.architectures.altup import Streams

    return Streams(model, tokens, x, layers)


def _mixer(model: TransformerSpec, context: AttentionContext, variant: Variant) -> Sublayers:
    """The sublayer of a block that mixes tokens, if it has one: attention, something in its place, or both at once."""
    attention = Attention(model, context, variant) if variant.attends else None
    if not variant.mixes:
        return {} if attention is None else {"attention": attention}
    other = _other_mixer(model, States(context.cache))
    if attention is None:
        return {model.mixer_name: other}
    return {"mixers": lambda x: Add()(other(x), attention(x), name="add_mixers")}


def _other_mixer(model: TransformerSpec, states: States) -> Callable[[Tensor], Tensor]:
    """What mixes tokens beside attention; what is not used is not loaded."""
    if model.state_space is not None:
        from costmodel.architectures.state_space import state_space

        return partial(state_space, model.state_space, states)
    if model.gated_delta is not None:
        from costmodel.architectures.gated_delta import gated_delta

        return partial(gated_delta, model.gated_delta, states)
    from costmodel.architectures.short_convolution import short_convolution

    assert model.short_convolution is not None
    return partial(short_convolution, model.short_convolution, states)


def _parallel(model: TransformerSpec, x: Tensor, sublayers: Sublayers) -> Tensor:
    inner = normed(model, x, "norm")
    mixed = _output(model, sublayers["attention"](inner), "attention")
    fed = _output(model, sublayers["mlp"](inner if model.shared_norm else normed(model, x, "mlp_norm")), "mlp")
    return Add()(Add()(x, mixed, name="add_attention"), fed, name="add_mlp")


def _sequential(
    model: TransformerSpec, x: Tensor, sublayers: Sublayers, *, normed_first: bool, beside: bool = False
) -> Tensor:
    place = model.norm_placement
    for name, sublayer in sublayers.items():
        before = place in ("pre", "both") and (normed_first or name != "attention")
        inner = normed(model, x, f"{name}_norm") if before else x
        y = sublayer(inner)
        if beside and name == "mlp":
            y = with_experts(model, x, y)
        if place in ("output", "both"):
            y = normed(model, y, f"{name}_output_norm")
        x = Add()(x, _output(model, y, name), name=f"add_{name}")
        if place == "post":
            x = normed(model, x, f"{name}_norm")
    return x


def _output(model: TransformerSpec, x: Tensor, sublayer: str) -> Tensor:
    own = model.mixed_dropout if sublayer not in ("mlp", "cross_attention") else None
    dropout = model.residual_dropout if own is None else own
    x = scaled(dropped(x, dropout, f"{sublayer}_dropout"), model.residual_scale, f"{sublayer}_scale")
    if not model.layer_scale:
        return x
    rows = x.view((x.rows, x.shape[-1]))
    return of_own_tokens(LayerScale()(rows, name=f"{sublayer}_layer_scale")).view(x.shape)


def stack_of(model: TransformerSpec, tape: Tape, block: Body) -> BlockStack:
    """All blocks of a model, or those of the stage that is traced."""
    if tape.layout.stage is None:
        return BlockStack(model.pattern, model.layers, block)
    own = own_parts(tape.layout, model)
    return BlockStack(stage_pattern(model, own), len(own), block)


def stage_pattern(model: TransformerSpec, own: range) -> list[Variant]:
    """The variants of a stage's first blocks, which those after them repeat, see `TransformerSpec.pattern`."""
    pattern = model.pattern
    turns = own.start % len(pattern)
    return [*pattern[turns:], *pattern[:turns]][: len(own)]


def block_kinds(model: TransformerSpec) -> dict[str, int]:
    """How many blocks there are of each kind, by what all that they call is named by; nothing if kinds share a name."""
    kinds, layers = dict.fromkeys(model.pattern), int(model.layers)
    if len(kinds) == 1:
        return {"block.": layers}
    stack = BlockStack(model.pattern, layers, lambda _, x: x)
    counts = Counter(f"block.{stack.name(model.pattern[n % len(model.pattern)])}." for n in range(layers))
    return dict(counts) if len(counts) == len(kinds) else {}


WORDS = {
    "windowed": ("global", "local"),
    "rotated": ("unrotated", "rotated"),
    "routed": ("dense", "routed"),
    "attends": ("", "attention"),
    "mixes": ("", "recurrent"),
    "feeds": ("", "mlp"),
    "sparse": ("", "sparse"),
    "normed": ("first", "later"),
    "lends": ("", "lending"),
    "borrows": ("", "borrowing"),
}
"""What a block is called, by the value of the field in which blocks differ."""


Group = tuple[Variant, ...]
Body = Callable[[Variant, Tensor], Tensor]


class BlockStack:
    """`layers` blocks whose variants follow a pattern that starts anew at its end."""

    def __init__(self, pattern: Sequence[Variant], layers: int, body: Body) -> None:
        self.pattern = tuple(pattern)
        self.layers = layers
        self.body = body

    def __call__(self, tape: Tape, x: Tensor) -> Tensor:
        """Apply all blocks to `x`; what is recomputed in groups of blocks is so whatever their variants."""
        if len(set(self.pattern)) == 1:
            return tape.repeat(self.layers, lambda x: self.body(self.pattern[0], x), x, "block", units=True)
        groups, period, rounds = self._rounds(tape)
        if rounds > 1:
            body = partial(self._groups, tape, groups[:period])
            x = tape.repeat(rounds, body, x, "block", grouped=False, listed=True)
            groups = groups[len(groups) // period * period :]
        with tape.scope("block", listed=True):
            return self._groups(tape, groups, x)

    def counted(self, tape: Tape) -> int:
        """How many blocks there are, as a number without a formula where they are not rounds of equal ones.

        The cost of blocks that are listed has no formula in their number: what else is of that many has none either,
        or a derivative would be of a part of the cost.
        """
        rounds = self.layers if len(set(self.pattern)) == 1 else self._rounds(tape)[2]
        return self.layers if isinstance(rounds, SymInt) else int(self.layers)

    def _rounds(self, tape: Tape) -> tuple[list[Group], int, int]:
        """Blocks by group, how many groups are a period, and how often that is whole."""
        plan = tape.recomputation
        size = plan.group(self.layers) if plan.every is not None and not plan.open else 1
        variants = [self.pattern[n % len(self.pattern)] for n in range(int(self.layers))]
        groups = [tuple(variants[start : start + size]) for start in range(0, len(variants), size)]
        period = period_of(groups)
        times, rest = divmod(len(groups), period)
        even = times > 1 and not rest and size * len(groups) == self.layers
        return groups, period, exact_div(self.layers, period * size) if even else times

    def _groups(self, tape: Tape, groups: Sequence[Group], x: Tensor) -> Tensor:
        for group, alike in groupby(groups):
            name = self.name(group[0]) if len(group) == 1 else GROUP
            x = _applied(tape, lambda x, group=group: self._group(tape, group, x), x, len(list(alike)), name)
        return x

    def _group(self, tape: Tape, group: Group, x: Tensor) -> Tensor:
        body = partial(self._blocks, tape, group)
        if tape.recomputation.every is not None:
            body = partial(tape.again, body)
        return tape.in_unit(body, x) if len(group) == 1 else body(x)

    def _blocks(self, tape: Tape, group: Group, x: Tensor) -> Tensor:
        if len(group) == 1:
            return self.body(group[0], x)
        for variant, alike in groupby(group):
            each = partial(tape.in_unit, partial(self.body, variant))
            x = _applied(tape, each, x, len(list(alike)), self.name(variant))
        return x

    def name(self, variant: Variant) -> str:
        """The fields in which blocks differ, as one word."""
        differing = [field for field in Variant._fields if len({getattr(v, field) for v in self.pattern}) > 1]
        words = [WORDS[field][getattr(variant, field)] for field in differing if field != "hidden"]
        if "hidden" in differing:
            words.append(f"{variant.hidden}_wide")
        return "_".join(word for word in words if word) or "plain"


def period_of(groups: Sequence[Group]) -> int:
    """The fewest items of which a sequence is rounds, the last perhaps not whole.

    What is left of its length without the longest start that is an end of it too (Knuth, Morris and Pratt 1977, §2).
    """
    borders = [0] * len(groups)
    for number in range(1, len(groups)):
        border = borders[number - 1]
        while border and groups[number] != groups[border]:
            border = borders[border - 1]
        borders[number] = border + (groups[number] == groups[border])
    return len(groups) - borders[-1]


def _applied(tape: Tape, body: Callable[[Tensor], Tensor], x: Tensor, times: int, name: str) -> Tensor:
    if times > 1:
        return tape.repeat(times, body, x, name, grouped=False)
    with tape.scope(name):
        return body(x)
