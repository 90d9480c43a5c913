"""A program cut into the stages of a pipeline: which steps each has, and what one stage hands to the next.

A stage hands on all that later ones read of what is made up to its end, as modules do that a ``PipelineStage`` holds:
what is read further on goes through those between. Inputs of the module are fed to each stage that reads them, as
keywords of ``step``; a weight that several stages read is on each of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from costmodel.errors import SettingError, shown
from costmodel.importers.torch.folding import base_of
from costmodel.importers.torch.program import CapturedProgram, Placeholder, Step, tensors_in


class StageProgram(NamedTuple):
    """A stage: its steps as a program, and the names of what the stage before hands to it."""

    program: CapturedProgram
    received: tuple[str, ...]


def parts_of(program: CapturedProgram) -> list[tuple[str, int]]:
    """Where a stage may begin: modules by name, each with its first step.

    Such modules are the items of lists, ``layers.0``, and of what is in no list the outermost ones; what holds lists is
    none itself. A step that no such module calls, or one that has been called before, is of the part before it.
    """
    weighted = {tuple(weight.path.split(".")[:-1]) for weight in program.weights.values()}
    paths = [_modules(step, weighted) for step in program.steps]
    holders = {path[:n] for path in paths for n in range(len(path)) if _listed(path[n])}
    parts: dict[str, int] = {}
    for number, path in enumerate(paths):
        depth = next((n for n in range(1, len(path) + 1) if _is_part(path[:n], holders)), None)
        if depth is not None:
            parts.setdefault(".".join(path[:depth]), number)
    return list(parts.items())


def _modules(step: Step, weighted: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The modules that a step is called in, the innermost last, as far as names tell a layer from a function."""
    whole = (*step.path, step.name)
    return whole if whole in weighted or step.name.isdecimal() else step.path


def _listed(module: str) -> bool:
    """Whether a module is one of a list, by its name."""
    return re.search(r"(^|_)[0-9]+$", module) is not None


def _is_part(path: tuple[str, ...], holders: set[tuple[str, ...]]) -> bool:
    return _listed(path[-1]) or path not in holders


def cut(program: CapturedProgram, start: int, stop: int, title: str) -> StageProgram:
    """The steps from one number up to another, as a stage. Raises SettingError for what no stage can hand on."""
    steps, every = program.steps, len(program.steps)
    results = {each.name: Placeholder(each.name, each.shape, each.dtype) for step in steps for each in step.makes}
    last_read = {name: number for number, step in enumerate(steps) for name in _read(step)}
    last_read |= dict.fromkeys(program.outputs, every)
    born = {each.name: number for number, step in enumerate(steps) for each in step.makes}

    def crossing(at: int) -> tuple[str, ...]:
        return tuple(name for name, number in born.items() if number < at <= last_read.get(name, -1))

    received = crossing(start) if start else ()
    makers = {each.name: step for step in steps[start:stop] for each in step.makes}
    for step in steps[start:stop]:
        if base_of(step.changes, makers)[0] in received:
            where = ".".join(step.path)
            raise SettingError(
                f"pp: {where or step.name} of {shown(title)} writes in place to what another stage made, which PyTorch "
                "refuses: let a stage begin elsewhere with pp_split, or give the module inplace=False"
            )
    own = {name for step in steps[start:stop] for name in _read(step)}
    outputs = program.outputs if stop == every else crossing(stop)
    unread = {*program.weights, *program.buffers} - last_read.keys() if stop == every else set[str]()
    kept = own | unread | set(outputs)
    inputs = {name: each for name, each in program.inputs.items() if name in kept}
    stage = program._replace(
        weights={name: each for name, each in program.weights.items() if name in kept},
        buffers={name: each for name, each in program.buffers.items() if name in kept},
        inputs=inputs | {name: results[name] for name in received},
        steps=steps[start:stop],
        outputs=outputs,
    )
    return StageProgram(stage, received)


def _read(step: Step) -> list[str]:
    names = tensors_in(list(step.args.values()))
    return names if step.changes is None else [*names, step.changes]
