"""What a module tells autograd while it runs: stretches to recompute, and functions with a backward of their own.

torch.export keeps neither. So they are written into its graph by operators of this package that compute nothing:
``costmodel::checkpoint`` and ``checkpoint_end`` around a stretch; ``leaf`` where a tensor is told to need a gradient;
``function_start``, ``function_backward`` and ``function`` around the forward pass of a function and the backward pass
that follows it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from costmodel.errors import SpecError

NAMESPACE = "costmodel"
"""That of the operators that this package writes into a graph."""

_OPERATORS = (
    "checkpoint(Tensor[] inputs, str rerun) -> ()",
    "checkpoint_end(Tensor[] results) -> ()",
    "leaf(Tensor self) -> ()",
    "function_start(Tensor[] inputs) -> ()",
    "function_backward() -> ()",
    "function(str title, Tensor[] inputs, Tensor[] results, Tensor[] kept, Tensor[] attributes,"
    " Tensor[] incoming, Tensor?[] gradients) -> ()",
)


@cache
def _operators(torch: Any) -> Any:
    """Define them for as long as Python runs."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for schema in _OPERATORS:
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, lambda *_: None, "CompositeExplicitAutograd")
        torch.fx.node.has_side_effect(getattr(getattr(torch.ops, NAMESPACE), name).default)
    return library, getattr(torch.ops, NAMESPACE)


@contextmanager
def written_into_graphs(torch: Any) -> Iterator[None]:
    """Write them into graphs that are exported within; refuse gradients within forward, which are dropped in silence.

    The code of PyTorch's functions is exchanged, or what it calls, since modules may have imported the functions by
    their names.
    """

    def refused(*_: Any, **__: Any) -> None:
        raise SpecError(
            "autograd.grad or backward is called within forward, whose cost is not worked out: return what it is taken "
            "of, and ask for a training step"
        )

    checkpoint = torch.utils.checkpoint
    stretches = _Stretches(torch)
    apply = torch.autograd.Function.apply.__func__
    original = FunctionType(apply.__code__, apply.__globals__, apply.__name__, apply.__defaults__, apply.__closure__)
    from torch._dynamo import trace_rules
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    trace_rules.get_torch_obj_rule_map()  # PyTorch's table of its own functions is to hold them as they are

    class Followed(torch.overrides.TorchFunctionMode):  # of these a graph knows nothing
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == torch.Tensor.data.__get__:
                return args[0].detach()
            named = kwargs or {}
            result = function(*args, **named)
            if get_proxy_mode() is None:  # nothing is recorded yet
                return result
            if function in (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__):
                _note_leaf(torch, args[0], *args[1:], **named)
            elif named.get("requires_grad") and isinstance(result, torch.Tensor):
                _note_leaf(torch, result)
            return result

    def without_gradients(mode: Any) -> None:  # which a graph knows of, as it does not of inference_mode
        mode.without_gradients = torch.set_grad_enabled(torch.is_grad_enabled() and not mode.mode)
        mode.without_gradients.__enter__()

    def as_before(mode: Any, *error: Any) -> None:
        mode.without_gradients.__exit__(*error)

    inference_mode = torch.autograd.grad_mode.inference_mode
    with (
        Followed(),
        patch.object(inference_mode, "__enter__", without_gradients),
        patch.object(inference_mode, "__exit__", as_before),
        patch.object(torch.autograd, "grad", refused),
        patch.object(torch.autograd, "backward", refused),
        patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=stretches.whole)),
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", stretches.needed),
        patch.dict(apply.__globals__, {"_costmodel_applied": _Functions(torch, original)}),
    ):
        try:
            apply.__code__ = _exchanged_apply().__code__
            yield
        finally:
            apply.__code__ = original.__code__


def _note_leaf(torch: Any, x: Any, requires_grad: bool = True) -> None:
    """Note that a tensor needs a gradient from here on. Raises SpecError for a parameter, or if it needs none now."""
    if isinstance(x, torch.nn.Parameter) or not requires_grad:
        raise SpecError("requires_grad of a parameter is set within forward, or taken away: set it before from_torch")
    if x.is_leaf:
        _operators(torch)[1].leaf(x)


def _exchanged_apply() -> FunctionType:
    """A function of as many free variables as ``torch.autograd.Function.apply`` has."""
    __class__ = None

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _ = __class__
        return _costmodel_applied(cls, *args, **kwargs)  # type: ignore[name-defined]  # noqa: F821

    assert isinstance(apply, FunctionType)
    return apply


class _Stretches:
    """What stands for ``torch.utils.checkpoint`` of both forms."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.operators = _operators(torch)[1]
        self.is_open = False

    @contextmanager
    def _stretch(self, rerun: str, args: tuple[Any, ...]) -> Iterator[list[Any]]:
        """A stretch within; what is put into the list are its results."""
        if self.is_open:
            raise SpecError("torch.utils.checkpoint within torch.utils.checkpoint has no rule: keep one of the two")
        self.is_open = True
        results: list[Any] = []
        try:
            if self.torch.is_grad_enabled():
                self.operators.checkpoint(self._tensors(args), rerun)
            yield results
            if self.torch.is_grad_enabled():
                self.operators.checkpoint_end(self._tensors(results))
        finally:
            self.is_open = False

    def _tensors(self, values: Iterable[Any]) -> list[Any]:
        return [x for x in values if isinstance(x, self.torch.Tensor)]

    def whole(self, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """``CheckpointFunction.apply``: without gradients if no argument needs one."""
        if not any(isinstance(x, self.torch.Tensor) and x.requires_grad for x in args):
            with self.torch.no_grad():
                return function(*args)
        with self._stretch("whole", args) as results:
            value = function(*args)
            results += value if isinstance(value, tuple | list) else [value]
        return value

    def needed(
        self,
        function: Callable[..., Any],
        preserve: bool,
        context_fn: Callable[..., Any],
        determinism_check: str,
        debug: bool,
        early_stop: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        """``_checkpoint_without_reentrant_generator``, of which the caller takes two steps around the function."""
        checkpoint = self.torch.utils.checkpoint
        if context_fn is not checkpoint.noop_context_fn:
            raise SpecError("torch.utils.checkpoint with a context_fn has no rule: leave it out, or checkpoint less")
        stops = checkpoint._enable_checkpoint_early_stop
        if not (early_stop if stops is None else stops):
            raise SpecError("torch.utils.checkpoint without early_stop has no rule: leave early_stop as it is")
        with self._stretch("needed", args):
            yield


class _Functions:
    """What stands for ``torch.autograd.Function.apply``, whose code is `original`.

    After the forward pass the backward pass runs too, on gradients of all results and on what was saved, so that its
    operators are in the graph.
    """

    def __init__(self, torch: Any, original: Callable[..., Any]) -> None:
        self.torch = torch
        self.original = original
        self.operators = _operators(torch)[1]

    def __call__(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        torch = self.torch
        inputs = [x for x in args if isinstance(x, torch.Tensor)]
        plain = not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
        if plain or not any(x.requires_grad for x in inputs):
            return self.original(cls, *args, **kwargs)
        saved: list[Any] = []

        def pack(tensor: Any) -> int:
            saved.append(tensor)
            return len(saved) - 1

        self.operators.function_start(inputs)
        with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
            results = self.original(cls, *args, **kwargs)
        self.operators.function_backward()
        tensors = [y for y in torch.utils._pytree.tree_leaves(results) if isinstance(y, torch.Tensor)]
        nodes = [y.grad_fn for y in tensors if isinstance(y.grad_fn, torch.autograd.function.BackwardCFunction)]
        context = _Context(nodes[0], saved) if nodes else None
        incoming, gradients = self._backward(cls, context, tensors) if context else ([], [])
        kept, attributes = context.tensors(torch) if context else ([], [])
        of_inputs = [g for x, g in zip(args, gradients, strict=False) if isinstance(x, torch.Tensor)]
        differentiable = [y for y in tensors if y.requires_grad]
        self.operators.function(cls.__name__, inputs, differentiable, kept, attributes, incoming, of_inputs)
        return results

    def _backward(self, cls: Any, context: _Context, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
        """Gradients of results, and those of arguments."""
        torch = self.torch
        with torch.no_grad():
            incoming = [torch.empty_like(y) for y in tensors]
            try:
                gradients = context.backward(*incoming)
            except SpecError:
                raise SpecError(
                    f"{cls.__name__}.backward differentiates on its own, whose cost is not worked out: write out what "
                    "it computes, or use torch.utils.checkpoint"
                ) from None
            except Exception as error:
                raise SpecError(
                    f"{cls.__name__}.backward cannot be run on paper ({type(error).__name__}: "
                    f"{str(error).splitlines()[0][:100] if str(error) else 'no message'})"
                ) from None
        return incoming, list(gradients) if isinstance(gradients, tuple | list) else [gradients]


class _Context:
    """The context of a function in its backward pass: its node of autograd, whose tensors are those that were saved.

    What the node itself unpacks are other tensors, of which no graph knows.
    """

    def __init__(self, node: Any, packed: list[Any]) -> None:
        present = [x is not None for x in node.saved_tensors]
        saved = iter(packed[len(packed) - sum(present) :])  # those before are of gradients within forward
        self.node = node
        self.saved_tensors = self.saved_variables = tuple(next(saved) if there else None for there in present)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)

    def backward(self, *incoming: Any) -> Any:
        """Gradients of the arguments."""
        return self.node._get_user_fn()(self, *incoming)

    def tensors(self, torch: Any) -> tuple[list[Any], list[Any]]:
        """What is saved for backward, and what the context holds by other names."""
        leaves = torch.utils._pytree.tree_leaves(vars(self.node))
        return [x for x in self.saved_tensors if x is not None], [x for x in leaves if isinstance(x, torch.Tensor)]
