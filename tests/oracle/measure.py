"""What PyTorch itself counts and keeps for a model on the meta device: shapes and layouts, no data."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from costmodel.analysis.predict import Prediction


class Cost(NamedTuple):
    """What library and framework must agree on, to the last unit; saved in bytes, inputs and weights left out."""

    params: int
    forward_flops: int
    total_flops: int
    saved: int
    saved_with_loss: int


class Packed:
    """What stands for a saved tensor in the autograd graph; it goes when autograd lets go of the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # an operator that saved its own result would hold itself


class Saved:
    """Tensors that autograd saves while this is open, told apart by storage."""

    def __init__(self, outside: Iterable[Tensor]) -> None:
        self._outside = {storage_of(t) for t in outside}
        self._found: dict[int, Tensor] = {}  # the tensors too: an address may be used again once its owner is gone
        self._packs: Counter[int] = Counter()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def _pack(self, tensor: Tensor) -> Packed:
        packed, key = Packed(tensor), storage_of(tensor)
        if key not in self._outside:
            self._found.setdefault(key, tensor.detach())
            self._packs[key] += 1
            weakref.finalize(packed, self._packs.subtract, (key,))
        return packed

    def __enter__(self) -> Saved:
        gc.freeze()  # what is there already takes long to look through, and is not what `held` looks for
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        gc.unfreeze()

    @property
    def bytes(self) -> int:
        """Whole storages, each once."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._found.values())

    @property
    def found(self) -> frozenset[int]:
        """Identities of these storages."""
        return frozenset(self._found)

    @property
    def held(self) -> int:
        """The same of those that a graph still holds: one that nothing leads to any more has gone."""
        gc.collect()  # a node that nothing leads to may be in a cycle with what it saved
        return sum(t.untyped_storage().nbytes() for key, t in self._found.items() if self._packs[key])


def storage_of(tensor: Tensor) -> int:
    """Identity of the memory behind a tensor, for as long as the tensor lives."""
    return tensor.untyped_storage()._cdata


def meta(*shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=requires_grad)


def measure(
    model: Callable[..., Tensor],
    *inputs: Tensor,
    loss: Callable[[Tensor], Tensor] | None = None,
    given: tuple[Tensor, ...] = (),
    backward: bool = True,
    count_inputs: bool = False,
    held: bool = False,
) -> Cost:
    """Run `model` on `inputs`, then `loss` on its output, then backward from there.

    `given`: tensors from outside, such as targets and the weights of a function. `backward` can be left out where
    PyTorch has none. Inputs are outside too, unless they count as made by a layer before. `held`: what a graph has let
    go of by the end, because no result needs it, is not counted.
    """
    weights = list(model.parameters()) if isinstance(model, nn.Module) else [t for t in given if t.requires_grad]
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    outside = [*given, *weights, *buffers, *([] if count_inputs else inputs)]
    with Saved(outside) as saved, FlopCounterMode(display=False) as counter:
        y = model(*inputs)
        forward, kept = counter.get_total_flops(), saved.held if held else saved.bytes
        end = loss(y) if loss else y
        with_loss = saved.held if held else saved.bytes
        if backward and end.requires_grad and torch.is_grad_enabled():
            end.backward(torch.empty_like(end))
    return Cost(sum(w.numel() for w in weights), forward, counter.get_total_flops(), kept, with_loss)


def stated(prediction: Prediction, without_loss: Prediction) -> Cost:
    """The library's answer in the same form."""
    return Cost(
        prediction.params,
        prediction.flops.forward,
        prediction.flops.total,
        without_loss.memory.activations,
        prediction.memory.activations,
    )


FUSED = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def results_by_operator() -> tuple[Any, Any]:
    """Contexts of one run of a block and of the next, as torchtitan's "selective op" has them.

    Results of fused attention stay, and those of the first product and of every second one after it.
    """
    products: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_product = operator == torch.ops.aten.mm.default
        products[context.is_recompute] += is_product
        stays = products[context.is_recompute] % 2 if is_product else operator in FUSED
        return CheckpointPolicy.MUST_SAVE if stays else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
