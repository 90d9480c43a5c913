"""Which layout serves a decoder best: all degrees over so many devices, each at as many requests as targets allow."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from costmodel.architectures.base import divisors
from costmodel.architectures.transformer import Transformer
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import read_amount, show_amount, show_bytes
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.hardware.cluster import ClusterLike, LinkLike, load_cluster
from costmodel.performance.serving import SERVED, Arrivals, Load, Serving, decoder, serve, serving_question
from costmodel.training.engines import Engine
from costmodel.training.fields import whole_size
from costmodel.training.keywords import ServedSettings

MOST_SERVED = 4096
"""Devices that layouts of serving are gone through for."""
LONGEST_REASON = 150
PRECISION = 0.01
"""Share of the requests of a rank that its most are found to."""
WORTH = ("tokens/s", "per token", "first token", "at once", "memory", "waiting", "more would break")
"""Columns of the table that a narrow page has first in front."""


class RankedDeployment(NamedTuple):
    """One layout: its degrees, what serves so, its load at the most requests that fit and meet the targets, to 1 %.

    binds: what more requests would break: "memory", "engine", "ttft" or "tpot".
    """

    degrees: dict[str, int]
    serving: Serving
    load: Load
    binds: str


@dataclass(frozen=True, repr=False)
class Deployments(Answer):
    """Layouts of serving that fit and meet the targets, ranked by tokens a second of all devices; true if any does.

    title: the model's. question: without degrees and targets. machine: its name. devices: in all. ttft,
    tpot: the most seconds to the first token, and for each of the others; None: any. entries: ranked. missed: how many
    layouts serve no request within the targets or memory, by what they miss. refused: how many cannot be, by reason.

    Example:
        >>> import costmodel as cm
        >>> found = cm.deployments("llama-3.1-8b", devices=2, on="h100-sxm", input=1024, output=128, tpot=0.02)
        >>> found.best.degrees["dp"], found.best.binds
        (2, 'tpot')

    """

    title: str
    question: str
    machine: str
    devices: int
    ttft: float | None
    tpot: float | None
    entries: tuple[RankedDeployment, ...]
    missed: dict[str, int]
    refused: dict[str, int]

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[RankedDeployment]:
        return iter(self.entries)

    @property
    def best(self) -> RankedDeployment:
        """The layout of most tokens a second. Raises SettingError if there is none."""
        if not self.entries:
            raise SettingError(f"no layout of {self.title} over {self.devices} devices serves so: {self._missed()}")
        return self.entries[0]

    def _missed(self) -> str:
        every = Counter(self.missed) + Counter(self.refused)
        return ", ".join(f"{count} {reason}" for reason, count in every.most_common(3))[:LONGEST_REASON]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layout: degrees, requests at a time, latencies [s], tokens a second, memory [bytes]."""
        return [
            {**entry.degrees, "binds": entry.binds, **entry.load._asdict(), "largest": entry.serving.largest}
            for entry in self.entries
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the question, then a row for each layout."""
        names = ("title", "question", "machine", "devices", "ttft", "tpot", "missed", "refused")
        return {**{name: getattr(self, name) for name in names}, "deployments": self.rows()}

    def sheet(self) -> Sheet:
        """A line for each layout, the best first."""
        goals = [f"{name} at most {show_amount(goal, 's')}" for name, goal in self._goals() if goal is not None]
        head = [", ".join([self.question, *goals])]
        rows = [
            (
                *(str(entry.degrees[axis]) for axis in SERVED),
                f"{entry.load.concurrency:,}",
                f"{entry.load.tokens_per_second:,.0f}",
                show_amount(entry.load.time_to_first_token, "s"),
                show_amount(entry.load.time_per_token, "s"),
                show_amount(entry.load.exposed, "s"),
                show_bytes(entry.load.memory),
                entry.binds,
            )
            for entry in self.entries
        ]
        header = (*SERVED, "at once", "tokens/s", "first token", "per token", "waiting", "memory", "more would break")
        warnings = [] if self.entries else [f"no layout serves so: {self._missed()}"]
        notes = [f"{what}: missed by {count} more" for what, count in self.missed.items()]
        notes += [f"{count} cannot be: {reason}" for reason, count in self.refused.items()]
        notes.append("waiting: of a decode step, that devices wait for each other")
        return Sheet(
            head,
            [Table(header, rows, words=frozenset({10}), key=len(SERVED), worth=WORTH)] if rows else [],
            warnings,
            notes,
        )

    def _goals(self) -> tuple[tuple[str, float | None], ...]:
        return ("first token", self.ttft), ("each other token", self.tpot)


def _degrees(model: Transformer, devices: int, node: int, fixed: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Degrees whose product is the devices: tp within a node unless it is fixed, ep over some ranks of dp or none."""
    for tp in [fixed["tp"]] if "tp" in fixed else [n for n in divisors(devices) if n <= node]:
        for pp in [fixed["pp"]] if "pp" in fixed else divisors(max(1, devices // tp)):
            copies = devices // (tp * pp)
            if tp * pp * copies != devices or fixed.get("dp", copies) != copies:
                continue
            split = [1] if model.experts is None else divisors(copies)
            for ep in [fixed["ep"]] if "ep" in fixed else split:
                yield {"tp": tp, "ep": ep, "pp": pp, "dp": copies}


def _most(serving: Serving, ttft: float | None, tpot: float | None) -> tuple[Load, str] | str:
    """The load of most requests that fit and meet the targets, and what more would break; or what none meets."""

    goals = {"ttft": ttft, "tpot": tpot}

    def taken(requests: int) -> tuple[Load, float, str]:
        """Of each rank: the load, and the largest share of a goal that it takes, with its name."""
        load = serving.at(requests * serving.layout.dp)
        values = {"ttft": load.time_to_first_token, "tpot": load.time_per_token}
        share, name = max(
            ((values[name] / goal, name) for name, goal in goals.items() if goal is not None), default=(0.0, "")
        )
        return load, share, name

    if not serving.largest:
        return "memory"
    low, high = 1, serving.largest // serving.layout.dp
    last, much, why = taken(high)
    if much <= 1:
        return last, "engine" if high == serving.engine.sequences else "memory"
    best, little, missed = taken(low)
    if little > 1:
        return missed
    while high - low > max(1, PRECISION * low):
        guess = low + (high - low) * (1 - little) / (much - little)
        middle = min(max(round(guess), low + 1, low + (high - low) // 16), high - 1, high - (high - low) // 16)
        load, share, name = taken(middle)
        if share <= 1:
            low, best, little = middle, load, share
        else:
            high, much, why = middle, share, name
    return best, why


@typed
def deployments(
    model: Transformer | str,
    *,
    devices: int,
    on: ClusterLike,
    input: int,
    output: int,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    network: LinkLike = None,
    engine: str | Engine | Mapping[str, Any] | os.PathLike[str] | None = None,
    arrivals: Arrivals = "steady",
    price: float | None = None,
    **settings: Unpack[ServedSettings],  # type: ignore[misc]
) -> Deployments:
    """Every layout that serves a decoder on so many devices, ranked by tokens a second within latency targets.

    Args:
        model: as `predict` takes it.
        devices: in all.
        on: a machine or a cluster, as `Prediction.on` takes it.
        input: tokens of a prompt.
        output: tokens that a request asks for.
        ttft: most seconds to the first token, or text such as "500 ms" (default: any).
        tpot: most seconds for each other token, or text such as "50 ms" (default: any).
        network: of one adapter between nodes, such as "400 Gb/s", in place of the cluster's.
        engine: as `serve` takes it.
        arrivals: "steady", a new request whenever one is done, or "together".
        price: of an hour of one device.
        **settings: as `serve` takes them; degrees that are given stay.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.deployments("llama-3.1-70b", devices=8, on="h100-sxm", input=512, output=64, tp=8)
        >>> [entry.serving.where for entry in found]
        ['8 x h100-sxm (tp 8)']

    """
    transformer = decoder(model, settings.pop("over", None))
    if whole_size("devices", devices) > MOST_SERVED:
        raise SettingError(f"devices={shown(devices)}: layouts of serving are gone through for {MOST_SERVED:,} at most")
    first_token = None if ttft is None else read_amount(ttft, "ttft", "s")
    others_each = None if tpot is None else read_amount(tpot, "tpot", "s")
    fixed = {n: whole_size(n, value) for n, value in settings.items() if n in SERVED and value is not None}
    others: dict[str, Any] = {name: value for name, value in settings.items() if name not in SERVED}
    cluster = load_cluster(on, network) if devices > 1 else None
    entries: list[RankedDeployment] = []
    missed: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    question: dict[str, Any] = {"on": on, "network": network} if cluster is None else {"on": cluster}
    question |= {"input": input, "output": output, "engine": engine, "arrivals": arrivals, "price": price, **others}
    first: CostModelError | None = None
    for degrees in _degrees(transformer, devices, 1 if cluster is None else cluster.size, fixed):
        try:
            serving = serve(transformer, **question, **{name: n for name, n in degrees.items() if n > 1})  # type: ignore[arg-type]
            most = _most(serving, first_token, others_each)
        except CostModelError as error:
            refused[str(error)[:LONGEST_REASON]] += 1
            first = first or error
            continue
        if isinstance(most, str):
            missed[most] += 1
        else:
            entries.append(RankedDeployment(degrees, serving, *most))
    if not entries and not missed:
        words = ", ".join(f"{name}={value}" for name, value in fixed.items())
        raise first or SettingError(f"no layout of devices={devices} has {words}: use degrees that divide them")
    entries.sort(key=lambda entry: -entry.load.tokens_per_second)
    any_of = entries[0].serving if entries else serve(transformer, **question)
    where = f"{devices:,} x {any_of.machine.name}"
    how = serving_question(transformer, where, any_of.settings, input, output, any_of.engine)
    return Deployments(
        transformer.title,
        f"{how}, requests {arrivals}",
        any_of.machine.name,
        devices,
        first_token,
        others_each,
        tuple(entries),
        dict(missed),
        dict(refused),
    )
