"""A whole model run in NumPy from its graph: one forward pass, or one step of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from costmodel.architectures.base import Architecture
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.transformer import Transformer
from costmodel.cost.prediction import Prediction, predict
from costmodel.errors import SettingError, ShapeError, shown, unknown
from costmodel.graph.tensor import show_shape
from costmodel.roofline.footprint import check_fits, peak_bytes
from costmodel.roofline.memory import Memory
from costmodel.roofline.network import Network, check_runs, network_of
from costmodel.roofline.positions import TABLES
from costmodel.roofline.program import Program
from costmodel.roofline.reference import Ref

if TYPE_CHECKING:
    import numpy

Float = Literal["float32", "float64"]
Arrays = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Execution:
    """What one run gave, by name; of a step of training the weights are those after it.

    outputs: what each loss sees, (rows, classes, ...). loss: None if there is none; gradients are those of the outputs'
    sum then. gradients: empty in inference, and after an update.
    """

    outputs: tuple[numpy.ndarray, ...]
    loss: float | None
    gradients: dict[str, numpy.ndarray]
    weights: dict[str, numpy.ndarray]
    inputs: dict[str, numpy.ndarray]
    program: Program

    @property
    def output(self) -> numpy.ndarray:
        """The first output, and the only one of most models."""
        return self.outputs[0]


def execute(
    model: Architecture | Prediction | str,
    *,
    dtype: Float = "float32",
    seed: int = 0,
    weights: Arrays | None = None,
    inputs: Arrays | None = None,
    update: bool = True,
    **settings: Any,
) -> Execution:
    """Run a model in NumPy, from its graph: forward in mode "inference", a whole step in mode "train".

    Args:
        model: as `predict` takes it, or a prediction.
        dtype: type of floating numbers.
        seed: of what is drawn: numbers for weights and inputs that are not given, and dropout.
        weights: starting values by name, such as "block.mlp.up.weight[0]" in the first of equal blocks.
        inputs: "tokens" or "input", and "targets".
        update: whether a step ends with the optimizer's; without it gradients are returned.
        **settings: as `predict` takes them; mode is "inference" unless given.

    Raises:
        CostModelError: a setting that is not run in NumPy, an array that does not fit, or too little memory, the last
            before anything is allocated.

    """
    if dtype not in ("float32", "float64"):
        raise unknown("dtype", dtype, ("float32", "float64"))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise SettingError(f"seed={shown(seed)} is not a whole number from 0: use one such as seed=0")
    prediction = model if isinstance(model, Prediction) else predict(model, **{"mode": "inference", **settings})
    if isinstance(model, Prediction) and settings:
        raise SettingError(f"a prediction has its settings: leave out {', '.join(settings)}")
    check_runs(prediction)
    check_fits(prediction.memory.weights, prediction.model.title)
    network = network_of(prediction, dtype, optimize=update)
    check_fits(peak_bytes(network.program), prediction.model.title)
    memory = filled(network, prediction, seed, {**(weights or {}), **(inputs or {})})
    network.program.run(memory)
    return _found(network, memory)


def _found(network: Network, memory: Memory) -> Execution:
    def arrays(refs: Mapping[str, Ref]) -> dict[str, numpy.ndarray]:
        return {name: memory.array(ref) for name, ref in refs.items() if ref.buffer in memory.arrays}

    loss = None if network.loss is None else float(memory.array(network.loss))
    gradients = arrays(network.gradients) if not network.states else {}
    outputs = tuple(map(memory.array, network.outputs))
    return Execution(outputs, loss, gradients, arrays(network.weights), arrays(network.inputs), network.program)


def filled(network: Network, prediction: Prediction, seed: int = 0, given: Arrays | None = None) -> Memory:
    """Memory with numbers in all that is there before the program runs: those `given` by name, else drawn.

    Raises UnknownNameError, ShapeError, SettingError.
    """
    import numpy

    given = given or {}
    standing = {**network.inputs, **network.weights}
    for name in given:
        if name not in standing:
            raise unknown(f"array of {prediction.model.title}", name, standing)
    random, memory = numpy.random.default_rng(seed), Memory(seed=seed)
    for name, ref in standing.items():
        if name not in given:
            memory.make(ref.buffer)
            _draw(random, name, ref, memory.array(ref), prediction)
            continue
        memory.hold(ref, _checked(given[name], name, ref, prediction))
    for name, ref in network.buffers.items():
        memory.hold(ref, _buffer(name, ref, prediction.model))
    for states in network.states.values():
        for name, ref in states.items():
            memory.hold(ref, _state(name, ref))
    return memory


def _checked(values: Any, name: str, ref: Ref, prediction: Prediction) -> numpy.ndarray:
    """An array that was given: numbers of the right shape, indices within what they point into."""
    import numpy

    title, whole = prediction.model.title, ref.dtype == "int64"
    try:
        array = numpy.asarray(values)
    except ValueError:
        raise ShapeError(f"{name} of {title}: {shown(values)} is no array of {show_shape(ref.shape)}") from None
    if array.dtype.kind not in ("iu" if whole else "iuf"):
        raise SettingError(f"{name} of {title} holds {array.dtype}: give {'whole ' * whole}numbers")
    if array.shape != ref.shape:
        raise ShapeError(f"{name} of {title} is {show_shape(ref.shape)}, not {show_shape(array.shape)}")
    if whole:
        least, most, count = int(array.min()), int(array.max()), _classes(name, prediction)
        if least < 0 or most >= count:
            wrong = least if least < 0 else most
            raise SettingError(f"{name} of {title} holds {wrong}: give indices from 0 to {count - 1}")
    return array


def _draw(random: numpy.random.Generator, name: str, ref: Ref, out: numpy.ndarray, prediction: Prediction) -> None:
    """Numbers that stay of one size through many layers; indices of tokens and classes."""
    if ref.dtype == "int64":
        out[...] = random.integers(0, _classes(name, prediction), ref.shape)
        return
    random.standard_normal(out=out, dtype=out.dtype)  # type: ignore[call-overload]
    if ref.buffer.role == "weight":
        out /= math.sqrt(math.prod(ref.shape[1:])) if len(ref.shape) > 1 else 50
        if len(ref.shape) == 1 and "bias" not in name:
            out += 1


def _classes(name: str, prediction: Prediction) -> int:
    """How many there are: entries of the table that reads them, or classes of what the loss compares with them."""
    calls = prediction.run.root.calls()
    reader = next(call for call in calls if any(x.storage.name == name for x in call.inputs))
    return int(getattr(reader.kind, "entries", getattr(reader.kind, "features", reader.x.shape[1:2][-1])))


def _state(name: str, ref: Ref) -> Any:
    """States start from zero; Shampoo's inverse roots from one each."""
    return 0.0 if name != "inverse_roots" else 1.0


def _buffer(name: str, ref: Ref, model: Architecture) -> Any:
    """Constants beside the weights: running statistics, masks, positions."""
    kind = name.partition("[")[0].rpartition(".")[2]
    if isinstance(model, EncoderDecoder):
        model = model.encoder if name.startswith("encoder.") else model.decoder
    if isinstance(model, Transformer) and kind in TABLES:
        return TABLES[kind](model, ref.shape)
    return 1.0 if kind == "running_var" else 0.0
