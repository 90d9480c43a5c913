"""Modules that misbehave: each is read, or refused in one line, and nothing of it or of the process is changed."""

from __future__ import annotations

import dataclasses
import os
import queue
import random
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import costmodel as cm
from costmodel.importers.torch.exporting import Exporter
from tests.command import said_in_one_line

pytestmark = pytest.mark.oracle

X = torch.zeros(2, 6, 8)


class Part(nn.Module):
    """A linear layer beside something else, and what its forward pass does before or in its place."""

    def __init__(self, holds: Any = None, does: Callable[[Any, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.layer, self.holds, self.does = nn.Linear(8, 8), holds, does

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) if self.does is None else self.does(self, x)


class Uncopied:
    """What says no when it is copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copy")


@dataclasses.dataclass
class Result:
    """What a forward pass may return."""

    y: Tensor
    name: str = "y"


def numbers() -> Any:
    """An iterator that cannot be copied."""
    yield from range(3)


HELD: dict[str, Callable[[], Any]] = {
    "a lock": threading.Lock,
    "locks within": lambda: {"locks": [threading.RLock(), threading.Lock()]},
    "an open file": lambda: os.fdopen(os.open(os.devnull, os.O_RDONLY)),
    "a queue": queue.Queue,
    "a pool": lambda: ThreadPoolExecutor(1),
    "a generator": numbers,
    "a generator of random numbers": torch.Generator,
    "a socket": socket.socket,
    "a module of Python": lambda: os,
    "a thread": lambda: threading.Thread(target=print),
    "what says no": Uncopied,
}


@pytest.mark.parametrize("name", HELD)
def test_a_module_may_hold_what_cannot_be_copied(name: str) -> None:
    module = Part(HELD[name]())
    assert cm.from_torch(module, X).program.steps[0].op == "linear"
    assert module.holds is not None


def changes_everything(m: Part, x: Tensor) -> Tensor:
    """As a careless module does."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    os.chdir(os.sep)
    m.eval()
    m.layer.register_forward_hook(lambda *_: None)
    m.holds = x
    return m.layer(x)


def state(m: Part) -> tuple[Any, ...]:
    """What forward could have changed of a module and of the process."""
    weights = [(name, id(w), w.requires_grad, w.grad, w.device) for name, w in m.named_parameters()]
    hooks = [(part.training, *part._forward_hooks) for part in m.modules()]
    chances = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
    modes = torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd(), sys.getrecursionlimit()
    return weights, hooks, m.holds, chances, modes


def test_nothing_is_changed() -> None:
    module = Part(None, changes_everything)
    before = state(module)
    cm.from_torch(module, X)
    assert state(module) == before


def raises(error: BaseException) -> Callable[[Any, Tensor], Any]:
    """A forward pass that does so."""

    def forward(m: Part, x: Tensor) -> Any:
        raise error

    return forward


def without_end(m: Part, x: Tensor) -> Tensor:
    """One that never returns."""
    while True:
        x = m.layer(x)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sys.exit": (lambda: Part(None, lambda m, x: sys.exit(3)), "ends by SystemExit at test_from_torch_isolation.py"),
    "os._exit": (lambda: Part(None, lambda m, x: os._exit(3)), "ends by SystemExit"),
    "a generator's end": (lambda: Part(None, raises(GeneratorExit())), "ends by GeneratorExit"),
    "an error without text": (lambda: Part(None, raises(Exception())), "cannot run it on the example inputs"),
    "an error of many lines": (lambda: Part(None, raises(ValueError("a\n" * 9_000))), "cannot run it"),
    "itself": (lambda: Part(None, lambda m, x: m.forward(x)), "maximum recursion depth"),
    "nothing": (lambda: Part(None, lambda m, x: None), "returns no tensor"),
    "a word": (lambda: Part(None, lambda m, x: "y"), "returns no tensor"),
    "an object": (lambda: Part(None, lambda m, x: Uncopied()), "returns a Uncopied, in which no tensors are seen"),
    "a set": (lambda: Part(None, lambda m, x: {m.layer(x)}), "returns a set, in which no tensors are seen"),
    "a lazy part": (lambda: Part(nn.LazyLinear(4)), r"holds \(LazyLinear\) has no weights yet: run the module once"),
    "a scripted part": (
        lambda: Part(torch.jit.script(nn.Linear(8, 8))),
        r"holds \(RecursiveScriptModule\) is made by torch.jit: import the module that it was made of",
    ),
    "a traced one": (lambda: torch.jit.trace(nn.Linear(8, 8), X), "is made by torch.jit"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_be_read_is_refused_in_one_line(name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(cm.CostModelError, match=says) as caught:
        cm.from_torch(make(), X)
    said_in_one_line(caught.value)


def test_a_forward_pass_without_end_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exporter.__init__, "__defaults__", (100,))
    with pytest.raises(cm.CostModelError, match="calls more than 100 operators: does it end"):
        cm.from_torch(Part(None, without_end), X)


def test_who_interrupts_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        cm.from_torch(Part(None, raises(KeyboardInterrupt())), X)


@pytest.mark.parametrize("returned", [Result, lambda y: (part for part in (y, y)), lambda y: [Result(y)]])
def test_tensors_are_seen_in_what_forward_returns(returned: Callable[[Tensor], Any]) -> None:
    model = cm.from_torch(Part(None, lambda m, x: returned(m.layer(x))), X)
    assert cm.predict(model, batch=3).flops.total == 2 * 2 * 3 * 6 * 8 * 8


def test_parts_within_parts() -> None:
    module: nn.Module = nn.Linear(8, 8)
    for _ in range(300):
        module = nn.Sequential(module)
    assert cm.predict(cm.from_torch(module, X), batch=3).params == 72
