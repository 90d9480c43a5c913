"""Which axes of a module's inputs are sizes of the batch, and what torch.export leaves open of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.errors import SettingError, shown, unknown
from costmodel.importers.torch.program import EXTENTS


def tensor_on_meta(torch: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of the same type and another shape, without data."""
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


Dynamic = Mapping[str, Mapping[int, str]]
"""For each input, which of its axes is a size of the batch."""

LeafPath = tuple[str, ...]

NO_GRAPH = "no graph holds for others"
"""Why a size is fixed that was tried."""


@dataclass(frozen=True)
class Axes:
    """One tensor among the inputs: its name, its shape, and the size of the batch that each axis is, if any."""

    name: str
    tensor: Any
    sizes: dict[int, str]


@dataclass(frozen=True)
class Example:
    """The example inputs, and what an export made of their sizes.

    sizes: of the batch, by name. open: those to leave open. traced_sizes: what they are while the module is exported.
    letters: the name of each that stayed open by its symbol in the export; dependent: names of axes that are of another
    size there, with that size. shape_env: what torch.export knows of them all.
    """

    axes: tuple[Axes, ...]
    sizes: dict[str, int]
    open: frozenset[str] = frozenset()
    traced_sizes: dict[str, int] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)
    dependent: tuple[tuple[str, Any], ...] = ()
    limits: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    shape_env: Any = None

    def attempts(self) -> list[frozenset[str]]:
        """Sizes to leave open, from all to none."""
        every = [name for name in EXTENTS if name in self.sizes]
        batch, sequence = ([n for n in every if n in among] for among in (("batch",), ("batch", "seq")))
        return list(dict.fromkeys(map(frozenset, (every, sequence, batch, []))))

    def opened(self, names: frozenset[str]) -> Example:
        """The same with only these sizes open, none of them 1, which torch.export would fix."""
        traced_sizes = {name: max(size, 2) if name in names else size for name, size in self.sizes.items()}
        fixed = [name for name in self.sizes if name not in names]
        notes = tuple(f"{name} is fixed at {self.sizes[name]}: {NO_GRAPH}" for name in fixed)
        return replace(self, open=names, traced_sizes=traced_sizes, notes=(*self.notes, *notes))

    def inputs(self, torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Arguments without data, and which of their axes are open."""
        pytree = torch.utils._pytree
        known = {id(one.tensor): one for one in self.axes}
        shapes = torch.export.ShapesCollection()

        def bare(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            sizes = known[id(value)].sizes
            shape = tuple(
                self.traced_sizes[sizes[axis]] if axis in sizes else int(size) for axis, size in enumerate(value.shape)
            )
            tensor = tensor_on_meta(torch, value, shape)
            if free := [axis for axis, name in sizes.items() if name in self.open]:
                shapes[tensor] = dict.fromkeys(free, torch.export.Dim.AUTO)
            return tensor

        args, kwargs = pytree.tree_map(bare, (args, kwargs))
        opened = any(name in self.open for one in self.axes for name in one.sizes.values())
        return args, kwargs, shapes if opened else None

    def settled(self, exported: Any) -> Example:
        """What the export left open."""
        signature = exported.graph_signature
        nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
        placeholders = [nodes[spec.arg.name] for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
        tensors = [node for node in placeholders if hasattr(node.meta.get("val"), "shape")]
        sizes = [
            (name, node.meta["val"].shape[axis])
            for one, node in zip(self.axes, tensors, strict=True)
            for axis, name in one.sizes.items()
        ]
        expressions: list[tuple[str, Any]] = [
            (name, size if isinstance(size, int) else size.node.expr) for name, size in sizes
        ]
        letters: dict[str, str] = {}
        for name, size in expressions:
            if not _constant(size) and size.is_Symbol:
                letters.setdefault(size.name, name)
        open_names = set(letters.values())
        fixed = {name for name, size in expressions if _constant(size)} & self.open - open_names
        own = {name: size if name in open_names else self.traced_sizes[name] for name, size in self.sizes.items()}
        notes = tuple(f"{name} is fixed at {own[name]}: another takes an export of its own" for name in sorted(fixed))
        return replace(
            self,
            letters=letters,
            dependent=tuple(
                (name, size)
                for name, size in expressions
                if letters.get(str(size)) != name and (name in open_names or not _constant(size))
            ),
            limits={letters[s.name]: _limits(r) for s, r in exported.range_constraints.items() if s.name in letters},
            sizes=own,
            notes=(*self.notes, *notes),
            shape_env=next((size.node.shape_env for _, size in sizes if not isinstance(size, int)), None),
        )


def _constant(size: Any) -> bool:
    return isinstance(size, int) or size.is_Integer


def _limits(bounds: Any) -> tuple[int, int | None]:
    """Least and largest size."""
    upper = bounds.upper
    return int(bounds.lower), int(upper) if getattr(upper, "is_Integer", False) and int(upper) < 2**40 else None


def examples_of(torch: Any, named: Mapping[str, Any], dynamic: Dynamic | None) -> Example:
    """The tensors among inputs, in the order in which torch.export sees them. Raises SettingError, UnknownNameError."""
    for name in dynamic or {}:
        if name not in named:
            raise unknown("input", name, named)
    axes: list[Axes] = []
    sizes: dict[str, int] = {}
    notes: list[str] = []
    for path, tensor in _tensors(torch, named):
        label = ".".join(path)
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise SettingError(f"example input {label} is nested or sparse ({tensor.layout}): give a dense one")
        choice = _checked(path, tensor, dynamic[path[0]]) if dynamic and path[0] in dynamic else None
        dynamic_axes = _default(tensor) if choice is None and dynamic is None else (choice or {})
        for axis, name in list(dynamic_axes.items()):
            size = int(tensor.shape[axis])
            if sizes.setdefault(name, size) != size:
                if choice is not None:
                    raise SettingError(
                        f"dynamic: {name} of {label} is {size}, and {sizes[name]} elsewhere: give one size"
                    )
                notes.append(f"axis {axis} of {label} is fixed at {size}: it is not the {name} of other inputs")
                del dynamic_axes[axis]
        axes.append(Axes(label, tensor, dynamic_axes))
    return Example(tuple(axes), sizes, notes=tuple(notes))


def _tensors(torch: Any, named: Mapping[str, Any]) -> Iterator[tuple[LeafPath, Any]]:
    for name, value in named.items():
        leaves = torch.utils._pytree.tree_leaves(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for number, tensor in enumerate(tensors):
            yield ((name,) if len(tensors) == 1 and tensor is value else (name, str(number))), tensor


def _default(tensor: Any) -> dict[int, str]:
    """See `from_torch`."""
    rank = len(tensor.shape)
    sizes = {0: "batch"} if rank else {}
    if rank == 3 or (rank == 2 and not tensor.dtype.is_floating_point):
        sizes[1] = "seq"
    if rank == 4 and tensor.dtype.is_floating_point:
        sizes |= {2: "height", 3: "width"}
    return sizes


def _checked(path: LeafPath, tensor: Any, axes: Mapping[int, str]) -> dict[int, str]:
    where = f"dynamic of {'.'.join(path)}"
    if not isinstance(axes, Mapping):
        raise SettingError(f"{where}: {shown(axes)} is not a mapping of axes to sizes such as {{0: 'batch'}}")
    for axis, name in axes.items():
        if isinstance(axis, bool) or not isinstance(axis, int) or not -len(tensor.shape) <= axis < len(tensor.shape):
            raise SettingError(f"{where}: {shown(axis)} is no axis of a tensor of {len(tensor.shape)} axes")
        if name not in EXTENTS:
            raise unknown(f"size in {where}", name, EXTENTS)
    return {axis % len(tensor.shape): name for axis, name in axes.items()}
