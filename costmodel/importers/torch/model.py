"""A model taken from a live module: its program, and the sizes at which that holds."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, field_serializer

from costmodel.architectures.attention import AttentionSetting
from costmodel.architectures.base import Allowed, Architecture, BatchShape, Size, as_tuple
from costmodel.errors import CostModelError, SettingError, SpecError
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor, is_contiguous
from costmodel.importers.torch.folding import Item, fold
from costmodel.importers.torch.interpreter import Interpreter
from costmodel.importers.torch.program import CapturedProgram, extents_in, program_of
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.settings import LossKind


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
    unknown: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="operators that are left out, so that numbers are lower bounds"
    )

    DETACHES: ClassVar[bool] = True

    @field_serializer("program")
    def _write(self, program: CapturedProgram) -> dict[str, Any]:
        return program.to_dict()

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

    @property
    def open(self) -> set[str]:
        """Sizes that a question may give; all others are those of the example inputs."""
        return set().union(*(extents_in(tree) for each in self.program.inputs.values() for tree in each.shape))

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """Sizes of a batch; those of the example inputs where the question gives none."""
        height, width = image if image is not None else (None, None)
        asked = {"batch": batch, "seq": seq, "height": height, "width": width}
        sizes = {name: self._size(name, size) for name, size in asked.items()}
        if sizes["height"] is None and sizes["width"] is None:
            return BatchShape(sizes["batch"] or 1, sizes["seq"])
        return BatchShape(sizes["batch"] or 1, sizes["seq"], (sizes["height"] or 1, sizes["width"] or 1))

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """See `Architecture.allowed`."""
        least, most = self.limits.get({"image": "height"}.get(name, name), (1, None))
        limit = "" if most is None else f"the module takes at most {most:,}"
        return Allowed(range(least, (most or LARGEST_SIZE) + 1), limit)

    def _size(self, name: str, size: int | None) -> int | None:
        example = self.example.get(name)
        setting = "image" if name in ("height", "width") else name
        if size is None:
            return example
        if name not in self.open:
            if example is None and name == "batch" and size == 1:
                return None
            if example is None:
                raise SettingError(f"{setting}={int(size)} does not apply to {self.title!r}: no input has such a size")
            if size != example:
                raise SettingError(
                    f"{setting}={int(size)} is not what {self.title!r} was exported for, where it is fixed: "
                    f"use {setting}={example}"
                )
            return size
        least, most = self.limits.get(name, (1, None))
        if size < least or (most is not None and size > most):
            bounds = f"at least {least}" if size < least else f"at most {most}"
            raise SettingError(f"{setting}={int(size)} is beyond what {self.title!r} takes: use {bounds}")
        return size

    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor:
        """What the module returns first."""
        height, width = shape.image or (None, None)
        known = {"batch": shape.batch, "seq": shape.seq, "height": height, "width": width}
        sizes = {name: size for name, size in known.items() if size is not None}
        assert isinstance(attention, AttentionSetting)
        if attention.pairs != "full":
            raise SettingError(f"attention_pairs={attention.pairs!r} is not known of {self.title!r}: use 'full'")
        try:
            outputs = Interpreter(self.program, self.items, self.unknown, tape, sizes, attention)()
        except CostModelError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise SpecError(f"the program of {self.title!r} cannot be run: {type(error).__name__}: {error}") from None
        if not outputs:
            raise SpecError(f"{self.title} returns no tensor")
        y = next((x for x in outputs if x.requires_grad), outputs[0])
        several = {x.maker: x for x in outputs if x.requires_grad}
        tape.outputs = tuple(several.values()) if len(several) > 1 else ()
        if len(y.shape) == 3 and shape.seq is not None and is_contiguous(y.shape, y.strides):
            return y.view((y.rows, y.shape[-1]))  # the loss sees rows of tokens
        return y
