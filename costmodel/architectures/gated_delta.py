"""Linear attention by the gated delta rule (Yang et al. 2024, Gated DeltaNet), as it is composed of operators.

A state of d_k × d_v numbers for each head decays, and is corrected towards each token's value where its key reads it. A
sequence goes through it in chunks of Q tokens: within a chunk by a triangular system and products of Q × Q, from chunk
to chunk one after another (`DeltaScan`). The composition is that of ``torch_chunk_gated_delta_rule`` in `transformers`.
"""

from __future__ import annotations

from costmodel.architectures.activations import activation
from costmodel.architectures.composition import typed
from costmodel.architectures.kv_cache import States
from costmodel.architectures.mixers import GatedDelta
from costmodel.architectures.state_space import STATE, causal, parameter, upper
from costmodel.graph.tensor import Tensor, is_contiguous
from costmodel.layers.activation import Sigmoid, Silu
from costmodel.layers.arithmetic import Add, Multiply, Scale, Shift, Subtract
from costmodel.layers.attention import Mask
from costmodel.layers.function import Pointwise
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.norm import Rmsnorm
from costmodel.layers.reduction import Cumulate, Reduce
from costmodel.layers.resize import PadTo
from costmodel.layers.scan import DeltaScan, SolveTriangular
from costmodel.layers.shape import Copy, Join, Slice, TransposeLast, reshape
from costmodel.symbolic.sizes import ceil_div, exact_div


def gated_delta(spec: GatedDelta, states: States, x: Tensor) -> Tensor:
    """(batch, T, width) → (batch, T, width)."""
    b, t, d = x.shape
    keys, heads, k, v = spec.grouped, spec.heads, spec.key_size, spec.value_size
    with x.tape.scope("gated_delta"):
        each = exact_div(heads, keys)
        joint = Linear(2 * keys * k + 2 * heads * v, bias=False)(x, name="in")
        joint = joint.view((b, t, keys, 2 * k + 2 * each * v))
        sizes = {"query": (k, 0), "key": (k, k), "value": (each * v, 2 * k), "gate": (each * v, 2 * k + each * v)}
        query, key, value, gate = (Slice(n, start)(joint, name=name) for name, (n, start) in sizes.items())
        value, gate = (reshape(y, (b, t, heads, v)) for y in (value, gate))
        rates = Linear(2 * heads, bias=False)(x, name="rates").view((b, t, keys, 2 * each))
        learning, decay = (
            reshape(Slice(each, start)(rates, name=name), (b, t, heads))
            for name, start in (("learning", 0), ("decay", each))
        )
        parts = [reshape(y, (b, t, n)) for y, n in ((query, keys * k), (key, keys * k), (value, heads * v))]
        y = TransposeLast()(Join()(*parts, name="mixed"))
        y = TransposeLast()(activation(spec.activation)(causal(y, spec.convolution, states, bias=False)), name="tokens")
        query, key, value = (
            reshape(Slice(n * size, start)(y, name=f"mixed_{name}"), (b, t, n, size))
            for name, n, size, start in (
                ("query", keys, k, 0),
                ("key", keys, k, keys * k),
                ("value", heads, v, 2 * keys * k),
            )
        )
        learning = Sigmoid()(learning, name="learning_rate")
        rate = Pointwise("neg")(Pointwise("exp")(parameter(x.tape, "decay_log", heads), name="exp_decay"), name="rate")
        step = Pointwise("softplus")(Add()(decay, parameter(x.tape, "step_bias", heads), name="add_step_bias"))
        decay = Multiply()(rate, step, name="decays")
        with x.tape.part("core"):
            y = (_step if states.steps(t) else _rule)(spec, states, query, key, value, decay, learning)
        y = Rmsnorm()(reshape(y, (b * t * heads, v)), name="norm")
        y = Multiply()(y, Silu()(reshape(gate, (b * t * heads, v)), name="gate_silu"), name="gated")
        return Linear(d, bias=False)(y.view((b, t, heads * v)), name="out")


def _by_head(
    spec: GatedDelta, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, learning: Tensor
) -> tuple[Tensor, ...]:
    """The same as (b, heads, T, d) and (b, heads, T), queries and keys of length one."""
    (b, t, h, _), k = value.shape, spec.key_size
    if query.shape[2] != h:
        query, key = (Copy((b, t, h, k))(y, name=f"repeat_{name}") for name, y in (("query", query), ("key", key)))
    query, key, value = (y.permute((0, 2, 1, 3)) for y in (query, key, value))
    decay, learning = (y.permute((0, 2, 1)) for y in (decay, learning))
    return Scale(0.1)(_unit(query, "query"), name="scale_query"), _unit(key, "key"), value, decay, learning


def _step(spec: GatedDelta, states: States, *parts: Tensor) -> Tensor:
    """As `_rule`, of one token after others: the state is read and written by products of numbers and sums."""
    query, key, value, decay, learning = _by_head(spec, *parts)
    (b, h, _, v), k = value.shape, spec.key_size
    state = states.earlier(value.tape, (b, h, k, v), "state", STATE)
    assert state is not None
    query, key = (y.view((b, h, k)).unsqueeze(-1) for y in (query, key))
    decay = Pointwise("exp")(decay, name="exp_decay").unsqueeze(-1)
    moved = Multiply()(state, decay, name="kept_state")
    recalled = Reduce("sum", (b, h, 1, v))(Multiply()(moved, key, name="read_keys"), name="held")
    error = Multiply()(Subtract()(value, recalled, name="error"), learning.unsqueeze(-1), name="learnt_error")
    moved = Add()(moved, Multiply()(key, error, name="written"), name="moved_state")
    states.keep(moved, state, "state", STATE)
    y = Reduce("sum", (b, h, 1, v))(Multiply()(moved, query, name="read"), name="mixed")
    return typed(y, value.dtype, "read_type").permute((0, 2, 1, 3))


def _rule(spec: GatedDelta, states: States, *parts: Tensor) -> Tensor:
    """Of tokens by heads (b, T, heads, d), decays and learning rates (b, T, heads): (b, T, heads, d_v)."""
    query, key, value, decay, learning = _by_head(spec, *parts)
    (b, h, t, v), k, n, tape = value.shape, spec.key_size, spec.chunked, value.tape
    c = ceil_div(t, n)
    whole = c * n == t
    query, key, value, learning, decay = (
        (Copy(y.shape, ordered=True) if whole else PadTo((b, h, c * n, *y.shape[3:])))(y, name=f"pad_{name}")
        for name, y in (
            ("query", query),
            ("key", key),
            ("value", value),
            ("learning", learning),
            ("decay", decay),
        )
    )
    values = _chunks(Multiply()(value, learning.unsqueeze(-1), name="learnt_value"), c, n)
    keys = _chunks(Multiply()(key, learning.unsqueeze(-1), name="learnt_key"), c, n)
    query, key = _chunks(query, c, n), _chunks(key, c, n)
    total = Cumulate()(reshape(decay, (b, h, c, n)), name="decayed")
    pairs = Subtract()(total.unsqueeze(-1), total.unsqueeze(-2), name="decay_between")
    pairs = Pointwise("exp")(Mask()(pairs, upper(query.tape, n, "ahead", made=2), name="masked"), name="decay_pairs")
    turned = TransposeLast()(key)
    system = Multiply()(Matmul()(keys, turned, name="overlap"), pairs, name="system")
    scores = Multiply()(Matmul()(query, turned, name="scores"), pairs, name="weights")
    faded = Multiply()(keys, Pointwise("exp")(total, name="exp_keys").unsqueeze(-1), name="faded_keys")
    values = SolveTriangular()(system, values, name="new_values")
    faded = SolveTriangular()(system, faded, name="read_keys")
    query = Multiply()(query, Pointwise("exp")(total, name="exp_query").unsqueeze(-1), name="faded_query")
    # The last state is read by nothing here, and with one chunk nothing else reads these.
    outer, tape.grad = tape.grad, tape.grad and c > 1
    last = Slice(1, n - 1)(total, name="last")
    left = Pointwise("exp")(Subtract()(last, total, name="left"), name="exp_left")
    key = Multiply()(key, left.unsqueeze(-1), name="left_keys")
    passed = Pointwise("exp")(last, name="exp_last").unsqueeze(-1)
    tape.grad = outer
    if states.cache is None:
        states.note(tape, (b, h, k, v), "state", STATE)
        y = reshape(DeltaScan()(values, faded, query, scores, key, passed), (b, h, c * n, v))
    else:
        first = states.earlier(tape, (b, h, k, v), "state", STATE)
        begins = () if first is None else (typed(first, values.dtype, "first_state"),)
        y = DeltaScan(keeps=True)(values, faded, query, scores, key, passed, *begins)
        states.keep(Slice(k, c * n, axis=2)(y, name="last_state"), first, "state", STATE)
    y = Slice(t, axis=2, alone=True)(y, name="crop").permute((0, 2, 1, 3))
    # Of one chunk columns still come first, which ``Tensor.to`` takes for channels last, and copies.
    if c == 1 and h > 1 and not is_contiguous(y.shape, y.strides):
        return Copy(y.shape)(y, name="in_order")
    return y


def _unit(x: Tensor, name: str) -> Tensor:
    """x/√(Σ x² + ε) over the last axis."""
    squares = Reduce("sum", (*x.shape[:-1], 1))(Multiply()(x, x, name=f"square_{name}"), name=f"sum_{name}")
    root = Pointwise("rsqrt")(Shift(1e-6)(squares, name=f"shift_{name}"), name=f"root_{name}")
    return Multiply()(x, root, name=f"unit_{name}")


def _chunks(x: Tensor, chunks: int, size: int) -> Tensor:
    """(b, heads, T, d) → (b, heads, chunks, size, d)."""
    b, h, _, d = x.shape
    return reshape(x, (b, h, chunks, size, d))
