"""Every argument of every function with values that mean harm."""

from __future__ import annotations

import inspect
import itertools
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import costmodel as cm
from tests.hostile.files import Case, shortened
from tests.hostile.ground import Ground

FORMULA = r"$\frac{1}{$"
"""A name that is no formula, though it starts as one does."""
DEEP: list[Any] = []
for _ in range(50_000):
    DEEP = [DEEP]


class Nameless:
    def __repr__(self) -> str:
        raise RuntimeError("an error that shows this value must not fail")


class Endless:
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return itertools.count(1)

    def __repr__(self) -> str:
        return "endless"


def values(ground: Ground) -> list[Any]:
    """What a program may hand over."""
    return [
        None, True, False, 0, -1, 1, 3, 1.5, 10**30, 10**10_000, 2**40, 2**40 + 1, float("nan"), float("inf"), 3j, "",
        "x",
        "\x1b[31m", "\u202e", "x" * 10**6, "1e400", "1 GiB", "-5 GiB", b"x", bytearray(9), [], (), {}, [1], [[1]],
        [None],
        ["x"] * 99, (1, 2), (1, 2, 3), {"a": 1}, {1: 2}, {"rank": 2**40, "targets": ["x"]}, {"rank": 1, "targets": []},
        set(), {1}, range(0), range(5), range(10**20), range(5, 0, -1), object(), int, len, Nameless(), DEEP, Endless(),
        itertools.count(1), iter([]), (n for n in range(3)), np.array(3), np.ones(3), np.ones((2, 2)), np.int64(3),
        np.float64("nan"), np.array(["a"]), Path(ground.at("pipe.yaml")), Path(ground.at("zero.json")), Path("/"),
        {"name": "o", "states": [{"name": "s"}] * 10**6}, {"name": "o", "states": [], "makes": 2**40},
        {"name": "o", "states": DEEP}, {"name": "\x1b", "weights": "x"}, [{}], ["fp32", "\x1b"], cm, cm.GPT2Small,
        cm.predict("mlp-mnist"), NotImplemented, ..., Exception("x"),
    ]  # fmt: skip


NEEDED: dict[str, dict[str, Any]] = {
    "predict": {"model": "mlp-mnist"},
    "sweep": {"model": "mlp-mnist", "quantities": ["params"], "batch": [1, 2]},
    "compare": {"questions": "mlp-mnist", "batch": [1, 2]},
    "recommend": {"model": "mlp-mnist", "memory": "1 GiB"},
    "solve": {"model": "mlp-mnist", "quantity": "memory.peak", "target": "1 GiB", "for_": "batch"},
    "max_batch": {"model": "mlp-mnist", "memory": "1 GiB"},
    "max_seq": {"model": "gpt2-small", "memory": "1 GiB"},
    "max_layers": {"model": "gpt2-small", "memory": "1 GiB"},
    "max_width": {"model": "mlp-mnist", "memory": "1 GiB"},
    "match": {"model": "mlp-mnist", "quantity": "params", "target": "1M"},
    "break_even": {"model": "gpt2-small", "a": "attention", "b": "mlp", "for_": "seq"},
    "sensitivity": {"model": "mlp-mnist", "quantity": "params"},
    "cheapest_checkpoint": {"model": "mlp-mnist", "memory": "1 GiB"},
    "load": {"model": "mlp-mnist"},
    "models": {"family": "mlp"},
}
"""A right question of each function."""


def calls(ground: Ground) -> Iterator[Case]:
    """Functions, methods of their answers, and models."""
    rng = random.Random(6)
    known = values(ground)
    for function, needed in NEEDED.items():
        names = [p.name for p in inspect.signature(getattr(cm, function)).parameters.values() if p.name != "fields"]
        own = set(needed)
        for name in dict.fromkeys((*needed, *names)):
            for value in known if name in own else rng.sample(known, 6):
                yield f"{function} {name} {_said(value)}", _called(function, {**needed, name: value})
    for method in ("explain", "formula", "value", "fits", "from_dict", "from_json"):
        for value in known:
            yield (
                f"Prediction.{method} {_said(value)}",
                lambda method=method, value=value: getattr(cm.predict("mlp-mnist"), method)(value),
            )
    for kind, fields in {
        cm.MLP: {"sizes": [3, 2]}, cm.CNN: {"input": [3, 8, 8], "blocks": ["relu"]}, cm.EncoderDecoder: {"layers": 1},
        cm.Transformer: {"vocab": 11, "context": 8, "layers": 2, "width": 6, "heads": 3}, cm.VisionTransformer: {},
    }.items():  # fmt: skip
        for field in kind.field_names():
            if "." not in field:
                for value in rng.sample(known, 4):
                    yield (
                        f"{kind.__name__} {field} {_said(value)}",
                        lambda kind=kind, fields=fields, f=field, v=value: cm.predict(
                            kind(**{**fields, f: v})
                        ).to_json(),
                    )
    for value in known:
        yield f"pareto {_said(value)}", lambda value=value: cm.pareto(value, "params", "memory.peak")
        yield (
            f"pareto of {_said(value)}",
            lambda value=value: cm.pareto(cm.sweep("mlp-mnist", batch=[1, 2]), value, "params"),
        )
    yield from _traps()


def _said(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Nameless) or value is DEEP else shortened(type(value).__name__)


def _called(function: str, given: dict[str, Any]) -> Any:
    def ask() -> Any:
        arguments = dict(given)
        first = next(iter(NEEDED[function]))
        return getattr(cm, function)(arguments.pop(first), **{k: v for k, v in arguments.items() if k != "settings"})

    def asked() -> Any:
        given_positionally = [given[name] for name in ("quantity", "target", "a", "b") if name in given]
        named = {k: v for k, v in given.items() if k not in ("quantity", "target", "a", "b")}
        first = named.pop(next(iter(NEEDED[function])))
        return getattr(cm, function)(first, *given_positionally, **named)

    return asked if {"quantity", "a"} & given.keys() else ask


class Plain(cm.MLP):
    """A class of one's own that adds nothing."""


class Odd(cm.MLP):
    """One that is another network."""

    def forward(self, run: Any, shape: Any, attention: Any) -> Any:
        return super().forward(run, shape, attention)


def _traps() -> Iterator[Case]:
    """What people do."""

    def again() -> Any:
        p = cm.predict("mlp-mnist")
        p.explain("params")
        return pickle.loads(pickle.dumps(p)).explain("memory.peak")

    yield "a pickle after explain", again
    for kind in (Plain, Odd):
        for name, ask in {
            "to_json": lambda m: cm.predict(m).to_json(), "sweep": lambda m: cm.sweep(m, batch=[1, 2]),
            "text": lambda m: str(cm.predict(m)), "max_batch": lambda m: cm.max_batch(m, memory=2**30),
        }.items():  # fmt: skip
            yield f"{name} of {kind.__name__}", lambda kind=kind, ask=ask: ask(kind(sizes=[3, 2]))
    inner = [{"sequence": {"name": FORMULA, "blocks": ["relu", "flatten"]}}]
    named = {
        "mlp": lambda: cm.MLP(sizes=[3, 2], name=FORMULA),
        "layer": lambda: cm.CNN(input=[3, 8, 8], name=FORMULA, blocks=inner),
    }
    own = {"name": FORMULA, "states": []}
    for name, made in named.items():
        for what, draw in {
            "timeline": lambda m: cm.predict(m).timeline.plot("x.png"),
            "sweep": lambda m: cm.sweep(m, batch=[1, 2]).plot("x.png"),
            "optimizers": lambda m: cm.sweep(m, batch=[1, 2], optimizer=["sgd", own]).plot("x.png"),
            "compare": lambda m: cm.compare(m, "mlp-mnist").plot("x.png"),
            "solve": lambda m: cm.max_batch(m, memory="1 GiB").plot("x.png"),
            "pareto": lambda m: cm.pareto(cm.sweep(m, batch=[1, 2]), "params", "memory.peak", plot="x.png"),
        }.items():  # fmt: skip
            yield f"{what} of {name} {FORMULA}", lambda made=made, draw=draw: draw(made())
