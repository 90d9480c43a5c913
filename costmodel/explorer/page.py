"""The explorer's page: what is offered, the formulas of each choice, and one HTML file that holds them."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Unpack
from zlib import MAX_WBITS, compressobj

from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import applicable
from costmodel.display.answer import Data
from costmodel.display.figures import COLOURS
from costmodel.display.table import printable
from costmodel.display.units import show_exact
from costmodel.documents.arguments import typed
from costmodel.documents.files import check_writable, write
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.explorer.bundle import Bundle, Part, part_of
from costmodel.explorer.controls import OF_A_STEP, Controls, controls_of
from costmodel.explorer.javascript import identifiers
from costmodel.explorer.laws import Laws
from costmodel.explorer.playing import script
from costmodel.explorer.regimes import OF_DECODING, PageForms, SliderSize, uncollected
from costmodel.hardware.cluster import AXES, machine_of
from costmodel.hardware.machine import Machine
from costmodel.training.optimizers import Optimizer
from costmodel.training.precision import Precision
from costmodel.training.settings import LAYOUT_NAMES, SETTING_NAMES, SETTINGS
from costmodel.training.signatures import takes_settings
from costmodel.training.stacks import Stack

if TYPE_CHECKING:
    from os import PathLike

    from costmodel.training.keywords import SettingsAndFields

LARGEST = 3_000_000
"""Bytes of a page; what would be larger is refused."""
CHUNK = 6
"""Combinations that are explored in turn by one worker: neighbours share most of their formulas."""
MACHINES = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "t4")
"""What a page gives seconds on unless others are named."""
DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {policy}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>costmodel explorer</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
"""A page that loads nothing from anywhere."""


@dataclass(frozen=True)
class PageModel:
    """One model of a page.

    choices, sizes: the labels of each choice, and the least and the most of each size. combinations: of choices that
    have formulas. refused: why others have none. fixed: sizes that are offered only if asked for, with some values.
    regimes, formulas: how many different ones.
    """

    model: str
    choices: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, tuple[int, int]]
    combinations: int
    refused: tuple[str, ...]
    fixed: tuple[str, ...]
    regimes: int
    formulas: int

    def __str__(self) -> str:
        lines = [
            f"{printable(self.model)}: {self.formulas:,} formulas in {self.regimes:,} regimes of {self.combinations:,} "
            "combinations of choices",
            *(f"  {name}  {', '.join(labels)}" for name, labels in self.choices.items()),
            *(f"  {name}  {show_exact(least)} to {show_exact(most)}" for name, (least, most) in self.sizes.items()),
            *(f"  left out: {printable(why)}" for why in self.refused),
            *([f"  fixed unless given values: {', '.join(self.fixed)}"] if self.fixed else []),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Explorer(Data):
    """One HTML file about one or more models. html: its text."""

    html: str
    models: tuple[PageModel, ...]

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return len(self.html.encode())

    @typed
    def save(self, path: str | PathLike[str]) -> None:
        """Write it, whole or not at all. Raises CostModelError."""
        write(self.html, path)

    def to_dict(self) -> dict[str, Any]:
        """What it holds, without its text."""
        return {"bytes": self.bytes, "models": [asdict(model) for model in self.models]}

    def __str__(self) -> str:
        return "\n".join([f"a page of {self.bytes:,} bytes", *map(str, self.models)])


@takes_settings(several=True, and_fields=True)
@typed
def explore(
    *models: Architecture | str,
    out: str | PathLike[str] | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[SettingsAndFields],
) -> Explorer:
    """A page that shows what models cost at once as sizes and settings are turned, without a server or a network.

    It evaluates the closed forms of `predict`, where they hold; elsewhere it says so. A setting or field with several
    values is a slider or a choice of the page; with one value a size starts there, and all else holds for the page.

    Args:
        models: one or more, as `predict` takes them.
        out: a file to write, such as "gpt2.html".
        executor: any `concurrent.futures.Executor` that does the work.
        progress: told how many combinations of choices are done, and of how many.
        **settings: all that `predict` takes, and fields of the models. on: one or more machines, which the page gives
            seconds on (default: some that are common, unless there are several runtimes); None for a page without
            seconds. Of a layout they are of the cluster that is ready of the machine. stack: one. devices: the most
            of a layout, whose degrees then are sliders, beside those that are given several values.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> page = cm.explore("mlp-mnist", optimizer=["sgd"], on=None)
        >>> page.bytes < 2_000_000
        True

    """
    if not models:
        raise SettingError("explore takes at least one model, such as 'gpt2-small'")
    if out is not None:
        check_writable(out)
    question = dict(settings)
    laid_out = any(question.get(name, SETTINGS[name].default) != SETTINGS[name].default for name in LAYOUT_NAMES)
    runtimes = question.get("runtime", "torch")
    several = isinstance(runtimes, list | tuple) and len(runtimes) > 1
    devices = _machines(question.pop("on", None if laid_out and several else MACHINES))
    runtime = _only("runtime", runtimes) if laid_out and devices else None
    stack = Stack.of(_only("stack", question.pop("stack", "eager")))
    over: Any = question.pop("over", None)
    loaded = [_loaded(model, over) for model in models]
    offered = [controls_of(model, _of(model, question, [each for _, each in loaded])) for _, model in loaded]
    jobs = [
        (number, key, job)
        for number, controls in enumerate(offered)
        for key, job in _jobs(controls, stack if devices else None)
    ]
    bundles = [Bundle(_names(controls)) for controls in offered]
    refused: list[dict[str, str]] = [{} for _ in offered]
    several = [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
    results = (executor.map if executor else map)(_explored, ([job for *_, job in chunk] for chunk in several))
    done = 0
    for chunk, parts in zip(several, results, strict=True):
        with uncollected():
            for (number, key, _), part in zip(chunk, parts, strict=True):
                if isinstance(part, Part):
                    bundles[number].add(key, part)
                else:
                    refused[number][key] = part
        done += len(chunk)
        if progress:
            progress(done, len(jobs))
    laws = Laws(stack, runtime)
    page = _page([*zip((name for name, _ in loaded), offered, bundles, refused, strict=True)], devices, laws)
    if out is not None:
        page.save(out)
    return page


def _loaded(model: Architecture | str, over: Mapping[str, Any] | None) -> tuple[str, Architecture]:
    """What a model is called in a question ("" of one that has been made), and the model."""
    from costmodel.importers.zoo import load

    loaded = load(model, over=over)
    return (model if isinstance(model, str) and over is None else loaded.file), loaded


def _of(model: Architecture, question: Mapping[str, Any], models: Sequence[Architecture]) -> dict[str, Any]:
    """What is asked of one of several models: all but what is for others alone."""

    def takes(each: Architecture, name: str) -> bool:
        return name in (*applicable(each), *each.field_names(), *each.DERIVED)

    return {
        name: value
        for name, value in question.items()
        if takes(model, name) or not any(takes(each, name) for each in models)
    }


def _machines(on: Any) -> list[Machine]:
    """The machines of a question, by name or as `machine_of` takes them. Raises CostModelError."""
    several = list(on) if isinstance(on, list | tuple) else [on]
    return [machine_of(machine) for machine in several if machine is not None and machine != "none"]


def _only(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise SettingError(f"{name}={shown(value)}: a page has one; give one value")
        return value[0]
    return value


def _names(controls: Controls) -> dict[str, str]:
    """What each size is called in formulas."""
    symbols = [size.symbol for size in controls.sizes]
    return dict(zip((size.name for size in controls.sizes), identifiers(symbols), strict=True))


Exploration = tuple[Architecture, dict[str, Any], tuple[SliderSize, ...], tuple[Any, ...], dict[str, Any], Stack | None]


def _jobs(controls: Controls, stack: Stack | None) -> Iterable[tuple[str, Exploration]]:
    """For each combination of choices its key in the page, and what is to be explored."""
    optimizers = next((choice.values for choice in controls.choices if choice.name == "optimizer"), ())
    for picked in controls.combinations():
        places = [
            str(choice.values.index(picked[choice.name])) if choice.name in picked else ""
            for choice in controls.choices
            if choice.name != "optimizer"
        ]
        settings = {**controls.settings, **{name: value for name, value in picked.items() if name in SETTING_NAMES}}
        changed = {name: value for name, value in picked.items() if name not in SETTING_NAMES}
        offered = optimizers if controls.mode(picked) == "train" else ()
        if offered:
            settings["optimizer"] = offered[0]
        sizes = controls.sizes
        if controls.mode(picked) == "decode" and "past" not in controls.settings:
            sizes = tuple(size._replace(name=OF_DECODING.get(size.name, size.name)) for size in sizes)
        yield ",".join(places), (controls.model, settings, sizes, offered, changed, stack)


@uncollected()
def _explored(jobs: Sequence[Exploration]) -> list[Part | str]:
    """Of each combination what its formulas are and where they hold, or why there are none."""
    return [*map(_explored_one, jobs)]


def _explored_one(job: Exploration) -> Part | str:
    model, settings, sizes, optimizers, changed, stack = job
    forms = PageForms(model, settings, sizes, optimizers, changed, stack)
    try:
        forms.explore()
    except CostModelError as error:
        return str(error)
    return part_of(forms)


def _page(
    models: Sequence[tuple[str, Controls, Bundle, dict[str, str]]], devices: Sequence[Machine], laws: Laws
) -> Explorer:
    for _, controls, bundle, refused in models:
        if not bundle.trees:
            raise CostModelError(f"{controls.model.title}: {next(iter(refused.values()))}")
    data = [_described(name, controls, refused) for name, controls, _, refused in models]
    formulas = ",\n".join(bundle.formulas.script() for _, _, bundle, _ in models)
    kernels = {key: kernel for _, _, bundle, _ in models for key, kernel in bundle.kernels.items()}
    offered = [laws.machine(device, kernels) for device in devices]
    whole = {"models": data, "colours": COLOURS, "training": OF_A_STEP, "axes": AXES, "stack": laws.stack.name}
    tables = {"models": [bundle.data() for _, _, bundle, _ in models], "machines": offered}
    player = "null" if laws.runtime is None else script()
    html = page_of(whole, tables, formulas, f"[{','.join(laws.texts)}];\nconst LAYOUTS={player}")
    if (size := len(html.encode())) > LARGEST:
        raise SettingError(
            f"the page would have {size:,} bytes, of at most {LARGEST:,}: offer fewer models or values of settings"
        )
    on_page = [
        PageModel(
            model=controls.model.title,
            choices={choice.name: choice.labels for choice in controls.choices},
            sizes={size.name: (size.stops[0], size.stops[-1]) for size in controls.sizes},
            combinations=len(bundle.trees),
            refused=tuple(dict.fromkeys(refused.values())),
            fixed=controls.fixed,
            regimes=len(bundle.leaves),
            formulas=len(bundle.formulas.texts),
        )
        for _, controls, bundle, refused in models
    ]
    return Explorer(html, tuple(on_page))


def _described(name: str, controls: Controls, refused: Mapping[str, str]) -> dict[str, Any]:
    """One model for the page's script."""
    model = controls.model
    names = _names(controls)
    return {
        "title": model.title,
        "name": name,
        "kind": type(model).__name__,
        "notes": [f"{topic}: {sentence}" for topic, sentence in model.caveats],
        "fixed": {setting: label_of(value) for setting, value in controls.settings.items()},
        "entries": list(getattr(model, "sizes", ())) if not model.LETTERS else [],
        "sizes": [
            {**size._asdict(), "letter": names[size.name], "setting": _setting(size.name)} for size in controls.sizes
        ],
        "choices": [
            {
                "name": choice.name,
                "labels": choice.labels,
                "meaning": choice.meaning,
                "sources": [_source(choice.name, value) for value in choice.values],
                "setting": choice.name in SETTING_NAMES,
            }
            for choice in controls.choices
        ],
        "refused": refused,
    }


def _source(name: str, value: Any) -> str:
    """Where what is declared under a name is from; "" of all other values."""
    kind = {"optimizer": Optimizer, "precision": Precision}.get(name)
    return kind.of(value).source if kind else ""


def _setting(size: str) -> str:
    """The setting that a size is of; "" of a field."""
    return size.partition(".")[0] if size.partition(".")[0] in SETTING_NAMES else ""


def page_of(data: Any, tables: Any, formulas: str, laws: str) -> str:
    """The page's HTML. The data cannot end its element, and the policy lets nothing but the page's own scripts run.

    tables: those of each model and machine, which are packed with the formulas, as they would be most of the page.
    """
    script = "\n".join(
        [
            '"use strict";',
            _part("unpack.js"),
            _part("formulas.js"),
            _part("page.js"),
            "start();",
        ]
    )
    code = f'"use strict";const FORMULAS=[{formulas}];\nconst LAWS={laws};'
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    listed = json.dumps(tables, separators=(",", ":"), ensure_ascii=True)
    deflater = compressobj(9, wbits=-MAX_WBITS)
    packed = deflater.compress(f"{code}\0{listed}".encode("ascii")) + deflater.flush()
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    parts = {"DATA": text, "PACKED": b64encode(packed).decode(), "SCRIPT": script}
    body = re.sub(r"\[\[([A-Z]+)\]\]", lambda mark: parts[mark[1]], _part("page.html"))
    return document(body, script, code)


def document(body: str, *scripts: str) -> str:
    """A page in the explorer's style, which lets nothing but these scripts run."""
    style = _part("page.css")
    allowed = {"script-src": scripts, "style-src": [style]}
    policy = [" ".join([what, *(f"'sha256-{_digest(each)}'" for each in own)]) for what, own in allowed.items() if own]
    return DOCUMENT.format(policy="; ".join(policy), style=style, body=body)


@cache
def _part(name: str) -> str:
    return (files("costmodel.explorer") / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    """SHA-256 as a content security policy writes it."""
    return b64encode(sha256(text.encode()).digest()).decode()
