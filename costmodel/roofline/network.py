"""A whole model as one program: forward, loss, backward and the optimizer's step, repeats unrolled."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.cost.prediction import Prediction
from costmodel.errors import SettingError
from costmodel.layers.loss import Loss
from costmodel.roofline.kernels.optimizers import Update, states_of, step_of
from costmodel.roofline.program import Program, program_of
from costmodel.roofline.recorder import ROLES, Recorder
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape

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


def network_of(prediction: Prediction, dtype: str = "float32", *, optimize: bool = True, step: int = 1) -> Network:
    """The program of a prediction: the forward pass in inference, a whole step in training.

    optimize: with the optimizer's step, the `step`-th. Raises SettingError for what NumPy does not do.
    """
    check_runs(prediction)
    recorder = Recorder(Tape(dtype))
    recorder.walk(prediction.run.root)
    outputs, loss = _ends(recorder, prediction)
    found = {role: recorder.standing(role) for role in ROLES.values()}
    weights = found["weight"]
    pulled = recorder.pull(outputs if loss is None else [loss]) if prediction.settings.training else {}
    gradients = {name: pulled[ref] for name, ref in weights.items() if ref in pulled}
    states = _optimized(recorder.tape, prediction, weights, gradients, step) if optimize and gradients else {}
    ends = [*outputs, *([] if loss is None else [loss]), *([] if states else gradients.values())]
    program = program_of(recorder.tape.ops, ends, (), prediction.model.title, recorder.given.values())
    return Network(program, outputs, loss, found["input"], weights, found["state"], gradients, states)


def _ends(recorder: Recorder, prediction: Prediction) -> tuple[list[Ref], Ref | None]:
    """What the losses see, and their sum if there is one."""
    final = recorder.steps[-1]
    losses = [s.site.x for s in recorder.steps if s.site is not None and isinstance(s.site.kind, Loss)]
    if losses:
        return losses, final.y
    if prediction.run.outputs:
        return [recorder.ref(y) for y in prediction.run.outputs], None
    if not prediction.model.HAS_ATTENTION:
        return [final.y], None
    return [recorder.viewed(final.y, (final.y.size // final.y.shape[-1], final.y.shape[-1]))], None


def _optimized(
    tape: Tape, prediction: Prediction, weights: dict[str, Ref], gradients: dict[str, Ref], number: int
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


def check_runs(prediction: Prediction) -> None:
    """Raise SettingError for settings that no NumPy program follows, or a model of too many layers."""
    settings = prediction.settings
    plain = {"checkpoint": "none", "accumulate": 1, "attention": "eager"}
    for name, value in plain.items():
        if getattr(settings, name) != value:
            raise SettingError(f"{name}={getattr(settings, name)!r} is not run in NumPy: use {name}={value!r}")
    if settings.policy.name != "fp32":
        raise SettingError(f"precision {settings.policy.name!r} is not run in NumPy: use 'fp32', or dtype='float64'")
    layers = sum(int(call.times) for call in prediction.run.root.calls())
    if layers > MOST_LAYERS:
        raise SettingError(
            f"{prediction.model.title} has {layers:,} layers, more than the {MOST_LAYERS:,} that are run"
        )
