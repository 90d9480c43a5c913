"""What is taken for granted while a module is captured, where its code looks at data or at whether it is exported.

Without data nobody can tell whether a mask is causal, as ``torch.nn.TransformerEncoder`` and ``TransformerDecoder`` ask
of every mask that comes without the hint `is_causal`: one as square as the sequence is taken for causal, unless an
example of it with data says otherwise. The package `transformers` leaves causal masks out but when it is exported; here
they are left out too, since that is what training runs. Other modules that ask are told that they are not exported.
Products by groups take any floating type. Values are taken for right where PyTorch checks them: parameters of
distributions, and variances of a Gaussian loss. Fake quantisation, of which PyTorch knows no shapes without data, makes
numbers of its input's shape.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from costmodel.importers.torch.autograd import written_into_graphs

NOTE = "a square mask without the hint is_causal is taken for a causal one"


@contextmanager
def assumed(torch: Any, examples: list[Any], notes: list[str], *, told: bool) -> Iterator[None]:
    """Assume it within; `examples` are the tensors given, and what was assumed is added to `notes`.

    told: whether models of `transformers` that ask are told that they are exported.
    """
    square = all(_is_causal(torch, x) for x in examples if _is_square_mask(torch, x))

    def detected(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None or mask is None:
            return is_causal is True
        wanted = mask.size(-2) if size is None else size
        if len(mask.shape) != 2 or mask.size(0) != wanted or mask.size(1) != wanted or not square:
            return False
        if NOTE not in notes:
            notes.append(NOTE)
        return True

    with (
        patch.object(torch.nn.modules.transformer, "_detect_is_causal_mask", detected),
        _masks_as_in_training(),
        _groups_in_any_type(torch),
        _values_in_range(torch),
        _quantised_without_data(torch),
        _not_exporting(torch, notes, told=told),
        written_into_graphs(torch),
    ):
        yield


def _no(*_: Any) -> bool:
    return False


@contextmanager
def _values_in_range(torch: Any) -> Iterator[None]:
    """Leave out checks of values that nobody can make without them.

    The loss is called as if no mode looked on: to one it is handed whole, so that its parts without gradients are lost.
    """
    functional = torch.nn.functional

    def unchecked(*args: Any, **kwargs: Any) -> Any:
        with patch.multiple(functional, has_torch_function_variadic=_no), patch.object(torch, "any", _no):
            return gaussian(*args, **kwargs)

    gaussian = functional.gaussian_nll_loss
    with (
        patch.object(torch.distributions.Distribution, "_validate_args", False),
        patch.object(functional, "gaussian_nll_loss", unchecked),
    ):
        yield


@contextmanager
def _quantised_without_data(torch: Any) -> Iterator[None]:
    """Tell PyTorch what fake quantisation makes: numbers like its input's, and which of them were in range."""
    library = torch.library.Library("aten", "IMPL")

    def quantised(x: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)

    operators = [f"fake_quantize_per_{what}_affine_cachemask" for what in ("tensor", "channel")]
    try:
        for name in (*operators, "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"):
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
                library.impl(name, quantised, "Meta")
        yield
    finally:
        library._destroy()


EXPORTED = "a model of transformers is told that it is exported, and may then run other operators than in training"
_HANDED_ON = ("torch._dynamo.external_utils", "torch._utils", "transformers.utils.import_utils")
"""Modules whose functions ask for others."""


class TransformersModels:
    """Models of the package `transformers`: whether they are told that they are exported, and whether one asked."""

    told = False
    asked = False


def is_told(flag: str) -> bool:
    """Whether the module that calls one of PyTorch's functions is told that a flag of `torch.compiler` is set.

    PyTorch and the package `transformers` are told as it is, its models only where they cannot be captured otherwise,
    and all others that nothing of the kind goes on, so that they do what they do in training.
    """
    import torch

    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _HANDED_ON:
        frame = frame.f_back
    caller = frame.f_globals.get("__name__", "")
    if not getattr(torch.compiler, flag):
        return False
    if caller.startswith("transformers.models."):
        TransformersModels.asked = True
        return TransformersModels.told
    return caller.partition(".")[0] in ("torch", "transformers")


@contextmanager
def _not_exporting(torch: Any, notes: list[str], *, told: bool) -> Iterator[None]:
    """Let `is_told` answer modules that ask whether they are exported or compiled; `told`: see `TransformersModels`.

    The code of PyTorch's functions is exchanged, since modules may have imported the functions by their names.
    """

    def is_exporting() -> Any:
        return _costmodel_is_told("_is_exporting_flag")  # type: ignore[name-defined]  # noqa: F821

    def is_compiling() -> Any:
        return _costmodel_is_told("_is_compiling_flag")  # type: ignore[name-defined]  # noqa: F821

    TransformersModels.told, TransformersModels.asked = told, False
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.compiler, "_costmodel_is_told", is_told, create=True))
        for answer in (is_exporting, is_compiling):
            question = getattr(torch.compiler, answer.__name__)
            stack.callback(setattr, question, "__code__", question.__code__)
            question.__code__ = answer.__code__
        yield
    if told and TransformersModels.asked:
        notes.append(EXPORTED)


@contextmanager
def _groups_in_any_type(torch: Any) -> Iterator[None]:
    """Let products by groups take any floating type, as they do on a CPU: the meta device asks for bfloat16."""

    def in_any_type(multiply: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(multiply)
        def multiplied(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
            return multiply(a.to(torch.bfloat16), b.to(torch.bfloat16), *args, **kwargs).to(a.dtype)

        return multiplied

    operators = [(torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm")]
    package = sys.modules.get("transformers.integrations.moe")
    with ExitStack() as stack:
        if hasattr(package, "_can_use_grouped_mm"):  # which says no while anything is traced
            stack.enter_context(patch.object(package, "_can_use_grouped_mm", lambda *_: True))
        for module, name in operators:
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, in_any_type(getattr(module, name))))
        yield


def _is_square_mask(torch: Any, x: Any) -> bool:
    """Whether an example can be a mask whose data say something."""
    if x.device.type == "meta" or len(x.shape) != 2 or x.shape[0] != x.shape[1]:
        return False
    return x.dtype == torch.bool or (x.is_floating_point() and bool(x.isneginf().any()))


def _is_causal(torch: Any, mask: Any) -> bool:
    hidden = torch.ones_like(mask, dtype=torch.bool).triu(1)
    return bool((mask == (hidden if mask.dtype == torch.bool else _numbers(hidden, mask))).all())


def _numbers(hidden: Any, mask: Any) -> Any:
    return hidden.new_zeros(hidden.shape, dtype=mask.dtype).masked_fill_(hidden, float("-inf"))


@contextmanager
def _masks_as_in_training() -> Iterator[None]:
    """Let `transformers` choose masks as if nothing was exported; where a window is, that would fix the sequence."""
    masks = sys.modules.get("transformers.masking_utils")
    names = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
    if masks is None or not all(hasattr(masks, name) for name in (*names, "is_torchdynamo_exporting")):
        yield
        return

    def as_in_training(choose: Callable[..., bool]) -> Callable[..., bool]:
        @wraps(choose)
        def chosen(*args: Any, **kwargs: Any) -> bool:
            if args[-1] is not None:  # the window, or how many tokens local attention sees
                return choose(*args, **kwargs)
            with patch.object(masks, "is_torchdynamo_exporting", lambda: False):
                return choose(*args, **kwargs)

        return chosen

    with (
        patch.object(masks, names[0], as_in_training(getattr(masks, names[0]))),
        patch.object(masks, names[1], as_in_training(getattr(masks, names[1]))),
    ):
        yield
