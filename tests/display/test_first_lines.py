"""The first line of an answer is its question: the model, where it runs, and how."""

from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import isabstract
from pkgutil import walk_packages
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.answer import Answer, Data

SIZES: dict[str, Any] = {"batch": 2, "seq": 512}
TRAINED = "gpt2-small: one training step, batch 2, seq 512, fp32, adamw, attention eager"
ON = "gpt2-small on l4: one training step, batch 2, seq 512, fp32, adamw, attention eager, stack eager"
SERVED = "gpt2-small on l4: serving, input 64, output 8 tokens, bf16, attention flash, engine kernels"


def prediction() -> Any:
    return cm.predict("gpt2-small", **SIZES)


def run() -> Any:
    return prediction().on("l4").run(steps=1000)


def on_two() -> Any:
    return cm.predict("gpt2-small", **SIZES, tp=2)


def served(on: str = "l4") -> Any:
    return cm.serve("gpt2-small", on=on, input=64, output=8, concurrency=1)


QUESTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "Prediction": (prediction, TRAINED),
    "Timeline": (lambda: prediction().timeline, TRAINED),
    "Fit": (lambda: prediction().fits("24 GiB"), TRAINED),
    "Explanation": (lambda: prediction().explain("params"), TRAINED),
    "Ranks": (lambda: on_two().ranks, f"{TRAINED}, 2 devices, tp 2"),
    "Collectives": (lambda: on_two().collectives, f"{TRAINED}, 2 devices, tp 2"),
    "Time": (lambda: prediction().on("l4"), "gpt2-small on l4: one training step, batch 2, seq 512, fp32, adamw,"),
    "MeasuredMfu": (lambda: prediction().on("l4").mfu_of("900 ms"), ON),
    "Job": (run, ON),
    "Energy": (lambda: run().energy(pue=1.1), ON),
    "Carbon": (lambda: run().carbon(intensity="400 g/kWh", pue=1.1), ON),
    "Money": (lambda: run().money(price=0.7), ON),
    "Goodput": (lambda: run().goodput(mtbf="5000 h", checkpoint="1 min", restart="5 min"), ON),
    "DeviceHours": (lambda: cm.energy(hours=2, watts=300, pue=1, devices=3).job, "3 devices for 2 h"),
    "Solution": (
        lambda: cm.max_batch("gpt2-small", memory="24 GiB", seq=512),
        "gpt2-small: one training step, seq 512, fp32, adamw, attention eager",
    ),
    "CheckpointChoice": (lambda: cm.cheapest_checkpoint("gpt2-small", memory="24 GiB", **SIZES), TRAINED),
    "Match": (
        lambda: cm.match("gpt2-small", "params", 1e9, by="layers", **SIZES),
        TRAINED,
    ),
    "BreakEven": (
        lambda: cm.break_even("gpt2-small", "attention", "mlp", for_="seq", batch=2),
        "gpt2-small: one training step, batch 2, fp32, adamw, attention eager",
    ),
    "Sensitivities": (lambda: cm.sensitivity("gpt2-small", "params", **SIZES), TRAINED),
    "Recommendations": (
        lambda: cm.recommend("gpt2-small", memory="24 GiB", seq=512, optimizer="adamw", precision="fp32"),
        "gpt2-small: one training step, seq 512, fp32, adamw",
    ),
    "Comparison": (lambda: cm.compare("gpt2-small", optimizer=["adamw", "sgd"], **SIZES), f"adamw: {TRAINED}"),
    "Gpus": (
        lambda: cm.gpus("gpt2-small", machines=["l4"], counts=1, **SIZES),
        "gpt2-small: one training step, batch 2, seq 512, bf16-autocast, adamw, attention flash, stack eager",
    ),
    "Layouts": (
        lambda: cm.layouts("gpt2-small", devices=2, on="l4", seq=512, global_batch=4, tp=2, batch=4, runtime="torch"),
        "gpt2-small on 2 × l4: one training step, seq 512, bf16-master-fp32-gradients, adamw, attention flash, "
        "global_batch 4",
    ),
    "Serving": (served, f"{SERVED}, requests together"),
    "Deployments": (
        lambda: cm.deployments("gpt2-small", on="l4", devices=1, input=64, output=8),
        SERVED.replace("on l4", "on 1 × l4") + ", requests steady",
    ),
    "Disaggregated": (
        lambda: cm.disaggregated(served("h100-sxm"), served("h100-sxm")),
        SERVED.replace("on l4", "on h100-sxm (prompts) and h100-sxm (tokens)"),
    ),
    "Sweep": (
        lambda: cm.sweep("gpt2-small", batch=[1, 2], seq=512),
        "gpt2-small: one training step, seq 512, fp32, adamw, attention eager",
    ),
    "TimedCollective": (
        lambda: cm.collective_seconds("all_reduce", 2**20, on="dgx-h100", devices=8),
        "all_reduce of 1.00 MiB by 8 devices of a node: dgx-h100",
    ),
}
"""Answers by the name of their class, and what their first line starts with."""
NOT_ASKED_HERE = {
    "StepCollectives": "tests/cli: collectives with --on",
    "StepFit": "tests/performance/test_fitting.py",
    "KernelFit": "tests/performance/test_probing.py",
    **dict.fromkeys(("Check", "Profile", "Changes", "Validation"), "measured: tests/roofline"),
    "Explorer": "a file: its path",
    "Site": "files: their paths",
    "Reply": "a verb's, with the text of another answer",
}
"""Answers to what is measured or written, and where they are held."""
LISTS = {"Models", "Machines", "Machine", "Clusters", "Cluster"}
"""What is looked up, and has no settings."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_first_line_of_an_answer_is_its_question(name: str) -> None:
    answer, line = QUESTIONS[name]
    value = answer()
    assert name in {kind.__name__ for kind in type(value).__mro__}
    text = repr(value) if name == "Sweep" else str(value)
    assert text.startswith(line), text.partition("\n")[0]
    if name not in ("Time", "Recommendations"):  # of 80 columns; with what is chosen between
        assert text.partition("\n")[0] == line


def _kinds(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def test_no_answer_is_left_out() -> None:
    for module in walk_packages(cm.__path__, "costmodel."):
        if module.name != "costmodel.__main__":
            import_module(module.name)
    kinds = (kind for kind in _kinds(Data) if kind.__module__.startswith("costmodel.") and not isabstract(kind))
    names = {kind.__name__ for kind in kinds}
    assert issubclass(Answer, Data)
    assert names == (QUESTIONS.keys() - {"Sweep"}) | NOT_ASKED_HERE.keys() | LISTS
