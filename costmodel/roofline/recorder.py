"""Layers and whole models recorded as programs: forward, loss, backward and the optimizer's step, repeats unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.base import Architecture
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.transformer import Transformer
from costmodel.architectures.vision_transformer import VisionTransformer
from costmodel.cost.rows import traffic
from costmodel.display.table import Table
from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.graph.call import Block, Call
from costmodel.graph.replay import replay
from costmodel.graph.tensor import Storage, Tensor
from costmodel.layers.loss import Loss
from costmodel.roofline.footprint import peak_bytes
from costmodel.roofline.kernels import ArrayTape, KernelCall, NumpyKernel, kernel_of
from costmodel.roofline.kernels.optimizers import Update, states_of, step_of
from costmodel.roofline.memory import Buffer, BufferRole, Ref, check_fits
from costmodel.roofline.program import Program, program_of
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import SETTINGS
from costmodel.training.signatures import takes_settings

NUMBERS = {"index": "int64", "mask": "bool"}
"""NumPy's types by role; all other roles have the tape's floating-point type."""


class LayerArrays:
    """Tensors of a layer as arrays on a tape, each in a buffer of its own, parts of one storage too: queries and keys
    that one product made are apart."""

    def __init__(self, tape: ArrayTape) -> None:
        self.tape = tape
        self.buffers: dict[Tensor, Buffer] = {}

    def ref(self, x: Tensor, role: BufferRole) -> Ref:
        """The array of a paper tensor, in the same layout."""
        shape = tuple(map(int, x.shape))
        strides = None if x.strides is None else tuple(map(int, x.strides))
        if x not in self.buffers:
            reach = [(n - 1) * step for n, step in zip(shape, strides or (), strict=strides is not None)]
            elements = max(int(x.storage.elements), int(x.size) if strides is None else 1 + sum(reach))
            dtype = NUMBERS.get(x.storage.role, self.tape.dtype)
            self.buffers[x] = Buffer(elements, dtype, role, x.storage.name)
        return Ref(shape, self.buffers[x], strides)


def site_of(call: Call, ref: Callable[[Tensor, BufferRole], Ref]) -> KernelCall:
    """A call with its arrays, which `ref` finds; what needs a gradient is what has one on paper."""
    inputs = [ref(x, "input") for x in call.inputs]
    weights = {name: ref(w, "weight") for name, w in call.weights.items()}
    buffers = {name: ref(b, "state") for name, b in call.buffers.items()}
    operands = zip((*call.inputs, *call.weights.values()), (*inputs, *weights.values()), strict=True)
    return KernelCall(
        call.layer, inputs, weights, buffers, call.tape.training, [ref for x, ref in operands if x.requires_grad]
    )


def forward_program(call: Call, dtype: str = "float32") -> Program:
    """The forward pass of one layer; `saved` is what its backward pass reads of what it makes."""
    return layer_programs(call, dtype)[0]


def backward_program(call: Call, dtype: str = "float32") -> Program:
    """The gradients of one layer, in the order of its operands. Raises CostModelError if nothing is trained."""
    backward = layer_programs(call, dtype)[1]
    if backward is None:
        raise CostModelError(f"{call.name} has no gradients: predict with mode='train'")
    return backward


def layer_programs(call: Call, dtype: str = "float32") -> tuple[Program, Program | None]:
    """Both passes of one layer, to be run one after the other on the same memory; None if nothing is trained.

    The first input of the backward pass is the gradient of the output.
    """
    tape = ArrayTape(dtype)
    tape.layer = call.name
    site, kernel = site_of(call, LayerArrays(tape).ref), kernel_of(call.layer.kind)
    y = kernel.forward(tape, site)
    forward, tape.phase = list(tape.ops), "backward"
    g = tape.array(y.shape, "input", "gradient")
    gradients = [gradient for _, gradient in kernel.backward(tape, site, g)] if call.differentiated else []
    backward = tape.ops[len(forward) :]
    temporaries = {op.output.buffer for op in forward} - {y.buffer}
    saved = {ref.buffer: ref for op in backward for ref in op.operands if ref.buffer in temporaries}.values()
    operands = (*site.inputs, *site.weights.values(), *site.buffers.values())
    before = program_of(forward, [y], saved, call.name, operands)
    if not gradients:
        return before, None
    read = {ref.buffer for op in backward for ref in op.operands} | {g.buffer}
    left = [ref for ref in (g, *operands, y, *saved) if ref.buffer in read]
    return before, program_of(backward, gradients, (), call.name, left)


ROLES: dict[str, BufferRole] = {"weight": "weight", "buffer": "state", "input": "input"}
"""Roles of buffers by the origin of storages that no layer makes."""


@dataclass(eq=False)
class Recorded:
    """A layer that was recorded, or a view of `source` if it is none."""

    y: Ref
    site: KernelCall | None = None
    kernel: NumpyKernel | None = None
    source: Ref | None = None
    name: str = ""


@dataclass(eq=False)
class Recorder:
    """Replays a tape, round by round, and records the kernels of its calls. most: rounds of a block that are run."""

    tape: ArrayTape
    most: int | None = None
    arrays: dict[Tensor, Ref] = field(default_factory=dict)
    persistent: dict[tuple[Storage, str], Ref] = field(default_factory=dict)
    steps: list[Recorded] = field(default_factory=list)
    numbers: dict[Block, int] = field(default_factory=dict)

    def call(self, call: Call) -> None:
        """Record one round of a call."""
        name = f"{call.name}{self.suffix(call.block)}"
        self.tape.layer = name
        site = site_of(call, lambda x, _: self.ref(x))
        kernel = kernel_of(call.layer.kind)
        y = self.arrays[call.y] = kernel.forward(self.tape, site)
        self.steps.append(Recorded(y, site, kernel, name=name))

    def bind(self, target: Tensor, source: Tensor) -> None:
        """The array of a tensor that is a view of another, or what a round hands on.

        Of what is there from the start, such as a table of positions, there is an array of what is read of it alone.
        """
        if source in self.arrays or target.storage is not source.storage:
            self.arrays[target] = self.viewed(self.ref(source), target.shape)

    def rounds(self, block: Block) -> Iterator[int]:
        """Every round of a block."""
        for number in range(int(block.count))[: self.most]:
            self.numbers[block] = number
            yield number
        del self.numbers[block]

    def ref(self, x: Tensor) -> Ref:
        """The array of a paper tensor: one that is recorded, or an input, a weight or a buffer.

        Those of a repeated block have one for each round.
        """
        if x in self.arrays:
            return self.arrays[x]
        storage = x.storage
        name = f"{storage.name or 'input'}{self.suffix(storage.block)}"
        key = (storage, name)
        if key not in self.persistent:
            same = sum(other == name for _, other in self.persistent)  # blocks that are alike may stand apart
            unique = f"{name}#{same + 1}" if same else name
            self.persistent[key] = self.tape.array([*x.shape], ROLES[storage.origin], unique, NUMBERS.get(storage.role))
        return self.viewed(self.persistent[key], x.shape)

    def viewed(self, ref: Ref, shape: Iterable[int]) -> Ref:
        """`ref` reshaped, where a tensor sees it in another shape."""
        shape = tuple(map(int, shape))
        if ref.shape == shape:
            return ref
        view = self.tape.reshape(ref, *shape)
        self.steps.append(Recorded(view, source=ref))
        return view

    def suffix(self, block: Block | None) -> str:
        """Indices of the current rounds of enclosing blocks, outermost first."""
        indices = ""
        while block is not None:
            indices = f"[{self.numbers[block]}]{indices}" if block in self.numbers and int(block.count) > 1 else indices
            block = block.parent
        return indices

    def pull(self, ends: Iterable[Ref]) -> dict[Ref, Ref]:
        """Run back from the loss, or from a sum of the outputs; returns the gradients of weights."""
        self.tape.phase = "backward"
        gradients = {end: self.tape.full(end.shape, 1.0) for end in ends}
        for step in reversed(self.steps):
            g = gradients.pop(step.y, None)
            if g is None:
                continue
            if step.source is not None:
                self.add(gradients, step.source, self.tape.reshape(g, *step.source.shape))
            elif step.kernel is not None and step.site is not None and step.site.wanted:
                self.tape.layer = step.name
                for operand, gradient in step.kernel.backward(self.tape, step.site, g):
                    self.add(gradients, operand, gradient)
        return gradients

    def add(self, gradients: dict[Ref, Ref], operand: Ref, gradient: Ref) -> None:
        """Accumulate the gradient of an operand."""
        before = gradients.get(operand)
        gradients[operand] = gradient if before is None else self.tape.add(before, gradient)


RUN_LOSSES = ("cross_entropy", "mean_squared_error")
"""Losses that have a NumPy kernel."""
MOST_LAYERS = 20_000
"""A program of more layers, repeats unrolled, is refused."""


@dataclass(eq=False)
class Network:
    """One program, and where its operands lie in it. Weights and what belongs to them go by name.

    outputs: what the losses see, one after another, or the model's outputs if there is no loss.
    The layers of round i of a repeated block have names that end in ``[i]``.
    """

    program: Program
    outputs: list[Ref]
    loss: Ref | None
    inputs: dict[str, Ref]
    weights: dict[str, Ref]
    buffers: dict[str, Ref]
    gradients: dict[str, Ref]
    states: dict[str, dict[str, Ref]]


def network_of(
    prediction: Prediction,
    dtype: str = "float32",
    *,
    optimize: bool = True,
    step: int = 1,
    most_rounds: int | None = None,
) -> Network:
    """The program of a prediction: the forward pass in inference, a whole step in training.

    optimize: with the optimizer's step, the `step`-th. most_rounds: how many rounds of a repeated block there are at
    most; all unless given. Raises SettingError for what NumPy does not do.
    """
    check_runs(prediction)
    recorder = Recorder(ArrayTape(dtype), most_rounds)
    replay(prediction.tape.root, recorder)
    outputs, loss = _ends(recorder, prediction)
    by_role: dict[str, dict[str, Ref]] = {role: {} for role in ROLES.values()}
    for ref in recorder.persistent.values():
        by_role[ref.buffer.role][ref.buffer.name] = ref
    weights = by_role["weight"]
    pulled = recorder.pull(outputs if loss is None else [loss]) if prediction.settings.training else {}
    gradients = {name: pulled[ref] for name, ref in weights.items() if ref in pulled}
    states = _optimized(recorder.tape, prediction, weights, gradients, step) if optimize and gradients else {}
    ends = [*outputs, *([] if loss is None else [loss]), *([] if states else gradients.values())]
    program = program_of(recorder.tape.ops, ends, (), prediction.model.title, recorder.persistent.values())
    return Network(program, outputs, loss, by_role["input"], weights, by_role["state"], gradients, states)


def _ends(recorder: Recorder, prediction: Prediction) -> tuple[list[Ref], Ref | None]:
    """What the losses see, and their sum if there is one."""
    final = recorder.steps[-1]
    losses = [s.site.x for s in recorder.steps if s.site is not None and isinstance(s.site.kind, Loss)]
    if losses:
        return losses, final.y
    if prediction.tape.outputs:
        return [recorder.ref(y) for y in prediction.tape.outputs], None
    return [final.y], None


def _optimized(
    tape: ArrayTape, prediction: Prediction, weights: dict[str, Ref], gradients: dict[str, Ref], number: int
) -> dict[str, dict[str, Ref]]:
    """Record the step of every weight that has a gradient; returns their states."""
    optimizer = prediction.settings.states
    step, states = step_of(optimizer), {}
    tape.phase = "optimizer"
    for name, gradient in gradients.items():
        tape.layer = name
        states[name] = states_of(tape, optimizer, weights[name])
        step(tape, Update(weights[name], gradient, states[name], number))
    return states


def runnable(model: Architecture | Prediction | str, settings: Mapping[str, Any]) -> Prediction:
    """The prediction of what is run, in inference by default. Raises SettingError for what cannot run."""
    if isinstance(model, Prediction):
        if settings:
            raise SettingError(f"a prediction has its settings: leave out {', '.join(settings)}")
        prediction = model
    else:
        if settings.get("device", "cpu") != "cpu":
            raise SettingError(f"device={shown(settings['device'])} is not timed: NumPy runs on this CPU: leave it out")
        all_settings: dict[str, Any] = {"mode": "inference", **settings}
        prediction = predict(model, **all_settings)
    check_runs(prediction)
    return prediction


def network_that_fits(prediction: Prediction, dtype: str = "float32", *, optimize: bool = True) -> Network:
    """`network_of`. Raises CostModelError if it needs more memory than is free, before anything is allocated."""
    check_fits(prediction.memory.weights, prediction.model.title)  # of a model far too large, before it is recorded
    network = network_of(prediction, dtype, optimize=optimize)
    check_fits(peak_bytes(network.program), prediction.model.title)
    return network


def check_runs(prediction: Prediction) -> None:
    """Raise SettingError for settings that no NumPy program follows, or a model of too many layers."""
    settings, model = prediction.settings, prediction.model
    if settings.keeps:
        raise SettingError(f"mode={settings.mode!r} is not run in NumPy: use mode='inference'")
    if settings.policy.name != "fp32":
        raise SettingError(f"precision {settings.policy.name!r} is not run in NumPy: use 'fp32', or dtype='float64'")
    for name, setting in SETTINGS.items():
        value, default = getattr(settings, name), setting.default
        if value != default and setting.executed == "nothing":
            raise SettingError(f"{name}={shown(value)} has no effect on what NumPy runs: leave it out")
        if value != default and setting.executed == "default":
            raise SettingError(f"{name}={value!r} is not run in NumPy: use {name}={default!r}")
    loss = model.default_loss if settings.loss == "default" else settings.loss
    if settings.training and loss not in (*RUN_LOSSES, None):
        raise SettingError(f"loss={loss!r} is not run in NumPy: use one of {', '.join(map(repr, RUN_LOSSES))}")
    parts: list[str] = []
    if isinstance(model, Transformer):
        parts += [] if model.mixer is None else [model.mixer_name]
        names = ("disentangled", "altup", "shared_kv_layers", "boxes", "indexer", "layer_inputs", "span_convolution")
        parts += [name for name in names if getattr(model, name) is not None]
        parts += [name for name in ("token_dropout", "block_scale") if getattr(model, name)]
        parts += ["classes.told_by: mean"] * (model.value("classes.told_by") == "mean")
    if isinstance(model, Transformer | EncoderDecoder):
        parts += ["experts.beside"] * (model.value("experts.beside") is True)
    if isinstance(model, Transformer | VisionTransformer):
        parts += ["pooler.over: mean"] * (model.value("pooler.over") == "mean")
    if isinstance(model, VisionTransformer) and model.attention_pool:
        parts.append("attention_pool")
    if parts:
        raise SettingError(f"{parts[0]} is not run in NumPy, and {model.title} has one: its costs alone are known")
    layers = sum(int(call.times) for call in prediction.tape.root.calls())
    if layers > MOST_LAYERS:
        raise SettingError(f"{model.title} has {layers:,} layers, more than the {MOST_LAYERS:,} that are run")


class LayerPasses(NamedTuple):
    """A layer's forward pass, all its repeats together [bytes].

    compulsory_bytes: every input, weight and output once. numpy_bytes: what each of its NumPy calls reads and writes.
    calls: of NumPy functions.
    """

    name: str
    kind: str
    repeat: int
    calls: int
    compulsory_bytes: int
    numpy_bytes: int

    @property
    def ratio(self) -> float:
        """NumPy's traffic over the compulsory; 0 where nothing must move."""
        return self.numpy_bytes / self.compulsory_bytes if self.compulsory_bytes else 0.0


@dataclass(frozen=True, repr=False)
class Passes:
    """Compulsory traffic and NumPy's of a model's forward pass; prints as a table of kinds, iterates over layers."""

    title: str
    layers: tuple[LayerPasses, ...]

    def __iter__(self) -> Iterator[LayerPasses]:
        return iter(self.layers)

    @property
    def kinds(self) -> list[LayerPasses]:
        """Layers of one kind added up, those that move most first."""
        kinds: dict[str, LayerPasses] = {}
        for layer in self.layers:
            before = kinds.get(layer.kind, LayerPasses(layer.kind, layer.kind, 0, 0, 0, 0))
            sums = (a + b for a, b in zip(before[2:], layer[2:], strict=True))
            kinds[layer.kind] = LayerPasses(layer.kind, layer.kind, *sums)
        return sorted(kinds.values(), key=lambda kind: -kind.numpy_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"model": self.title, "layers": [{**layer._asdict(), "ratio": layer.ratio} for layer in self.layers]}

    def __str__(self) -> str:
        rows = []
        for k in self.kinds:
            ratio = f"{k.ratio:.1f}×" if k.compulsory_bytes else "-"
            moved = show_bytes(k.compulsory_bytes), show_bytes(k.numpy_bytes)
            rows.append((k.kind, str(k.repeat), str(k.calls), *moved, ratio))
        return Table((self.title, "layers", "calls", "compulsory", "NumPy", "ratio"), rows).text()

    __repr__ = __str__


@takes_settings(mode="inference")
def passes(model: Architecture | Prediction | str, **settings: Unpack[GivenSettings]) -> Passes:
    """Compulsory traffic and NumPy's of each layer's forward pass, in fp32; settings as `predict` takes them.

    Raises CostModelError, as `predict` does.
    """
    prediction = model if isinstance(model, Prediction) else predict(model, **{"mode": "inference", **settings})
    layers = []
    for call in prediction.tape.root.calls():
        program, times = forward_program(call), int(call.times)
        sums = (times * len(program), times * traffic(call), times * program.traffic_bytes)
        layers.append(LayerPasses(call.name, call.layer.kind, times, *sums))
    return Passes(prediction.model.title, tuple(layers))
