"""`from_torch`: a live module, exported on the meta device, as a model like any other."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from costmodel.architectures.trace import trace
from costmodel.documents.arguments import called
from costmodel.errors import CostModelError, SettingError, SpecError, UnknownNameError, not_installed, shown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage, Tensor
from costmodel.importers.torch.axes import Dynamic, Example, examples_of
from costmodel.importers.torch.capture import dtype_name
from costmodel.importers.torch.exporting import Exporter
from costmodel.importers.torch.isolation import module_on_meta
from costmodel.importers.torch.model import Elsewhere, Imported
from costmodel.importers.torch.op_call import FLOATS, NUMBERS, NoRuleError
from costmodel.importers.torch.program import CapturedProgram
from costmodel.importers.torch.rules import load_rules
from costmodel.importers.torch.splitting import names_any
from costmodel.training.layout import Plan, plan_of
from costmodel.training.settings import Settings


@called
def from_torch(
    module: Any,
    example_inputs: Any = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Dynamic | None = None,
    unknown: Literal["error", "lower_bound"] = "error",
    name: str = "",
    time_limit: float = 60.0,
) -> Imported:
    """A PyTorch module as a model, for `predict` and everything else; needs PyTorch (extra `torch`).

    The module is exported by ``torch.export`` on the meta device, as a copy without data: neither it nor its memory is
    touched, and models larger than the machine can be read.

    Args:
        module: a ``torch.nn.Module``, in training or evaluation mode; weights that need no gradient are frozen.
        example_inputs: its positional arguments, as a tuple, or one tensor; only shapes and data types are read.
        example_kwargs: its keyword arguments.
        dynamic: for each input, by its name in the module's signature, which of its axes is a size of the batch:
            {"input_ids": {0: "batch", 1: "seq"}}; the sizes are batch, seq, height and width. By default axis 0 of
            every tensor is the batch; axis 1 of whole numbers, of truth values and of tensors of three axes the
            sequence; and axes 2 and 3 of tensors of four axes height and width. At sizes at which the module does
            something else than here, or that it fixes, it is exported anew when it is asked about.
        unknown: what becomes of operators that have no rule: an error that lists them, or a lower bound.
        name: shown in reports (default: the module's class).
        time_limit: seconds for the attempt to leave height and width open; after that they are fixed, with a note.

    Raises CostModelError: what is wrong, in one line.

    Example:
        >>> import costmodel as cm
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        >>> model = cm.from_torch(net, torch.zeros(2, 16))
        >>> cm.predict(model, batch=64).params
        676

    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise SettingError(f"from_torch takes a torch.nn.Module, not {shown(module)}")
    if unknown not in ("error", "lower_bound"):
        raise UnknownNameError(f"unknown={shown(unknown)} is neither 'error' nor 'lower_bound'")
    if dynamic is not None and not isinstance(dynamic, Mapping):
        raise SettingError(f"dynamic={shown(dynamic)} is not a mapping of inputs such as {{'x': {{0: 'batch'}}}}")
    args = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
    kwargs = dict(example_kwargs or {})
    bare = module_on_meta(torch, module)
    example = examples_of(torch, _bound(module, args, kwargs), dynamic)
    exporter = Exporter(bare, args, kwargs, example, time_limit)
    reading = Reading(exporter, name or type(module).__name__, unknown, _plan_of(module))
    model = reading.model(*exporter.first())
    vars(model)["elsewhere"] = Elsewhere(
        partial(reading.at, frozenset(model.open)), len(model.program.steps), _does_the_same_at_one
    )
    return model


@dataclass(frozen=True)
class Reading:
    """How programs of one module become models. title, unknown: see `from_torch`. plan: what the module splits."""

    exporter: Exporter
    title: str
    unknown: Literal["error", "lower_bound"]
    plan: Plan = ()

    def at(self, open_sizes: frozenset[str], sizes: Mapping[str, int], most: int) -> Imported:
        """The module exported at other sizes, with so many operators at most. Raises CostModelError."""
        return self.model(*self.exporter.at(sizes, open_sizes, most))

    def model(self, captured: Callable[..., CapturedProgram], example: Example) -> Imported:
        """The model of a program. Raises SpecError for what has no rule."""
        title, module = self.title, self.exporter.module
        program = captured()
        model = Imported(name=title, program=program, example=example.sizes, limits=example.limits, reaching_one=())
        _refuse_numbers(title, program, module)
        missing = _without_rule(model)
        if any(missing.values()):  # of what a rule does not know, perhaps what it is composed of is known
            other = captured(frozenset(missing))
            tried = Imported(name=title, program=other, example=example.sizes, limits=example.limits, reaching_one=())
            if other != program and not (still := _without_rule(tried)):
                program, model, missing = other, tried, still
        missing |= _without_numbers(program)
        if missing and self.unknown == "error":
            raise SpecError(f"{title}: {_listed(missing, program)}; unknown='lower_bound' leaves them out")
        left_out = f"lower bound: {_listed(missing, program)}, so FLOPs and bytes are at least what is stated"
        types = sorted({dtype_name(weight.dtype) for weight in module.parameters()} - {"float32"})
        stored = (
            [f"weights are {' and '.join(types)}: the setting precision says what they are counted as"] if types else []
        )
        notes = ". ".join([*example.notes, *stored, *([left_out] if missing else [])])
        plan = tuple(each for each in self.plan if names_any(program, each[0]))
        return model.model_copy(update={"notes": notes[:4000], "unknown": tuple(missing), "plan": plan})


def _plan_of(module: Any) -> Plan:
    """What the module itself says of tensor parallelism, as those of the package ``transformers`` do."""
    plan = getattr(module, "tp_plan", None)
    if not isinstance(plan, Mapping):
        return ()
    try:
        return plan_of("tp_plan", plan)
    except SettingError:  # which is no such plan
        return ()


def _does_the_same_at_one(model: Imported, name: str) -> bool:
    """Whether a module does the same at 1 as at larger batches, or sequences, as `name` says."""
    _, most = model.limits[name]
    wider = model.model_copy(update={"limits": {**model.limits, name: (1, most)}})
    sizes = _least(model) | {name: 1}
    try:
        return wider.objection(sizes) is None and _work(wider, sizes) == _work(model.at(sizes), sizes)
    except CostModelError:
        return False


def _least(model: Imported) -> dict[str, int]:
    """The sizes of the example, or if its program is not for such small ones the least that it is for."""
    return {name: max(size, model.limits.get(name, (1, None))[0]) for name, size in model.example.items()}


def _traced(model: Imported, sizes: Mapping[str, int]) -> Tape:
    """What a model does on paper. Raises CostModelError."""
    image = (sizes.get("height", 1), sizes.get("width", 1)) if "height" in sizes or "width" in sizes else None
    return trace(model, Settings(batch=sizes.get("batch", 1), seq=sizes.get("seq"), image=image))


def _work(model: Imported, sizes: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """All layers that a model calls, with what they read, make, hold and keep, each tensor's memory by a number.

    Steps that do nothing, such as a slice of everything, leave no trace in it.
    """
    numbers: dict[Storage, int] = {}

    def number(storage: Storage) -> tuple[int, int]:
        return numbers.setdefault(storage, len(numbers)), storage.elements

    def memory(x: Tensor) -> tuple[Any, ...]:
        return (*number(x.storage), x.shape, x.requires_grad)

    return [
        (
            call.layer,
            call.block.times,
            *map(memory, (*call.inputs, *call.stored.values(), call.y)),
            *map(number, call.saved),
        )
        for call in _traced(model, sizes).root.calls()
    ]


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise not_installed("from_torch needs PyTorch", "torch") from None
    return torch


def _bound(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The example inputs by the names of the module's signature. Raises SettingError."""
    signature = inspect.signature(module.forward)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise SettingError(f"example inputs do not fit {type(module).__name__}.forward{signature}: {error}") from None


def _without_rule(model: Imported) -> dict[str, str]:
    """Operators that have no rule, or are called as no rule knows: what is wrong with each but the lack of a rule."""
    rules = load_rules()
    missing = {step.op: "" for step in model.program.steps if step.op not in rules}
    while True:
        try:
            _traced(model.model_copy(update={"unknown": tuple(missing)}), _least(model))
        except NoRuleError as error:
            if error.op in missing:
                raise
            missing[error.op] = str(error)
        else:
            return missing


def _refuse_numbers(title: str, program: CapturedProgram, module: Any) -> None:
    """Raise SpecError if a weight, a buffer or an input is of numbers whose bytes and FLOPs are others."""
    weights = {f"weight {name}": dtype_name(weight.dtype) for name, weight in module.named_parameters()}
    others = {f"buffer {buffer.path}": buffer.dtype for buffer in program.buffers.values()}
    others |= {f"input {each.path}": each.dtype for each in program.inputs.values()}
    for what, dtype in (weights | others).items():
        if dtype not in (FLOATS if what in weights else NUMBERS):
            advice = (
                "make it of real ones, such as by torch.view_as_real"
                if "complex" in dtype
                else "import the module as it is before, the setting precision says what it is counted as"
            )
            raise SpecError(f"{title}: {what} is of {_kind(dtype)} ({dtype}), for which there are no rules: {advice}")


def _without_numbers(program: CapturedProgram) -> dict[str, str]:
    """Operators that somewhere make numbers for which there are no rules, with what they make."""
    types = {step.op: each.dtype for step in program.steps for each in step.makes if each.dtype not in NUMBERS}
    return {op: f"it makes {_kind(dtype)}" for op, dtype in types.items()}


def _kind(dtype: str) -> str:
    return next((f"{kind} numbers" for kind in ("complex", "float8", "float4", "int") if kind in dtype), "such numbers")


def _listed(missing: dict[str, str], program: CapturedProgram) -> str:
    """Operators by name and count, with their share of the tensors that are made."""
    count = Counter(step.op for step in program.steps if step.op in missing)
    tensors = sum(len(step.makes) for step in program.steps if step.op in missing)
    share = tensors / max(sum(len(step.makes) for step in program.steps), 1)
    why = {op: f" ({reason})" if reason else "" for op, reason in missing.items()}
    names = ", ".join(f"{op} ×{times}{why[op]}" for op, times in count.most_common())
    plural = "s have" if len(missing) > 1 else " has"
    return f"{len(missing)} operator{plural} no rule: {names}, {share:.1%} of its tensors"
