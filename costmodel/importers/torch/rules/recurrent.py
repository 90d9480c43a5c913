"""Rules of recurrent networks, whole or one step of them: see `costmodel.layers.recurrent` for what is done."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor, dense_strides, strides_of
from costmodel.importers.torch.op_call import OpCall, rule
from costmodel.importers.torch.program import TENSOR
from costmodel.layers.activation import Relu, Sigmoid, Tanh
from costmodel.layers.arithmetic import Add, Dropout, Multiply
from costmodel.layers.linear import Linear
from costmodel.layers.recurrent import Elman, Gru, Lstm, Recurrent
from costmodel.layers.shape import Cat

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(op: OpCall) -> Tensor | list[Tensor]:
    """Layers one on another, of one direction or two; results of the last, and the last states of all."""
    if op.has("batch_sizes"):
        raise op.fail("of packed sequences, whose lengths are data, has no rule")
    x = op.tensor("input")
    first = bool(op.value("batch_first"))
    x = x.transpose(0, 1) if first else x
    before = [op.tensor("hx")] if op.is_tensor("hx") else op.tensors("hx")
    weights = [op.replay.weight(item[TENSOR]) for item in op.step.args["params"]]
    layers, directions = op.value("num_layers"), 2 if op.value("bidirectional") else 1
    each = len(weights) // (layers * directions)
    last: list[list[Tensor]] = [[] for _ in before]
    for number in range(layers):
        outputs = []
        for direction in range(directions):
            place = number * directions + direction
            own = weights[each * place : each * (place + 1)]
            states = [row(op, state, place) for state in before]
            y = _layer(op, own, place, x, *states)
            outputs.append(y)
            for ends, state in zip(last, states, strict=True):
                ends.append(op.part(y, state.shape, (y.shape[-1], 1)))  # of the cell, the same by size and gradient
        x = outputs[0] if directions == 1 else joined(op, outputs, 2, f"directions{number}")
        if number < layers - 1 and op.value("train") and op.value("dropout") > 0:
            x = op.layer(Dropout(op.value("dropout")), x, name=f"{op.step.name}.dropout{number}")
    y = x.transpose(0, 1) if first else x
    if not any(output.name in op.replay.read for output in op.step.makes[1:]):
        return y
    shapes = [op.replay.shape(output.shape) for output in op.step.makes[1:]]
    return [
        y,
        *(
            op.layer(Cat(shape), *states, name=f"{op.step.name}.last{n}")
            for n, (shape, states) in enumerate(zip(shapes, last, strict=True))
        ),
    ]


def _layer(op: OpCall, weights: list[Tensor], place: int, x: Tensor, *states: Tensor) -> Tensor:
    bias = bool(op.value("has_biases"))
    tied: dict[str, Tensor] = dict(zip(NAMES if bias else NAMES[:2], weights, strict=False))
    hidden = weights[1].shape[0] // {"lstm": 4, "gru": 3}.get(op.step.op, 1)
    if len(weights) > len(tied):
        tied["weight_hr"] = weights[-1]
    kind = _kind(op, hidden, bias, weights[-1].shape[0] if "weight_hr" in tied else 0)
    return op.layer(kind, x, *states, name=f"{op.step.name}.{place}", tied=tied)


def _kind(op: OpCall, hidden: int, bias: bool, projected: int = 0) -> Recurrent:
    if op.step.op.startswith("lstm"):
        return Lstm(hidden, bias, projected)
    if op.step.op.startswith("gru"):
        return Gru(hidden, bias)
    return Elman(hidden, bias, "relu" if "relu" in op.step.op else "tanh")


def row(op: OpCall, x: Tensor, place: int) -> Tensor:
    """One of the first axis."""
    return op.part(x, x.shape[1:], strides_of(x)[1:])


def joined(op: OpCall, tensors: list[Tensor], axis: int, name: str) -> Tensor:
    """Tensors of one shape one after another along an axis."""
    shape = list(tensors[0].shape)
    shape[axis] = len(tensors) * shape[axis]
    return op.layer(Cat(tuple(shape), axis), *tensors, name=f"{op.step.name}.{name}")


@rule("lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(op: OpCall) -> Tensor | list[Tensor]:
    """One step, as its parts."""
    states = [op.tensor("hx")] if op.is_tensor("hx") else op.tensors("hx")
    name = op.step.name
    products = []
    for part, x in (("hh", states[0]), ("ih", op.tensor("input"))):
        tied = {"weight": op.weight(f"w_{part}")}
        if op.has(f"b_{part}"):
            tied["bias"] = op.weight(f"b_{part}")
        kind = Linear(tied["weight"].shape[0], "bias" in tied)
        products.append(op.layer(kind, x, name=f"{name}.{part}", tied=tied))
    gates = op.layer(Add(), *products, name=f"{name}.gates")
    if op.step.op != "lstm_cell":
        return op.layer(Relu() if "relu" in op.step.op else Tanh(), gates)
    shape = states[1].shape
    parts = [op.part(gates, shape, strides_of(gates)) for _ in range(4)]
    functions = (Sigmoid(), Sigmoid(), Tanh(), Sigmoid())
    i, f, g, o = (op.layer(kind, x, name=f"{name}.{n}") for kind, x, n in zip(functions, parts, "ifgo", strict=True))
    old = op.layer(Multiply(), f, states[1], name=f"{name}.forget")
    new = op.layer(Multiply(), i, g, name=f"{name}.enter")
    c = op.layer(Add(), old, new, name=f"{name}.cell")
    return [op.layer(Multiply(), o, op.layer(Tanh(), c, name=f"{name}.reached"), name=f"{name}.state"), c]


@rule("gru_cell")
def gru_cell(op: OpCall) -> Tensor:
    """A sequence of one step; its result is in the order of the state before, which the new one is taken from."""
    x, h = op.tensor("input"), op.tensor("hx")
    names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    tied = {name: op.weight(argument) for name, argument in names.items() if op.has(argument)}
    one = x.unsqueeze(0)
    y = op.layer(_kind(op, h.shape[-1], "bias_ih" in tied), one, h, tied=tied)
    return y.view(op.shape, dense_strides(h.shape, h.strides))
