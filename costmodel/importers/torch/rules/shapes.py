"""Rules of operators that change shapes: views, parts, copies, joints."""

from __future__ import annotations

from costmodel.graph.tensor import Shape, Tensor, is_contiguous, transposed
from costmodel.importers.torch.site import Site, rule, strides_of
from costmodel.layers.indexing import Chosen, Made
from costmodel.layers.shape import Copied, Joined
from costmodel.layers.spatial import channels_last as is_channels_last
from costmodel.symbolic.sizes import ceil_div, product


@rule("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten")
def reshape(site: Site) -> Tensor:
    """A view, or a copy where memory order forces one."""
    return site.reshaped(site.tensor("self"), site.shape)


@rule("permute")
def permute(site: Site) -> Tensor:
    """Axes in another order."""
    x = site.tensor("self")
    strides, axes = strides_of(x), site.axes(x, "dims")
    return x.view(tuple(x.shape[a] for a in axes), tuple(strides[a] for a in axes))


@rule("transpose", "swapaxes", "swapdims")
def transpose(site: Site) -> Tensor:
    """Two axes exchanged."""
    x = site.tensor("self")
    first, second = ("dim0", "dim1") if site.has("dim0") else ("axis0", "axis1")
    return transposed(x, site.axis(x, first), site.axis(x, second)) if x.shape else x


@rule("t", "numpy_T", "mT", "adjoint", "matrix_H")
def turn(site: Site) -> Tensor:
    """The last two axes exchanged."""
    x = site.tensor("self")
    return x if len(x.shape) < 2 else transposed(x, len(x.shape) - 2, len(x.shape) - 1)


@rule("movedim")
def movedim(site: Site) -> Tensor:
    """Axes taken to other places."""
    x = site.tensor("self")
    source, target = site.axes(x, "source"), site.axes(x, "destination")
    rest = iter([axis for axis in range(len(x.shape)) if axis not in source])
    axes = [source[target.index(n)] if n in target else next(rest) for n in range(len(x.shape))]
    strides = strides_of(x)
    return x.view(tuple(x.shape[a] for a in axes), tuple(strides[a] for a in axes))


@rule("unsqueeze")
def unsqueeze(site: Site) -> Tensor:
    """An axis of one more."""
    x = site.tensor("self")
    axis = site.value("dim") % (len(x.shape) + 1)
    strides = strides_of(x)
    step = x.shape[axis] * strides[axis] if axis < len(x.shape) else 1
    return _seen(x, (*x.shape[:axis], 1, *x.shape[axis:]), (*strides[:axis], step, *strides[axis:]))


@rule("squeeze")
def squeeze(site: Site) -> Tensor:
    """Axes of one taken away."""
    x = site.tensor("self")
    gone = set(site.axes(x)) if "dim" in site.step.args else set(range(len(x.shape)))
    left = [axis for axis, size in enumerate(x.shape) if axis not in gone or size != 1]
    strides = strides_of(x)
    return _seen(x, tuple(x.shape[a] for a in left), tuple(strides[a] for a in left))


@rule("alias", "detach", "positive")
def alias(site: Site) -> Tensor:
    """The tensor itself; detached, without gradient."""
    x = site.tensor("self")
    y = x.view(x.shape, x.strides)
    if site.step.op == "detach":
        y.requires_grad = False
    return y


@rule("expand", "expand_as", "broadcast_to")
def expand(site: Site) -> Tensor:
    """The same memory seen several times."""
    return expanded(site, site.tensor("self"), site.shape)


def expanded(site: Site, x: Tensor, shape: Shape) -> Tensor:
    """`x` broadcast to a shape: a stride of 0 wherever it has one element and the shape more."""
    new = len(shape) - len(x.shape)
    strides = strides_of(x)
    stepped = [0 if n != 1 and m == 1 else s for m, n, s in zip(x.shape, shape[new:], strides, strict=True)]
    if len(shape) == len(x.shape) and x.shape == shape:
        return x
    made = (*(0 for _ in range(new)), *stepped)
    if product(shape) == x.size:
        return _seen(x, shape, made)
    return site.part(x, shape, made)


@rule("slice", "narrow")
def slice_(site: Site) -> Tensor:
    """Some of an axis, every `step`-th."""
    x = site.tensor("self")
    axis, step = site.axis(x), site.value("step", 1)
    strides = strides_of(x)
    shape = site.shape
    if shape == x.shape:
        return x
    made = tuple(s * step if n == axis else s for n, s in enumerate(strides))
    return site.part(x, shape, made)


@rule("select")
def select(site: Site) -> Tensor:
    """One place of an axis, which goes."""
    x = site.tensor("self")
    axis = site.axis(x)
    strides = strides_of(x)
    return site.part(x, (*x.shape[:axis], *x.shape[axis + 1 :]), (*strides[:axis], *strides[axis + 1 :]))


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_split", "unsafe_chunk", "hsplit")
def split(site: Site) -> list[Tensor]:
    """An axis in pieces, each a part of the whole."""
    x = site.tensor("self")
    axis = site.axis(x)
    strides = strides_of(x)
    if site.step.op == "unbind":
        strides = (*strides[:axis], *strides[axis + 1 :])
    shapes = [site.replay.shape(made.shape) for made in site.step.makes]
    return [site.part(x, shape, strides) for shape in shapes]


@rule("contiguous")
def contiguous(site: Site) -> Tensor:
    """Itself if memory runs in order, else a copy."""
    x = site.tensor("self")
    if site.value("memory_format") == "channels_last":
        return x if is_channels_last(x) else channels_last(site, x)
    return x if is_contiguous(x.shape, x.strides) else site.layer(Copied(x.shape), x)


@rule("clone", "flip")
def clone(site: Site) -> Tensor:
    """A copy, in the same order of memory unless another is asked for."""
    x = site.tensor("self")
    asked = site.value("memory_format", "preserve_format")
    if asked == "channels_last":
        return channels_last(site, x)
    return site.layer(Copied(x.shape, ordered=asked == "preserve_format"), x)


def channels_last(site: Site, x: Tensor) -> Tensor:
    """A copy with its channels last in memory."""
    _, c, h, w = x.shape
    return site.layer(Copied(x.shape), x).view(x.shape, (h * w * c, 1, w * c, c))


@rule("roll", "lift_fresh_copy")
def copy(site: Site) -> Tensor:
    """A copy in row-major order."""
    x = site.tensor("self")
    return site.layer(Copied(x.shape), x)


@rule("repeat", "repeat_interleave", "tile")
def repeat(site: Site) -> Tensor:
    """A copy with numbers repeated."""
    return site.layer(Copied(site.shape), site.tensor("self"))


@rule("to", "type_as", "_to_copy")
def convert(site: Site) -> Tensor:
    """Itself, or a copy: floating types are the precision's. Whole numbers and truth values become numbers anew."""
    x = site.tensor("self")
    if x.storage.role == site.role or (x.storage.role not in ("index", "mask") and site.role == "activation"):
        copied = site.step.op == "_to_copy" or site.value("copy", False)
        return site.layer(Copied(x.shape, ordered=True), x) if copied else x
    return site.layer(Made(x.shape, site.role), x)


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack")
def cat(site: Site) -> Tensor:
    """One after another."""
    tensors = site.tensors("tensors")
    if len(tensors) == 1 and site.step.op != "stack":
        return site.layer(Copied(site.shape), tensors[0])
    return site.layer(Joined(site.shape), *tensors)


@rule("index", "index_select", "gather", "take_along_dim")
def index(site: Site) -> Tensor:
    """Elements by index."""
    x = site.tensor("self")
    name = "indices" if site.has("indices") else "index"
    places = [site.tensor(name)] if site.is_tensor(name) else site.tensors(name)
    return site.layer(Chosen(site.shape, site.step.op in ("gather", "take_along_dim")), x, *places)


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def shuffle(site: Site) -> Tensor:
    """A view of more axes, permuted, and copied into place."""
    return site.layer(Copied(site.shape), site.tensor("self"))


@rule("unfold")
def unfold(site: Site) -> Tensor:
    """Windows of an axis, as a last axis."""
    x = site.tensor("self")
    axis = site.value("dimension") % len(x.shape)
    strides = strides_of(x)
    made = (*strides[:axis], strides[axis] * site.value("step"), *strides[axis + 1 :], strides[axis])
    windows = ceil_div(x.shape[axis] - site.value("size") + 1, site.value("step"))
    return site.part(x, (*x.shape[:axis], windows, *x.shape[axis + 1 :], site.value("size")), made)


def _seen(x: Tensor, shape: Shape, strides: Shape) -> Tensor:
    """The same elements with other axes of one."""
    return x.view(shape, None if is_contiguous(shape, strides) else strides)
