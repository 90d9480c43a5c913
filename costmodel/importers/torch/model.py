"""A model taken from a live module: its program, and the sizes at which that holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from textwrap import shorten
from threading import RLock
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, Field, field_serializer

from costmodel.architectures.attention import AttentionSetting
from costmodel.architectures.base import Allowed, Architecture, BatchShape, Size, as_tuple
from costmodel.architectures.stages import StageParts, own_parts
from costmodel.errors import CostModelError, SettingError, SpecError, shown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor, is_contiguous
from costmodel.importers.torch.cutting import StageProgram, cut, parts_of
from costmodel.importers.torch.folding import Item, fold
from costmodel.importers.torch.interpreter import Interpreter
from costmodel.importers.torch.program import CapturedProgram, Tree, evaluate, extents_in, program_of, text_of
from costmodel.importers.torch.splitting import RANKS, rank_program, styles_of
from costmodel.symbolic.sizes import LARGEST_SIZE, peek
from costmodel.training.layout import Layout, Plan, plan_of
from costmodel.training.settings import LossKind

_COARSEST = 128
"""Steps of a size up to this are tried for one that the module takes."""
_MOST_EXPORTS = 32
"""Sizes that a module is exported at anew, beside the example's."""
_MOST_STEPS = 5_000
"""Operators that it calls there in all, beside as many times those at the example's as `_MOST_TIMES` says."""
_MOST_TIMES = 8


class Elsewhere:
    """What a module does at sizes at which its first program is not what it does, each by an export of its own.

    export: makes one of so many operators at most, while the module is at hand; it is not pickled. steps: those of the
    first program. same_at_one: whether a model is also what the module does where a size, by name, is 1. Programs and
    refusals are kept in the order in which they were asked for, so that letters meet the same decisions whenever they
    come.
    """

    def __init__(
        self,
        export: Callable[[Mapping[str, int], int], Imported] | None = None,
        steps: int = 0,
        same_at_one: Callable[[Imported, str], bool] | None = None,
    ) -> None:
        self.export = export
        self._same_at_one = same_at_one
        self._reaching_one: dict[str, bool] = {}
        self._left = _MOST_STEPS + _MOST_TIMES * steps
        self._known: list[Imported | tuple[dict[str, int], str]] = []
        self._lock = RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_known": self._known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()
        self._known = state["_known"]

    def __deepcopy__(self, memo: Any) -> Elsewhere:
        return self

    def reaches_one(self, model: Imported, name: str) -> bool:
        """Whether a model that takes a size of at least 2 is what the module does at 1 too, tried when first asked."""
        with self._lock:
            if self._same_at_one is not None and name not in self._reaching_one:
                self._reaching_one[name] = False  # while it is tried
                self._reaching_one[name] = self._same_at_one(model, name)
            return self._reaching_one.get(name, False)

    def at(self, sizes: Mapping[str, int], objection: str) -> Imported:
        """The module at these sizes; `objection`: why the first program is another. Raises SettingError."""
        with self._lock:
            for known in self._known:
                if isinstance(known, Imported):
                    if known.objection(sizes) is None:
                        return known
                elif all(sizes[name] == size for name, size in known[0].items()):
                    raise SettingError(known[1])
            if self.export is None:
                raise SettingError(objection)
            if len(self._known) >= _MOST_EXPORTS or self._left <= 0:
                raise SettingError(
                    f"{objection} (exported {len(self._known)} times for others: import it at such sizes)"
                )
            point = {name: peek(size) for name, size in sizes.items()}
            try:
                model = self.export(point, self._left)
                if (unlike := model.objection(point)) is not None:
                    raise SettingError(unlike)
            except CostModelError as error:
                refusal = objection if str(error) in objection else f"{objection}; exported there: {str(error)[:200]}"
                self._known.append((point, refusal))
            else:
                self._known.append(model)
                self._left -= len(model.program.steps)
            return self.at(sizes, objection)


class Imported(Architecture):
    """What one forward pass of a PyTorch module calls; made by `costmodel.from_torch`."""

    program: Annotated[Any, BeforeValidator(program_of)] = Field(
        description="operators in order, with the tensors they read and make"
    )
    example: dict[str, Size] = Field(
        description="sizes of the example inputs: batch, seq, height, width, as far as there are"
    )
    limits: dict[str, Annotated[tuple[Size, Size | None], BeforeValidator(as_tuple)]] = Field(
        default={}, description="least and largest size of each that is open"
    )
    reaching_one: Annotated[tuple[str, ...] | None, BeforeValidator(as_tuple)] = Field(
        default=None, description="of sizes that are at least 2, those that may be 1 all the same, as far as tried"
    )
    plan: Annotated[tuple[tuple[str, str], ...], BeforeValidator(partial(plan_of, "plan"))] = Field(
        default=(),
        description="layers that ranks of tp split, as the module itself says: name and style of each",
    )
    unknown: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="operators that are left out, so that numbers are lower bounds"
    )

    DETACHES: ClassVar[bool] = True
    HAS_MODULES: ClassVar[bool] = True
    SPLIT_BY: ClassVar[tuple[str, ...]] = ("tp",)

    @field_serializer("program")
    def _write(self, program: CapturedProgram) -> dict[str, Any]:
        return program.to_dict()

    @field_serializer("reaching_one")
    def _write_reaching_one(self, _: tuple[str, ...] | None) -> list[str]:
        return [name for name in self.limits if self._reaches_one(name)]

    def __getstate__(self) -> dict[Any, Any]:
        fields = vars(self) | {"reaching_one": tuple(self._write_reaching_one(()))}
        return super().__getstate__() | {"__dict__": fields}

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal, but for what may not have been tried yet."""
        if not isinstance(other, Imported):
            return NotImplemented
        return BaseModel.__eq__(*(model.model_copy(update={"reaching_one": None}) for model in (self, other)))

    __hash__ = Architecture.__hash__

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The program with equal blocks folded."""
        return fold(self.program)

    @property
    def BATCH_SIZES(self) -> tuple[str, ...]:  # type: ignore[override]
        """Sizes of a batch, beside its samples, that the module leaves open."""
        open_sizes = self.open
        return tuple(name for name in ("seq", "image") if {"image": "height"}.get(name, name) in open_sizes)

    @property
    def HAS_ATTENTION(self) -> bool:  # type: ignore[override]
        """Whether it calls attention as one operator."""
        return any(step.op == "scaled_dot_product_attention" for step in self.program.steps)

    @property
    def default_loss(self) -> LossKind | None:
        """None: it ends where the module ends."""
        return None

    @property
    def caveats(self) -> tuple[tuple[str, str], ...]:
        """Operators that have no rule, and what the export fixed."""
        if not self.unknown:
            return ()
        names = ", ".join(self.unknown)
        left_out = f"all numbers but params and weights: no rule for {names}, whose work and memory are left out"
        return (("lower bound", left_out),)

    def __repr__(self) -> str:
        return f"<Imported {self.title}: {len(self.program.steps):,} operators>"

    @cached_property
    def open(self) -> set[str]:
        """Sizes that a question may give; all others are those of the example inputs."""
        return set().union(*(extents_in(tree) for each in self.program.inputs.values() for tree in each.shape))

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """The module at sizes at which this program is not what it does."""
        return Elsewhere()

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """Sizes of a batch; those of the example inputs where the question gives none."""
        height, width = image if image is not None else (None, None)
        asked = {"batch": batch, "seq": seq, "height": height, "width": width}
        given = {name: size for name, size in asked.items() if self._has(name, size)}
        sizes = {name: self._value(name, given) for name in self.example}
        self.at(sizes)
        batch = sizes.get("batch", 1)
        if "height" not in sizes and "width" not in sizes:
            return BatchShape(batch, sizes.get("seq"))
        return BatchShape(batch, sizes.get("seq"), (sizes.get("height", 1), sizes.get("width", 1)))

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """See `Architecture.allowed`."""
        sides = ("height", "width") if name == "image" else (name,)
        own = {"batch": shape.batch, "seq": shape.seq} | dict(zip(("height", "width"), shape.image or (), strict=False))
        base = int(own[sides[0]] or 1)
        bounds = [self.limits.get(side, (1, None)) for side in sides]
        least, largest = max(bound[0] for bound in bounds), min((b[1] for b in bounds if b[1]), default=None)

        def takes(size: int) -> bool:
            given = {other: value for other, value in own.items() if value is not None} | dict.fromkeys(sides, size)
            try:
                self.at({each: self._value(each, given) for each in self.example})
            except CostModelError:
                return False
            return True

        step = 1
        while step < _COARSEST and not takes(base + step if largest is None or base + step <= largest else base - step):
            step *= 2
        if largest is not None and takes(base + ((largest - base) // step + 1) * step):
            largest = None
        while least > 1 and takes(least - 1):
            least -= 1
        limit = "" if largest is None else f"the module takes at most {largest:,}"
        note = "" if step == 1 else f"{name} in steps of {step}, which this module takes"
        return Allowed(range(base - (base - least) // step * step, (largest or LARGEST_SIZE) + 1, step), limit, note)

    def at(self, sizes: Mapping[str, int]) -> Imported:
        """What the module does at these sizes. Raises SettingError if it takes no such batch, or that is not known."""
        objection = self.objection(sizes)
        return self if objection is None else self.elsewhere.at(sizes, objection)

    def objection(self, sizes: Mapping[str, int]) -> str | None:
        """What is not so at these sizes of that under which the program is what the module does; None if all is."""
        of, open_sizes, dependent = shown(self.title), self.open, self._dependent
        for name, size in sorted(sizes.items(), key=lambda item: item[0] in open_sizes):
            setting = "image" if name in ("height", "width") else name
            if name in open_sizes:
                least, most = self.limits.get(name, (1, None))
                short = size < least
                if short and self._reaches_one(name):  # after the same decision, be it known by now or not
                    least, short = 1, size < 1
                if short or (most is not None and size > most):
                    bounds = f"at least {least}" if size < least else f"at most {most}"
                    return f"{setting}={int(size)} is beyond what {of} takes: use {bounds}"
            elif name in self.example and name not in dependent and size != self.example[name]:
                return (
                    f"{setting}={int(size)} is not what {of} was exported for, where it is fixed: "
                    f"use {setting}={self.example[name]}"
                )
        for condition in self.program.conditions:
            try:
                holds = evaluate(condition, sizes)
            except ArithmeticError:
                holds = False
            if not holds:
                names = sorted(extents_in(condition), key=list(sizes).index)
                where = ", ".join(f"{name}={peek(sizes[name])}" for name in names)
                return f"{where} is not as {of} was exported for, with {shorten(text_of(condition), 100)}"
        return None

    def _reaches_one(self, name: str) -> bool:
        """Whether a size may be 1 all the same: torch.export takes all that are open for at least 2."""
        if name not in ("batch", "seq") or self.limits.get(name, (1, None))[0] != 2:
            return False
        return name in (self.reaching_one or ()) or self.elsewhere.reaches_one(self, name)

    @cached_property
    def _dependent(self) -> dict[str, Tree]:
        """Sizes that follow from others, with what they are."""
        ties = [condition[1:] for condition in self.program.conditions if condition[0] == "=="]
        return {name: size for name, size in ties if isinstance(name, str) and name not in self.open}

    def check_plan(self, plan: Plan) -> None:
        """Raise SettingError for a plan with names that no module has."""
        if plan:
            styles_of(self.program, plan, self.title)

    def local(self, layout: Layout) -> Self:
        """This model, split when it runs; see `Architecture.local`."""
        if layout.tp != 1 and not (layout.plan or self.plan):
            raise SettingError(
                f"tp={peek(layout.tp)} needs a plan of what it splits of {shown(self.title)}: give plan, such as "
                "{'*.up': 'colwise', '*.down': 'rowwise'}"
            )
        if layout.tp != 1 and layout.megatron:
            raise SettingError(
                f"a plan of tp={peek(layout.tp)} is not worked out with runtime={layout.runtime!r}: use 'torch'"
            )
        for name in ("sp", "split_loss") if layout.tp != 1 else ():
            if getattr(layout, name):
                setting = {"split_loss": "loss_parallel"}.get(name, name)
                raise SettingError(f"{setting}=True is not worked out for a plan, of {shown(self.title)}: leave it out")
        if layout.pp != 1 and (layout.tp != 1 or layout.shards != 1):
            name = "tp" if layout.tp != 1 else "fsdp"
            raise SettingError(
                f"{name} is not worked out with pp={peek(layout.pp)} of the imported {shown(self.title)}: leave one out"
            )
        super().local(layout)
        return self

    def of_a_rank(self, layout: Layout) -> tuple[CapturedProgram, tuple[Item, ...]]:
        """What a rank of tp has of this program, by a plan, and the same with equal blocks folded."""
        if layout.tp == 1:
            return self.program, self.items
        example = {name: peek(size) for name, size in self.example.items()}
        program = rank_program(self.program, layout.plan or self.plan, layout.tp, example, self.title)
        return program, fold(program)

    @cached_property
    def stage_parts(self) -> StageParts:  # type: ignore[override]
        """See `Architecture.stage_parts`: its modules, those of lists one by one."""
        return StageParts((name, 1) for name, _ in parts_of(self.program))

    def of_a_stage(self, program: CapturedProgram, layout: Layout) -> StageProgram:
        """What a stage has of a program. Raises SettingError."""
        own = own_parts(layout, self)
        firsts = [number for _, number in parts_of(program)]
        start = 0 if layout.first else firsts[own.start]
        return cut(program, start, len(program.steps) if layout.last else firsts[own.stop], self.title)

    def _has(self, name: str, size: int | None) -> bool:
        """Whether a size is given. Raises SettingError for one that no input has."""
        if size is None or name in self.example:
            return size is not None
        if name == "batch" and size == 1:
            return False
        setting = "image" if name in ("height", "width") else name
        raise SettingError(f"{setting}={int(size)} does not apply to {self.title!r}: no input has such a size")

    def _value(self, name: str, sizes: Mapping[str, int]) -> int:
        """A size, by default the one that follows from others, or that of the example inputs."""
        if name in sizes:
            return sizes[name]
        if name not in self._dependent:
            return self.example[name]
        try:
            return evaluate(self._dependent[name], {other: sizes.get(other, n) for other, n in self.example.items()})
        except ArithmeticError as error:
            raise SettingError(f"{name} of {shown(self.title)}: {error}") from None

    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor | tuple[Tensor, ...]:
        """What the module returns first; of a stage all that later ones read."""
        height, width = shape.image or (None, None)
        known = {"batch": shape.batch, "seq": shape.seq, "height": height, "width": width}
        sizes = {name: size for name, size in known.items() if size is not None}
        here = self.at({name: sizes[name] for name in self.example})
        assert isinstance(attention, AttentionSetting)
        if attention.pairs != "full":
            raise SettingError(f"attention_pairs={attention.pairs!r} is not known of {self.title!r}: use 'full'")
        try:
            program, items = here.of_a_rank(tape.layout)
            received: tuple[str, ...] = ()
            if tape.layout.stage is not None:
                program, received = here.of_a_stage(program, tape.layout)
                items = fold(program)
            sizes |= {RANKS: tape.layout.tp}
            outputs = Interpreter(program, items, here.unknown, tape, sizes, attention, received)()
        except CostModelError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise SpecError(f"the program of {self.title!r} cannot be run: {type(error).__name__}: {error}") from None
        if not outputs:
            raise SpecError(f"{self.title} returns no tensor")
        if not tape.layout.last:
            return tuple(outputs)
        y = next((x for x in outputs if x.requires_grad), outputs[0])
        several = {x.maker: x for x in outputs if x.requires_grad}
        tape.outputs = tuple(several.values()) if len(several) > 1 else ()
        if len(y.shape) == 3 and shape.seq is not None and is_contiguous(y.shape, y.strides):
            return y.view((y.rows, y.shape[-1]))  # the loss sees rows of tokens
        return y
