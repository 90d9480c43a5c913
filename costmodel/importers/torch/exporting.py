"""A live module through torch.export, on the meta device: at as many open sizes as it leaves open."""

from __future__ import annotations

import ctypes
import linecache
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from typing import Any
from unittest.mock import patch

from costmodel.display.table import is_terminal
from costmodel.errors import SpecError
from costmodel.importers.torch.assumptions import TransformersModels, assumed
from costmodel.importers.torch.axes import NO_GRAPH, Example
from costmodel.importers.torch.capture import Capture
from costmodel.importers.torch.isolation import (
    MOST_OPERATORS,
    EndlessError,
    bounded,
    deep_calls,
    module_on_meta,
    plain,
    undisturbed,
)
from costmodel.importers.torch.program import CapturedProgram

_STANDARD = os.path.join(os.path.dirname(os.__file__), "contextlib.py")
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
    if kind := re.search(r"Found <class '(?:\w+\.)*(\w+)'> in (out|in)put", text):
        where = "returns" if kind[2] == "out" else "is handed"
        return SpecError(
            f"{module}: it {where} a {kind[1]}, in which no tensors are seen: make it tensors, tuples, lists or dicts"
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
            if outside not in path and not path.startswith(("<", _STANDARD)):
                code = linecache.getline(path, line).strip()
                place = f" at {os.path.basename(path)}:{line} in {frame.f_code.co_name}" + (
                    f" ({code[:80]})" if code else ""
                )
        cause = cause.__cause__ or cause.__context__
        if place and cause is not None and not cause.__traceback__:
            break
    return place


Captured = tuple[Callable[..., CapturedProgram], Example]
"""What captures the program, at the sizes of an example."""


@dataclass(frozen=True)
class Exporter:
    """A module without data, with its inputs.

    time_limit: seconds for the attempt to leave height and width open. most: operators that it may call.
    """

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    example: Example
    time_limit: float
    most: int = MOST_OPERATORS

    def first(self) -> Captured:
        """What captures the program at as many open sizes as the module leaves open.

        Each attempt is an export of its own. With an image's sizes the batch alone comes first, which is soon done:
        what else there is to try may take minutes, so it has `time_limit` seconds. Raises SpecError, the last if no
        attempt works.
        """
        attempts = self.example.attempts()
        failure: Exception | None = None
        if "height" in self.example.sizes and "batch" in self.example.sizes:
            try:
                fallback = self._attempt(frozenset({"batch"}))
            except EndlessError:
                raise
            except Exception as error:
                failure, attempts = error, [frozenset()]
            else:
                return _more_open(partial(self._attempt, attempts[0]), fallback, self.time_limit)
        return self._in_turn(attempts, failure)

    def at(self, sizes: Mapping[str, int], open_sizes: frozenset[str], most: int) -> Captured:
        """The same at these sizes of the batch, with these open if that works; a size of 1 is always fixed."""
        there = replace(self, example=replace(self.example, sizes=dict(sizes)), most=min(most, self.most))
        free = frozenset(name for name in open_sizes if sizes[name] > 1)
        return there._in_turn([free, frozenset()] if free else [free])

    def _in_turn(self, attempts: list[frozenset[str]], failure: Exception | None = None) -> Captured:
        for open_sizes in attempts:
            try:
                return self._attempt(open_sizes)
            except EndlessError:
                raise
            except Exception as error:  # whatever the module's own code raises
                failure = error
        assert failure is not None
        raise failure if isinstance(failure, SpecError) else explained(failure, type(self.module).__name__) from None

    def _attempt(self, open_sizes: frozenset[str]) -> Captured:
        """An export with these sizes open; a model that fails may need to be told that it is exported."""
        try:
            return self._export(open_sizes, told=False)
        except EndlessError:
            raise
        except Exception:
            if not TransformersModels.asked:
                raise
            return self._export(open_sizes, told=True)

    def _export(self, open_sizes: frozenset[str], *, told: bool) -> Captured:
        """The same of a copy of the module, whose code may change it; `told`: see `assumed`."""
        import torch

        opened = self.example.opened(open_sizes)
        args, kwargs, shapes = opened.inputs(torch, self.args, self.kwargs)
        module, taken = module_on_meta(torch, self.module), list[str]()
        module.forward = plain(module.forward)
        name = type(module).__name__
        examples = [one.tensor for one in opened.axes]
        with (
            _said(name, open_sizes),
            _quiet(),
            deep_calls(),
            undisturbed(torch),
            bounded(torch, name, self.most),
            torch.device("meta"),
            assumed(torch, examples, taken, told=told),
            _without_layout(torch),
        ):
            try:
                exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
            except (Exception, KeyboardInterrupt, OutOfTimeError):
                raise
            except BaseException as error:  # such as what sys.exit raises
                raise SpecError(f"{name}: it ends by {type(error).__name__}{_place(error)}") from None
        settled = opened.settled(exported)
        settled = replace(settled, notes=(*settled.notes, *taken))
        capture = partial(_captured, exported, module, settled)
        capture()
        return capture, settled


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
    import torch

    with _quiet(), _without_layout(torch):
        return Capture(exported, module, example, composed)()


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


_ASKING = ("symbolic_shapes.py", "sym_node.py", os.path.join("torch", "__init__.py"))
"""Files of PyTorch between what asks about a size and what answers."""
_LAYOUT = frozenset(
    {
        *("check_contiguous_sizes_strides", "is_contiguous", "is_channels_last_contiguous_2d", "should_swap", "ge"),
        *("is_channels_last_contiguous_3d", "are_strides_like_channels_last_or_false", "__lt__"),
    }
)
"""Functions of PyTorch that look at sizes to say how a tensor lies in memory, and for nothing else."""
_LAYOUT_FILE = os.path.join("torch", "_prims_common", "__init__.py")


@contextmanager
def _without_layout(torch: Any) -> Iterator[None]:
    """Let conditions on sizes be those under which a module does the same, and not those of memory order.

    How tensors lie in memory is worked out again for the sizes of each question.
    """
    kind = torch.fx.experimental.symbolic_shapes.ShapeEnv
    evaluate = kind.evaluate_expr

    def evaluated(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith(_ASKING):
            frame = frame.f_back
        code = frame.f_code if frame is not None else evaluated.__code__
        if code.co_name in _LAYOUT and code.co_filename.endswith(_LAYOUT_FILE):
            with self.suppress_guards():
                return evaluate(self, *args, **kwargs)
        return evaluate(self, *args, **kwargs)

    with patch.object(kind, "evaluate_expr", evaluated):
        yield
