"""Every option of every command with values that mean harm."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import click

from costmodel.cli import run
from costmodel.cli.commands import costmodel
from tests.hostile.files import Case, shortened
from tests.hostile.ground import Ground

NEEDED = {
    "model": "mlp-mnist",
    "models": "mlp-mnist",
    "quantity": "memory.peak",
    "quantities": "memory.peak",
    "memory": "1GiB",
    "target": "1GiB",
    "a": "params",
    "b": "memory.weights",
    "other": "mlp-mnist",
}
"""A right value of each argument."""
BEGUN = {
    "gpus": ["--machines", "t4,h100-sxm"],
    "pareto": ["--batch", "1,2"],
    "sweep": ["--batch", "1,2"],
    "compare": ["--batch", "1,2"],
}


def values(ground: Ground) -> list[str]:
    """What a shell may hand over."""
    folder = [ground.at(f"{name}{suffix}") for name in ("pipe", "zero", "loop", "folder", "link")
              for suffix in ("", ".yaml", ".json", ".parquet", ".png", ".html", ".zarr")]  # fmt: skip
    return [
        "", " ", "-1", "0", "1", "9" * 30, "9" * 400, "1.5", "nan", "inf", "-inf", "1e999", "1e-999", "0x10", "1_000",
        "١",
        "\x1b[31mred", "\x9b31m", "\u202egnp", "\x00", "\n", "\t", "a\nb", "💥", "\udcff",
        "x" * 10_000, "%s%n", "$HOME",
        f"$(touch {ground.touched})", f"`touch {ground.touched}`", "../" * 60 + "etc/passwd", "/dev/null", "/dev/zero",
        "/dev/full/x", "/proc/self/mem", "/proc/self/fd/0", "1:10", "1:100000000000", "1,1:100000000000",
        "1:99999999999999999999999999", "1:9" + "9" * 500, "1:1000000:*2", "1:*", ":", "::", "1::", ",", ",,,",
        "," * 5000,
        "1," * 20_000 + "1", "a=b", "layers=1:100000000000", "sizes=1,2", "dropout=0.1,0.2", "=", "==",
        "a=" + "b" * 9999,
        "1GiB", "1e15TB", "99999999999999999PiB", "-1GiB", "x:y:z", "8:" + "q," * 3000, "99999999999:qkv", "8x8x8",
        "1x",
        "x1", f"{2**40}x{2**40}", "1099511627776", "1099511627777", "963761198400", "none", "None", "block", "sqrt",
        "cuda",
        "adamw", "fp32", "mlp+mlp", "params", "memory.peak", "memory.peek", "__class__", "a.b.c.d", "(1)*99999999",
        "{}", "[]", "{'a': 1}", "!!python/object:os", "batch", "seq", "width", "image", "layers", "self", "--", "-",
        "@",
        *folder,
    ]  # fmt: skip


def commands(ground: Ground) -> Iterator[Case]:
    """Each option of each command, each argument in its place, and words that are no command."""
    rng = random.Random(2)
    known = values(ground)
    for words in ([], ["\x1b"], ["predict"], ["roofline"], ["--version", "x"], ["-x"], ["predict", "--help", "\x1b"]):
        yield f"words {words}", lambda words=words: run(words)
    for path, command in _verbs(costmodel, ()):
        arguments = [NEEDED.get(str(p.name), "mlp-mnist") for p in command.params if isinstance(p, click.Argument)]
        for parameter in command.params:
            several = len(known) if parameter.name in ("memory", "over") else 12
            for value in rng.sample(known, several):
                words = _words(path, command, parameter, value, arguments)
                label = f"{' '.join(path)} {parameter.name} {shortened(value)}"
                yield label, lambda words=words: run(words)


def _words(
    path: Any, command: click.Command, parameter: click.Parameter, value: str, arguments: list[str]
) -> list[str]:
    options: list[str] = []
    for other in command.params:
        if isinstance(other, click.Option) and other.required and other is not parameter:
            options += [other.opts[0], "1GiB"]
    if isinstance(parameter, click.Argument):
        names = [p for p in command.params if isinstance(p, click.Argument)]
        arguments = [value if name is parameter else given for name, given in zip(names, arguments, strict=True)]
        return [*path, *options, *BEGUN.get(path[-1], []), "--", *arguments]
    given = [parameter.opts[0]] if getattr(parameter, "is_flag", False) else [f"{parameter.opts[0]}={value}"]
    begun = BEGUN.get(path[-1], [])
    if f"--{parameter.name}" in begun:
        begun = []
    second = ["params"] if path[-1] == "pareto" else []
    return [*path, *options, *arguments, *second, *begun, *given]


def _verbs(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _verbs(command, (*path, name))
        else:
            yield (*path, name), command
