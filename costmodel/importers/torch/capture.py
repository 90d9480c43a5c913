"""From what torch.export gives to a program: a graph of operators as plain data."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from operator import getitem
from types import SimpleNamespace
from typing import Any

from costmodel.errors import SpecError
from costmodel.importers.torch.autograd import NAMESPACE
from costmodel.importers.torch.axes import Example
from costmodel.importers.torch.program import SIZE, TENSOR, CapturedProgram, Placeholder, Step, StepOutput, Tree, Weight
from costmodel.importers.torch.rules import load_rules

IDLE = frozenset({"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size"})
"""Operators that check and compute nothing."""

SIZES = frozenset({"sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "item", "_local_scalar_dense"})
"""Operators that give sizes, which steps hold as trees."""


class Capture:
    """Reads one exported program of `module`.

    `example`: the sizes that it was traced at, and the name of each by the symbol that it has there. `composed`:
    operators to take as what PyTorch composes them of, beside those without a rule.
    """

    def __init__(self, exported: Any, module: Any, example: Example, composed: Collection[str] = frozenset()) -> None:
        self.exported = exported
        self.example = example
        self.letters = example.letters
        self.composed = composed
        self.rules = load_rules()
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self.weights: dict[str, Weight] = {}
        self.buffers: dict[str, Placeholder] = {}
        self.inputs: dict[str, Placeholder] = {}
        self.steps: list[Step] = []
        self._called: set[tuple[str, ...]] = set()
        self._count: Counter[tuple[Any, ...]] = Counter()
        self._function: dict[str, Any] | None = None
        self._stretch = 0
        self._names: dict[Any, Any] = {}

    def __call__(self) -> CapturedProgram:
        """The program."""
        graph = self.exported.graph_module
        self._start(graph)
        outputs = self._walk(graph, grad=True)
        wanted = {
            spec.arg.name
            for spec in self.exported.graph_signature.output_specs
            if spec.kind.name == "USER_OUTPUT" and hasattr(spec.arg, "name")
        }
        results = [name for node, name in outputs if node is None or node.name in wanted]
        steps = tuple(_named(self.steps))
        within = {path[:depth] for path in self._called for depth in range(1, len(path))}
        return CapturedProgram(
            self.weights,
            self.buffers,
            self.inputs,
            steps,
            tuple(results),
            frozenset(within - self._called),
            self._conditions(),
        )

    def _conditions(self) -> tuple[Tree, ...]:
        """Each once: how a size follows from others, and what was decided, when operators were composed too."""
        trees = [
            ["==", name, size if isinstance(size, int) else tree_of(size, self.letters)]
            for name, size in self.example.dependent
        ]
        if (shape_env := self.example.shape_env) is not None:
            symbols = [symbol for symbol in shape_env.backed_var_to_val if symbol.name in self.letters]
            held = [(symbol, shape_env.replace(symbol)) for symbol in symbols]
            trees += [["==", self.letters[s.name], tree_of(size, self.letters)] for s, size in held if s != size]
            trees += conditions_of(shape_env, self.letters, self.example.traced_sizes)
        return tuple({repr(tree): tree for tree in trees}.values())

    def _start(self, graph: Any) -> None:
        """Note weights, buffers, constants and inputs, which are the graph's placeholders."""
        nodes = {node.name: node for node in graph.graph.nodes if node.op == "placeholder"}
        first: dict[int, Any] = {}
        for spec in self.exported.graph_signature.input_specs:
            if spec.arg.name not in nodes:
                continue
            node = nodes[spec.arg.name]
            value = node.meta.get("val")
            if not hasattr(value, "shape"):
                continue
            self._names[node] = {TENSOR: node.name}
            kind, target = spec.kind.name, spec.target
            if kind == "PARAMETER":
                parameter = self._parameters[target]
                self._names[node] = first.setdefault(id(parameter), self._names[node])  # tied ones are one weight
                shape = tuple(int(size) for size in value.shape)
                self.weights.setdefault(self._names[node][TENSOR], Weight(target, shape, bool(parameter.requires_grad)))
            elif kind == "BUFFER":
                self.buffers[node.name] = Placeholder(target, self._shape(value), dtype_name(value.dtype))
            elif kind == "USER_INPUT":
                self.inputs[node.name] = Placeholder(node.name, self._shape(value), dtype_name(value.dtype))
            else:
                output = StepOutput(node.name, self._shape(value), dtype_name(value.dtype))
                self.steps.append(Step("constant", (), node.name, {}, (output,), grad=False))

    def _walk(self, graph: Any, *, grad: bool) -> list[tuple[Any, str]]:
        """Note the steps of a graph; returns its outputs, each with its node and the name of its tensor."""
        for node in graph.graph.nodes:
            if node.op == "call_function":
                self._call(graph, node, grad and node.meta.get("grad", True))
            elif node.op == "get_attr" and hasattr(node.meta.get("val"), "shape"):
                self.steps.append(Step("constant", (), node.name, {}, self._makes(node, node.meta["val"]), grad=False))
            elif node.op == "output":
                return [
                    (result, self._names[result][TENSOR])
                    for result in _flat(node.args)
                    if result in self._names and TENSOR in self._names[result]
                ]
        return []

    def _call(self, graph: Any, node: Any, grad: bool) -> None:
        target = node.target
        value = node.meta.get("val")
        name = getattr(target, "__name__", str(target))
        if not hasattr(target, "_schema"):
            if name == "getitem":
                whole = self._names.get(node.args[0])
                if isinstance(whole, list):
                    self._names[node] = whole[node.args[1]]
            elif name in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
                self._nested(graph, node, name, grad)
            elif hasattr(value, "shape"):
                raise SpecError(f"{name}: torch.export keeps it as an operator of higher order, which has no rule")
            return
        op = target._schema.name.partition("::")[2]
        if target.namespace == NAMESPACE:
            self._tell(node, op, grad)
        if op in IDLE or op in SIZES or value is None:
            return
        if op == "slice" and _leaves_nothing_out(node):
            self._names[node] = self._names[node.args[0]]
            return
        if (op not in self.rules or op in self.composed) and _is_composed(target) and self._compose(node, grad):
            return
        try:
            makes = self._makes(node, value)
        except SpecError as error:
            raise SpecError(f"{'.'.join((*_path(node), op))}: {error}") from None
        if not makes:
            return
        args = self._arguments(node)
        changed = _changed(target, args)
        if changed in self.buffers and self.buffers[changed].path.endswith("num_batches_tracked"):
            self._names[node] = {TENSOR: changed}  # batch norm's count is its own, however often it counts
            return
        plain = op.removesuffix("_") if changed is not None and not op.startswith("__") else op
        self._called.update(_callers(node))
        self.steps.append(Step(plain, _path(node), node.name, args, makes, changed, grad and self._function is None))

    def _tell(self, node: Any, op: str, grad: bool) -> None:
        """Note what the module tells autograd: see `costmodel.importers.torch.autograd`.

        Both ends of a stretch are in the innermost module that all of it is in. What follows a function reads its
        results in the place of those of its forward pass; one of them may be what it has changed.
        """
        args, path = self._arguments(node), _path(node)
        makes: tuple[StepOutput, ...] = ()
        changed: str | None = None
        if op == "leaf":
            output = StepOutput(self._unique(f"{node.name}_0"), *self._described(node.args[0]))
            makes, self._names[node.args[0]] = (output,), {TENSOR: output.name}
        elif op == "checkpoint":
            self._stretch = len(self.steps)
        elif op == "checkpoint_end":
            inner = [step.path for step in self.steps[self._stretch + 1 :]]
            shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*inner, strict=False))
            path = tuple(part for part, *_ in shared) if inner else path
            self.steps[self._stretch] = self.steps[self._stretch]._replace(path=path)
        elif op == "function_start":
            self._function = args
        elif op == "function" and self._function is not None:
            args["inputs"], self._function = self._function["inputs"], None
            results = node.args[2]
            makes = tuple(
                StepOutput(self._unique(f"{node.name}_{n}"), *self._described(y)) for n, y in enumerate(results)
            )
            inputs = [tensor[TENSOR] for tensor in args["inputs"]]
            changed = next((inputs[n] for n, x in enumerate(node.args[1]) if x in results), None)
            self._names.update(zip(results, ({TENSOR: output.name} for output in makes), strict=True))
        self.steps.append(Step(op, path, node.name, args, makes, changed, grad))

    def _described(self, node: Any) -> tuple[tuple[Tree, ...], str]:
        """The shape and the data type of a node's tensor."""
        value = node.meta["val"]
        return self._shape(value), dtype_name(value.dtype)

    def _makes(self, node: Any, value: Any) -> tuple[StepOutput, ...]:
        if hasattr(value, "shape"):
            self._names[node] = {TENSOR: self._unique(node.name)}
            return (StepOutput(self._names[node][TENSOR], self._shape(value), dtype_name(value.dtype)),)
        if not isinstance(value, list | tuple):
            return ()
        unique = self._unique(node.name)
        self._names[node] = [{TENSOR: f"{unique}.{n}"} for n in range(len(value))]
        outputs = [(f"{unique}.{n}", one) for n, one in enumerate(value) if hasattr(one, "shape")]
        return tuple(StepOutput(name, self._shape(one), dtype_name(one.dtype)) for name, one in outputs)

    def _unique(self, name: str) -> str:
        """A name that no tensor has: nested graphs name theirs anew."""
        self._count[("tensor", name)] += 1
        number = self._count[("tensor", name)]
        return name if number == 1 else f"{name}~{number}"

    def _nested(self, graph: Any, node: Any, name: str, grad: bool) -> None:
        """Steps of a graph within, as they would be without it."""
        submodule = next(arg for arg in node.args if getattr(arg, "op", "") == "get_attr")
        inner = getattr(graph, submodule.target)
        operands = node.args[node.args.index(submodule) + 1 :]
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            if operand in self._names:
                self._names[placeholder] = self._names[operand]
        if name == "wrap_with_set_grad_enabled":
            grad = bool(node.args[0])
        self._names[node] = [{TENSOR: output} for _, output in self._walk(inner, grad=grad)]

    def _compose(self, node: Any, grad: bool) -> bool:
        """Steps of the operators that PyTorch composes one of (its CompositeImplicitAutograd); False if of itself.

        Raises SpecError if these make something else.
        """
        import torch
        from torch._dispatch.python import enable_python_dispatcher  # whose kernels take letters for sizes
        from torch.fx import map_arg

        tensors = [operand for operand in node.all_input_nodes if hasattr(operand.meta.get("val"), "shape")]
        plain: Any = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
        value = node.meta["val"]
        several = isinstance(value, list | tuple)
        wanted = list(value) if several else [value]
        for kernels in (enable_python_dispatcher, nullcontext):
            graph = torch.fx.Graph()
            trace = _trace_into(torch, graph, [(each.name, each.meta["val"]) for each in tensors])
            with torch.enable_grad(), kernels(), wanted[0].fake_mode, trace as node_of:
                results = node.target(*plain[0], **plain[1])
            if all(inner.target is not node.target for inner in graph.nodes):
                break
        else:
            return False
        results = list(results) if several else [results]
        for inner in graph.nodes:
            inner.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
        placeholders = [inner for inner in graph.nodes if inner.op == "placeholder"]
        for placeholder, operand in zip(placeholders, tensors, strict=True):
            self._names[placeholder] = self._names[operand]
        for made, shape in zip(results, [each.shape for each in wanted], strict=True):
            if len(made.shape) != len(shape) or any(a != b for a, b in zip(made.shape, shape, strict=True)):
                op = node.target._schema.name.partition("::")[2]
                raise SpecError(
                    f"{'.'.join((*_path(node), op))}: makes {tuple(shape)}, and what PyTorch composes it of "
                    f"{tuple(made.shape)}"
                )
        graph.output([node_of(result) for result in results])
        outputs = [{TENSOR: name} for _, name in self._walk(SimpleNamespace(graph=graph), grad=grad)]
        self._names[node] = outputs if several else outputs[0]
        return True

    def _arguments(self, node: Any) -> dict[str, Any]:
        """Arguments by the names of the schema; those that are left out are None or their default."""
        arguments: dict[str, Any] = {}
        for number, argument in enumerate(node.target._schema.arguments):
            if number < len(node.args):
                arguments[argument.name] = self._encoded(node.args[number])
            elif argument.name in node.kwargs:
                arguments[argument.name] = self._encoded(node.kwargs[argument.name])
            elif argument.has_default_value() and argument.default_value is not None:
                arguments[argument.name] = self._encoded(argument.default_value)
        return {name: value for name, value in arguments.items() if value is not None and name not in _COSTLESS}

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, list | tuple) or type(value).__name__ in ("immutable_list", "List"):
            return [self._encoded(item) for item in value]
        if hasattr(value, "op") and hasattr(value, "meta"):
            if value in self._names:
                return self._names[value]
            size = value.meta.get("val")
            return self._number(size) if size is not None else None
        if hasattr(value, "node") and hasattr(value.node, "expr"):
            return self._number(value)
        return str(value).removeprefix("torch.")

    def _number(self, value: Any) -> Any:
        """A size, or as text a number worked out from sizes that is none, such as one over their root.

        Rules take such a number for a constant that is not known, and refuse it where a cost depends on it.
        """
        return str(value) if type(value).__name__ == "SymFloat" else {SIZE: self._tree(value)}

    def _shape(self, value: Any) -> tuple[Tree, ...]:
        return tuple(self._tree(size) for size in value.shape)

    def _tree(self, size: Any) -> Tree:
        if isinstance(size, int | float | bool):
            return size
        if type(size).__name__ != "SymInt":
            raise SpecError(f"a size is {size}, which is no whole number")
        return tree_of(size.node.expr, self.letters)


def tree_of(expression: Any, letters: Mapping[str, str]) -> Tree:
    """A size of torch.export, or a condition on sizes, in names of the batch's sizes.

    Raises SpecError for one that depends on data, or is not understood.
    """
    if expression.is_Integer or expression.is_Float:
        return int(expression) if expression.is_Integer else float(expression)
    if expression.is_Symbol:
        if expression.name not in letters:
            raise SpecError(f"a size depends on the data ({expression.name}): from_torch needs sizes known beforehand")
        return letters[expression.name]
    name = type(expression).__name__
    if name in _ROUNDINGS and type(expression.args[0]).__name__ == "IntTrueDiv" and name != "RoundToInt":
        ratio = [tree_of(branch, letters) for branch in expression.args[0].args]
        return ["ceil" if name == "CeilToInt" else "//", *ratio]
    if name == "Pow" and expression.args[1].is_Integer and expression.args[1] > 0:
        base, exponent = expression.args
        return ["*", *[tree_of(base, letters)] * int(exponent)]
    if name == "Mul" and (divisor := expression.as_coeff_Mul()[0]).is_Rational and divisor.q > 1:
        return ["/", tree_of(expression * divisor.q, letters), int(divisor.q)]
    if name in _TURNED:
        left, right = expression.args
        return [_TURNED[name], tree_of(right, letters), tree_of(left, letters)]
    if name not in _OPERATIONS:
        raise SpecError(f"a size is {expression}, whose {name} is not understood")
    return [_OPERATIONS[name], *(tree_of(branch, letters) for branch in expression.args)]


_ROUNDINGS = {"RoundToInt": "round", "TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceiling"}
_OPERATIONS = _ROUNDINGS | {
    "Add": "+",
    "Mul": "*",
    "FloorDiv": "//",
    "CleanDiv": "/",
    "CeilDiv": "ceil",
    "Mod": "%",
    "PythonMod": "%",
    "Max": "max",
    "Min": "min",
    "ToFloat": "float",
    "IntTrueDiv": "ratio",
    "FloatTrueDiv": "ratio",
    "FloatPow": "power",
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "BitwiseFn_bitwise_and": "&",
    "BitwiseFn_bitwise_or": "|",
    "And": "and",
    "Or": "or",
    "Not": "not",
}
_TURNED = {"StrictGreaterThan": "<", "GreaterThan": "<="}


def conditions_of(shape_env: Any, letters: Mapping[str, str], traced: Mapping[str, int]) -> Iterator[Tree]:
    """The conditions on sizes under which torch.export did what it did, but limits of single sizes.

    One that is not understood holds at the sizes that were traced.
    """
    for guard in shape_env.guards:
        condition = shape_env.replace(guard.expr)
        if str(condition) == "True":  # it follows from how sizes depend on each other
            continue
        try:
            tree = tree_of(condition, letters)
        except SpecError:
            names = sorted({letters[each.name] for each in condition.free_symbols if each.name in letters})
            yield from (["==", name, traced[name]] for name in names)
        else:
            if not (tree[0] in ("<", "<=") and {type(tree[1]), type(tree[2])} == {str, int}):
                yield tree


@contextmanager
def _trace_into(torch: Any, graph: Any, inputs: list[tuple[str, Any]]) -> Iterator[Callable[[Any], Any]]:
    """Note in a graph what operators are called within, with what they make; gives the node of each tensor."""
    nodes: dict[int, Any] = {}
    tensors: list[Any] = []  # alive as long as their id is a key

    def noted(tensor: Any, node: Any) -> Any:
        tensors.append(tensor)
        node.meta.setdefault("val", tensor.detach())
        return nodes.setdefault(id(tensor), node)

    def node_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return nodes.get(id(value)) or noted(value, graph.create_node("get_attr", "constant"))

    class Traced(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.prim.device.default:  # which asks, and cannot be called
                return args[0].fake_device
            read = torch.utils._pytree.tree_map(node_of, (tuple(args), dict(kwargs or {})))
            results = function(*args, **(kwargs or {}))
            node = graph.create_node("call_function", function, *read)
            made = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)
            node.meta.update(val=made, grad=torch.is_grad_enabled())  # its shape now: what is in place may change it
            if isinstance(results, torch.Tensor):
                nodes[id(results)] = node
                tensors.append(results)
            elif isinstance(results, list | tuple):
                for number, result in enumerate(results):
                    if isinstance(result, torch.Tensor):
                        item = graph.create_node("call_function", getitem, (node, number))
                        nodes.pop(id(result), None)
                        noted(result, item)
            return results

    for name, tensor in inputs:
        noted(tensor, graph.placeholder(name))
    with Traced():
        yield node_of


_COSTLESS = frozenset({"dtype", "layout", "device", "pin_memory", "generator"})
"""Arguments that no rule reads: what is made says its type."""


def _is_composed(target: Any) -> bool:
    """Whether an operator has no derivative of its own, but those of the operators it calls."""
    from torch._C import DispatchKey

    return target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)


def dtype_name(dtype: Any) -> str:
    """A data type of PyTorch as its name, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    elif value is not None and hasattr(value, "op"):
        yield value


def _leaves_nothing_out(node: Any) -> bool:
    """Whether a slice is one that PyTorch makes only of open sizes: ``x[:, places] = y`` writes to x itself.

    Source: ``applySlice`` of ``ATen/TensorIndexing.h``.
    """
    inside, _ = node.meta.get("torch_fn", ("", ""))
    _, _, *bounds = node.args
    return inside.startswith("__setitem__") and bounds in ([0, sys.maxsize], [0, sys.maxsize, 1])


def _changed(target: Any, args: Mapping[str, Any]) -> str | None:
    """The tensor that an operator changes in place."""
    for argument in target._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args.get(argument.name)
            if isinstance(given, dict):
                return given.get(TENSOR)
    return None


def _path(node: Any) -> tuple[str, ...]:
    """The module that called a node, as the parts of its path."""
    callers = _callers(node)
    return callers[-1] if callers else ()


def _callers(node: Any) -> list[tuple[str, ...]]:
    """The modules whose calls a node is within, from the outermost, each as the parts of its path."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack or stack[-1][0].startswith("_empty"):
        return []
    return [tuple(part for part in path.split(".") if part) for path, *_ in stack]


def _named(steps: list[Step]) -> Iterator[Step]:
    """Steps with the names that their layers have: that of a module which calls but one, else the operator's."""
    callers = Counter(step.path for step in steps if step.op not in _VIEWS)
    inner = {step.path[:depth] for step in steps for depth in range(len(step.path))}
    used: Counter[tuple[str, ...]] = Counter()
    for step in steps:
        path, name = step.path, step.op
        if path and callers[path] == 1 and path not in inner and step.op not in _VIEWS:
            path, name = path[:-1], path[-1]
        used[(*path, name)] += 1
        number = used[(*path, name)]
        yield step._replace(path=path, name=name if number == 1 else f"{name}_{number}")


_VIEWS = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "select", "flatten"),
        *("unflatten", "t", "contiguous", "to", "split", "chunk", "unbind", "alias", "detach"),
        *("checkpoint", "checkpoint_end", "function_start", "function_backward"),
    }
)
"""Operators that mostly do nothing: a module that calls one layer and these is called like the layer."""
