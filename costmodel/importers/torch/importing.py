"""`from_torch`: a live module, exported on the meta device, as a model like any other."""

from __future__ import annotations

import ctypes
import inspect
import linecache
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any, Literal

from costmodel.architectures.trace import trace
from costmodel.display.table import is_terminal
from costmodel.errors import CostModelError, SettingError, SpecError, UnknownNameError, shown
from costmodel.importers.torch.assumptions import assumed
from costmodel.importers.torch.axes import NO_GRAPH, Dynamic, Example, examples_of, module_on_meta
from costmodel.importers.torch.capture import Capture, dtype_name
from costmodel.importers.torch.model import Imported
from costmodel.importers.torch.op_call import FLOATS, NUMBERS, NoRuleError
from costmodel.importers.torch.program import CapturedProgram
from costmodel.importers.torch.rules import load_rules
from costmodel.training.settings import Settings

_OPERATOR = re.compile(r"aten\.(\w+)(\.\w+)?")
"""All that PyTorch says of an operator whose results it cannot make without data."""
_DATA = ("DataDependent", "data-dependent", "u0", "Tensor.item()", "Cannot call")


def explained(error: Exception, module: str) -> SpecError:
    """The error to raise for one of torch.export's."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    where = _place(error)
    if operator := _OPERATOR.fullmatch(text):
        return SpecError(
            f"{module}: {operator[1]} cannot be captured{where}: what sizes its results have depends on the data, or "
            "PyTorch does not say: return what it reads, and take it outside of the module"
        )
    if "PackedSequence" in text:
        return SpecError(
            f"{module}: packed sequences cannot be captured{where}: how many of them go on at each step are data; give "
            "the recurrent layer the padded batch"
        )
    if any(word in f"{type(error).__name__} {text}" for word in _DATA):
        return SpecError(
            f"{module}: what is run depends on the data{where}: from_torch needs a forward pass that is the same for "
            "all inputs of a shape"
        )
    return SpecError(f"{module}: torch.export cannot run it on the example inputs{where}: {text[:300]}")


def _place(error: BaseException) -> str:
    """The innermost line of code that is not a library's: file, line, and what it says."""
    outside = os.sep + "torch" + os.sep  # PyTorch's own code, and this package's
    place = ""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        for frame, line in traceback.walk_tb(cause.__traceback__):
            path = frame.f_code.co_filename
            if outside not in path and not path.startswith("<"):
                code = linecache.getline(path, line).strip()
                place = f" at {os.path.basename(path)}:{line} in {frame.f_code.co_name}" + (
                    f" ({code[:80]})" if code else ""
                )
        cause = cause.__cause__ or cause.__context__
        if place and cause is not None and not cause.__traceback__:
            break
    return place


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
            sequence; and axes 2 and 3 of tensors of four axes height and width. A size that the module fixes is fixed.
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
    named = _bound(module, args, kwargs)
    bare = module_on_meta(torch, module)
    captured, example = _exported(torch, bare, args, kwargs, examples_of(torch, named, dynamic), time_limit)
    title = name or type(module).__name__
    program = captured()
    model = Imported(name=title, program=program, example=example.sizes, limits=example.limits)
    _refuse_numbers(title, program, module)
    missing = _without_rule(model)
    if any(missing.values()):  # of what a rule does not know, perhaps what it is composed of is known
        other = captured(frozenset(missing))
        tried = Imported(name=title, program=other, example=example.sizes, limits=example.limits)
        if other != program and not (still := _without_rule(tried)):
            program, model, missing = other, tried, still
    missing |= _without_numbers(program)
    if missing and unknown == "error":
        raise SpecError(f"{title}: {_listed(missing, program)}; unknown='lower_bound' leaves them out")
    left_out = f"lower bound: {_listed(missing, program)}, so FLOPs and bytes are at least what is stated"
    types = sorted({dtype_name(weight.dtype) for weight in module.parameters()} - {"float32"})
    stored = (
        [f"weights are {' and '.join(types)}: the setting precision says what they are counted as"] if types else []
    )
    notes = ". ".join([*example.notes, *stored, *([left_out] if missing else [])])
    return model.model_copy(update={"notes": notes[:4000], "unknown": tuple(missing)})


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise CostModelError("from_torch needs PyTorch: pip install 'costmodel[torch]'") from None
    return torch


def _bound(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The example inputs by the names of the module's signature. Raises SettingError."""
    signature = inspect.signature(module.forward)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise SettingError(f"example inputs do not fit {type(module).__name__}.forward{signature}: {error}") from None


Captured = tuple[Callable[..., CapturedProgram], Example]


def _exported(
    torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], example: Example, time_limit: float
) -> Captured:
    """What captures the program at as many open sizes as the module leaves open; the last error if it leaves none.

    Each attempt is an export of its own. With an image's sizes the batch alone comes first, which is soon done: what
    else there is to try may take minutes, so it has `time_limit` seconds.
    """
    attempt = partial(_attempt, torch, module, args, kwargs, example)
    attempts = example.attempts()
    failure: Exception | None = None
    if "height" in example.sizes and "batch" in example.sizes:
        try:
            fallback = attempt(frozenset({"batch"}))
        except Exception as error:
            failure, attempts = error, [frozenset()]
        else:
            return _more_open(partial(attempt, attempts[0]), fallback, time_limit)
    for open_sizes in attempts:
        try:
            return attempt(open_sizes)
        except Exception as error:  # whatever the module's own code raises
            failure = error
    assert failure is not None
    raise failure if isinstance(failure, SpecError) else explained(failure, type(module).__name__) from None


def _more_open(attempt: Callable[[], Captured], fallback: Captured, time_limit: float) -> Captured:
    """What an attempt with more sizes open finds, if it works in time, else the fallback."""
    try:
        with stopped_after(time_limit):
            return attempt()
    except OutOfTimeError:
        capture, example = fallback
        late = f"leaving it open takes more than {time_limit:g} s (time_limit)"
        return capture, replace(example, notes=tuple(note.replace(NO_GRAPH, late) for note in example.notes))
    except Exception:  # the module's own code, or what torch.export cannot know
        return fallback


def _attempt(
    torch: Any,
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    example: Example,
    open_sizes: frozenset[str],
) -> Captured:
    """An export with these sizes open."""
    opened = example.opened(open_sizes)
    given_args, given_kwargs, shapes = opened.inputs(torch, args, kwargs)
    taken: list[str] = []
    examples = [one.tensor for one in example.axes]
    with _said(type(module).__name__, open_sizes), _quiet(), torch.device("meta"), assumed(torch, examples, taken):
        exported = torch.export.export(module, given_args, given_kwargs, dynamic_shapes=shapes, strict=False)
    settled = opened.settled(exported)
    settled = replace(settled, notes=(*settled.notes, *taken))
    capture = partial(_captured, exported, module, settled)
    capture()
    return capture, settled


@contextmanager
def _said(name: str, open_sizes: frozenset[str]) -> Iterator[None]:
    """A line on a terminal that says what is tried, for as long as it is."""
    shown_to = sys.stderr if is_terminal(sys.stderr) else None
    if shown_to:
        sizes = " and ".join(sorted(open_sizes)) or "no size"
        print(f"\rexporting {name} with {sizes} open ...", end="", file=shown_to, flush=True)
    try:
        yield
    finally:
        if shown_to:
            print("\r\033[K", end="", file=shown_to, flush=True)


class OutOfTimeError(BaseException):
    """An attempt was stopped; no `Exception`, so that nobody takes it for the module's."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError within after so many seconds, and again if somebody catches it."""
    thread, done = threading.get_ident(), threading.Event()

    def stop() -> None:
        wait = seconds
        while not done.wait(wait):
            wait = 1.0
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(OutOfTimeError))

    watch = threading.Thread(target=stop, daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()


def _captured(exported: Any, module: Any, example: Example, composed: Collection[str] = frozenset()) -> CapturedProgram:
    """The program; `composed`: see `Capture`."""
    with _quiet():
        return Capture(exported, module, example.letters, composed)()


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is printed or logged: what PyTorch has to say is in its errors."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _without_rule(model: Imported) -> dict[str, str]:
    """Operators that have no rule, or are called as no rule knows: what is wrong with each but the lack of a rule."""
    rules = load_rules()
    missing = {step.op: "" for step in model.program.steps if step.op not in rules}
    settings = Settings(batch=model.example.get("batch", 1))
    while True:
        try:
            trace(model.model_copy(update={"unknown": tuple(missing)}), settings)
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
