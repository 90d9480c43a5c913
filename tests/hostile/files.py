"""Hostile model files: damaged bytes, descriptions made to explode, and mutations of valid ones."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import costmodel as cm
from costmodel.cli import run
from costmodel.importers.huggingface.families import FAMILIES
from tests.hostile.ground import CONV, GPT, SEEDS, Ground

Case = tuple[str, Callable[[], Any]]
COMMANDS = (
    ["predict"],
    ["show"],
    ["timeline"],
    ["explain", "params"],
    ["fits", "1GiB", "--choose"],
    ["sensitivity", "params"],
)


def asked(content: bytes | str, suffix: str = ".yaml", number: int = 0) -> Callable[[], Any]:
    """A case that writes a file and asks a command for what it describes."""

    def ask() -> int:
        name = f"model{suffix}"
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        command, *others = COMMANDS[number % len(COMMANDS)]
        return run([command, f"./{name}", *others])

    return ask


def files(ground: Ground) -> Iterator[Case]:
    """Files that are no model, byte by byte and in structure."""
    touch = f"touch {ground.touched}"
    texts: dict[str, str | bytes] = {
        "nothing": b"",
        "binary": bytes(range(256)) * 40,
        "utf-16": json.dumps(SEEDS["mlp"]).encode("utf-16"),
        "surrogates": "architecture: mlp\nname: '\udcff'\n",
        "a bell": 'architecture: mlp\nname: "\\a\\e[31m"\nsizes: [3, 2]\n',
        "a name that turns round": 'architecture: mlp\nname: "\\u202e\\u009b31m"\nsizes: [3, 2]\n',
        "deep lists": "[" * 200_000,
        "deep mappings": "{a: " * 200_000,
        "deep dashes": "- " * 200_000,
        "question marks": "? " * 200_000,
        "quotes": '"' * 200_000,
        "tags": "!" * 200_000,
        "percent": "%" * 200_000,
        "ampersands": "&a " * 200_000,
        "stars": "*a " * 200_000,
        "bars": "a: |\n" * 100_000,
        "keys": "".join(f"k{n}: 1\n" for n in range(90_000)),
        "colons": ":" * 500_000,
        "a long line": "name: " + "x" * 1_000_000,
        "spaces": " " * 1_000_000,
        "newlines": "\n" * 1_000_000,
        "a comment": "#" * 1_000_000,
        "a long number": "9" * 900_000,
        "a long float": "0." + "9" * 900_000,
        "an exponent": "architecture: mlp\nsizes: [3, 1e999999999]\n",
        "laughs": "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(99)),
        "a merge": "<<: *a\n",
        "documents": "---\na: 1\n" * 10_000,
        "an object": f"!!python/object/apply:os.system ['{touch}']\n",
        "a new object": f"architecture: !!python/object/new:os.system ['{touch}']\n",
        "a module": "architecture: !!python/module:os\n",
        "a name": "architecture: !!python/name:os.system\n",
        "a binary": "architecture: !!binary aGFsbG8=\n",
        "a set": "!!set {a, b}\n",
        "a timestamp": "architecture: mlp\nsizes: [2001-01-01, 3]\n",
        "an include": f"!include {ground.canary}\n",
    }
    for number, (name, text) in enumerate(texts.items()):
        yield f"file {name}", asked(text, number=number)
        yield f"json {name}", asked(text, ".json")
    rng = random.Random(0)
    for number, name in enumerate(names := sorted(SEEDS)):
        text = json.dumps(SEEDS[name]).encode()
        for _ in range(12):
            yield f"damaged {name} {_}", asked(_damaged(text, rng), rng.choice((".yaml", ".json")), number + _)
    for number in range(400):
        name = names[number % len(names)]
        data = mutated(SEEDS[name], rng)
        yield f"mutated {name} {number}", asked(json.dumps(data), ".json", number)
    for name, data in explosions():
        yield f"explosion {name}", asked(json.dumps(data), ".json")
        yield f"explosion {name} replayed", _replayed(data)
    for place in ("pipe", "zero", "loop", "folder", "link", "big"):
        for suffix in (".yaml", ".json"):
            for command in ("predict", "show", "roofline check"):
                arguments = [*command.split(), ground.at(f"{place}{suffix}")]
                yield f"{command} {place}{suffix}", lambda arguments=arguments: run(arguments)
            for option in ("--optimizer", "--precision"):
                arguments = ["predict", "mlp-mnist", option, ground.at(f"{place}{suffix}")]
                yield f"{option} {place}{suffix}", lambda arguments=arguments: run(arguments)


def _replayed(data: Any) -> Callable[[], Any]:
    def ask() -> Any:
        return cm.predict(cm.importers.files.build(data, "test"), allocator="cuda").reserved

    return ask


def _damaged(text: bytes, rng: random.Random) -> bytes:
    """A text with a few bytes cut, doubled, or replaced."""
    found = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found))
        kind = rng.randrange(4)
        if kind == 0:
            found = found[:at] or found
        elif kind == 1:
            found[at:at] = found[at : at + rng.randint(1, 30)]
        elif kind == 2:
            found[at] = rng.randrange(256)
        else:
            found[at : at + 1] = rng.choice((b"\0", b"\x1b[2J", b"1e400", b"- ", b"{", b"}", b"\xff", b"9" * 40, b"\n"))
    return bytes(found)


VALUES: tuple[Any, ...] = (
    0, 1, 2, -1, 3.5, 2**40, 2**40 + 1, 10**9, 10**30, 1e308, True, False, None, "", "x", "\x1b[31m", "$x", "a" * 5000,
    [], {}, [1], [[]], {"a": 1}, {"conv": {"channels": 2**40, "kernel": 1}}, ["relu"] * 3000, [0] * 10_000,
    963_761_198_400,
)  # fmt: skip
"""What stands in the place of a value that was right."""


def mutated(seed: Any, rng: random.Random) -> Any:
    """A copy of plain data with one to three of its values replaced, dropped, doubled or moved."""
    data = copy.deepcopy(seed)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(data))
        if not places:
            break
        holder, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 2:
            holder[key] = copy.deepcopy(rng.choice(places)[0])
            if len(json.dumps(data)) > 200_000:
                holder[key] = None
        elif kind == 3 and isinstance(holder, dict):
            holder[rng.choice(("times", "tokens", "name", "layers", "\x1b", "$", "x" * 300))] = copy.deepcopy(
                holder[key]
            )
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(pairs):
        yield data, key
        yield from _places(value)


def explosions() -> Iterator[tuple[str, Any]]:
    """Small descriptions of what is enormous."""

    def cnn(*blocks: Any, **define: Any) -> dict[str, Any]:
        return {"architecture": "cnn", "input": [3, 8, 8], "define": define, "blocks": list(blocks)}

    def nested(depth: int, kind: Callable[[list[Any]], Any], *around: Any) -> Any:
        item: Any = CONV
        for _ in range(depth):
            item = kind([*around, item])
        return item

    for depth in (4, 7, 9, 12, 20, 45, 60):
        for times in (2, 3, 2**40):
            yield (
                f"{depth} nested repeats of {times}",
                cnn(nested(depth, lambda items, times=times: {"repeat": {"times": times, "blocks": items}})),
            )
        yield (
            f"{depth} nested repeats with more",
            cnn(nested(depth, lambda items: {"repeat": {"times": 3, "blocks": items}}, CONV, "relu")),
        )
        yield f"{depth} nested residuals", cnn(nested(depth, lambda items: {"residual": {"body": items}}))
        yield (
            f"{depth} nested branches",
            cnn(nested(depth, lambda i: {"branches": {"paths": [i, [CONV]], "join": "add"}})),
        )
        yield f"{depth} nested sequences", cnn(nested(depth, lambda items: {"sequence": items}))
        doubled = {"t0": {"blocks": [CONV]}} | {f"t{n}": {"blocks": [f"t{n - 1}"] * 2} for n in range(1, depth)}
        yield f"{depth} templates of two", cnn(f"t{depth - 1}", **doubled)
    for count in (150, 3000):
        chained = {"t0": {"blocks": [CONV]}} | {f"t{n}": {"blocks": [f"t{n - 1}"]} for n in range(1, count)}
        yield f"{count} chained templates", cnn(f"t{count - 1}", **chained)
        yield f"{count} branches", cnn({"branches": {"paths": [[]] * count, "join": "concat"}})
    yield "a template of itself", cnn("t", t={"blocks": ["t"]})
    yield "4,990 layers", cnn(*["relu"] * 4990)
    yield "19,000 layers", cnn(*["relu"] * 19_000)
    yield "tokens", cnn("flatten", {"prepend": {"tokens": 2**40}})
    for size in (2**40, 963_761_198_400, 2**20, 10**6 + 3):
        for kind, fields in (
            ("adaptive_avg_pool", {"size": size}), ("max_pool", {"kernel": size}), ("linear", {"features": size}),
            ("conv", {"channels": size, "kernel": 1, "groups": size}), ("conv", {"channels": 1, "kernel": size}),
        ):  # fmt: skip
            yield f"{kind} of {size}", cnn({kind: fields})
    yield "wide MLP", {"architecture": "mlp", "sizes": [2**40] * 5}
    yield "long MLP", {"architecture": "mlp", "sizes": [3, 4] * 4999}
    for field in ("vocab", "context", "layers", "width", "heads", "segments", "relative_buckets", "mlp_width"):
        yield f"{field} of 2^40", {**GPT, field: 2**40}
    patterns = {"window": {"size": 3, "pattern": [True, False]}, "experts": {"count": 4, "per_token": 1}}
    for name, part in (*patterns.items(), ("experts", {"count": 4, "per_token": 1, "dense_layers": 2**39})):
        yield f"layers with {name}", {**GPT, "layers": 2**40, name: part}
    long = [True] * 4000 + [False]
    yield "long patterns", {**GPT, "layers": 9999, "window": {"size": 3, "pattern": long},
                            "positions": "rotary", "rotary": {"pattern": [*long, True]}}  # fmt: skip
    yield "experts", {**GPT, "experts": {"count": 2**40, "per_token": 2**39}}


def configs(ground: Ground) -> Iterator[Case]:
    """Published configurations with sizes that none has."""
    rng = random.Random(1)
    for name in sorted(FAMILIES):
        family = FAMILIES[name]
        sizes = [field for field, value in family.fields.items() if type(value) is int]
        layers = [field for field in family.fields if "layer" in field and type(family.fields[field]) is int]
        for changes in (
            *({field: 10**9} for field in layers[:2]),
            {field: rng.choice(VALUES) for field in rng.sample(sorted(family.fields), min(2, len(family.fields)))},
            {field: rng.choice((2**40, 0, -1, 10**30)) for field in rng.sample(sizes, min(2, len(sizes)))},
            {rng.choice(sizes or ["layers"]): "\x1b[31m", "layer_types": ["full_attention"] * 19_000},
            {"rope_scaling": {"rope_type": "\x1b]0;x\x07"}, "architectures": ["X" * 5000]},
        ):
            text = json.dumps({"model_type": name, **changes})
            yield f"config {name} {shortened(changes)}", asked(text, ".json")


def shortened(value: Any) -> str:
    """A value in a name."""
    return ascii(value)[:60]
