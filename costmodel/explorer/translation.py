"""Functions and classes of Python written as JavaScript, so that a page plays a step by the same lines as `predict`.

What is written is the part of Python that these are in: numbers, text, lists, tuples, dicts, functions and classes.
`python.js` has what Python's own functions do. Anything else is refused where a page is made, never left out.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from textwrap import dedent
from typing import Any

from costmodel.explorer.javascript import RESERVED
from costmodel.training.frozen import Frozen

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.Pow: "**"}
_CALLED = {ast.FloorDiv: "floored", ast.BitOr: "joined", ast.BitAnd: "met"}
_COMPARED = {
    ast.Lt: "{}<{}",
    ast.LtE: "{}<={}",
    ast.Gt: "{}>{}",
    ast.GtE: "{}>={}",
    ast.Is: "({}??null)===({}??null)",
    ast.IsNot: "({}??null)!==({}??null)",
    ast.Eq: "equal({},{})",
    ast.NotEq: "!equal({},{})",
    ast.In: "contains({1},{0})",
    ast.NotIn: "!contains({1},{0})",
}
_OWN = {"None": "null", "True": "true", "False": "false"}
_OF_BUILTINS = ("append", "clear", "index", "items", "join", "pop", "popleft", "rpartition", "startswith", "tolist")
"""Methods of lists, dicts, text and arrays, which `python.js` has as functions."""
_CACHES = ("cache", "lru_cache")
"""Decorators of a function that keeps what it has made."""


def literal(value: Any) -> str:
    """A constant as JavaScript: text, numbers, and tuples and dicts of these. Raises TypeError."""
    if isinstance(value, Mapping):
        return f"new Dict([{','.join(f'[{literal(key)},{literal(each)}]' for key, each in value.items())}])"
    if hasattr(value, "_fields"):
        return f"new {type(value).__name__}({','.join(map(literal, value))})"
    if isinstance(value, tuple | list | frozenset):
        return f"[{','.join(map(literal, value))}]"
    if isinstance(value, float) and value in (float("inf"), -float("inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value)
    raise TypeError(f"{value!r} is no constant that a page can hold")


class Translation:
    """JavaScript of some functions and classes, and of constants that they name.

    functions: in any order. methods: of a class those alone that are written. constants: by name. bare: classes whose
    objects are not made here, and get their fields otherwise.
    """

    def __init__(
        self,
        functions: Iterable[Callable[..., Any]],
        methods: Mapping[type, Sequence[str]],
        constants: Mapping[str, Any],
        bare: Iterable[type] = (),
    ) -> None:
        self.constants = constants
        self._bare = frozenset(of.__name__ for of in bare)
        self._classes = {of.__name__: (of, frozenset(names)) for of, names in methods.items()}
        self._trees: dict[str, ast.FunctionDef | ast.ClassDef] = {}
        for each in (*functions, *methods):
            (tree,) = ast.parse(dedent(inspect.getsource(each))).body
            assert isinstance(tree, ast.FunctionDef | ast.ClassDef)
            self._trees[tree.name] = tree
        self.parameters: dict[str, list[str]] = {}
        for name, tree in self._trees.items():
            if isinstance(tree, ast.FunctionDef):
                self._take(name, tree)
                continue
            for method in self._methods(tree):
                self._take(name if method.name == "__init__" else method.name, method)
            if name not in self.parameters and name not in self._bare:
                self.parameters[name] = [field.target.id for field in _fields(tree)]

    def _take(self, name: str, tree: ast.FunctionDef) -> None:
        """Note the parameters of a function, which calls may name."""
        own = [each.arg for each in (*tree.args.args, *tree.args.kwonlyargs) if each.arg != "self"]
        if self.parameters.setdefault(name, own) != own:
            self.parameters[name] = []  # of several methods of the name, whose parameters no call may name

    def _methods(self, tree: ast.ClassDef) -> list[ast.FunctionDef]:
        chosen = self._classes[tree.name][1]
        return [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name in chosen]

    @property
    def text(self) -> str:
        """The script."""
        trees = sorted(self._trees.values(), key=lambda tree: isinstance(tree, ast.FunctionDef))
        written = [
            self._class(tree) if isinstance(tree, ast.ClassDef) else FunctionWriter(tree, self).text for tree in trees
        ]
        constants = [f"const {name}={literal(value)};" for name, value in self.constants.items()]
        return "\n".join([*written, *constants])

    def is_class(self, name: str) -> bool:
        """Whether a name is that of a class."""
        return name in self._classes

    def _class(self, tree: ast.ClassDef) -> str:
        """A class; of one that declares its fields they are set by its constructor.

        Tuples give them in order, and so do frozen objects after the name of their class: equal parts make them equal.
        """
        of, _ = self._classes[tree.name]
        methods = self._methods(tree)
        writer = FunctionWriter(ast.parse("def f(): pass").body[0], self)
        lines = [FunctionWriter(method, self, of=tree.name).text for method in methods]
        lines += [f"get {name}(){{return {writer.expression(value)}}}" for name, value in _constants(tree)]
        bases = [base.id for base in tree.bases if isinstance(base, ast.Name) and base.id in self._classes]
        fields = _fields(tree)
        made = tree.name not in self._bare and not any(method.name == "__init__" for method in methods)
        if made and (fields or not bases):
            given = ",".join(_parameter(each.target.id, each.value, writer) for each in fields)
            names = [each.target.id for each in fields]
            after = "this.__post_init__();" if any(method.name == "__post_init__" for method in methods) else ""
            lines.insert(0, f"constructor({given}){{{''.join(f'this.{n}={_safe(n)};' for n in names)}{after}}}")
            if not is_dataclass(of) or issubclass(of, Frozen):
                parts = ["constructor.name", *names] if is_dataclass(of) else names
                lines.append(f"*[Symbol.iterator](){{{''.join(f'yield this.{name};' for name in parts)}}}")
        above = f" extends {bases[0]}" if bases else ""
        return f"class {tree.name}{above}{{\n" + "\n".join(lines) + "\n}"


def _fields(tree: ast.ClassDef) -> list[Any]:
    """Declarations of what each object has."""
    return [each for each in _declared(tree) if "ClassVar" not in ast.unparse(each.annotation)]


def _declared(tree: ast.ClassDef) -> list[Any]:
    return [each for each in tree.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]


def _constants(tree: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """What all objects of a class have in common, by name."""
    for each in _declared(tree):
        if each.value is not None and each not in _fields(tree):
            yield each.target.id, each.value
    for each in tree.body:
        for target in each.targets if isinstance(each, ast.Assign) else ():
            if isinstance(target, ast.Name) and not target.id.startswith("__"):
                yield target.id, each.value  # type: ignore[attr-defined]


def _safe(name: str) -> str:
    return f"{name}_" if name in RESERVED - {"min", "max", "ceil", "floor", "mod"} else name


def _parameter(name: str, default: ast.expr | None, writer: FunctionWriter) -> str:
    if isinstance(default, ast.Call):  # field(default_factory=dict)
        (factory,) = [each.value for each in default.keywords if each.arg == "default_factory"]
        return f"{_safe(name)}={'[]' if ast.unparse(factory) == 'list' else 'new Dict()'}"
    return _safe(name) if default is None else f"{_safe(name)}={writer.expression(default)}"


class FunctionWriter:
    """One function or method as JavaScript. of: the class that a method is of."""

    def __init__(self, tree: Any, of_all: Translation, of: str = "") -> None:
        self.tree, self.of_all, self.of = tree, of_all, of

    @cached_property
    def text(self) -> str:
        """Its declaration."""
        tree = self.tree
        arguments = [each for each in tree.args.args if each.arg != "self"]
        defaults = [None] * (len(arguments) - len(tree.args.defaults)) + tree.args.defaults
        every = [*zip(arguments, defaults, strict=True), *zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)]
        given = ",".join(_parameter(each.arg, default, self) for each, default in every)
        own = {each.arg for each, _ in every}
        local = sorted({*_assigned(tree)} - own)
        start = ("const self=this;" if self.of else "") + (f"let {','.join(map(_safe, local))};" if local else "")
        makes = "*" if _yields(tree) else ""
        kinds = {ast.unparse(each) for each in tree.decorator_list}
        name = "constructor" if tree.name == "__init__" else tree.name
        head = f"get {name}" if kinds & {"property", "cached_property"} else f"{makes}{name}"
        text = f"{head if self.of else f'function{makes} {name}'}({given}){{{start}{self.block(tree.body)}}}"
        is_cached = any(kind.partition("(")[0] in _CACHES for kind in kinds)
        return f"const {name}=cached({text});" if is_cached else text

    def block(self, body: Sequence[ast.stmt]) -> str:
        """Statements."""
        return "".join(map(self.statement, body))

    def statement(self, node: ast.stmt) -> str:
        """One of them. Raises TypeError for one that there is no JavaScript for here."""
        match node:
            case ast.Expr(ast.Constant()):
                return ""
            case ast.Expr(ast.YieldFrom(value)):
                return f"yield* ({self.expression(value)});"
            case ast.Expr(ast.Yield(value)) if value is not None:
                return f"yield {self.expression(value)};"
            case ast.Expr(value):
                return f"{self.expression(value)};"
            case ast.Return(value):
                return f"return {'' if value is None else self.expression(value)};"
            case ast.Assign([*targets], value) if len(targets) == 1 or all(
                isinstance(t, ast.Name | ast.Attribute) for t in targets
            ):
                first, *others = targets
                more = "".join(self.assignment(each, self.expression(first)) for each in others)
                return self.assignment(first, self.expression(value)) + more
            case ast.AnnAssign(target, _, value):
                return "" if value is None else self.assignment(target, self.expression(value))
            case ast.AugAssign(target, op, value):
                if isinstance(op, ast.Add) and isinstance(value, ast.Name | ast.List | ast.ListComp):
                    return self.assignment(target, f"added({self.expression(target)},{self.expression(value)})")
                return self.assignment(target, self.binary(target, op, value))
            case ast.If(test, body, otherwise):
                more = f"else{{{self.block(otherwise)}}}" if otherwise else ""
                return f"if({self.test(test)}){{{self.block(body)}}}{more}"
            case ast.For(target, iterable, body, []):
                return f"for({self.target(target)} of ({self.expression(iterable)})){{{self.block(body)}}}"
            case ast.While(test, body, []):
                return f"while({self.test(test)}){{{self.block(body)}}}"
            case ast.Try(body, [ast.ExceptHandler(ast.Name(), None, handled)], [], []):
                # What is raised is a bare Error: a mistake of the script's own is of another kind.
                after = f"if(raised.constructor!==Error)throw raised;{self.block(handled)}"
                return f"try{{{self.block(body)}}}catch(raised){{{after}}}"
            case ast.FunctionDef():
                return FunctionWriter(node, self.of_all).text
            case ast.Delete([ast.Subscript(of, ast.Slice(start, None, None))]) if start is not None:
                return f"{self.expression(of)}.splice({self.expression(start)});"
            case ast.Continue():
                return "continue;"
            case ast.Break():
                return "break;"
            case ast.Raise(error) if error is not None:
                said = error.args if isinstance(error, ast.Call) else []
                return f"throw Error({self.expression(said[0]) if said else json.dumps(ast.unparse(error))});"
        raise TypeError(f"{self.tree.name}: no JavaScript for {ast.unparse(node)!r}")

    def assignment(self, target: ast.expr, value: str) -> str:
        """A value given to a name, an attribute, a place of a list or dict, or several."""
        if isinstance(target, ast.Subscript):
            return f"put({self.expression(target.value)},{self.expression(target.slice)},{value});"
        if isinstance(target, ast.Tuple):
            return f"{self.target(target)}=[...{value}];"
        return f"{self.target(target)}={value};"

    def target(self, target: ast.expr) -> str:
        """What a value is given to."""
        match target:
            case ast.Name(name):
                return _safe(name)
            case ast.Attribute():
                return self.expression(target)
            case ast.Tuple(parts):
                return f"[{','.join(map(self.target, parts))}]"
            case ast.Starred(value):
                return f"...{self.target(value)}"
        raise TypeError(f"{self.tree.name}: no JavaScript for {ast.unparse(target)!r} as a target")

    def test(self, node: ast.expr) -> str:
        """An expression as a condition: what is empty or 0 is false."""
        match node:
            case ast.BoolOp(op, values):
                return f"({(' && ' if isinstance(op, ast.And) else ' || ').join(map(self.test, values))})"
            case ast.UnaryOp(ast.Not(), value):
                return f"!{self.test(value)}"
            case ast.Compare():
                return self.expression(node)
        return f"is_true({self.expression(node)})"

    def binary(self, left: ast.expr, op: ast.operator, right: ast.expr) -> str:
        """Arithmetic of two."""
        a, b = self.expression(left), self.expression(right)
        if isinstance(left, ast.List) and isinstance(op, ast.Mult):
            return f"repeated({a},{b})"
        if type(op) in _CALLED:
            return f"{_CALLED[type(op)]}({a},{b})"
        if type(op) not in _BINARY:
            raise TypeError(f"{self.tree.name}: no JavaScript for {type(op).__name__}")
        return f"({a}{_BINARY[type(op)]}{b})"

    def expression(self, node: ast.expr) -> str:
        """One. Raises TypeError for one that there is no JavaScript for here."""
        write = self.expression
        match node:
            case ast.Constant(value):
                return literal(value)
            case ast.Name(name):
                return _OWN.get(name, _safe(name))
            case ast.Attribute(of, name):
                return f"{write(of)}.{name}"
            case ast.UnaryOp(ast.USub(), value):
                return f"(-{write(value)})"
            case ast.UnaryOp(ast.Not(), _) | ast.BoolOp(ast.And(), _) if self._is_test(node):
                return self.test(node)
            case ast.BoolOp(op, [*values]):
                name = "both" if isinstance(op, ast.And) else "either"
                return f"{name}({','.join(f'()=>{write(value)}' for value in values)})"
            case ast.BinOp(left, op, right):
                return self.binary(left, op, right)
            case ast.Compare(left, ops, others):
                terms = [left, *others]
                pairs = zip(terms, ops, others, strict=False)
                return f"({'&&'.join(self.comparison(a, op, b) for a, op, b in pairs)})"
            case ast.IfExp(test, body, otherwise):
                return f"({self.test(test)}?{write(body)}:{write(otherwise)})"
            case ast.Subscript(of, ast.Slice(start, end, None)):
                ends = [write(each) if each else default for each, default in ((start, "0"), (end, "undefined"))]
                return f"[...{write(of)}].slice({','.join(ends)})"
            case ast.Subscript(of, place):
                return f"item({write(of)},{write(place)})"
            case ast.List(parts) | ast.Tuple(parts):
                return f"[{','.join(map(write, parts))}]"
            case ast.Set(parts):
                return f"set_of([{','.join(map(write, parts))}])"
            case ast.Starred(value):
                return f"...({write(value)})"
            case ast.Dict(keys, values):
                pairs = (
                    f"...{write(value)}.items()" if key is None else f"[{write(key)},{write(value)}]"
                    for key, value in zip(keys, values, strict=True)
                )
                return f"new Dict([{','.join(pairs)}])"
            case ast.ListComp(part, loops):
                return f"[...{self.comprehension(write(part), loops)}]"
            case ast.GeneratorExp(part, loops):
                return self.comprehension(write(part), loops)
            case ast.DictComp(key, value, loops):
                return f"new Dict({self.comprehension(f'[{write(key)},{write(value)}]', loops)})"
            case ast.Lambda(arguments, body):
                return f"(({','.join(_safe(each.arg) for each in arguments.args)})=>{write(body)})"
            case ast.NamedExpr(ast.Name(name), value):
                return f"({_safe(name)}={write(value)})"
            case ast.JoinedStr(parts):
                texts = (literal(p.value) if isinstance(p, ast.Constant) else write(p.value) for p in parts)  # type: ignore[attr-defined]
                return f"[{','.join(texts)}].join('')"
            case ast.Call():
                return self.call(node)
        raise TypeError(f"{self.tree.name}: no JavaScript for {ast.unparse(node)!r}")

    def _is_test(self, node: ast.expr) -> bool:
        """Whether an expression is true or false, whatever it is of."""
        if isinstance(node, ast.BoolOp):
            return all(map(self._is_test, node.values))
        return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        """Whether two are as an operator says."""
        return _COMPARED[type(op)].format(self.expression(left), self.expression(right))

    def comprehension(self, part: str, loops: Sequence[ast.comprehension]) -> str:
        """A generator of parts, with names of its own."""
        text = f"yield {part};"
        for loop in reversed(loops):
            for test in reversed(loop.ifs):
                text = f"if({self.test(test)}){text}"
            text = f"for(const {self.target(loop.target)} of ({self.expression(loop.iter)})){text}"
        return f"(function*(){{{text}}})()"

    def call(self, node: ast.Call) -> str:
        """A call, with what is named put in its place."""
        write, function = self.expression, node.func
        name = (
            function.id
            if isinstance(function, ast.Name)
            else function.attr
            if isinstance(function, ast.Attribute)
            else ""
        )
        given = [*map(write, node.args)]
        named = {str(each.arg): write(each.value) for each in node.keywords if each.arg != "strict"}
        if name in ("_replace", "replace"):
            of, *_ = given if name == "replace" else [write(function.value)]  # type: ignore[attr-defined]
            return f"replaced({of},{{{','.join(f'{key}:{value}' for key, value in named.items())}}})"
        if name in ("sorted", "max", "min") and named:
            return f"{name}_by({','.join([*given, named['key']])})"
        if named:
            parameters = self.of_all.parameters.get(name) or []
            if missing := [each for each in named if each not in parameters]:
                raise TypeError(f"{self.tree.name}: {ast.unparse(node)!r} names {missing[0]}, of no function here")
            last = max(parameters.index(each) for each in named)
            given += [named.get(each, "undefined") for each in parameters[len(given) : last + 1]]
        if isinstance(function, ast.Attribute) and name in _OF_BUILTINS:
            return f"{name}({','.join([write(function.value), *given])})"
        if name == "partial":
            return f"((...more)=>{write(node.args[0])}({','.join([*given[1:], '...more'])}))"
        if isinstance(function, ast.Call) and ast.unparse(function.func) == "type":
            return f"new ({write(function.args[0])}.constructor)({','.join(given)})"
        new = "new " if isinstance(function, ast.Name) and self.of_all.is_class(name) else ""
        return f"{new}{write(function)}({','.join(given)})"


def _assigned(tree: ast.AST) -> Iterator[str]:
    """Names that a function gives values to, but for those of comprehensions and lambdas, which are their own."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            continue
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp):
            yield from (of.target.id for of in ast.walk(node) if isinstance(of, ast.NamedExpr))
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        yield from _assigned(node)


def _yields(tree: ast.AST) -> bool:
    """Whether a function makes a generator; those in it have yields of their own."""
    inside = [node for node in ast.iter_child_nodes(tree) if not isinstance(node, ast.Lambda | ast.FunctionDef)]
    return any(isinstance(node, ast.Yield | ast.YieldFrom) or _yields(node) for node in inside)
