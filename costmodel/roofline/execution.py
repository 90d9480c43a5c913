"""A whole model run in NumPy from its graph: one forward pass, or one step of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy

from costmodel.analysis.predict import Prediction
from costmodel.architectures.base import Architecture
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.transformer import Transformer
from costmodel.documents.arguments import MOST_WHOLE, fits
from costmodel.errors import SettingError, ShapeError, shown, unknown
from costmodel.graph.tensor import show_shape
from costmodel.importers.torch.model import Imported
from costmodel.roofline.kernels.optimizers import STARTS
from costmodel.roofline.memory import ArrayMemory, Ref
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import Network, network_that_fits, runnable
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

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


@takes_settings(mode="inference", without="update")
def execute(
    model: Architecture | Prediction | str,
    *,
    dtype: Float = "float32",
    seed: int = 0,
    weights: Arrays | None = None,
    inputs: Arrays | None = None,
    update: bool = True,
    **settings: Unpack[GivenSettings],  # pyright: ignore[reportGeneralTypeIssues]  # of two `update` its own counts
) -> Execution:
    """Run a model in NumPy, from its graph: forward in mode "inference", a whole step in mode "train".

    Experts take rows in turn, as evenly as costs have it: a router's scores weigh their outputs, but send no rows.

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
    if not fits(seed, int, 0, MOST_WHOLE):
        raise SettingError(f"seed={shown(seed)} is not a whole number from 0: use one such as seed=0")
    prediction = runnable(model, settings)
    if isinstance(prediction.model, Imported):
        raise SettingError(
            f"{prediction.model.title} comes from a PyTorch module, of which costs are known and not every number: "
            "run the module itself"
        )
    network = network_that_fits(prediction, dtype, optimize=update)
    memory = filled(network, prediction, seed, {**(weights or {}), **(inputs or {})})
    network.program.run(memory)

    def arrays(refs: Mapping[str, Ref]) -> dict[str, numpy.ndarray]:
        return {name: memory.array(ref) for name, ref in refs.items() if ref.buffer in memory.arrays}

    loss = None if network.loss is None else float(memory.array(network.loss))
    gradients = arrays(network.gradients) if not network.states else {}
    outputs = tuple(map(memory.array, network.outputs))
    return Execution(outputs, loss, gradients, arrays(network.weights), arrays(network.inputs), network.program)


def filled(network: Network, prediction: Prediction, seed: int = 0, values: Arrays | None = None) -> ArrayMemory:
    """ArrayMemory with values for inputs, weights, buffers and states: those `values` by name, else drawn.

    Raises UnknownNameError, ShapeError, SettingError.
    """
    values = values or {}
    persistent = {**network.inputs, **network.weights}
    for name in values:
        if name not in persistent:
            raise unknown(f"array of {prediction.model.title}", name, persistent)
    random, memory = numpy.random.default_rng(seed), ArrayMemory(seed=seed)
    for name, ref in persistent.items():
        if name in values:
            memory.hold(ref, _checked(values[name], name, ref, prediction))
        else:
            memory.make(ref.buffer)
            _draw(random, name, ref, memory.array(ref), prediction)
    for name, ref in network.buffers.items():
        memory.hold(ref, _buffer(name, ref, prediction.model))
    for states in network.states.values():
        for name, ref in states.items():
            memory.hold(ref, STARTS.get(name, 0.0))
    return memory


def _checked(values: Any, name: str, ref: Ref, prediction: Prediction) -> numpy.ndarray:
    """An array that was passed in. Raises for a wrong shape, a wrong type, or an index out of range."""
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
    """Draw values whose variance stays constant through layers (1/√fan-in); indices uniformly."""
    if ref.dtype == "int64":
        out[...] = random.integers(0, _classes(name, prediction), ref.shape)
        return
    random.standard_normal(out=out, dtype=out.dtype)  # type: ignore[call-overload]
    if ref.buffer.role == "weight":
        out /= math.sqrt(math.prod(ref.shape[1:])) if len(ref.shape) > 1 else 50
        if len(ref.shape) == 1 and "bias" not in name:
            out += 1


def _classes(name: str, prediction: Prediction) -> int:
    """Number of indices: entries of the embedding that reads them, or classes of the loss."""
    calls = prediction.tape.root.calls()
    reader = next(call for call in calls if any(x.storage.name == name for x in call.inputs))
    return int(getattr(reader.layer, "entries", getattr(reader.layer, "features", reader.x.shape[1:2][-1])))


def _buffer(name: str, ref: Ref, model: Architecture) -> Any:
    """Constants beside the weights: running statistics, masks, positions."""
    kind = name.partition("[")[0].rpartition(".")[2]
    if isinstance(model, EncoderDecoder):
        model = model.encoder if name.startswith("encoder.") else model.decoder
    if isinstance(model, Transformer) and kind in TABLES:
        return TABLES[kind](model, ref.shape)
    return 1.0 if kind == "running_var" else 0.0


def _visible(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Which keys each query sees."""
    behind = numpy.arange(shape[0])[:, None] - numpy.arange(shape[1])
    window = shape[1] if model.window is None else model.window.size
    return (behind < window) & ((behind >= 0) if model.causal else (behind > -window))


def _slopes(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """A slope a head times the position of the key (Press et al. 2022, §3); a row's own position adds a constant."""
    heads = model.heads
    whole = 2 ** math.floor(math.log2(heads))
    exponents = [8 * (i + 1) / whole for i in range(whole)] + [4 * (2 * i + 1) / whole for i in range(heads - whole)]
    return 2.0 ** -numpy.array(exponents)[:, None, None] * numpy.arange(shape[2])


def _angles(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Position over 10000^(2i/size) for pair i, once for each of the pair (Su et al. 2021, §3.2.2)."""
    pairs = 10_000.0 ** -(numpy.arange(0, shape[1], 2) / shape[1])
    return numpy.tile(numpy.arange(shape[0])[:, None] * pairs, 2)


def _buckets(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Distances of up to 128: short ones each to themselves, longer ones by their logarithm (Raffel et al. 2020, §2.1).

    Half of the buckets are for what comes after, where tokens see that.
    """
    ahead = numpy.arange(shape[1]) - numpy.arange(shape[0])[:, None]
    count = model.buckets if model.causal else max(model.buckets // 2, 1)
    exact, distance = max(count // 2, 1), numpy.maximum(-ahead, 0) if model.causal else abs(ahead)
    share = numpy.log(numpy.maximum(distance, 1) / exact) / math.log(max(128 / exact, 2))
    far = numpy.minimum(exact + (share * (count - exact)).astype(int), count - 1)
    buckets = numpy.where(distance < exact, distance, far) + (0 if model.causal else count * (ahead > 0))
    return numpy.minimum(buckets, model.buckets - 1)


TABLES: dict[str, Callable[[Transformer, tuple[int, ...]], Any]] = {
    "attention_mask": _visible,
    "global_attention_mask": lambda model, shape: _visible(model.model_copy(update={"window": None}), shape),
    "alibi": _slopes,
    "cos": lambda model, shape: numpy.cos(_angles(model, shape)),
    "sin": lambda model, shape: numpy.sin(_angles(model, shape)),
    "relative_buckets": _buckets,
}
"""Buffers of a transformer, by name."""
