"""A program as one rank of tensor parallel has it, by a plan of modules' names.

Layers that a plan names have a share of their weights; what they make goes on as a share along one axis, up to the
layer that sums over ranks, as the local tensors of ``parallelize_module`` do. Source: the styles of
``torch.distributed.tensor.parallel``, under the names that plans of the package ``transformers`` give them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from costmodel.architectures.base import nearest_divisor
from costmodel.errors import SettingError, shown
from costmodel.importers.torch.program import TENSOR, CapturedProgram, Step, StepOutput, Tree, shape_of, tensors_in
from costmodel.importers.torch.rules.elementwise import ACTIVATIONS, ARITHMETIC
from costmodel.layers.function import FUNCTIONS
from costmodel.training.layout import STYLES, Plan

RANKS = "tp"
"""What sizes of a rank's program are divided by, among the sizes of a batch."""


class SplitAxis(NamedTuple):
    """Along which axis a tensor is a rank's share, and of how many whole parts of that axis."""

    axis: int
    parts: int = 1


def styles_of(program: CapturedProgram, plan: Plan, title: str) -> dict[str, str]:
    """The style of each module that a plan names. Raises SettingError for a name that no module has.

    ``*`` stands for any part of a path between dots, at the start of a name for any number of them; a name that is no
    module's from the root is one from any module on, as plans of a model without its head are.
    """
    parts = _modules(program)
    styles: dict[str, str] = {}
    for pattern, style in plan:
        names = _named(parts, pattern)
        if names and style not in STYLES:
            raise SettingError(f"plan has {shown(pattern)} {shown(style)}, which is not worked out: give one without")
        if not names:
            near = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in _linear_layers(program))) or "none"
            raise SettingError(
                f"plan names {shown(pattern)}, which is no module of {shown(title)}: its linear layers are {near:.100}"
            )
        for name in names:
            if styles.setdefault(name, style) != style:
                raise SettingError(f"plan has {name} both {styles[name]!r} and {style!r}: leave one of them out")
    called = {_module(program, step) for step in program.steps if step.op in ("linear", "embedding")}
    for module, style in styles.items():
        if style not in WHOLE and module not in called:
            raise SettingError(f"plan has {module} {style!r}, which is no linear layer or embedding: name such layers")
    return styles


def names_any(program: CapturedProgram, pattern: str) -> bool:
    """Whether a module of a program is what a pattern names."""
    return bool(_named(_modules(program), pattern))


def _modules(program: CapturedProgram) -> dict[str, list[str]]:
    """The path of each module that has weights, or calls anything, with its parts."""
    paths = {_module(program, step) for step in program.steps if step.op in ("linear", "embedding")}
    paths |= {weight.path.rpartition(".")[0] for weight in program.weights.values()}
    paths |= {".".join(step.path[:depth]) for step in program.steps for depth in range(1, len(step.path) + 1)}
    return {path: path.split(".") for path in sorted(paths - {""})}


def _named(modules: Mapping[str, list[str]], pattern: str) -> list[str]:
    names = [path for path, parts in modules.items() if _is_named(parts, pattern)]
    return names or [path for path, parts in modules.items() if _is_named(parts, f"*.{pattern}")]


def _is_named(path: list[str], pattern: str) -> bool:
    """Whether a path, in parts, is what a pattern names."""
    wanted = pattern.split(".")
    if wanted[0] == "*" and len(wanted) > 1:
        wanted, path = wanted[1:], path[-len(wanted) + 1 :]
    return len(path) == len(wanted) and all(map(fnmatchcase, path, wanted))


def _linear_layers(program: CapturedProgram) -> list[str]:
    """Paths of the modules that multiply by a weight of theirs."""
    return [_path(step) for step in program.steps if step.op == "linear"]


def _path(step: Step) -> str:
    """Where a step is: the module that it is the call of, if it is one's."""
    return ".".join((*step.path, step.name))


def _module(program: CapturedProgram, step: Step) -> str:
    """The module that is a linear layer or an embedding, whose step this is."""
    name = next(iter(tensors_in(step.args.get("weight"))), "")
    weight, path = program.weights.get(name), ".".join(step.path)
    return path if weight is not None and weight.path.rpartition(".")[0] == path else _path(step)


def rank_program(
    program: CapturedProgram, plan: Plan, degree: int, example: Mapping[str, int], title: str
) -> CapturedProgram:
    """What a rank of so many calls. example: sizes of a batch. Raises CostModelError for what is not worked out."""
    return _Splitting(program, styles_of(program, plan, title), degree, example, title).result()


class _Splitting:
    """One pass over a program that says which tensors are shares, and puts collectives around layers of the plan."""

    def __init__(
        self, program: CapturedProgram, styles: Mapping[str, str], degree: int, example: Mapping[str, int], title: str
    ) -> None:
        self.program, self.degree, self.example, self.title = program, degree, example, title
        self.weights = dict(program.weights)
        self.steps: list[Step] = []
        self.shapes: dict[str, tuple[Tree, ...]] = {
            name: each.shape
            for part in (program.weights, program.buffers, program.inputs)
            for name, each in part.items()
        }
        self.shapes |= {output.name: output.shape for step in program.steps for output in step.makes}
        self.shares: dict[str, SplitAxis] = {}
        self.extents: dict[str, int] = {}
        self.styles = styles
        self.split: dict[str, tuple[int, str]] = {}
        self._whole: dict[str, Step] = {}
        summed = {module for module, style in styles.items() if style == "replicated_with_grad_allreduce"}
        self._of_shares = {n for n, weight in program.weights.items() if weight.path.rpartition(".")[0] in summed}

    def result(self) -> CapturedProgram:
        """The program of a rank."""
        for step in self.program.steps:
            self._place(step)
        for name in self.split.keys() & self._whole.keys():
            raise self._refusal(
                self._whole[name], f"reads the weight of {self.split[name][1]}, which is split: have both in the plan"
            )
        for name in self.program.outputs:
            if name in self.shares:
                raise SettingError(
                    f"plan leaves what {shown(self.title)} returns split over ranks: end it in "
                    "'colwise_gather_output' or 'rowwise'"
                )
        uneven = {what: extent for what, extent in self.extents.items() if extent % self.degree}
        if uneven:
            what, extent = next(iter(uneven.items()))
            legal = nearest_divisor(math.gcd(*self.extents.values()), self.degree)
            raise SettingError(
                f"tp={self.degree} does not divide the {extent} {what} of {shown(self.title)}: use tp={legal}"
            )
        return self.program._replace(weights=self.weights, steps=tuple(self.steps))

    def _place(self, step: Step) -> None:
        style = "replicate"
        if step.op in ("linear", "embedding"):
            style = self.styles.get(_module(self.program, step), style)
        if style in WHOLE:
            self._carry(step)
        elif step.op == "linear":
            self._split_linear(step, style)
        else:
            self._split_embedding(step, style)

    def _carry(self, step: Step) -> None:
        """A step that no plan names, on shares if it reads any."""
        step = self._with_summed_gradients(step)
        names = tensors_in(list(step.args.values()))
        self._whole.update((name, step) for name in names if name in self.weights)
        shared = [name for name in names if name in self.shares]
        if not shared:
            self.steps.append(step)
            return
        if step.op not in CARRIERS:
            raise self._refusal(step, "is not worked out of what is split over ranks")
        makes = []
        for output in step.makes:
            share = CARRIERS[step.op](self, step, output)
            self.shares[output.name] = share
            makes.append(output._replace(shape=self._cut(output.shape, share.axis)))
        self.steps.append(step._replace(makes=tuple(makes)))

    def _split_linear(self, step: Step, style: str) -> None:
        weight, x, y = step.args["weight"][TENSOR], step.args["input"][TENSOR], step.makes[0]
        where, shape = _path(step), self.program.weights[weight].shape
        features = len(y.shape) - 1
        if style in COLUMNS:
            if x in self.shares:
                raise self._refusal(step, "is split by its outputs and reads what is split already: have it 'rowwise'")
            gathered = style in GATHERED
            if not gathered:
                self._divide(f"features that {where} makes", shape[0])
            self._share(weight, 0, where, even=not gathered)
            if "bias" in step.args and step.args["bias"] is not None:
                self._share(step.args["bias"][TENSOR], 0, where, even=not gathered)
            copy = self._insert(step, "copy_to_ranks", x, "copy", self.shapes[x])
            own = self._cut(y.shape, features, even=not gathered)
            made = y._replace(name=f"{y.name}.share" if gathered else y.name, shape=own)
            self.steps.append(step._replace(args={**step.args, "input": {TENSOR: copy}}, makes=(made,)))
            if gathered:
                self.steps.append(self._collective(step, "gather_from_ranks", made.name, "gather", y))
            else:
                self.shares[y.name] = SplitAxis(features)
            return
        self._divide(f"features that {where} reads", shape[1])
        if style in CUT and x not in self.shares:
            cut = self._cut(self.shapes[x], len(self.shapes[x]) - 1)
            x = self._insert(step, "take_share", x, "share", cut)
        elif self.shares.get(x) != SplitAxis(len(self.shapes[x]) - 1):
            raise self._refusal(step, "is split by its inputs and reads what is not: have it 'rowwise_split_input'")
        self._share(weight, 1, where)
        partial = y._replace(name=f"{y.name}.partial")
        self.steps.append(step._replace(args={**step.args, "input": {TENSOR: x}}, makes=(partial,)))
        self.steps.append(self._collective(step, "reduce_from_ranks", partial.name, "reduce", y))

    def _split_embedding(self, step: Step, style: str) -> None:
        weight, y = step.args["weight"][TENSOR], step.makes[0]
        where, shape = _path(step), self.program.weights[weight].shape
        if style in (*COLUMNS, "embedding_colwise"):
            self._divide(f"features that {where} makes", shape[1])
            self._share(weight, 1, where)
            features = len(y.shape) - 1
            made = y._replace(
                name=y.name if style == "colwise" else f"{y.name}.share", shape=self._cut(y.shape, features)
            )
            self.steps.append(step._replace(makes=(made,)))
            if style == "colwise":
                self.shares[y.name] = SplitAxis(features)
            else:
                self.steps.append(self._collective(step, "gather_from_ranks", made.name, "gather", y))
            return
        self._share(weight, 0, where, even=False)
        partial = y._replace(name=f"{y.name}.partial")
        args = {**step.args, "entries": shape[0]}
        self.steps.append(step._replace(op="split_embedding", args=args, makes=(partial,)))
        self.steps.append(self._collective(step, "reduce_from_ranks", partial.name, "reduce", y))

    def _with_summed_gradients(self, step: Step) -> Step:
        """A step that reads weights of which each rank has the gradients that its share makes, if it reads such."""
        args = dict(step.args)
        for arg, name in [(arg, name) for arg, value in args.items() for name in tensors_in(value)]:
            if name in self._of_shares:
                if step.op not in SAME:
                    raise self._refusal(step, "has a weight whose gradients ranks sum, which is not worked out")
                args[arg] = {TENSOR: self._insert(step, "copy_to_ranks", name, "weight", self.shapes[name])}
                self.shapes[args[arg][TENSOR]] = self.shapes[name]
        return step._replace(args=args)

    def _divide(self, what: str, extent: int) -> None:
        self.extents[what] = extent

    def _share(self, weight: str, axis: int, where: str, *, even: bool = True) -> None:
        """Leave a rank its share of a weight, unless another layer that has it too has done so.

        Raises SettingError if that one split it along another axis.
        """
        if weight in self.split:
            other, first = self.split[weight]
            if other != axis:
                raise SettingError(
                    f"plan splits the one weight of {first} and {where} both ways: use 'embedding_rowwise' and "
                    "'colwise_gather_output'"
                )
            return
        self.split[weight] = axis, where
        whole = self.weights[weight]
        self.weights[weight] = whole._replace(shape=self._cut(whole.shape, axis, even=even))

    def _cut(self, shape: tuple[Tree, ...], axis: int, *, even: bool = True) -> tuple[Tree, ...]:
        """A shape with its share of an axis; the first ranks have more where it does not divide."""
        extent = shape[axis]
        even = even or not (isinstance(extent, int) and extent % self.degree)
        return (*shape[:axis], ["/" if even else "ceil", extent, RANKS], *shape[axis + 1 :])

    def _insert(self, step: Step, op: str, x: str, suffix: str, shape: tuple[Tree, ...]) -> str:
        """A step before another, on what that reads; returns what it makes."""
        made = StepOutput(f"{step.makes[0].name}.{suffix}", shape, step.makes[0].dtype)
        self.steps.append(self._collective(step, op, x, suffix, made))
        return made.name

    @staticmethod
    def _collective(step: Step, op: str, x: str, suffix: str, makes: StepOutput) -> Step:
        return step._replace(op=op, args={"self": {TENSOR: x}}, name=f"{step.name}.{suffix}", makes=(makes,))

    def _refusal(self, step: Step, why: str) -> SettingError:
        return SettingError(f"plan of tp={self.degree}: {_path(step)} ({step.op}) {why}")

    def sizes(self, shape: tuple[Tree, ...]) -> tuple[int, ...]:
        """A whole tensor's shape in the example."""
        return shape_of(shape, self.example)

    def from_right(self, step: Step, names: list[str], *, spare: int = 0) -> tuple[int, int]:
        """The axis, from the last one on, that all of some tensors are split along which have it, and its whole parts.

        spare: axes at the end that are not to be split. Raises SettingError where some have all of that axis.
        """
        places = {(s.axis - len(self.shapes[n]), s.parts) for n in names if (s := self.shares.get(n)) is not None}
        if len(places) != 1:
            raise self._refusal(step, "reads tensors that are split along different axes")
        [(axis, parts)] = places
        if axis >= -spare:
            raise self._refusal(step, "needs all of the axis that is split over ranks")
        for name in names:
            shape = self.sizes(self.shapes[name])
            if name not in self.shares and len(shape) >= -axis and shape[axis] != 1:
                raise self._refusal(step, "reads a tensor that is split over ranks and one that is not")
        return axis, parts

    def moved(self, step: Step, x: str, y: StepOutput) -> SplitAxis:
        """Where a share is in another shape of the same elements in the same order."""
        share = self.shares[x]
        before, after = self.sizes(self.shapes[x]), self.sizes(y.shape)
        outside = math.prod(before[: share.axis]) * share.parts
        for axis, size in enumerate(after):
            until = math.prod(after[:axis])
            if outside % until or outside >= until * size:
                continue
            extent = until * size // outside
            if extent == 3 and size == 3 and len(after) - axis > 2:  # query, key and value, each split by heads
                outside *= 3
                continue
            self._divide(f"parts of axis {axis} that {_path(step)} makes", extent)
            return SplitAxis(axis, outside // until)
        raise self._refusal(step, "takes apart what is split over ranks")


Carrier = Callable[[_Splitting, Step, StepOutput], SplitAxis]


def _tensors(step: Step, *args: str) -> list[str]:
    return tensors_in([step.args.get(name) for name in args] if args else list(step.args.values()))


def _axis(step: Step, name: str, axes: int, default: int = 0) -> int:
    value = step.args.get(name)
    return (default if value is None else value) % axes


def _elementwise(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    axis, parts = of.from_right(step, _tensors(step))
    return SplitAxis(len(y.shape) + axis, parts)


def _reshaped(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    return of.moved(step, _tensors(step, "self")[0], y)


def _permuted(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    [x] = _tensors(step, "self")
    share, axes = of.shares[x], len(of.shapes[x])
    if step.op == "permute":
        order = [axis % axes for axis in step.args["dims"]]
    else:
        order = list(range(axes))
        first, second = (axes - 2, axes - 1)
        if step.op in ("transpose", "swapaxes", "swapdims"):
            names = ("dim0", "dim1") if "dim0" in step.args else ("axis0", "axis1")
            first, second = (_axis(step, name, axes) for name in names)
        order[first], order[second] = order[second], order[first]
    return SplitAxis(order.index(share.axis), share.parts)


def _unsqueezed(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    share = of.shares[_tensors(step, "self")[0]]
    return SplitAxis(share.axis + (_axis(step, "dim", len(y.shape)) <= share.axis), share.parts)


def _part(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    """Some places of an axis that is not split; of one that is, equal parts of it, which each rank has a share of."""
    [x] = _tensors(step, "self")
    share, whole = of.shares[x], of.shapes[x]
    axis = _axis(step, "dim", len(whole), -1 if step.op == "glu" else 0)
    if axis != share.axis or y.shape == whole:
        return SplitAxis(share.axis - (len(y.shape) < len(whole) and axis < share.axis), share.parts)
    if step.op not in ("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk", "glu") or share.parts != 1:
        raise of._refusal(step, "takes some places of an axis that is split over ranks")
    of._divide(f"parts that {_path(step)} makes", of.sizes(y.shape)[axis])
    return share


def _along(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    """What works along an axis that is not split, which stays."""
    [x] = _tensors(step, "self")
    if _axis(step, "dim", len(of.shapes[x])) == of.shares[x].axis:
        raise of._refusal(step, "needs all of the axis that is split over ranks")
    return of.shares[x]


def _repeated(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    """Each place of an axis so many times, which leaves ranks their share of it."""
    share = of.shares[_tensors(step, "self")[0]]
    if _tensors(step, "repeats") or step.args.get("dim") is None:
        raise of._refusal(step, "is not worked out of what is split over ranks, by counts or along all axes")
    return share


def _reduced(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    [x] = _tensors(step, "self")
    share, axes = of.shares[x], len(of.shapes[x])
    dim = step.args.get("dim")
    gone = {axis % axes for axis in (dim if isinstance(dim, list | tuple) else [] if dim is None else [dim])}
    if not gone or share.axis in gone or step.args.get("other") is not None:
        raise of._refusal(step, "needs all of the axis that is split over ranks")
    if len(y.shape) == axes:
        return share
    return SplitAxis(share.axis - sum(axis < share.axis for axis in gone), share.parts)


def _normalised(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    axis, parts = of.from_right(step, _tensors(step, "input"), spare=len(step.args["normalized_shape"]))
    return SplitAxis(len(y.shape) + axis, parts)


def _linear(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    axis, parts = of.from_right(step, _tensors(step, "input"), spare=1)
    return SplitAxis(len(y.shape) + axis, parts)


def _multiplied(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    """Products of matrices: over batches that are split, or rows of the first, or columns of the second."""
    a, b = _tensors(step)[-2:]
    if min(len(of.shapes[a]), len(of.shapes[b])) < 2:
        raise of._refusal(step, "of a vector is not worked out of what is split over ranks")
    own = {name: of.shares[name].axis - len(of.shapes[name]) for name in (a, b) if name in of.shares}
    if set(own) == {a} and own[a] == -2:
        axis, parts = -2, of.shares[a].parts
    elif set(own) == {b} and own[b] == -1:
        axis, parts = -1, of.shares[b].parts
    else:
        axis, parts = of.from_right(step, [a, b], spare=2)
    return SplitAxis(len(y.shape) + axis, parts)


def _added_product(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    share = _multiplied(of, step, y)
    of.from_right(step, _tensors(step))
    return share


def _attended(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    axis, parts = of.from_right(step, _tensors(step), spare=2)
    return SplitAxis(len(y.shape) + axis, parts)


def _summed(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    """Products by letters: of one that all tensors which have it are split along, and the result too."""
    left, _, result = step.args["equation"].replace(" ", "").partition("->")
    names = _tensors(step, "tensors")
    places = dict(zip(names, left.split(","), strict=True))
    if len(places) != len(names) or "." in left or not result:
        raise of._refusal(step, "is not worked out of what is split over ranks")
    letters = {(places[name][s.axis], s.parts) for name in names if (s := of.shares.get(name)) is not None}
    [(letter, parts), *more] = sorted(letters)
    if more or letter not in result or any(letter in places[name] and name not in of.shares for name in names):
        raise of._refusal(step, "reads tensors that are split along different axes, or sums along one")
    return SplitAxis(result.index(letter), parts)


def _joined(of: _Splitting, step: Step, y: StepOutput) -> SplitAxis:
    names = _tensors(step)
    axis, parts = of.from_right(step, names)
    if any(name not in of.shares for name in names):
        raise of._refusal(step, "reads a tensor that is split over ranks and one that is not")
    share, dim = SplitAxis(len(of.shapes[names[0]]) + axis, parts), _axis(step, "dim", len(y.shape))
    if step.op == "stack":
        return SplitAxis(share.axis + (dim <= share.axis), parts)
    if dim == share.axis and parts != 1:
        raise of._refusal(step, "joins parts of an axis that is split over ranks")
    return share


SAME = (
    *ACTIVATIONS,
    *ARITHMETIC,
    *(name for name in FUNCTIONS if name not in ("tril", "triu")),
    *("leaky_relu", "elu", "gelu", "addcmul", "addcdiv", "clamp", "clamp_min", "clamp_max", "clip", "lerp", "pow"),
    *("maximum", "minimum", "where", "masked_fill", "dropout", "alpha_dropout", "zeros_like", "ones_like", "full_like"),
    *("empty_like", "rand_like", "randn_like", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_and"),
    *("logical_or", "logical_not", "__and__", "__or__", "bitwise_and", "bitwise_or", "bitwise_not"),
    *("contiguous", "clone", "to", "type_as", "_to_copy", "alias", "detach", "positive", "expand", "expand_as"),
    *("broadcast_to", "repeat", "lift_fresh_copy"),
)
"""Operators on each element, and copies: what they read is split along the same axis, counted from the last."""
CARRIERS: dict[str, Carrier] = {
    **dict.fromkeys(SAME, _elementwise),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten"), _reshaped),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "swapdims", "t", "mT"), _permuted),
    "unsqueeze": _unsqueezed,
    "repeat_interleave": _repeated,
    **dict.fromkeys(("slice", "narrow", "select", "unbind", "glu"), _part),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk"), _part),
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"), _along),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp"), _reduced),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalised),
    "linear": _linear,
    **dict.fromkeys(("matmul", "bmm"), _multiplied),
    "baddbmm": _added_product,
    "einsum": _summed,
    "scaled_dot_product_attention": _attended,
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _joined),
}
"""Where what an operator makes of shares is split."""

WHOLE = ("replicate", "replicated_with_grad_allreduce")
"""Styles of layers that every rank has."""
COLUMNS = ("colwise", "packed_colwise", "colwise_gather_output", "colwise_rep")
GATHERED = ("colwise_gather_output", "colwise_rep")
CUT = ("rowwise_split_input", "rowwise_rep")
