"""A copy of a module that has no data, and everything that its code may change put back."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import GeneratorType
from typing import Any
from unittest.mock import patch

from costmodel.errors import CostModelError, SpecError, shown

MOST_FRAMES = 10_000
"""Calls within calls: a module of 300 nested parts takes more than Python's 1,000."""
MOST_OPERATORS = 20_000
"""A forward pass that calls more operators is taken for one without end."""
_MOST_SHARED = 100
"""Kinds of objects in a module that cannot be copied."""


class EndlessError(CostModelError):
    """A forward pass that calls too many operators."""


def module_on_meta(torch: Any, module: Any) -> Any:
    """A copy of a module whose tensors have no data; ties between them stay.

    What cannot be copied, such as a lock or an open file, is shared. Raises SpecError for a module that cannot be read.
    """
    _check(torch, module)

    class WithoutData(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.__deepcopy__:
                tensor = args[0]
                bare = torch.empty_like(tensor.detach(), device="meta").requires_grad_(tensor.requires_grad)
                return args[1].setdefault(id(tensor), bare)
            return function(*args, **(kwargs or {}))

    shared: dict[int, Any] = {}
    failure: Exception | None = None
    with deep_calls(), patch.dict(copyreg.dispatch_table), WithoutData():
        for _ in range(_MOST_SHARED):
            memo = shared | {
                id(parameter): torch.nn.Parameter(
                    torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
                )
                for parameter in module.parameters()
            }
            try:
                return copy.deepcopy(module, memo)
            except Exception as error:
                failure, culprit = error, _uncopied(error)
            if culprit is None or isinstance(culprit, torch.nn.Module) or id(culprit) in shared:
                break
            shared[id(culprit)] = culprit
            copyreg.dispatch_table[type(culprit)] = _as_it_is
    kind = type(module).__name__
    raise SpecError(f"{kind}: it cannot be copied: {shown(str(failure))}") from None


def _as_it_is(_: Any) -> str:
    """What `copyreg` asks of a type: text says that an object is its own copy."""
    return "shared"


def _uncopied(error: BaseException) -> Any:
    """The object at which copying failed."""
    culprit, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "deepcopy" and code.co_filename == copy.__file__:
            culprit = trace.tb_frame.f_locals.get("x")
        trace = trace.tb_next
    return culprit


def _check(torch: Any, module: Any) -> None:
    """Raise SpecError for parts whose weights are not made yet, or whose code Python does not run."""
    kind = type(module).__name__
    for path, part in module.named_modules():
        where = f"{kind}: {path or 'it'} ({type(part).__name__})"
        if isinstance(part, torch.jit.ScriptModule):
            raise SpecError(f"{where} is made by torch.jit: import the module that it was made of")
        own = (*part.parameters(recurse=False), *part.buffers(recurse=False))
        if any(isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin) for tensor in own):
            raise SpecError(f"{where} has no weights yet: run the module once, which makes them")


@contextmanager
def deep_calls() -> Iterator[None]:
    """Let calls be as deep as modules are."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, MOST_FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def undisturbed(torch: Any) -> Iterator[None]:
    """Put back what a module's code may change of the process: random numbers, modes, the folder. It cannot end it."""

    def ends(status: object = 0) -> None:
        raise SystemExit(status)

    numpy = sys.modules.get("numpy")
    with ExitStack() as stack:
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(random.setstate, random.getstate())
        stack.callback(os.chdir, os.getcwd())
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        stack.enter_context(patch.object(os, "_exit", ends))
        yield


@contextmanager
def bounded(torch: Any, name: str, most: int) -> Iterator[None]:
    """Raise EndlessError where more operators are called within than so many."""
    count = 0
    create = torch.fx.proxy.TracerBase.create_node

    @wraps(create)
    def counted(tracer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        tracer.record_stack_traces = False  # which nobody reads, and takes a sixth of the time
        if count > most:
            raise EndlessError(f"{name}: its forward pass calls more than {most:,} operators: does it end?")
        return create(tracer, *args, **kwargs)

    with patch.object(torch.fx.proxy.TracerBase, "create_node", counted):
        yield


def plain(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass whose results are tensors and tuples where they were data classes and generators."""

    @wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        return _plain(forward(*args, **kwargs))

    return called


def _plain(result: Any) -> Any:
    if isinstance(result, GeneratorType):
        return tuple(map(_plain, result))
    if type(result) in (tuple, list):
        return type(result)(map(_plain, result))
    if dataclasses.is_dataclass(result) and not isinstance(result, type | dict):
        return tuple(_plain(getattr(result, field.name)) for field in dataclasses.fields(result))
    return result
