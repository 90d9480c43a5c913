"""Selective state spaces (Gu & Dao 2023, Mamba; Dao & Gu 2024, Mamba 2), as they are composed of operators.

Mamba 2 goes through a sequence in c chunks of Q tokens, with h heads of p features and a state of n numbers for each:
within a chunk by products of Q × Q, from chunk to chunk by the states that each leaves (Dao & Gu 2024, §6). The
composition is that of ``torch_forward`` in `transformers`, operator by operator, so that FLOPs and what is kept for
backward are its own: 2bcQ²hn + 2bcQ²hp + 2·2bcQhnp + 2bh(c + 1)²pn for b sequences, of which the last rounds up to
whole chunks. The state space is computed in fp32 there and in the type of the rest here. Mamba goes from token to
token, and its state space is one layer (`SelectiveScan`).

Decoding keeps the inputs of the convolution's last tokens, and the state, in fp32. One more token moves the state on by
products of numbers, without a scan (``selective_state_update``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from costmodel.architectures.activations import activation
from costmodel.architectures.composition import typed
from costmodel.architectures.kv_cache import States
from costmodel.architectures.mixers import StateSpace
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor, strides_of
from costmodel.layers.activation import Silu
from costmodel.layers.arithmetic import Add, Clamp, Multiply, Subtract
from costmodel.layers.attention import Mask
from costmodel.layers.conv import Convolve
from costmodel.layers.function import Pointwise
from costmodel.layers.indexing import Computed, Parameter
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.norm import Rmsnorm
from costmodel.layers.reduction import Cumulate
from costmodel.layers.resize import PadTo
from costmodel.layers.scan import SelectiveScan
from costmodel.layers.shape import AsStrided, Cat, Copy, Join, Slice, TransposeLast, reshape
from costmodel.symbolic.sizes import ceil_div, exact_div, product
from costmodel.training.dtypes import Dtype

STATE: Dtype = "fp32"
"""The type that decoding keeps a state in, whatever is computed in: errors of every step add up in it."""


def state_space(spec: StateSpace, states: States, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width)."""
    with x.tape.scope("state_space"):
        return (_mamba2 if spec.kind == "mamba2" else _mamba)(spec, states, x)


def causal(x: Tensor, size: int, states: States, *, bias: bool) -> Tensor:
    """(batch, channels, T) → the same: each channel by itself over the `size` last tokens, padded on both sides.

    Decoding keeps as many tokens, and pads a first pass of fewer; one more token is not padded, and two places are made
    for it (``causal_conv1d_update`` of transformers).
    """
    b, channels, t = x.shape
    weight, kept = (channels, 1, size), (b, channels, size)
    if states.cache is None:
        states.note(x.tape, kept, "convolution_state", x.dtype)
        wide = Convolve((b, channels, t + size - 1), weight, bias, channels)(x, name="convolution")
        return Slice(t, alone=True)(wide, name="causal")
    earlier = states.earlier(x.tape, kept, "convolution_state", x.dtype)
    if earlier is not None:
        x = Join()(earlier, x, name="join_tokens")
    elif t < size:
        x = PadTo(kept)(x, name="pad_tokens")
    seen = x.shape[2]
    states.keep(Slice(size, seen - size)(x, name="last_tokens"), earlier, "convolution_state", x.dtype)
    places, end = (seen - size + 1, 2) if states.steps(t) else (seen + size - 1, seen)
    wide = Convolve((b, channels, places), weight, bias, channels)(x, name="convolution")
    return Slice(t, end - t, alone=True)(wide, name="causal")


def _mamba2(spec: StateSpace, states: States, x: Tensor) -> Tensor:
    b, t, d = x.shape
    inner, h, g, n = spec.width, spec.heads, spec.grouped, spec.state
    mixed = inner + 2 * g * n
    joint = Linear(inner + mixed + h, bias=spec.bias)(x, name="in")
    gate = Slice(inner)(joint, name="gate")
    steps = Slice(h, inner + mixed)(joint, name="steps")
    y = TransposeLast()(Slice(mixed, inner)(joint, name="mixed"))
    y = activation(spec.activation)(causal(y, spec.convolution, states, bias=spec.convolution_bias))
    y = TransposeLast()(y, name="tokens")
    values = reshape(Slice(inner)(y, name="values"), (b, t, h, spec.head_features))
    writes, reads = (
        reshape(Slice(g * n, start)(y, name=name), (b, t, g, n))
        for name, start in (("writes", inner), ("reads", inner + g * n))
    )
    with x.tape.part("core"):
        y = (_step if states.steps(t) else _scan)(spec, states, values, steps, writes, reads)
    y = _gated(spec, reshape(y, (b, t, inner)), gate)
    return Linear(d, bias=spec.bias if spec.output_bias is None else spec.output_bias)(y, name="out")


def _mamba(spec: StateSpace, states: States, x: Tensor) -> Tensor:
    b, t, d = x.shape
    inner, n, rank = spec.width, spec.state, spec.ranked
    joint = TransposeLast()(Linear(2 * inner, bias=spec.bias)(x, name="in"))
    y, gate = (Slice(inner, start, axis=1)(joint, name=name) for name, start in (("values", 0), ("gate", inner)))
    y = activation(spec.activation)(causal(y, spec.convolution, states, bias=spec.convolution_bias))
    tokens = TransposeLast()(y, name="tokens")
    selection = Linear(rank + 2 * n, bias=False)(tokens, name="selection")
    parts = {"steps": (rank, 0), "writes": (n, rank), "reads": (n, rank + n)}
    steps, writes, reads = (
        inner_norm(spec, Slice(size, start)(selection, name=name), name) for name, (size, start) in parts.items()
    )
    rates = parameter(x.tape, "decay_log", inner, n)
    rates = Pointwise("neg")(Pointwise("exp")(rates, name="decay"), name="rates")
    steps = Linear(inner, bias=False)(steps, name="step")
    steps = Copy((b, inner, t))(steps.permute((0, 2, 1)), name="steps_by_feature")
    with x.tape.part("core"):
        selected = Selected(y, gate, rates, steps, writes, reads)
        y = (_select if states.steps(t) else _scan_selected)(spec, states, selected)
    return Linear(d, bias=spec.bias if spec.output_bias is None else spec.output_bias)(y, name="out")


class Selected(NamedTuple):
    """Values, gates and time steps (b, width, T), rates (width, n), and what writes and reads states (b, T, n)."""

    values: Tensor
    gate: Tensor
    rates: Tensor
    steps: Tensor
    writes: Tensor
    reads: Tensor


def _scan_selected(spec: StateSpace, states: States, selected: Selected) -> Tensor:
    """(b, T, width)."""
    y, gate, rates, steps, writes, reads = selected
    (b, inner, t), n, tape = y.shape, spec.state, y.tape
    shape = (b, inner, n)
    first = states.earlier(tape, shape, "state", STATE)
    steps = Add()(steps, parameter(tape, "step_bias", inner).unsqueeze(-1), name="add_step_bias")
    steps = Pointwise("softplus")(steps, name="softplus").unsqueeze(-1)
    decay = Multiply()(rates.view((1, inner, 1, n), (inner * n, n, n, 1)), steps, name="decays")
    decay = Pointwise("exp")(decay, name="decayed")
    written = Multiply()(steps, writes.unsqueeze(1), name="stepped_writes")
    written = Multiply()(written, y.unsqueeze(-1), name="written")
    begins = () if first is None else (typed(first, decay.dtype, "first_state"),)
    if states.cache is None:
        states.note(tape, shape, "state", STATE)
        scanned = SelectiveScan()(decay, written, reads)
    else:
        whole = SelectiveScan(keeps=True)(decay, written, reads, *begins)
        states.keep(Slice(n, t)(whole, name="last_state"), first, "state", STATE)
        scanned = Slice(t)(whole, name="scanned")
    skipped = Multiply()(y, parameter(tape, "skip", inner).unsqueeze(-1), name="skipped")
    y = Add()(scanned, skipped, name="add_skipped")
    return TransposeLast()(Multiply()(y, Silu()(gate), name="gated"), name="gated_tokens")


def _select(spec: StateSpace, states: States, selected: Selected) -> Tensor:
    """As `_scan_selected`, of one token after others."""
    y, gate, rates, steps, writes, reads = selected
    (b, inner, _), n, tape = y.shape, spec.state, y.tape
    y, gate, steps = (x.squeeze(2) for x in (y, gate, steps))
    writes, reads = (x.squeeze(1) for x in (writes, reads))
    state = states.earlier(tape, (b, inner, n), "state", STATE)
    assert state is not None
    steps = Add()(steps, parameter(tape, "step_bias", inner), name="add_step_bias")
    steps = Pointwise("softplus")(steps, name="softplus").unsqueeze(-1)
    decay = Pointwise("exp")(Multiply()(steps, rates, name="decays"), name="decayed")
    written = Multiply()(steps, writes.view((b, 1, n)), name="stepped_writes")
    written = Multiply()(written, y.unsqueeze(-1), name="written")
    moved = Add()(Multiply()(state, decay, name="kept_state"), written, name="moved_state")
    states.keep(moved, state, "state", STATE)
    read = Matmul()(typed(moved, reads.dtype, "read_state"), reads.unsqueeze(-1), name="read").view((b, inner))
    y = Add()(read, Multiply()(y, parameter(tape, "skip", inner), name="skipped"), name="add_skipped")
    return Multiply()(y, Silu()(gate), name="gated").view((b, 1, inner))


def inner_norm(spec: StateSpace, x: Tensor, name: str) -> Tensor:
    """What is made of a token to choose by, with a norm if the state space has one within."""
    if spec.placed not in ("inner", "weightless"):
        return x
    return Rmsnorm(affine=spec.placed == "inner")(x, name=f"{name}_norm")


def _gated(spec: StateSpace, y: Tensor, gate: Tensor) -> Tensor:
    """y·silu(gate), with a norm in each group of its features before or after, or none."""
    if spec.placed == "before":
        y = _normed(spec, y)
    y = Multiply()(y, Silu()(gate), name="gated")
    return _normed(spec, y) if spec.placed == "after" else y


def _normed(spec: StateSpace, y: Tensor) -> Tensor:
    b, t, inner = y.shape
    y = Rmsnorm(affine=False)(y.view((b, t, spec.grouped, exact_div(inner, spec.grouped))), name="norm")
    return Multiply()(y.view((b, t, inner)), parameter(y.tape, "norm_weight", inner), name="norm_scale")


def parameter(tape: Tape, name: str, *shape: int) -> Tensor:
    """A weight by itself."""
    return tape.record(Parameter(shape), (), name, None)


def _step(spec: StateSpace, states: States, x: Tensor, steps: Tensor, writes: Tensor, reads: Tensor) -> Tensor:
    """As `_scan`, of one token after others: time steps and decays are of every number of the state."""
    tape, (b, _, h, p), n = x.tape, x.shape, spec.state
    state = states.earlier(tape, (b, h, p, n), "state", STATE)
    assert state is not None
    x = x.squeeze(1)
    rates = Pointwise("neg")(Pointwise("exp")(parameter(tape, "decay_log", h), name="decay"), name="rates")
    bias, skip = (parameter(tape, name, h).unsqueeze(-1) for name in ("step_bias", "skip"))
    steps = steps.squeeze(1)
    steps = steps.view((b, h, p), (*strides_of(steps), 0))
    steps = Pointwise("softplus")(Add()(steps, bias, name="add_step_bias"), name="softplus")
    decay = Multiply()(steps.unsqueeze(-1), rates.unsqueeze(-1).unsqueeze(-1), name="decays")
    decay = Pointwise("exp")(decay, name="decayed")
    writes, reads = (_each_head(y, h, name) for name, y in (("writes", writes), ("reads", reads)))
    written = Multiply()(steps.unsqueeze(-1), writes.view((b, h, 1, n)), name="stepped_writes")
    written = Multiply()(written, x.unsqueeze(-1), name="written")
    moved = Add()(Multiply()(state, decay, name="kept_state"), written, name="moved_state")
    states.keep(moved, state, "state", STATE)
    read = typed(moved, reads.dtype, "read_state").view((b * h, p, n))
    y = Matmul()(read, reads.view((b * h, n, 1)), name="read").view((b, h, p))
    y = Add()(y, Multiply()(x, skip, name="skipped"), name="add_skipped")
    return y.view((b, 1, h, p))


def _each_head(x: Tensor, heads: int, name: str) -> Tensor:
    """Of (b, 1, g, n) each head's, (b, heads, n) in one piece."""
    b, _, g, n = x.shape
    x = x.squeeze(1)
    return reshape(x, (b * g * n,)) if g == heads else Copy((b, heads, n))(x, name=f"repeat_{name}")


def _scan(spec: StateSpace, states: States, x: Tensor, steps: Tensor, writes: Tensor, reads: Tensor) -> Tensor:
    """Of values (b, T, h, p), time steps (b, T, h), and what writes and reads states (b, T, g, n): (b, T, h, p)."""
    tape, (b, t, h, p), n, q = x.tape, x.shape, spec.state, spec.chunked
    c = ceil_div(t, q)
    rates = Pointwise("neg")(Pointwise("exp")(parameter(tape, "decay_log", h), name="decay"), name="rates")
    steps = Pointwise("softplus")(Add()(steps, parameter(tape, "step_bias", h), name="add_step_bias"), name="softplus")
    steps = Clamp(0.0, math.inf)(steps, name="limit")
    writes, reads = (Copy((b, t, h, n))(y, name=f"repeat_{name}") for name, y in (("writes", writes), ("reads", reads)))
    skip = parameter(tape, "skip", h)
    skipped = Multiply()(skip.view((h, 1), (1, 1)), PadTo((b, c * q, h, p))(x, name="pad_skip"), name="skipped")
    x = Multiply()(x, steps.unsqueeze(-1), name="stepped")
    decay = Multiply()(rates, steps, name="decays")
    x, decay, writes, reads = (
        PadTo((b, c * q, *y.shape[2:]))(y, name=f"pad_{name}")
        for name, y in (("values", x), ("decays", decay), ("writes", writes), ("reads", reads))
    )
    x, decay, writes, reads = (reshape(y, (b, c, q, *y.shape[2:])) for y in (x, decay, writes, reads))
    decay = decay.permute((0, 3, 1, 2))  # (b, h, c, Q)
    total = Cumulate()(decay, name="decayed")
    within = Pointwise("exp")(_sums(decay, "within"), name="decay_within")  # (b, h, c, Q, Q)
    scores = contracted("bclhn,bcshn->bclsh", reads, writes, "scores")
    weights = Multiply()(scores, within.permute((0, 2, 3, 4, 1)), name="weigh")
    near = contracted("bclsh,bcshp->bclhp", weights, x, "near")
    last = Slice(1, q - 1)(total, name="last")
    left = Pointwise("exp")(Subtract()(last, total, name="left"), name="decay_left")
    left = Multiply()(writes, left.permute((0, 2, 3, 1)).unsqueeze(-1), name="left_writes")
    passed = contracted("bclhp,bclhn->bchpn", x, left, "states")
    earlier = states.earlier(tape, (b, h, p, n), "state", STATE)
    if earlier is None:
        first = tape.record(Computed((b, 1, h, p, n)), (), "first_state", None)
    else:
        first = typed(earlier, passed.dtype, "first_state").view((b, 1, h, p, n))
    passed = Cat((b, c + 1, h, p, n), 1)(first, passed, name="join_states")
    last = last.view((b, h, c), strides_of(last)[:3])
    between = Pointwise("exp")(_sums(PadTo((b, h, c + 1))(last, name="pad_last"), "between"), name="decay_between")
    between = between.permute((0, 3, 2, 1))  # (b, before, after, h)
    passed = contracted("bzch,bzhpn->bchpn", between, passed, "pass_on")
    if states.cache is None:
        states.note(tape, (b, h, p, n), "state", STATE)
    else:
        final = Slice(1, c, axis=1)(passed, name="final_state")
        states.keep(final.squeeze(1), earlier, "state", STATE)
    passed = Slice(c, axis=1)(passed, name="before")
    reached = Pointwise("exp")(total, name="decay_reached")
    far = contracted("bclhn,bchpn->bclhp", reads, passed, "far")
    far = Multiply()(far, reached.permute((0, 2, 3, 1)).unsqueeze(-1), name="decayed_far")
    y = Copy((b, c, q, h, p))(Add()(near, far, name="add_far"), name="in_order")
    y = Add()(reshape(y, (b, c * q, h, p)), skipped, name="add_skipped")
    return Slice(t, axis=1, alone=True)(y, name="crop")


def _sums(x: Tensor, name: str) -> Tensor:
    """Of (..., n) the sums from each place to each later one, (..., n, n); −∞ to earlier ones."""
    n, strides = x.shape[-1], strides_of(x)
    x = AsStrided((*x.shape, n), (*strides, 0))(x, name=f"{name}_spread")
    for number in (1, 2):
        x = Mask()(x, upper(x.tape, n, f"{name}_mask_{number}"), name=f"{name}_masked_{number}")
        x = Cumulate()(x, name=f"{name}_sums") if number == 1 else x
    return x


def upper(tape: Tape, n: int, name: str, made: int = 3) -> Tensor:
    """A mask of what is above the diagonal, made anew by so many operators."""
    mask = tape.record(Computed((n, n), "mask"), (), f"{name}_ones", None)
    for number in range(1, made):
        mask = Computed((n, n), "mask", 1)(mask, name=f"{name}_{number}")
    return mask


def contracted(equation: str, a: Tensor, b: Tensor, name: str) -> Tensor:
    """Two tensors multiplied, and summed over what the result does not have: one batched product of matrices.

    The rows are of what only `a` has. As ``at::sumproduct_pair`` does it: axes in the result's order, operands copied
    where no view has them so.
    """
    left, _, result = equation.partition("->")
    first, second = left.split(",")
    sizes = dict(zip(first, a.shape, strict=True)) | dict(zip(second, b.shape, strict=True))
    batch = "".join(i for i in result if i in first and i in second)
    rows, columns = ("".join(i for i in result if i in own and i not in batch) for own in (first, second))
    summed = "".join(i for i in first if i in second and i not in result)

    def matrices(x: Tensor, letters: str, *groups: str) -> Tensor:
        x = x.permute(tuple(letters.index(i) for group in groups for i in group))
        return reshape(x, tuple(product(sizes[i] for i in group) for group in groups))

    y = Matmul()(matrices(a, first, batch, rows, summed), matrices(b, second, batch, summed, columns), name=name)
    order = batch + rows + columns
    return y.view(tuple(sizes[i] for i in order)).permute([order.index(i) for i in result])
