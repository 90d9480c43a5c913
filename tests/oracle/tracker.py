"""Bytes alive through a real training step, by two trackers.

A dispatch mode follows every storage from birth to death, without data and so of any size. It sees what operators make,
and not what they take for themselves: that `WITHIN` adds, as the second has it, the events of the CPU's allocator.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .autocasting import GpuAutocast


class Most(NamedTuple):
    """The most alive at once in one phase, and how much of that autograd had saved (weights and inputs left out), and
    weights had as gradients.
    """

    alive: int
    saved: int
    gradients: int


class Saved:
    """What stands for a saved tensor in the autograd graph; it goes when autograd lets go of the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


IN_PLACE = {
    torch.ops.aten.logical_and.default: torch.ops.aten.logical_and_.default,
    torch.ops.aten.logical_or.default: torch.ops.aten.logical_or_.default,
}
"""Of masks that tell what is within bounds: what backward does in place unless a mode looks on."""

INTO_ZEROS = {
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
}
"""What backward of a gather, and of what sorts or finds the largest, does in place unless a mode looks on.

That is into zeros which it has just made (``areAnyTensorSubclassLike``); anywhere else these copy.
"""


def _counted(x: Tensor, *_: Any, **__: Any) -> int:
    """Whole numbers that truth values are made into before they are summed (``make_reduction``)."""
    return 8 * x.numel() if x.dtype == torch.bool else 0


def _cast(first: Tensor, second: Any, *_: Any) -> int:
    """The copy of a mask that a CPU makes to multiply it."""
    if not isinstance(second, Tensor):
        return 0
    mask, other = (first, second) if first.dtype == torch.bool else (second, first)
    return other.element_size() * mask.numel() if mask.dtype == torch.bool and other.is_floating_point() else 0


def _expanded(gradient: Tensor, *_: Any, **__: Any) -> int:
    """The copy of a gradient that is fewer numbers, seen at several places."""
    several = any(size > 1 and stride == 0 for size, stride in zip(gradient.shape, gradient.stride(), strict=True))
    return gradient.element_size() * gradient.numel() if several and not torch.is_grad_enabled() else 0


def _logarithms(
    x: Tensor, _: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> int:
    """Of logits: the elements' losses, unless they are the result, beside logarithms; weights of positives less 1."""
    del weight  # it multiplies in place
    return (1 if reduction == 0 else 2) * x.nbytes + (0 if pos_weight is None else pos_weight.nbytes)


WITHIN: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(
        [
            torch.ops.aten.mm.default,
            torch.ops.aten._softmax_backward_data.default,
            torch.ops.aten._log_softmax_backward_data.default,
            torch.ops.aten.native_layer_norm_backward.default,
            torch.ops.aten.native_group_norm_backward.default,
            torch.ops.aten.embedding_dense_backward.default,
            torch.ops.aten.convolution_backward.default,
        ],
        _expanded,
    ),
    torch.ops.aten.sum.default: _counted,
    torch.ops.aten.sum.dim_IntList: _counted,
    torch.ops.aten.mul.Tensor: _cast,
    torch.ops.aten.binary_cross_entropy_with_logits.default: _logarithms,
}
"""Bytes that operators take for themselves while they run."""

IN_WHOLE = {
    torch.ops.aten.mse_loss.default: 1,
    torch.ops.aten.smooth_l1_loss.default: 1,
    torch.ops.aten.binary_cross_entropy.default: 0,
}
"""Losses whose mean or sum is in memory made for all elements, and how many tensors as large there are beside it.

The meta device makes one number.
"""

OWNED = 4, 2
"""Uses of a tensor and of its memory where `Tracker` sees it and nothing but one buffer of gradients holds it."""

ZEROS = (torch.ops.aten.zeros.default, torch.ops.aten.new_zeros.default)


class Tracker(TorchDispatchMode):
    """Follows one device; `most` is by phase, as far as `phase` was set on the way."""

    def __init__(self, given: list[Tensor], device: str = "meta") -> None:
        super().__init__()
        self.device = device
        self.phase = "forward"
        self.most: dict[str, Most] = {}
        self._weights = [tensor for tensor in given if isinstance(tensor, nn.Parameter)]
        self._now = self._saved_now = 0
        self._zeros: int | None = None
        self._alive: dict[int, weakref.finalize] = {}
        self._packs: Counter[int] = Counter()
        for tensor in given:
            self._follow(tensor)
        self._given = set(self._alive)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> Tracker:
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.__exit__(*error)

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if tensor.device.type == self.device and storage._cdata not in self._alive:
            size = storage.nbytes()
            self._alive[storage._cdata] = weakref.finalize(storage, self._forget, storage._cdata, size)
            self._now += size

    def _forget(self, key: int, size: int) -> None:
        del self._alive[key]
        self._now -= size

    def _pack(self, tensor: Tensor) -> Saved:
        saved, storage = Saved(tensor.detach()), tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._given and tensor.device.type == self.device:
            self._saved_now += size * (self._packs[key] == 0)
            self._packs[key] += 1
            weakref.finalize(saved, self._release, key, size)
        return saved

    def _release(self, key: int, size: int) -> None:
        self._packs[key] -= 1
        self._saved_now -= size * (self._packs[key] == 0)

    def _sums_gradients(self, first: Any, second: Any, **others: Any) -> bool:
        """Whether backward adds to a gradient that nothing else holds, which it does in place unless a mode looks on.

        Source: ``can_accumulate_inplace`` of ``torch/csrc/autograd/input_buffer.cpp``.
        """
        if torch.is_grad_enabled() or others or not isinstance(second, Tensor) or first.shape != second.shape:
            return False
        return (first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata)) == OWNED

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in INTO_ZEROS and not torch.is_grad_enabled() and args[0].untyped_storage()._cdata == self._zeros:
            func = INTO_ZEROS[func]
        if func in IN_PLACE and not torch.is_grad_enabled():  # for the same reason
            whole = args[0].shape == torch.broadcast_shapes(*(mask.shape for mask in args))
            func = IN_PLACE[func] if whole else func
        if func is torch.ops.aten.add.Tensor and self._sums_gradients(*args, **(kwargs or {})):
            func = torch.ops.aten.add_.Tensor
        result = func(*args, **(kwargs or {}))
        within = WITHIN[func](*args, **(kwargs or {})) if func in WITHIN else 0
        if func in IN_WHOLE and result.shape != args[0].shape:
            within, result = IN_WHOLE[func] * args[0].nbytes, torch.empty_like(args[0]).resize_(())
        self._zeros = result.untyped_storage()._cdata if func in ZEROS else None
        if func is torch.ops.aten.native_batch_norm_backward.default and not args[-1][0]:
            result = (None, *result[1:])  # the meta device makes the input's gradient all the same
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        if (self._now + within, self._saved_now) > self.most.get(self.phase, (0, 0))[:2]:
            gradients = [weight.grad.untyped_storage().nbytes() for weight in self._weights if weight.grad is not None]
            self.most[self.phase] = Most(self._now + within, self._saved_now, sum(gradients))
        return result


AdamW = partial(torch.optim.AdamW, foreach=False)
"""Weight by weight, as PyTorch does it wherever it does not know of a faster way."""


def weights_by_use(model: nn.Module, *inputs: Tensor) -> list[nn.Parameter]:
    """The order in which a model first uses its weights, in which modules mostly list them too."""
    found: dict[nn.Parameter, None] = {}

    def note(module: nn.Module, _: Any) -> None:
        found.update((weight, None) for weight in module.parameters(recurse=False))

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    model(*inputs)
    for hook in hooks:
        hook.remove()
    return list(found)


def training_step(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    autocast: torch.dtype | None = None,
    update: Callable[..., torch.optim.Optimizer] = AdamW,
) -> Tracker:
    """One step, with the optimizer's states in place and no gradient yet; under autocast until the loss is there."""
    weights = [weight for weight in weights_by_use(model, x) if weight.requires_grad]
    optimizer = update(weights)

    def error() -> Tensor:
        with nullcontext() if autocast is None else GpuAutocast(autocast):
            return loss(model(x), target)

    error().backward()  # A weight that nothing reads gets no gradient, and so no states.
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    states = [state for of_weight in optimizer.state.values() for state in of_weight.values()]
    with Tracker([x, target, *model.parameters(), *model.buffers(), *states]) as tracker:
        result = error()
        tracker.phase = "backward"
        result.backward()
        tracker.phase = "optimizer"
        optimizer.step()
    return tracker


def allocated(step: Callable[[], Any], given: list[Tensor]) -> dict[str, int]:
    """The most bytes that the CPU's allocator has handed out at once in each phase of a step on real tensors.

    given: what is there before. step: yields the name of each phase as it begins. Source: the allocator's own events,
    as PyTorch's profiler records them; where phases begin and the last ends is noted among them, by the same clock.
    """
    now = sum({x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in given}.values())
    end = "the end"
    phases: list[str] = []
    with profile(use_kineto=True, profile_memory=True) as profiled:
        for phase in chain(step(), (end,)):
            phases.append(phase)
            with torch.profiler.record_function(phase):
                pass
    marks: dict[str, int] = {}
    events: list[tuple[int, int, int]] = []

    def collect(tree: list[Any]) -> None:
        for event in tree:
            if event.tag.name == "Allocation":
                events.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
            elif event.name in phases:
                marks[event.name] = event.start_time_ns
            collect(event.children)

    assert profiled is not None
    assert profiled.kineto_results is not None
    collect(profiled.kineto_results.experimental_event_tree())
    starts = [(marks[phase], phase) for phase in phases]
    most, alive = dict.fromkeys(phases[:-1], 0), set()
    for when, address, size in sorted(events, key=lambda event: event[0]):
        if size > 0:
            alive.add(address)
        elif address not in alive:  # it was there before
            continue
        now += size
        phase = next((name for start, name in reversed(starts) if start <= when), starts[0][1])
        if phase != end:
            most[phase] = max(most[phase], now)
    return most
