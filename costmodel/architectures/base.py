"""What every architecture is: a frozen, strict description with a forward pass on paper tensors."""

# No `from __future__ import annotations`: pydantic would have to read each annotation of a field from its text again.
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from textwrap import shorten
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field

from costmodel.architectures.activations import NAMES
from costmodel.architectures.stages import StageParts, check_stages
from costmodel.documents.arguments import typed
from costmodel.documents.description import Description, Listed, Reads, unknown_field
from costmodel.errors import SettingError, SpecError, shown, unknown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.symbolic.sizes import LARGEST_SIZE, divisors, peek
from costmodel.training.layout import Layout, Plan
from costmodel.training.settings import SETTINGS, LossKind

Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST_SIZE)]
DropRate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def as_tuple(value: Any) -> Any:
    """Lists are what YAML and people write."""
    return tuple(value) if isinstance(value, list) else value


MOST_PATTERN = 1_000
Pattern = Annotated[Listed[bool], BeforeValidator(as_tuple), Field(max_length=MOST_PATTERN)]
"""For which of the blocks something is so, over and over."""

ImageShape = Annotated[Reads[tuple[Size, Size, Size], tuple[Size, Size, Size] | list[Size]], BeforeValidator(as_tuple)]
"""(channels, height, width)."""


def _known(name: str) -> str:
    if name not in NAMES:
        raise unknown("activation", name, NAMES)
    return name


ActivationName = Annotated[str, AfterValidator(_known)]

LONGEST_DEFAULT = 2048
"""Tokens that a sequence has at most where a question does not say how many."""


def default_tokens(context: int) -> int:
    """Tokens of a sequence where a question does not say how many: the context's, up to `LONGEST_DEFAULT`."""
    return context if context <= LONGEST_DEFAULT else LONGEST_DEFAULT  # not min(), which a letter decides in silence


class BatchShape(NamedTuple):
    """The sizes of one batch, which a question gives and a model's description does not."""

    batch: int
    seq: int | None = None
    image: tuple[int, int] | None = None
    target: int | None = None
    past: int | None = None
    """Tokens of each sequence that are kept from before; None where nothing is kept."""
    last: bool = False
    """Whether logits are of the last token alone."""

    @property
    def unit(self) -> str:
        """What a sample is."""
        return "images" if self.image is not None else "samples" if self.seq is None else "sequences"


class Definition(NamedTuple):
    """A letter of a model's formulas: what it stands for, and its value in this model."""

    symbol: str
    meaning: str
    value: int


class Allowed(NamedTuple):
    """The values that a size can take, in order.

    limit: why there are no larger ones. note: which are left out, if not every whole number is one.
    """

    values: Sequence[int] = range(1, LARGEST_SIZE + 1)
    limit: str = ""
    note: str = ""


SPLITTING = ("tp", "cp", "ep", "etp")
"""Degrees of a layout that split layers or sequences, not the samples, the weights that are stored, or the blocks."""

BATCH_SYMBOLS = {"batch": "B", "seq": "T", "past": "P", "target_seq": "T_t", "image": "H, W"}


class Architecture(Description):
    """Abstract: a model's description, and its forward pass."""

    READY: ClassVar[str] = "a ready model is cm.load('gpt2-small')"
    HAS_ATTENTION: ClassVar[bool] = False
    """Whether settings of attention apply."""
    HAS_MODULES: ClassVar[bool] = False
    """Whether it is of modules with names of their own, which a plan may split over ranks."""
    DATA_ALONE: ClassVar[bool] = False
    """Whether its fields are plain data, without layers, whose code may be one's own."""
    DETACHES: ClassVar[bool] = False
    """Whether some of what it computes may be out of reach of gradients, as a target network is."""
    SPLITS_BACKWARD: ClassVar[bool] = False
    """Whether stages of a pipeline may make gradients of weights apart from those of what each stage received."""
    SPLIT_BY: ClassVar[tuple[str, ...]] = ()
    """Of the degrees that split layers or sequences (`SPLITTING`) those that can apply."""
    BATCH_SIZES: ClassVar[tuple[str, ...]] = ()
    """Sizes of a batch, beside its samples, that a question may give."""
    LETTERS: ClassVar[dict[str, str]] = {}
    """The letter that each size field has in formulas."""
    DERIVED: ClassVar[tuple[str, ...]] = ()
    """Sizes that are no field and can vary, such as the width of a network whose layers are listed."""

    name: str = Field(default="", max_length=200, description="name shown in reports")
    notes: str = Field(default="", max_length=4000, description="where the numbers come from")

    @cached_property
    def file(self) -> str:
        """The file that this model was read from, for errors; no part of what it is."""
        return ""

    def __iter__(self) -> Generator[tuple[str, Any], None, None]:
        """Fields and their values, of which another can be made: ``type(model)(**dict(model))``."""
        yield from (pair for pair in super().__iter__() if pair[0] in type(self).model_fields)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Fields that are not at their default, without the notes."""
        yield from (pair for pair in super().__repr_args__() if pair[0] != "notes")

    def _repr_html_(self) -> str:
        from costmodel.display.answer import Sheet
        from costmodel.display.table import Table

        values = {name: self.value(name) for name in self.field_names() if name not in ("name", "notes")}
        rows = [(name, shorten(str(value), 200)) for name, value in values.items() if name not in self.parts()]
        notes = [self.notes] if self.notes else []
        return Sheet(
            [self.title], [Table((type(self).__name__, ""), rows, words=frozenset({0, 1}))], notes=notes
        ).html()

    @property
    def caveats(self) -> tuple[tuple[str, str], ...]:
        """What its numbers leave out, as (topic, sentence); reports say so."""
        return ()

    @abstractmethod
    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """Sizes of a batch, with the model's own where the question gives none.

        Raises SettingError for a size that this kind of model does not have.
        """

    def with_target(self, shape: BatchShape, target_seq: int | None) -> BatchShape:
        """The sizes with those of a target, which only an encoder-decoder has. Raises SettingError."""
        refuse("target_seq", target_seq, self, "no target apart from its input")
        return shape

    def with_past(self, shape: BatchShape, past: int | None, *, last: bool) -> BatchShape:
        """The sizes with those of what is kept of earlier tokens, of a decoder alone. Raises SettingError.

        last: whether logits are of the last token alone.
        """
        mode = "prefill" if last else "decode"
        raise SettingError(
            f"mode={mode!r} does not apply to {type(self).__name__} {self.title!r}, which is no decoder of tokens: use "
            "mode='inference'"
        )

    @abstractmethod
    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor | tuple[Tensor, ...]:
        """Run on paper; returns the prediction as (rows, classes, ...), or several, whose losses are added."""

    def implemented(self, by: str) -> Self:
        """This model as it is plainly written, or as the package transformers writes it. Raises SettingError."""
        if by != "plain":
            raise SettingError(
                f"implementation={by!r}: how {by} writes {self.title} is not known: give a published config.json of a "
                "family of which it is, or leave it out"
            )
        return self

    @property
    def default_loss(self) -> LossKind | None:
        """The loss that training this model ends in, unless the question says otherwise."""
        return "cross_entropy"

    def size_fields(self) -> dict[str, Definition]:
        """Fields that formulas have a letter for, as far as this model sets them."""
        descriptions = {name: self.field_named(name).description or name for name in self.LETTERS}
        meanings = {name: f"{name}: {text}" if "." in name else text for name, text in descriptions.items()}
        values = {name: self.value(name) for name in self.LETTERS}
        return {
            name: Definition(symbol, meanings[name], int(values[name]))
            for name, symbol in self.LETTERS.items()
            if values[name] is not None
        }

    def open_sizes(self) -> dict[str, str]:
        """What can vary of a batch and of the model, by name, with its symbol in formulas ("" where it has none)."""
        batch = {name: BATCH_SYMBOLS[name] for name in ("batch", *self.BATCH_SIZES)}
        return batch | self.LETTERS | dict.fromkeys(self.DERIVED, "")

    def size(self, name: str) -> int:
        """A size of the model, by default the one that follows from the others; 0 of what it does not have.

        Raises SettingError for a derived one that this model does not have.
        """
        return int(self.value(name) or 0)

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """The values that a size of the model or of a batch of it can take, all else as it is. Raises SettingError."""
        return Allowed()

    def vary(self, name: str, value: Any) -> Self:
        """The model with another size, checked. Raises CostModelError where there is none."""
        return self.with_fields({name: value})

    @typed
    def changed(self, over: Mapping[Any, Any]) -> Self:
        """The model with other values of some fields, those of parts by dotted names, and a name that says so.

        over: values by field, such as {"layers": 24, "experts.count": 16}; of networks whose layers are listed also of
        `DERIVED` sizes. Raises CostModelError for what is no field, and for a model that cannot be.
        """
        for name in over:
            if name in SETTINGS and name not in self.field_names():
                raise SettingError(f"{name} is a setting, no field of {self.title}: give it beside over")
            if name not in (*self.field_names(), *self.DERIVED, *self.RENAMED):
                raise unknown_field(
                    f"field of {self.title}", name, [type(self)], [*self.field_names(), *self.DERIVED, *self.RENAMED]
                )
        model = self.with_fields({name: value for name, value in over.items() if name not in self.DERIVED})
        for name in self.DERIVED:
            model = model.vary(name, over[name]) if name in over else model
        changes = ", ".join(f"{name} {value}" for name, value in over.items() if name not in ("name", "notes"))
        if not changes or "name" in over:
            return model
        return model.with_fields({"name": shorten(f"{self.title} with {changes}", 200, placeholder=" ...")})

    def with_sizes(self, sizes: Mapping[str, int]) -> Self:
        """This model with letters for some of its sizes, of the same values."""
        return self.with_values(sizes)

    def local(self, layout: Layout) -> Self:
        """What one rank of a layout has of this model, at local sizes. Raises SettingError."""
        if layout.runtime == "megatron":
            raise SettingError(
                f"runtime='megatron' has no layers for {type(self).__name__} {self.title!r}: use 'torch' or 'deepspeed'"
            )
        self.check_degrees({name: getattr(layout, name) for name in SPLITTING})
        check_stages(layout, self)
        return self

    @typed
    def check_degrees(self, degrees: Mapping[str, Any]) -> None:
        """Raise SettingError for a degree that splits what this model does not have."""
        for name in SPLITTING:
            if name not in self.SPLIT_BY and degrees.get(name) not in (1, None):
                kind = type(self).__name__
                raise SettingError(
                    f"{name}={shown(degrees[name])} does not apply to {kind} {self.title!r}: leave it out"
                )

    def check_plan(self, plan: Plan) -> None:
        """Raise SettingError unless the layers that a plan names are this model's."""
        if plan:
            kind = type(self).__name__
            raise SettingError(f"plan is for models of from_torch, not {kind} {self.title!r}: leave it out")

    def gathered_keys(self, layout: Layout) -> int | None:
        """Key heads of all ranks where these are fewer than the ranks, which then gather what they make; else None."""
        return None

    @property
    def stage_parts(self) -> StageParts:
        """Names of the parts, one after another, that stages of a pipeline are made of; none if it cannot be cut."""
        return StageParts(())

    def stage_kind(self, layout: Layout) -> object:
        """What stages have in common that cost the same, but for the first and the last."""
        return layout.stage

    def assumptions(self, shape: BatchShape) -> list[tuple[str, str]]:
        """What the numbers take for granted that no size says, as (topic, sentence)."""
        return []

    @property
    def title(self) -> str:
        """Name for reports."""
        return self.name or type(self).__name__


def check_runtime(model: Architecture, layout: Layout) -> None:
    """Raise SettingError if ranks of tp have Megatron's layers, of a model that is no decoder."""
    if layout.megatron and layout.tp != 1:
        raise SettingError(
            f"tp={layout.tp} of runtime={layout.runtime!r} is of decoders, not {model.title!r}: use 'torch'"
        )


def check_splits(model: Architecture, layout: Layout) -> None:
    """Raise SettingError for what tp does in models of text alone, of a model of something else."""
    check_runtime(model, layout)
    if layout.pp != 1:
        raise SettingError(f"pp={layout.pp} is not worked out with tp of {model.title!r}: leave one of them out")
    for name, split in (("sp", layout.sp), ("loss_parallel", layout.split_loss)):
        if split:
            kind = type(model).__name__
            raise SettingError(
                f"{name}=True is of tokens and their vocabulary, not of {kind} {model.title!r}: leave it out"
            )


def refuse(size_name: str, value: object, model: Architecture, takes: str) -> None:
    """Raise SettingError if a size is given that `model` does not have."""
    if value is not None:
        raise SettingError(
            f"{size_name}={value} does not apply to {type(model).__name__} {model.title!r}: it takes {takes}"
        )


def nearest_divisor(width: int, heads: int) -> int:
    """The divisor of `width` that is nearest to `heads`: a number, for texts."""
    return min(divisors(peek(width)), key=lambda n: (abs(n - peek(heads)), n))


def fitting_divisors(model: Architecture, name: str, whole: int) -> list[int]:
    """Divisors of a number with which, as a size of the model, there is a model."""

    def fits(value: int) -> bool:
        with suppress(SpecError):
            model.vary(name, value)
            return True
        return False

    return [n for n in divisors(whole) if fits(n)]


def scaled_size(size: int, width: int, base: int, multiple: int = 1) -> int:
    """`size · width / base`, rounded to the nearest multiple that is not zero."""
    return max(1, (2 * size * width + base * multiple) // (2 * base * multiple)) * multiple
