"""What the optimizer's step asks of a device."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.run import Run
from costmodel.symbolic.sizes import ceil_div, minimum
from costmodel.training.dtypes import Shape, size_bytes
from costmodel.training.settings import Settings, Update

TENSORS_AT_ONCE = 36
ELEMENTS_AT_ONCE = 320 * 65536
"""Of a launch that updates several weights (PyTorch, MultiTensorApply.cuh: 36 tensors of four lists, 320 chunks)."""
NEWTON_SCHULZ_STEPS = 5
"""Jordan et al. 2024; torch.optim.Muon's ns_steps."""


def usual_update(settings: Settings) -> Update:
    """How weights are updated: as asked, but all at once where PyTorch does so by itself on a GPU (``foreach``)."""
    by_itself = settings.update == "loop" and settings.states.together is not None and settings.device == "gpu"
    return "foreach" if by_itself else settings.update


def update_kernels(run: Run, settings: Settings, way: Update) -> Iterator[Kernel]:
    """Kernels of one step over all trained weights, those alike as one with so many launches.

    A loop runs each kernel for every weight, foreach for as many as a launch takes, fused one kernel in all.
    """
    policy, optimizer = settings.policy, settings.states
    dtype = policy.state_dtype
    alike: dict[tuple[int, int, int], list[int]] = {}
    tensors = elements = states = 0
    for storage, shape in run.trained.items():
        times = storage.times
        tensors, elements = tensors + times, elements + storage.elements * times
        held = sum(optimizer.state_sizes(shape, size_bytes(1, dtype)))
        states = states + held * times
        sums = alike.setdefault(optimizer.passes_of(shape), [0, 0])
        sums[0], sums[1] = sums[0] + times, sums[1] + storage.elements * times
        for product in _products(optimizer.multiplies, shape):
            moved = size_bytes(product.m * product.k + product.k * product.n, policy.weight)
            made = size_bytes(product.m * product.n, policy.weight)
            flops = times * product.flops
            yield Kernel(
                f"update {optimizer.multiplies}", "product", flops, times * moved, times * made, policy.weight, times,
                product,
            )  # fmt: skip
    if not run.trained:
        return
    weights, gradients = size_bytes(elements, dtype), size_bytes(elements, policy.gradient_dtype)
    in_one = way == "fused" or any(state.block for state in optimizer.states)
    if in_one:
        launches = tensors if way == "loop" else _launches(tensors, elements)
        yield Kernel(
            "update", "pointwise", 12 * elements, weights + gradients + states, weights + states, "fp32", launches
        )
    else:
        for (kernels, read, written), (many, size) in alike.items():
            launches = kernels * (many if way == "loop" else _launches(many, size))
            moved, made = size_bytes(read * size, dtype), size_bytes(written * size, dtype)
            yield Kernel("update", "pointwise", 2 * kernels * size, moved, made, "fp32", launches)
    if policy.master:
        low = size_bytes(elements, policy.weight)
        launches = tensors if way == "loop" else _launches(tensors, elements)
        yield Kernel("update weights", "pointwise", 0, weights, low, "fp32", launches)


def _launches(tensors: int, elements: int) -> int:
    return ceil_div(tensors, TENSORS_AT_ONCE) + elements // ELEMENTS_AT_ONCE


def _products(multiplies: str, shape: Shape) -> Iterator[Product]:
    """Matrix products of an update of one weight of two axes."""
    if multiplies == "nothing" or len(shape) != 2:
        return
    if multiplies == "newton-schulz":  # A = XXᵀ, A², (bA + cA²)X, along the smaller side
        small = minimum(*shape)
        large = shape[0] + shape[1] - small
        for _ in range(NEWTON_SCHULZ_STEPS):
            yield Product(1, small, small, large)
            yield Product(1, small, small, small)
            yield Product(1, small, large, small)
        return
    m, n = shape  # Shampoo: GGᵀ, GᵀG, LG, (LG)R; inverse roots are not taken at every step
    yield from (Product(1, m, m, n), Product(1, n, n, m), Product(1, m, n, m), Product(1, m, n, n))
