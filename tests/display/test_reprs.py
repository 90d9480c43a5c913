"""Whatever an answer hands out says what it is, within a screen: its attributes are walked, to any that is public."""

from collections import Counter
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.answer import Data

LONGEST = 30 * 80
"""Characters on a screen."""
DEEPEST = 5
ENOUGH = 4
"""Of one class, that are looked at."""

ANSWERS = {
    "prediction": lambda: cm.predict("gpt2-small", seq=64),
    "network": lambda: cm.predict("resnet18", image=32),
    "time": lambda: cm.predict("mlp-mnist").on("h100-sxm"),
    "devices": lambda: cm.predict("gpt2-small", seq=64, dp=2, tp=2, pp=2, accumulate=4, precision="bf16"),
    "time of devices": lambda: cm.predict("gpt2-small", seq=64, fsdp=4).on("h100-sxm"),
    "serving": lambda: cm.serve("gpt2-small", on="h100-sxm", input=64, output=8, concurrency=[1, 2]),
    "deployments": lambda: cm.deployments("gpt2-small", on="h100-sxm", devices=2, input=64, output=8),
    "disaggregated": lambda: cm.disaggregated(
        *(cm.serve("gpt2-small", on="h100-sxm", input=64, output=8),) * 2, devices=4
    ),
    "layouts": lambda: cm.layouts("mlp-mnist", devices=4, on="h100-sxm", global_batch=8),
    "comparison": lambda: cm.compare("gpt2-small", "mlp-mnist"),
    "explanation": lambda: cm.predict("gpt2-small", seq=64).explain("memory.peak"),
    "fit": lambda: cm.predict("gpt2-small", seq=64).fits("24 GiB"),
    "package": lambda: {name: getattr(cm, name) for name in cm.__all__},
}


def attributes(thing: Any) -> Iterator[Any]:
    """What is to be had of a thing: its first members, or its public attributes that can be worked out."""
    if isinstance(thing, dict):
        yield from [*thing, *thing.values()]
    elif isinstance(thing, list | tuple):
        yield from thing[:3]
    if type(thing).__module__.startswith("costmodel"):
        for name in sorted({*dir(type(thing)), *getattr(thing, "__dict__", {})}):
            method = isinstance(getattr(type(thing), name, None), FunctionType | MethodType)
            if not (name.startswith(("_", "model_")) or method):
                try:
                    yield getattr(thing, name)
                except (cm.CostModelError, AttributeError):
                    continue


def public(answer: Any) -> Iterator[Any]:
    """Things of this package that an answer leads to, the nearest first."""
    looked_at: Counter[type] = Counter()
    every, level = [], [answer]
    for _ in range(DEEPEST):
        deeper: list[Any] = []
        for thing in level:
            if isinstance(thing, type | ModuleType | FunctionType) or any(thing is other for other in every):
                continue
            looked_at[type(thing)] += 1
            if looked_at[type(thing)] <= (ENOUGH if type(thing).__module__.startswith("costmodel") else 50):
                every.append(thing)
                deeper += attributes(thing)
        level = deeper
    return (thing for thing in every if type(thing).__module__.startswith("costmodel"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_what_an_answer_hands_out_says_what_it_is_within_a_screen(name: str) -> None:
    things = [*public(ANSWERS[name]())]
    assert len(things) > 1
    for thing in things:
        for text in (repr(thing), str(thing)):
            assert " object at 0x" not in text, type(thing)
            assert isinstance(thing, Data) or len(text) <= LONGEST, type(thing)
