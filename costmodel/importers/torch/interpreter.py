"""Running a program on paper: each step by its rule, under the names of the modules that called it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

from costmodel.architectures.attention import AttentionSetting
from costmodel.errors import CostModelError, SettingError, SpecError, shown, unknown
from costmodel.graph.recomputation import is_named, paths_to
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Shape, Storage, Tensor, show_shape
from costmodel.importers.torch.folding import Item, Loop
from costmodel.importers.torch.op_call import EXACT, NUMBERS, OpCall, role_of
from costmodel.importers.torch.program import Program, Step, Tree, shape_of, tensors_in
from costmodel.importers.torch.rules import load_rules
from costmodel.layers.indexing import Parameter, Unknown
from costmodel.symbolic.sizes import peek


class Interpreter:
    """One pass of a program at some sizes of the batch."""

    def __init__(
        self,
        program: Program,
        items: Sequence[Item],
        left_out: Collection[str],
        tape: Tape,
        sizes: dict[str, int],
        attention: AttentionSetting,
    ) -> None:
        self.program = program
        self.items = items
        self.left_out = left_out
        self.tape = tape
        self.sizes = sizes
        self.attention = attention
        self.rules = load_rules()
        self.narrow: dict[Storage, Tensor] = {}
        self.read = {*program.outputs, *(n for s in program.steps for n in tensors_in(list(s.args.values())))}
        self._made: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._held: set[str] = set()
        self._taken: set[str] = set()
        self._open: list[tuple[str, Any]] = []
        self._here: Step | None = None

    def __call__(self) -> list[Tensor]:
        """Run all steps; returns the outputs."""
        for name, given in self.program.inputs.items():
            role, dtype = role_of(given.dtype), EXACT.get(given.dtype)
            self._made[name] = self.tape.input(self.shape(given.shape), role, given.path, dtype)
        with ExitStack() as stack:
            stack.callback(self._enter, ())
            for item in self.items:
                if isinstance(item, Loop):
                    self._blocks(item)
                else:
                    self._enter(item.path)
                    self._step(item)
        self._rest()
        return [self.tensor(name) for name in self.program.outputs]

    def shape(self, trees: tuple[Tree, ...]) -> Shape:
        """A shape at this pass's sizes."""
        return shape_of(trees, self.sizes)

    def tensor(self, name: str) -> Tensor:
        """A tensor by name; a weight as a layer that holds it, a buffer once it is first read."""
        if name in self._made:
            return self._made[name]
        if name in self.program.weights:
            made = self._parameter(name)
        elif name not in self.program.buffers:
            raise SpecError(f"{name}: no rule makes this result of an operator that makes several")
        else:
            given = self.program.buffers[name]
            role, dtype = role_of(given.dtype), EXACT.get(given.dtype)
            made = self.tape.buffer(self.shape(given.shape), role, given.path, dtype)
        self._made[name] = made
        return made

    def weight(self, name: str, part: str = "") -> Tensor:
        """A tensor by name; a weight by itself, to be held by the layer that reads it, which `part` is if given."""
        if name not in self.program.weights:
            return self.tensor(name)
        self._held.add(name)
        if name not in self._weights:
            weight = self.program.weights[name]
            path = weight.path if "." in weight.path else f"{weight.path}.{weight.path}"
            self._weights[name] = self.tape.weight(weight.shape, path, frozen=not weight.trained, part=part)
        return self._weights[name]

    def taken(self, name: str) -> bool:
        """Leave out a buffer that a layer has of its own, and its module's count of batches; True if one had it."""
        before = name in self._taken
        count = f"{self.program.buffers[name].path.rpartition('.')[0]}.num_batches_tracked".removeprefix(".")
        self._taken.update({name}, (other for other, given in self.program.buffers.items() if given.path == count))
        return before

    def _parameter(self, name: str) -> Tensor:
        path, here = self.program.weights[name].path, ".".join(self._here.path if self._here else ())
        label = path.removeprefix(f"{here}.") if here else path
        weight = self.weight(name, label)
        grad, self.tape.grad = self.tape.grad, True
        made = self.tape.record(Parameter(weight.shape), (), label, {"weight": weight})
        self.tape.grad = grad
        return made

    def _rest(self) -> None:
        """Weights and buffers that nothing read."""
        self._enter(())
        self._here = None
        self.tape.grad = True
        for name in self.program.weights:
            if name not in self._held:
                self._parameter(name)
        for name in self.program.buffers:
            if name not in self._taken:
                self.tensor(name)

    def _enter(self, path: tuple[str, ...], above: tuple[str, ...] = ()) -> None:
        """Leave the scopes that the next step is not in, and enter those that it is; `path` is from `above` on."""
        common = 0
        while common < min(len(path), len(self._open)) and self._open[common][0] == path[common]:
            common += 1
        while len(self._open) > common:
            self._open.pop()[1].__exit__(None, None, None)
        for depth, name in enumerate(path[common:], common + 1):
            scope = self.tape.scope(name, listed=above + path[:depth] in self.program.lists)
            scope.__enter__()
            self._open.append((name, scope))

    def _blocks(self, found: Loop) -> None:
        """Equal blocks: traced once, unless gradients go from them to what they share, or one is asked for by name."""
        if self._told_apart(found) or any(self.tensor(name).requires_grad for name in found.outer):
            for step in (step for block in found.blocks for step in block):
                self._enter(step.path)
                self._step(step)
            return
        self._enter(found.scope)
        traced = iter(range(len(found.blocks)))
        outside, self._open = self._open, []

        def body(x: Tensor) -> Tensor:
            number = next(traced)
            self._made[found.entries[number]] = x
            for step in found.blocks[number]:
                self._enter(step.path[found.depth :], step.path[: found.depth])
                self._step(step)
            self._enter(())
            return self._made[found.exits[number]]

        x = self.tensor(found.entries[0])
        modules = [block[0].path[found.depth - 1] for block in found.blocks]
        y = self.tape.repeat(len(found.blocks), body, x, found.label, numbers=lambda n: _numbers(modules[n:]))
        self._open = outside
        self._made[found.entries[0]] = x  # which others may read too
        self._made[found.exits[-1]] = y
        for own in found.own:
            self._held.update(own)
            for name in own & self.program.buffers.keys():
                self.taken(name)

    def _told_apart(self, found: Loop) -> bool:
        """Whether a part that is asked for by name is in some of equal blocks only. Raises SettingError."""
        if not (names := sorted(self.tape.part_names)):
            return False
        blocks = []
        for steps, own in zip(found.blocks, found.own, strict=True):
            weights = sorted(self.program.weights[name].path for name in own if name in self.program.weights)
            blocks.append([*(".".join((*step.path, step.name)) for step in steps), *weights])
        for name in names:
            if len({sum(is_named(part, name) for path in block for part in paths_to(path)) for block in blocks}) > 1:
                if self.tape.recomputation.every is None:
                    return True
                raise SettingError(
                    f"{shown(name)} is one of equal blocks, or in one, which checkpoint by blocks takes together: name"
                    " the parts to recompute instead"
                )
        return False

    def _step(self, step: Step) -> None:
        self._here = step
        self.tape.grad = step.grad
        op = OpCall(self, step)
        if step.op not in self.rules and step.op not in self.left_out:
            raise unknown("operator", step.op, self.rules)
        if step.op not in self.left_out and (others := {made.dtype for made in step.makes} - NUMBERS):
            raise op.fail(f"makes numbers of the data type {shown(min(others))}")
        try:
            made = self._unknown(op) if step.op in self.left_out else self.rules[step.op](op)
        except CostModelError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise op.fail(f"is called as its rule does not expect ({type(error).__name__}: {error})") from None
        for tensor, told in zip(made if isinstance(made, list) else [made], step.makes, strict=False):
            self._check(step, tensor, self.shape(told.shape))
            if tensor.storage.role == "index":
                tensor.storage.dtype = EXACT.get(told.dtype, tensor.storage.dtype)
            if tensor.requires_grad and not step.grad:
                tensor = tensor.view(tensor.shape, tensor.strides)
                tensor.requires_grad = False
            self._made[told.name] = tensor
        if step.changes is not None and step.grad:
            self._made[step.changes] = self._made[step.makes[0].name]
        elif step.changes is not None and step.changes in self._made:  # a change without gradients hides from autograd
            self._made[step.makes[0].name] = self._made[step.changes]

    def _unknown(self, op: OpCall) -> list[Tensor]:
        step = op.step
        inputs = [self.tensor(name) for name in tensors_in(list(step.args.values()))]
        roles = [role_of(told.dtype) if told.dtype in NUMBERS else "index" for told in step.makes]
        return [
            op.layer(Unknown(step.op, self.shape(told.shape), role), *inputs)
            for told, role in zip(step.makes, roles, strict=True)
        ]

    def _check(self, step: Step, tensor: Tensor, shape: Shape) -> None:
        """A rule makes what the operator made."""
        found = tuple(map(peek, tensor.shape))
        told = tuple(map(peek, shape))
        if found != told:
            where = ".".join((*step.path, step.name))
            raise SpecError(
                f"{where}: {step.op} makes {show_shape(told)} and not {show_shape(found)} as its rule has it"
            )


def _numbers(modules: Sequence[str]) -> str:
    """The numbers of the first and the last of modules that a list numbers."""
    ends = [module[len(module.rstrip("0123456789")) :] for module in (modules[0], modules[-1])]
    return "-".join(dict.fromkeys(ends))
