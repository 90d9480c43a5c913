"""A graph walked round by round, its layers recorded on one tape, and the way back from the loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from costmodel.graph.tensor import Block, Call, Storage, Tensor
from costmodel.roofline.kernels import kernel_of
from costmodel.roofline.kernels.kernel import Kernel, Site
from costmodel.roofline.layer import NUMBERS
from costmodel.roofline.reference import BufferRole, Ref
from costmodel.roofline.tape import Tape

ROLES: dict[str, BufferRole] = {"weight": "weight", "buffer": "state", "input": "input"}
"""Whose memory a paper tensor is that no layer makes."""


@dataclass(eq=False)
class Recorded:
    """A layer that was recorded, or a view of `source` if it is none."""

    y: Ref
    site: Site | None = None
    kernel: Kernel | None = None
    source: Ref | None = None
    name: str = ""


@dataclass(eq=False)
class Recorder:
    """Walks a graph, round by round, and records the kernels of its calls."""

    tape: Tape
    arrays: dict[Tensor, Ref] = field(default_factory=dict)
    by_storage: dict[Storage, Ref] = field(default_factory=dict)
    given: dict[tuple[Storage, str], Ref] = field(default_factory=dict)
    steps: list[Recorded] = field(default_factory=list)
    rounds: dict[Block, int] = field(default_factory=dict)

    def walk(self, block: Block) -> None:
        """Every call within, in order."""
        for entry in block.entries:
            if isinstance(entry, Call):
                self.record(entry)
            else:
                self.repeat(entry)

    def repeat(self, block: Block) -> None:
        """All rounds of a block, each on what the one before made."""
        if block.entry is None or block.exit is None:
            self.walk(block)
            return
        assert block.entry.storage.parts is not None
        x = self.stored(block.entry.storage.parts[0], block.entry.shape)
        for number in range(int(block.count)):
            self.rounds[block] = number
            self.arrays[block.entry] = self.by_storage[block.entry.storage] = x
            self.walk(block)
            x = self.ref(block.exit)
        del self.rounds[block]
        parts = block.exit.storage.parts
        self.by_storage[block.exit.storage if parts is None else parts[-1]] = x

    def record(self, call: Call) -> None:
        """One call."""
        name = f"{call.name}{self.suffix(call.block)}"
        self.tape.layer = name
        site = self.site(call)
        kernel = kernel_of(call.kind.kind)
        y = kernel.forward(self.tape, site)
        self.arrays[call.y] = self.by_storage[call.y.storage] = y
        self.steps.append(Recorded(y, site, kernel, name=name))

    def site(self, call: Call) -> Site:
        """The call with its arrays; what needs a gradient is what has one on paper."""
        inputs = [self.ref(x) for x in call.inputs]
        weights = {name: self.ref(w) for name, w in call.weights.items()}
        buffers = {name: self.ref(b) for name, b in call.buffers.items()}
        pairs = zip((*call.inputs, *call.weights.values()), (*inputs, *weights.values()), strict=True)
        wanted = [ref for x, ref in pairs if x.requires_grad]
        return Site(call.kind, inputs, weights, buffers, call.run.training, wanted)

    def ref(self, x: Tensor) -> Ref:
        """The array of a paper tensor: made by a layer, handed on, or there from the beginning."""
        return self.arrays[x] if x in self.arrays else self.stored(x.storage, x.shape)

    def stored(self, storage: Storage, shape: Iterable[int]) -> Ref:
        """What was last made in a storage, or was there: of each round its own, if it is of a repeated block."""
        if storage.origin not in ROLES:
            return self.viewed(self.by_storage[storage], shape)
        name = f"{storage.name or 'input'}{self.suffix(storage.block)}"
        key = (storage, name)
        if key not in self.given:
            self.given[key] = self.tape.array([*shape], ROLES[storage.origin], name, NUMBERS.get(storage.role))
        return self.viewed(self.given[key], shape)

    def standing(self, role: BufferRole) -> dict[str, Ref]:
        """What is there from the beginning in a role, by name."""
        return {ref.buffer.name: ref for ref in self.given.values() if ref.buffer.role == role}

    def viewed(self, ref: Ref, shape: Iterable[int]) -> Ref:
        """`ref` in a shape that no layer gave it."""
        shape = tuple(map(int, shape))
        if ref.shape == shape:
            return ref
        view = self.tape.reshape(ref, *shape)
        self.steps.append(Recorded(view, source=ref))
        return view

    def suffix(self, block: Block | None) -> str:
        """The rounds that are under way, outermost first."""
        found = ""
        while block is not None:
            found = f"[{self.rounds[block]}]{found}" if block in self.rounds and int(block.count) > 1 else found
            block = block.parent
        return found

    def pull(self, ends: Iterable[Ref]) -> dict[Ref, Ref]:
        """Run back from the loss, or from a sum of the outputs; returns the gradients of weights."""
        self.tape.phase = "backward"
        gradients = {end: self.tape.full(end.shape, 1.0) for end in ends}
        for step in reversed(self.steps):
            g = gradients.pop(step.y, None)
            if g is None:
                continue
            if step.source is not None:
                self.add(gradients, step.source, self.tape.reshape(g, *step.source.shape))
            elif step.kernel is not None and step.site is not None and step.site.wanted:
                self.tape.layer = step.name
                for operand, gradient in step.kernel.backward(self.tape, step.site, g):
                    self.add(gradients, operand, gradient)
        return gradients

    def add(self, gradients: dict[Ref, Ref], operand: Ref, gradient: Ref) -> None:
        """What several layers read has the sum of their gradients."""
        before = gradients.get(operand)
        gradients[operand] = gradient if before is None else self.tape.add(before, gradient)
