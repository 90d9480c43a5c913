"""Every argument of what is public, with values of every type: what is not of its type is refused in one line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import costmodel as cm
from costmodel.training.settings import SETTINGS
from tests.hostile.calls import Nameless
from tests.hostile.ground import MACHINE

POOL: dict[str, Any] = {
    "None": None, "True": True, "zero": 0, "minus one": -1, "one": 1, "a half": 0.5, "nan": float("nan"),
    "inf": float("inf"), "-inf": -float("inf"), "400 digits": 10**400, "5,000 digits": 10**5000, "nothing": "",
    "a word": "no", "a zero byte": "a\0b", "two lines": "a\nb", "a surrogate": "\ud800", "digits": "9" * 5000,
    "bytes": b"x", "a list": [], "a list of one": [1], "a list of words": ["x"], "a list of lists": [[1]],
    "a tuple": (), "a mapping": {}, "a mapping of numbers": {1: 2}, "a set": {1}, "an object": object(),
    "what shows itself in no line": Nameless(), "numpy's true": np.True_, "numpy's half": np.float32(0.5),
    "an array": np.ones(3), "a table": np.ones((2, 2)), "a decimal": Decimal(3), "3j": 3j, "range": range(3),
    "a path": Path("/nowhere/x"), "a model": cm.MLP(sizes=[3, 2]),
}  # fmt: skip


class Question(NamedTuple):
    """A right call of something public, of which one argument is changed."""

    asked: Callable[..., Any]
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})


def questions() -> dict[str, Question]:
    """One of every public function and class, and of each method of their answers that takes an argument."""
    p, tokens = cm.predict("mlp-mnist"), cm.predict("gpt2-small", batch=1, seq=64)
    swept = cm.sweep("mlp-mnist", batch=[1, 2], optimizer=["sgd", "adamw"], quantities=["params", "memory.peak"])
    device, time = cm.Machine(**MACHINE), tokens.on("h100-sxm")
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "on": "h100-sxm", "input": 128, "output": 64, "concurrency": [1]}
    served = cm.serve(**asked)
    fit = cm.fit_machine("h100-sxm", ["mlp-mnist batch=32: 0.4 s"])
    mlp, gpt = {"model": "mlp-mnist", "memory": "1 GiB"}, {"model": "gpt2-small", "memory": "1 GiB"}
    known = {
        "CNN": Question(cm.CNN, (), {"input": [3, 8, 8], "blocks": ["relu"]}),
        "MLP": Question(cm.MLP, (), {"sizes": [3, 2]}),
        "Transformer": Question(cm.Transformer, (), {"vocab": 9, "context": 8, "layers": 2, "width": 6, "heads": 3}),
        "EncoderDecoder": Question(cm.EncoderDecoder),
        "VisionTransformer": Question(cm.VisionTransformer),
        "Machine": Question(cm.Machine, (), MACHINE),
        "Stack": Question(cm.Stack, (), {"name": "own", "launch": 2e-6}),
        "Engine": Question(cm.Engine, (), {"name": "own"}),
        "Drafts": Question(cm.Drafts, (), {"model": "llama-3.2-1b"}),
        "Prediction": Question(cm.Prediction, (), {"model": p.model, "settings": p.settings}),
        "Serving": Question(cm.Serving, (), {name: getattr(served, name) for name in
                            ("model", "machine", "engine", "input", "output", "settings")}),
        "Disaggregated": Question(cm.Disaggregated, (), {"prefill": served, "decode": served, "concurrency": 1}),
        "disaggregated": Question(cm.disaggregated, (served, served), {"concurrency": 1}),
        "deployments": Question(cm.deployments, (), {"model": "llama-3.2-1b", "devices": 2, "on": "h100-sxm",
                                                     "input": 128, "output": 64, "tp": 2}),
        "Time": Question(cm.Time, (), {name: getattr(time, name) for name in
                         ("prediction", "machine", "stack", "tier", "constants")}),
        "break_even": Question(cm.break_even, (), {"model": "gpt2-small", "a": "attention", "b": "mlp", "for_": "seq"}),
        "calibrate_machine": Question(cm.calibrate_machine, (), {"machine": "h100-sxm", "timer": lambda _: 1e-4}),
        "Cluster": Question(cm.Cluster, (), {"name": "lab", "machine": "h100-sxm"}),
        "clusters": Question(cm.clusters),
        "collective_seconds": Question(cm.collective_seconds, ("send", "1 MiB"), {"devices": 2, "on": "h100-sxm"}),
        "load_cluster": Question(cm.load_cluster, (), {"cluster": "dgx-h100"}),
        "cheapest_checkpoint": Question(cm.cheapest_checkpoint, (), mlp),
        "compare": Question(cm.compare, ("mlp-mnist", "mlp-mnist")),
        "explore": Question(cm.explore, ("mlp-mnist",), {"on": None, "optimizer": "sgd"}),
        "fit_machine": Question(cm.fit_machine, (), {"machine": "h100-sxm", "measured": fit.steps}),
        "from_torch": Question(cm.from_torch, (), {"module": "x"}),
        "layouts": Question(cm.layouts, (), {"model": "gpt2-small", "devices": 2, "global_batch": 2, "seq": 64,
                                             "runtime": "torch", "checkpoint": "none", "batch": 1}),
        "gpus": Question(cm.gpus, (), {"model": "mlp-mnist", "machines": "t4", "counts": 1}),
        "load": Question(cm.load, (), {"model": "mlp-mnist"}),
        "load_machine": Question(cm.load_machine, (), {"machine": "h100-sxm"}),
        "machines": Question(cm.machines),
        "energy": Question(cm.energy, (), {"hours": 1.0, "watts": 300.0, "pue": 1.1}),
        "match": Question(cm.match, (), {"model": "mlp-mnist", "quantity": "params", "target": "1M"}),
        "max_batch": Question(cm.max_batch, (), mlp),
        "max_layers": Question(cm.max_layers, (), gpt),
        "max_seq": Question(cm.max_seq, (), gpt),
        "max_width": Question(cm.max_width, (), mlp),
        "models": Question(cm.models, (), {"family": "mlp"}),
        "pareto": Question(cm.pareto, (swept, "params", "memory.peak")),
        "predict": Question(cm.predict, (), {"model": "mlp-mnist"}),
        "recommend": Question(cm.recommend, (), mlp),
        "sensitivity": Question(cm.sensitivity, (), {"model": "mlp-mnist"}),
        "serve": Question(cm.serve, (), asked),
        "solve": Question(cm.solve, (), {"model": "mlp-mnist", "quantity": "memory.peak", "target": "1 GiB",
                                         "for_": "batch"}),
        "sweep": Question(cm.sweep, (), {"model": "mlp-mnist", "batch": [1, 2]}),
        "time_on": Question(cm.time_on, (), {"prediction": tokens, "machine": "h100-sxm"}),
    }  # fmt: skip
    assert known.keys() == {
        name for name in cm.__all__ if callable(getattr(cm, name)) and not name.startswith("GPT")
    } - {"CostModelError"}
    energy = {"pue": 1.1}
    right: dict[str, tuple[Any, ...] | dict[str, Any]] = {
        **dict.fromkeys(("explain", "formula", "number"), ("params",)), "fits": ("1 GiB",), "on": ("h100-sxm",),
        "from_dict": (p.to_dict(),), "from_json": (p.to_json(),), "of": ("mlp-mnist",), "energy": energy,
        "carbon": {**energy, "intensity": 400}, "money": {"price": 2.0}, "seconds_with": (time.constants,), "at": (1,),
        "interval": (1,), "fitted": {"latency": 1.0}, "field_named": ("name",), "spelt": ("name",),
        **dict.fromkeys(("source_of", "confirmed"), ("memory",)), "has_word": ("name", "none"), "load": ("no.yaml",),
        **dict.fromkeys(("product_peak", "ridge", "runs_in"), ("bf16",)), "with_fields": ({},),
        **dict.fromkeys(("difference", "ratio"), ("mlp-mnist", "params")), "to_parquet": ("x.parquet",),
        "save": ("x.yaml",), "goodput": {"mtbf": "1 h", "checkpoint": "1 s", "restart": "1 s"},
    }  # fmt: skip
    answers = [p, time, served, device, p.timeline, swept, time.run(steps=10), fit]
    answers += [cm.compare("mlp-mnist", "vgg16", quantities="params"), cm.max_batch("mlp-mnist", memory="1 GiB")]
    answers += [cm.Engine(name="own"), cm.load("mlp-mnist")]
    value = {"Time": ("seconds",), "Machine": ("memory",), "MLP": ("sizes",), "Comparison": ("mlp-mnist", "params")}
    for answer in answers:
        kind = type(answer).__name__
        for name, _ in inspect.getmembers(type(answer), callable):
            method = getattr(answer, name)
            own = not name.startswith("_") and (getattr(method, "__module__", None) or "").startswith("costmodel.")
            if own and name not in INNER and inspect.signature(method).parameters:
                needed = value.get(kind, ("params",)) if name == "value" else right.get(name, ())
                named = needed if isinstance(needed, dict) else {}
                known[f"{kind}.{name}"] = Question(method, () if named else tuple(needed), named)
    return known


INNER = {
    # What models and answers ask of themselves, with letters for numbers and objects of their own.
    "allowed", "assumptions", "forward", "implemented", "unchecked", "has_word", "size", "tables", "vary", "with_past", "with_sizes",
    "with_target", "with_values", "local", "stage_kind", "gathered_keys", "check_agreement", "kernel_seconds", "added_seconds", "seconds", "of", "to_zarr", "from_file", "to_dataframe",
}  # fmt: skip


def cases() -> Iterator[tuple[str, str, Any, Callable[[], Any]]]:
    """Label, annotation, value, and the call with that value for one argument; settings of `predict` alone."""
    for name, (asked, positional, named) in questions().items():
        fields = getattr(asked, "model_fields", None)
        if fields is not None:
            declared = {field: (i, str(info.annotation), None) for i, (field, info) in enumerate(fields.items())}
        else:
            parameters = inspect.signature(asked).parameters.values()
            declared = {p.name: (i, str(p.annotation), p.kind) for i, p in enumerate(parameters)}
        for argument, (place, annotation, kind) in declared.items():
            if kind is inspect.Parameter.VAR_KEYWORD or (argument in SETTINGS and name != "predict"):
                continue
            for label, value in POOL.items():
                others = dict(named)
                first = list(positional)
                if kind is inspect.Parameter.VAR_POSITIONAL:
                    first.append(value)
                elif place < len(first):
                    first[place] = value
                else:
                    others[argument] = value
                yield (
                    f"{name}({argument}={label})",
                    annotation,
                    value,
                    lambda asked=asked, first=first, others=others: asked(*first, **others),
                )


def of_type(annotation: str, value: Any) -> bool:
    """Whether an annotation may mean a value, by its words: what it cannot mean is to be refused."""
    words = {*re.findall(r"\w+", annotation.replace("Optional", "None"))}
    if {"Any", "architectures"} & words or isinstance(value, cm.MLP | Path):  # parts of models are read in many ways
        return True
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is True:
        return bool(words & ({"None", "LinkLike", "Reserve"} if value is None else {"bool"}))
    if isinstance(value, str):
        return bool(words & {"str", "Literal", "PathLike", "Arrivals", "Tier", "OneStack", "Path", "Reserve"})
    if isinstance(value, int):
        return bool(words & {"int", "float", "Positive", "Probability", "Count", "Magnitude", "Reserve"})
    if isinstance(value, float | Decimal):
        return bool(words & {"float", "Positive", "Probability"}) and abs(value) < float("inf")
    lists = {"Sequence", "Iterable", "list", "tuple", "Mapping", "dict", "MachineLike", "ClusterLike", "Listed"}
    return isinstance(value, list | tuple | dict | set | range | np.ndarray | bytes) and bool(words & lists)
