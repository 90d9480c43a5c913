"""Shape-only kinds: they move the same numbers, and compute nothing."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Role, Shape, Tensor, permuted, show_shape, strides_of, transposed, viewed_strides
from costmodel.layers.base import Movement, View, layer
from costmodel.layers.kernels import backward_pass
from costmodel.layers.spatial import arranged, channels_last
from costmodel.symbolic.sizes import branch_value, exact_div, product


def reshaped(call: Call, x: Tensor, shape: Shape) -> Tensor:
    """`x` in another shape: a view where memory order allows it, else a copy (``torch.reshape``)."""
    strides = viewed_strides(x.shape, x.strides, shape)
    return call.tape.tensor(shape, x.storage.role) if strides is False else x.as_strided(shape, strides)


@layer
class Reshape(View):
    """The same numbers in another shape, batch first: (batch, ...) → (batch, *shape)."""

    source = "torch.reshape"

    shape: tuple[int, ...]

    def check(self, call: Call) -> None:
        super().check(call)
        if product(call.x.shape[1:]) != product(self.shape):
            raise call.fail(f"cannot reshape {show_shape(call.x.shape[1:])} into {show_shape(self.shape)}")

    def output(self, call: Call) -> Tensor:
        return reshaped(call, call.x, (call.x.shape[0], *self.shape))


@layer
class Flatten(View):
    """(batch, a, b, ...) → (batch, a·b·...)."""

    source = "torch.nn.Flatten"

    def output(self, call: Call) -> Tensor:
        return reshaped(call, call.x, (call.x.shape[0], product(call.x.shape[1:])))


@layer
class Permute(View):
    """Axes in another order; `axes` names each output axis's source, the batch (0) included."""

    source = "torch.permute"

    axes: tuple[int, ...]

    def check(self, call: Call) -> None:
        super().check(call)
        if sorted(self.axes) != list(range(len(call.x.shape))):
            raise call.fail(f"axes {list(self.axes)} is not an order of the {len(call.x.shape)} axes")

    def output(self, call: Call) -> Tensor:
        return permuted(call.x, self.axes)


@layer
class Slice(View):
    """`length` consecutive places of the last axis or of another, as one part of a joint projection, or some tokens.

    alone: whether nothing takes the other places, so that backward does not wait for their gradients: it puts this one
    among zeros.
    """

    source = "torch.narrow"

    length: int
    start: int = 0
    axis: int | None = None
    alone: bool = False

    def _axis(self, call: Call) -> int:
        return len(call.x.shape) - 1 if self.axis is None else self.axis

    def check(self, call: Call) -> None:
        super().check(call)
        if self._axis(call) >= len(call.x.shape):
            raise call.fail(f"axis {self.axis} is not one of the {len(call.x.shape)} axes")
        if self.start + self.length > call.x.shape[self._axis(call)]:
            size = call.x.shape[self._axis(call)]
            raise call.fail(f"places {self.start} to {self.start + self.length} are not within {size}")

    def output(self, call: Call) -> Tensor:
        x, axis = call.x, self._axis(call)
        return x.as_strided((*x.shape[:axis], self.length, *x.shape[axis + 1 :]), strides_of(x))

    def backward(self, call: Call) -> Iterable[Gradient]:
        among_zeros = self.alone and branch_value(call.y.size) < branch_value(call.x.size)
        yield Gradient(call.x, LayerFlops(0, 0), shared=not among_zeros)


@layer
class SplitHeads(View):
    """(batch, T, heads·d_h) → (batch, heads, T, d_h)."""

    source = "torch.Tensor.view and transpose (Vaswani et al. 2017, §3.2.2)"

    heads: int

    def check(self, call: Call) -> None:
        super().check(call)
        if len(call.x.shape) != 3 or call.x.shape[-1] % self.heads:
            raise call.fail(f"cannot split into {self.heads} heads: it takes (batch, T, heads × head size)")

    def output(self, call: Call) -> Tensor:
        b, t, d = call.x.shape
        return transposed(reshaped(call, call.x, (b, t, self.heads, exact_div(d, self.heads))), 1, 2)


@layer
class MergeHeads(View):
    """(batch, heads, T, d_h) → (batch, T, heads·d_h); a copy, since no stride walks heads within a token."""

    source = "torch.Tensor.transpose and reshape (Vaswani et al. 2017, §3.2.2)"

    def check(self, call: Call) -> None:
        super().check(call)
        if len(call.x.shape) != 4:
            raise call.fail("merge_heads takes (batch, heads, T, head size)")

    def output(self, call: Call) -> Tensor:
        b, h, t, d = call.x.shape
        return reshaped(call, transposed(call.x, 1, 2), (b, t, h * d))


@layer
class TransposeLast(View):
    """(..., m, n) → (..., n, m)."""

    source = "torch.Tensor.transpose(-2, -1)"

    def output(self, call: Call) -> Tensor:
        return transposed(call.x, len(call.x.shape) - 2, len(call.x.shape) - 1)


@layer
class RepeatHeads(View):
    """Each key or value head for `times` query heads: (batch, h_kv, T, d_h) → (batch, h_kv·times, T, d_h)."""

    source = "torch.Tensor.expand and reshape (Ainslie et al. 2023, GQA, §2.2); backward sums over the repeats"
    input_axes = "batch, heads, tokens, head size"

    times: int

    def output(self, call: Call) -> Tensor:
        b, h, t, d = call.x.shape
        strides = strides_of(call.x)
        expanded = call.x.as_strided((b, h, self.times, t, d), (*strides[:2], 0, *strides[2:]))
        return reshaped(call, expanded, (b, h * self.times, t, d))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Sums over the repeats."""
        yield Gradient(call.x, LayerFlops(0, call.y.size))


class Joining(Movement):
    """Abstract: tensors one after another along an axis; each gradient is a slice of the incoming one."""

    arity = None
    shared = True


@layer
class Concat(Joining):
    """Tensors one after another along the channel axis (1)."""

    source = "torch.cat along axis 1 (Szegedy et al. 2015; Huang et al. 2017, eq. 2)"

    def check(self, call: Call) -> None:
        first = call.x.shape
        for x in call.inputs[1:]:
            if len(x.shape) != len(first) or any(
                a != b for axis, (a, b) in enumerate(zip(first, x.shape, strict=True)) if axis != 1
            ):
                raise call.fail("cannot concatenate: all axes but the channels must be equal")

    def output(self, call: Call) -> Shape | Tensor:
        """(batch, sum of channels, ...); channels are last in memory if they are so in all."""
        b, _, *rest = call.x.shape
        shape = (b, sum(x.shape[1] for x in call.inputs), *rest)
        return arranged(call, shape) if all(channels_last(x) for x in call.inputs) else shape


@layer
class Join(Joining):
    """Tensors one after another along the last axis, as parts of a head."""

    source = "torch.cat along the last axis"

    def check(self, call: Call) -> None:
        if any(x.shape[:-1] != call.x.shape[:-1] for x in call.inputs):
            raise call.fail("cannot join: all axes but the last must be equal")

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:-1], sum(x.shape[-1] for x in call.inputs))


class Moving(Movement):
    """Abstract: an operator of any inputs, which moves numbers unless it says otherwise; PyTorch has checked them."""

    arity = None


@layer
class AsStrided(View):
    """A part of a tensor along one axis, or one seen several times: other sizes over the same memory.

    piece: whether it is one of several that are split off at once, whose gradients are joined at once too; the gradient
    of any other part is put among zeros, in a tensor as large as the whole. by_memory: whether the part is told by its
    places in memory, and not by an axis: then those zeros are memory too, of which the gradient is a view.
    """

    source = "torch.Tensor.as_strided, as slices, selections and expansions are; backward of an expansion sums"
    in_lists = False

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    piece: bool = False
    by_memory: bool = False

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(self.shape, self.strides)

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        return self.by_memory

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A place in the whole's gradient; what is seen several times is summed."""
        several = self._several(call)
        yield Gradient(call.x, LayerFlops(0, call.y.reals if several else 0), shared=self.piece and not several)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A sum where numbers were seen several times; else zeros, and a copy into them."""
        return backward_pass(call, "reduction") if self._several(call) else backward_pass(call, launches=2)

    def _several(self, call: Call) -> bool:
        x, y = call.x, call.y
        return y.size > x.size or (_overlaps(y.shape, y.strides) and not _overlaps(x.shape, x.strides))


def _overlaps(shape: Shape, strides: Shape | None) -> bool:
    """Whether an element is seen several times: by an axis that does not move, or by two that interleave."""
    axes = [(n, step) for n, step in zip(shape, strides or (), strict=strides is not None) if n > 1]
    return any(step == 0 for _, step in axes) or any(
        s <= (n - 1) * step and step <= (m - 1) * s for at, (m, s) in enumerate(axes) for n, step in axes[:at]
    )


@layer
class Overwrite(Movement):
    """A tensor x after a write to a part of it, in the memory of x; the second input is what was written.

    Backward copies g, and the part of it that goes on to what made the second input: until that has its own gradients,
    and has put x's into the copy, g and the copy are there.
    """

    source = "CopySlices (torch.autograd); dx = g without the part, that of what was written is the part of g"
    in_lists = False
    arity = 2
    launches = 1, 2
    lends = True

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(call.x.shape, call.x.strides)

    def workspace(self, call: Call) -> Workspace:
        """The copy, and the part, where they are no gradients."""
        x, written = call.inputs
        return Workspace(0, (0 if x.requires_grad else x.size) + (0 if written.requires_grad else written.size))


@layer
class WrittenPart(Movement):
    """A part of x that is written to: its gradient is put into that of x, of which `Overwrite` has a copy."""

    source = "CopySlices (torch.autograd): grad_slice.copy_(res)"
    in_lists = False

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(call.x.shape, call.x.strides)

    def backward(self, call: Call) -> Iterable[Gradient]:
        return ()


@layer
class Replace(Movement):
    """A tensor x after a write to all of it; the second input is what was written."""

    source = "torch.Tensor.copy_; dx = 0, that of what was written is g"
    in_lists = False
    arity = 2

    def output(self, call: Call) -> Tensor:
        y = call.inputs[1]
        return y.as_strided(y.shape, y.strides)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0))
        yield Gradient(call.inputs[1], LayerFlops(0, 0), shared=True)


@layer
class PartSet(Movement):
    """A copy of x in which a part is the second input's: a place or a stretch of an axis, a diagonal, a view."""

    source = (
        "torch.select_scatter, slice_scatter, diagonal_scatter; dx = g with zeros there, the other's that part of g"
    )
    in_lists = False
    arity = 2
    launches = 2, 2

    def output(self, call: Call) -> Shape | Tensor:
        return call.like(call.x)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0))
        yield Gradient(call.inputs[1], LayerFlops(0, 0), shared=True)


@layer
class Cat(Joining, Moving):
    """Tensors one after another along an axis."""

    source = "torch.cat, torch.stack; each gradient is a slice of the incoming one"

    shape: tuple[int, ...]
    axis: int = 0

    def output(self, call: Call) -> Shape | Tensor:
        last = all(channels_last(x) for x in call.inputs)
        if last and len(self.shape) == 4:
            return arranged(call, self.shape)
        return call.tape.tensor(self.shape, joint_role(call.inputs))

    def scattered(self, call: Call) -> bool:
        """Along any axis but the first that has several."""
        return branch_value(product(self.shape[: self.axis])) > 1


@layer
class Copy(Moving):
    """The same numbers in memory of their own, contiguous or in the input's order.

    moved: whether they are in other places, so that backward copies too, to have them back.
    """

    source = "torch.clone, contiguous, repeat and roll; backward copies, or sums what was repeated"

    shape: tuple[int, ...]
    ordered: bool = False
    moved: bool = False

    def output(self, call: Call) -> Shape | Tensor:
        role = call.x.storage.role
        role = "activation" if role == "weight" else role
        return call.like(call.x, role) if self.ordered else call.tape.tensor(self.shape, role, dtype=call.x.dtype)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient, summed where numbers were repeated."""
        more = call.y.size > call.x.size
        yield Gradient(call.x, LayerFlops(0, call.y.reals if more else 0), shared=not (more or self.moved))


def reshape(x: Tensor, shape: Shape, name: str = "copy") -> Tensor:
    """`x` in another shape: a view where memory order allows it, else a copy, which is a layer of this name."""
    strides = viewed_strides(x.shape, x.strides, shape)
    return Copy(shape)(x, name=name) if strides is False else x.view(shape, strides)


def joint_role(inputs: Iterable[Tensor]) -> Role:
    """What a joint of these holds: activations where weights are among them."""
    roles: list[Role] = [x.storage.role for x in inputs]
    return "activation" if not roles or "weight" in roles or "activation" in roles else roles[0]
