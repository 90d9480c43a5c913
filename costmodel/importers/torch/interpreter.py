"""Running a program on paper: each step by its rule, under the names of the modules that called it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from costmodel.architectures.attention import AttentionSetting
from costmodel.errors import CostModelError, SettingError, SpecError, shown, unknown
from costmodel.graph.call import Block, Call, Rerun
from costmodel.graph.recomputation import is_named, paths_to
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Shape, Storage, Tensor, is_contiguous, show_shape, strides_of
from costmodel.importers.torch.folding import Item, Loop, writes_outside
from costmodel.importers.torch.op_call import (
    COMPLEX_NUMBERS,
    COMPLEX_RULES,
    EXACT,
    NUMBERS,
    RANK_RULES,
    OpCall,
    Rule,
    role_of,
)
from costmodel.importers.torch.program import CapturedProgram, Step, StepOutput, Tree, shape_of, tensors_in
from costmodel.importers.torch.rules import load_rules
from costmodel.layers.indexing import Parameter, Unknown
from costmodel.layers.shape import AsStrided, Overwrite, WrittenPart
from costmodel.symbolic.sizes import peek
from costmodel.training.dtypes import COMPLEX, REAL, Dtype

RETURN_THEIR_INPUT = frozenset({"to", "type_as", "contiguous", "dropout", "feature_dropout", "alpha_dropout"})
"""Operators that may return the tensor that they are handed, and no view of it."""


MAKE_VIEWS = frozenset({"instance_norm", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d", "adaptive_max_pool1d"})
"""Operators whose results PyTorch sees with other axes, so that a write to one is a write to a view.

So it does with a product of more than two axes and a bias (``_flatten_nd_linear``).
"""


class Interpreter:
    """One pass of a program at some sizes of the batch."""

    def __init__(
        self,
        program: CapturedProgram,
        items: Sequence[Item],
        left_out: Collection[str],
        tape: Tape,
        sizes: dict[str, int],
        attention: AttentionSetting,
        received: Sequence[str] = (),
    ) -> None:
        self._received = received
        self.program = program
        self.items = items
        self.left_out = left_out
        self.tape = tape
        self.sizes = sizes
        self.attention = attention
        self.rules = load_rules() | RANK_RULES
        self.narrow: dict[Storage, Tensor] = {}
        self.reread: set[Storage] = set()
        self.read = {*program.outputs, *(n for s in program.steps for n in tensors_in(list(s.args.values())))}
        self._read_later = _read_later(program)
        self._tensors: dict[str, Tensor] = {}
        self._views: dict[str, tuple[str, Tensor]] = {}
        others = (program.inputs | program.buffers).items()
        self._dtypes = {one.name: one.dtype for step in program.steps for one in step.makes} | {
            name: other.dtype for name, other in others
        }
        self._same: dict[str, str] = {}
        self._writes = any(step.changes is not None and step.grad for step in program.steps)
        self._weights: dict[str, Tensor] = {}
        self._held: set[str] = set()
        self._taken: set[str] = set()
        self._open: list[tuple[str, Any]] = []
        self._here: Step | None = None
        self._stretch: tuple[AbstractContextManager[None], Block] | None = None
        self._outside: Block | None = None

    def __call__(self) -> list[Tensor]:
        """Run all steps; returns the outputs."""
        if self._received:
            self._tensors.update(zip(self._received, self.tape.all_received(), strict=True))
        for name, each in self.program.inputs.items():
            if name in self._tensors:
                continue
            role, dtype = role_of(each.dtype), self._type(each.dtype)
            self._tensors[name] = self.tape.input(self.shape(each.shape), role, each.path, dtype)
        with ExitStack() as stack:
            stack.callback(self._enter, ())
            for item in self.items:
                if isinstance(item, Loop):
                    self._blocks(item)
                else:
                    self._enter(item.path)
                    self._step(item)
        if self._stretch or self._outside:
            raise SpecError("a stretch that is recomputed, or the backward pass of a function, has no end")
        self._rest()
        return [self.tensor(name) for name in self.program.outputs]

    def shape(self, trees: tuple[Tree, ...]) -> Shape:
        """A shape at this pass's sizes."""
        return shape_of(trees, self.sizes)

    def tensor(self, name: str) -> Tensor:
        """A tensor by name; a weight as a layer that holds it, a buffer once it is first read."""
        if name in self._tensors:
            return self._current(name)
        if name in self.program.weights:
            tensor = self._parameter(name)
        elif name not in self.program.buffers:
            raise SpecError(f"{name}: no rule makes this result of an operator that makes several")
        else:
            buffer = self.program.buffers[name]
            role, dtype = role_of(buffer.dtype), self._type(buffer.dtype)
            tensor = self.tape.buffer(self.shape(buffer.shape), role, buffer.path, dtype)
        self._tensors[name] = tensor
        return tensor

    def _type(self, dtype: str) -> Dtype | None:
        """What a buffer or an input of PyTorch's data type is of; None: of the precision's floating type."""
        return COMPLEX[self.tape.precision.weight] if dtype in COMPLEX_NUMBERS else EXACT.get(dtype)

    def weight(self, name: str, part: str = "") -> Tensor:
        """A tensor by name; a weight by itself, to be held by the layer that reads it, which `part` is if given."""
        if name not in self.program.weights:
            return self.tensor(name)
        self._held.add(name)
        if name not in self._weights:
            weight = self.program.weights[name]
            path = weight.path if "." in weight.path else f"{weight.path}.{weight.path}"
            self._weights[name] = self.tape.weight(self.shape(weight.shape), path, frozen=not weight.trained, part=part)
        return self._weights[name]

    def taken(self, name: str) -> bool:
        """Leave out a buffer that a layer has of its own, and its module's count of batches; True if one had it."""
        before = name in self._taken
        count = f"{self.program.buffers[name].path.rpartition('.')[0]}.num_batches_tracked".removeprefix(".")
        self._taken.update({name}, (other for other, buffer in self.program.buffers.items() if buffer.path == count))
        return before

    def open_stretch(self, rerun: Rerun, inputs: Sequence[Tensor]) -> None:
        """What comes next is recomputed, from inputs that are kept whether they are read or not.

        Raises SettingError if a setting says what is, SpecError for a stretch within another.
        """
        if self.tape.recomputation:
            raise SettingError(
                "the module checkpoints parts of itself (torch.utils.checkpoint), which are recomputed as it says:"
                " leave the setting checkpoint out"
            )
        if self._stretch or rerun not in ("whole", "needed"):
            raise SpecError(f"a stretch that is recomputed (rerun {shown(rerun)}) is not one as from_torch makes them")
        block, recomputation = self.tape.block, self.tape.recomputation
        stretch = recomputation.stretch(block, rerun, inputs) if self.tape.training else nullcontext()
        stretch.__enter__()
        self._stretch = stretch, block

    def close_stretch(self, results: Sequence[Tensor]) -> None:
        """What came since `open_stretch` is all."""
        stretch, block = self._stretch or (nullcontext(), None)
        self._stretch = None
        self._check_open(block)
        assert block is not None
        stretch.__exit__(None, None, None)
        if block.entries and isinstance(last := block.entries[-1], Block) and last.recomputed:
            last.results = tuple(x for x in results if x.requires_grad)

    def _check_open(self, block: Block | None) -> None:
        """What ends here began here too. Raises SpecError."""
        if block is not self.tape.block:
            raise SpecError(
                "a stretch that is recomputed, or the backward pass of a function, has no start where it ends"
            )

    def open_backward(self) -> None:
        """What comes next is the backward pass of a function, and no part of the forward pass."""
        if self._outside is not None:
            raise SpecError("the backward pass of a function is within that of another")
        self._outside = self.tape.block
        self.tape.block = Block("backward", 1, self._outside)

    def close_backward(self) -> list[Call]:
        """The layers that backward runs; none is known to what follows."""
        inner = self._outside is not None and self.tape.block.parent is self._outside
        self._check_open(self.tape.block if inner else None)
        calls = list(self.tape.block.calls())
        assert self._outside is not None
        self.tape.block, self._outside = self._outside, None
        makers = set(calls)
        for name in [name for name in self.program.weights if name in self._tensors]:
            if self._tensors[name].maker in makers:
                del self._tensors[name]
        return calls

    def _parameter(self, name: str) -> Tensor:
        path, here = self.program.weights[name].path, ".".join(self._here.path if self._here else ())
        label = path.removeprefix(f"{here}.") if here else path
        weight = self.weight(name, label)
        grad, self.tape.grad = self.tape.grad, True
        tensor = self.tape.record(Parameter(weight.shape), (), label, {"weight": weight})
        self.tape.grad = grad
        return tensor

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

    def _blocks(self, loop: Loop) -> None:
        """Equal blocks: traced once, unless they share gradients or write outside, or one is asked for by name."""
        shares = self._differs(loop) or any(self.tensor(name).requires_grad for name in loop.outer)
        if shares or writes_outside(loop) or self._stretch:
            for step in (step for block in loop.blocks for step in block):
                self._enter(step.path)
                self._step(step)
            return
        self._enter(loop.scope)
        traced = iter(range(len(loop.blocks)))
        outside, self._open = self._open, []

        def body(x: Tensor) -> Tensor:
            number = next(traced)
            self._tensors[loop.entries[number]] = x
            self._views.pop(loop.entries[number], None)
            for step in loop.blocks[number]:
                self._enter(step.path[loop.depth :], step.path[: loop.depth])
                self._step(step)
            self._enter(())
            return self.tensor(loop.exits[number])

        x, viewed = self.tensor(loop.entries[0]), self._views.get(loop.entries[0])
        modules = [block[0].path[loop.depth - 1] for block in loop.blocks]
        y = self.tape.repeat(len(loop.blocks), body, x, loop.label, numbers=lambda n: _numbers(modules[n:]))
        self._open = outside
        self._tensors[loop.entries[0]] = x  # which others may read too
        if viewed is not None:
            self._views[loop.entries[0]] = viewed
        self._tensors[loop.exits[-1]] = y
        self._views.pop(loop.exits[-1], None)
        for own in loop.own:
            self._held.update(own)
            for name in own & self.program.buffers.keys():
                self.taken(name)

    def _differs(self, loop: Loop) -> bool:
        """Whether a part that is asked for by name is in some of equal blocks only. Raises SettingError."""
        if not (names := sorted(self.tape.part_names)):
            return False
        blocks = []
        for steps, own in zip(loop.blocks, loop.own, strict=True):
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
        op, view = OpCall(self, step), self._open_write(step)
        if step.op not in self.rules and step.op not in self.left_out:
            raise unknown("operator", step.op, self.rules)
        if step.op not in self.left_out and (others := {output.dtype for output in step.makes} - NUMBERS):
            raise op.fail(f"makes numbers of the data type {shown(min(others))}")
        try:
            tensors = self._unknown(op) if step.op in self.left_out else self._rule(op)(op)
        except CostModelError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise op.fail(f"is called as its rule does not expect ({type(error).__name__}: {error})") from None
        for tensor, output in zip(tensors if isinstance(tensors, list) else [tensors], step.makes, strict=False):
            self._check(step, tensor, output)
            if tensor.storage.role == "index":
                tensor.storage.dtype = EXACT.get(output.dtype, tensor.storage.dtype)
            if tensor.requires_grad and not step.grad:
                tensor = tensor.view(tensor.shape, tensor.strides)
                tensor.requires_grad = False
            self._tensors[output.name] = tensor
            if step.changes is None and step.grad and step.op != "detach":
                self._note_view(step, output, tensor)
                if self._writes and self._is_seen_otherwise(op, tensor):
                    base = f"{output.name}.base"
                    self._tensors[base] = tensor.view(tensor.shape, tensor.strides)
                    self._views[output.name] = (base, self._tensors[base])
        if step.changes is not None and step.grad:
            self._change(step, step.changes, step.makes[0].name, view)
        elif step.changes in self._tensors:  # a change without gradients hides from autograd
            self._tensors[step.makes[0].name] = self._tensors[step.changes]

    def _rule(self, op: OpCall) -> Rule:
        """The rule of an operator; where complex numbers come in or go out, that of these."""
        step = op.step
        types = {self._dtypes.get(name, "") for name in tensors_in(list(step.args.values()))}
        if not COMPLEX_NUMBERS & (types | {output.dtype for output in step.makes}):
            return self.rules[step.op]
        if step.op not in COMPLEX_RULES:
            raise op.fail("of complex numbers has no rule")
        if step.changes is not None and self.reread & set(self.tensor(step.changes).storage.leaves()):
            raise op.fail("writes to numbers that are read as complex ones and as real ones, which has no rule")
        return COMPLEX_RULES[step.op]

    def _is_seen_otherwise(self, op: OpCall, y: Tensor) -> bool:
        """Whether PyTorch composes an operator so that its result is a view of what the last of its parts makes."""
        if op.step.op != "linear":
            return op.step.op in MAKE_VIEWS
        x = op.tensor("input")
        return len(y.shape) > 2 and op.has("bias") and is_contiguous(x.shape, x.strides)

    def _note_view(self, step: Step, output: StepOutput, tensor: Tensor) -> None:
        """Note of which tensor a result is a view, and of which version; one of another data type is a copy."""
        for name in self._in_memory(step, tensor):
            if self._dtypes.get(name) == output.dtype:
                if step.op in RETURN_THEIR_INPUT and self._tensors[name] is tensor:
                    self._same[output.name] = self._same.get(name, name)
                base, _ = self._views.get(name, (name, tensor))
                self._views[output.name] = (base, self._tensors[base])

    def _in_memory(self, step: Step, tensor: Tensor) -> list[str]:
        """Those of the tensors that a step reads whose memory a tensor is in."""
        names = tensors_in(list(step.args.values()))
        return [name for name in names if name in self._tensors and self._tensors[name].storage is tensor.storage]

    def _open_write(self, step: Step) -> Tensor | None:
        """The view that a step is about to change, which for the step is a part of what is written to; None for all.

        Source: ``CopySlices`` of ``torch.autograd``, and how the ``grad_fn`` of a view is made anew.
        """
        changed = step.changes
        if changed is None or not step.grad or self._same.get(changed, changed) not in self._views:
            return None
        view = self.tensor(changed)
        if view.requires_grad:
            self._tensors[changed] = WrittenPart()(view, name=f"{step.name}.part")
        return view

    def _change(self, step: Step, changed: str, result: str, view: Tensor | None) -> None:
        """Put what a step wrote in the place of what it changed: through a `view`, into the base, for all its views."""
        y = self._tensors[result]
        self._same[result] = changed = self._same.get(changed, changed)
        if view is None:
            for name in (changed, result):
                self._tensors[name] = y
            self._views[result] = (changed, y)
            return
        base, version = self._views[changed]
        x = self.tensor(base)
        if (call := y.maker) is not None and view.requires_grad:  # what it had been before is saved as a copy
            old = [call.copy_of(view) if storage is view.storage else storage for storage in call.saved]
            call.saved = tuple(old)
        if not self._in_memory(step, y):
            y.storage.parts, y.storage.elsewhere = (x.storage,), True
        names = (changed, step.changes or changed, result)
        for name in names:
            self._tensors[name], self._views[name] = view, (base, version)
        if x.requires_grad or y.requires_grad:
            self._tensors[base] = Overwrite()(x, y, name=f"{step.name}.base")
            if result in self._read_later:  # the view that was written to is made anew at once, others when read
                self._tensors.update(dict.fromkeys(names, self._current(result)))
                self._views.update(dict.fromkeys(names, self._views[result]))

    def _current(self, name: str) -> Tensor:
        """A tensor as it is now: a view of what was written to since is made anew."""
        tensor = self._tensors[name]
        base, version = self._views.get(name, (name, tensor))
        if (x := self._tensors[base]) is version:
            return tensor
        grad, self.tape.grad = self.tape.grad, True
        if self._same.get(name) == base:
            tensor = x
        else:
            view = AsStrided(tensor.shape, strides_of(tensor), by_memory=True)
            tensor = view(x, name=f"{self._here.name}.view" if self._here else "view")
        self.tape.grad = grad
        self._tensors[name], self._views[name] = tensor, (base, x)
        return tensor

    def _unknown(self, op: OpCall) -> list[Tensor]:
        step = op.step
        inputs = [self.tensor(name) for name in tensors_in(list(step.args.values()))]
        outputs = []
        for output in step.makes:
            role = role_of(output.dtype) if output.dtype in NUMBERS else "index"
            dtype = self._type(output.dtype) if output.dtype in COMPLEX_NUMBERS else None
            if role == "activation" and dtype is None and any(x.dtype in REAL for x in inputs):
                dtype = self.tape.precision.weight
            outputs.append(op.layer(Unknown(step.op, self.shape(output.shape), role, dtype), *inputs))
        return outputs

    def _check(self, step: Step, tensor: Tensor, output: StepOutput) -> None:
        """A rule makes what the operator made."""
        if (tensor.dtype in REAL) != (output.dtype in COMPLEX_NUMBERS):
            raise SpecError(f"{'.'.join((*step.path, step.name))}: {step.op} makes {output.dtype}, not {tensor.dtype}")
        by_rule, by_operator = (tuple(map(peek, sizes)) for sizes in (tensor.shape, self.shape(output.shape)))
        if by_rule != by_operator:
            where = ".".join((*step.path, step.name))
            raise SpecError(
                f"{where}: {step.op} makes {show_shape(by_operator)} and not {show_shape(by_rule)} as its rule has it"
            )


def _read_later(program: CapturedProgram) -> set[str]:
    """Results of steps that change a tensor which is read after that, by the result's name or by another."""
    changed: dict[str, str] = {}
    for step in program.steps:
        if step.changes is not None:
            changed[step.makes[0].name] = changed.get(step.changes, step.changes)
    read, later = {changed.get(name, name) for name in program.outputs}, set()
    for step in reversed(program.steps):
        if step.changes is not None and changed[step.makes[0].name] in read:
            later.add(step.makes[0].name)
        read.update(changed.get(name, name) for name in tensors_in(list(step.args.values())))
    return later


def _numbers(modules: Sequence[str]) -> str:
    """The numbers of the first and the last of modules that a list numbers."""
    ends = [module[len(module.rstrip("0123456789")) :] for module in (modules[0], modules[-1])]
    return "-".join(dict.fromkeys(ends))
