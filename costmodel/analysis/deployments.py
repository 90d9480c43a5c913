"""Which layout serves a decoder best: all degrees over so many devices, each at as many requests as targets allow."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple, Unpack

from costmodel.architectures.transformer import Transformer
from costmodel.display.answer import Ranking, Sheet
from costmodel.display.table import Table
from costmodel.display.units import read_amount, show_amount, show_bytes
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.hardware.cluster import ClusterLike, LinkLike, load_cluster
from costmodel.performance.serving import SERVED, Arrivals, Load, Serving, decoder, serve, serving_question
from costmodel.symbolic.sizes import divisors
from costmodel.training.engines import Engine
from costmodel.training.fields import Probability, whole_size
from costmodel.training.keywords import ServedSettings

MOST_SERVED = 1_000_000
"""Devices that layouts of serving are gone through for."""
MOST_SHOWN = 10
"""Rows of the table, and layouts that are worked out however slow they are."""
LONGEST_REASON = 150
PRECISION = 0.01
"""Share of the requests of a rank that its most are found to."""
WORTH = ("tokens/s", "per token", "first token", "at once", "memory", "waiting", "more would break")
"""Columns of the table that a narrow page has first in front."""
PARTS = {
    "prompts": "reading prompts",
    "computing": "computing",
    "waiting": "waiting of devices for each other",
    "engine": "of the engine",
    "host": "waiting for the host",
    "queueing": "behind other groups in the stages",
}
"""What a request's time goes to, see `Serving.parts`, in words."""


class RankedDeployment(NamedTuple):
    """One layout: its degrees, what serves so, its load at the most requests that fit and meet the targets, to 1 %.

    binds: what more requests would break: "memory", "engine", "ttft" or "tpot".
    """

    degrees: dict[str, int]
    serving: Serving
    load: Load
    binds: str

    @property
    def text(self) -> str:
        """The degrees above one, in words."""
        return in_words(self.degrees)

    def reason(self, best: RankedDeployment) -> str:
        """Why it serves fewer tokens a second than the best, in a phrase; "" of the best itself.

        Where it takes as many requests, what else each goes to is said of as many as the best has.
        """
        if self.degrees == best.degrees:
            return ""
        most, goal = best.load.concurrency, self.load
        fewer = goal.concurrency < most
        if fewer and self.binds in ("memory", "engine"):
            room = (
                f"{'memory has room' if self.binds == 'memory' else 'its engine is'} for {goal.concurrency:,} requests"
            )
            return f"{room} at a time, not {most:,}"
        if fewer and self.binds == "ttft":
            later = self.serving.at(most).time_to_first_token - best.load.time_to_first_token
            return f"the first token of {most:,} requests would come {show_amount(later, 's', 3)} later"
        own, others = self.serving.parts(most), best.serving.parts(most)
        more = {name: (own[name] - others[name]) / self.serving.output for name in PARTS}
        name = max(more, key=lambda name: more[name])
        if more[name] <= 0:
            return f"it is as fast with {most:,} requests at a time, of which the best has more"
        return f"{show_amount(more[name], 's', 3)} a token more {PARTS[name]}, of {most:,} requests at a time"

    def __repr__(self) -> str:
        return f"{self.degrees}: {self.load}, bound by {self.binds}"


class Closest(NamedTuple):
    """The layout that misses a target, or memory, by least: what it takes with one request for each rank [s, bytes]."""

    degrees: dict[str, int]
    value: float


@dataclass(frozen=True, repr=False)
class Deployments(Ranking[RankedDeployment]):
    """Layouts of serving that fit and meet the targets, ranked by tokens a second of all devices; true if any does.

    title: the model's. question: without degrees and targets. machine: its name. devices: in all. ttft,
    tpot: the most seconds to the first token, and for each of the others; None: any. entries: ranked. missed: how many
    layouts serve no request within the targets or memory, by what they miss. refused: how many cannot be, by reason.
    slower: how many others serve less, as bounds show. closest: of what
    is missed, who misses it by least. within: of those at most such a share slower than the best the simplest is named.

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
    slower: int = 0
    closest: dict[str, Closest] = field(default_factory=dict)
    within: float = 0.05

    def _reason(self) -> str:
        return f"no layout of {self.title} over {self.devices} devices serves so: {self._missed()}"

    @property
    def simplest(self) -> RankedDeployment:
        """Of those at most `within` slower than the best the one with fewest axes. Raises SettingError if none is."""
        least = (1 - self.within) * self.best.load.tokens_per_second
        near = [entry for entry in self.entries if entry.load.tokens_per_second >= least]
        return min(near, key=lambda entry: sum(degree > 1 for degree in entry.degrees.values()))

    def _missed(self) -> str:
        parts = [self._closest(name) for name in self.missed]
        parts += [reason for reason, _ in Counter(self.refused).most_common(1)] if not parts else []
        return "; ".join(parts)[:LONGEST_REASON]

    def _closest(self, name: str) -> str:
        """By how little it is missed."""
        count, (degrees, value) = self.missed[name], self.closest[name]
        many, own = (f"{count:,} layouts", "") if count > 1 else ("1 layout", "s")
        of = f"{in_words(degrees)} with" if count > 1 else "with"
        if name == "memory":
            return f"{many} lack{own} memory, {of} {show_bytes(int(value))} a device at least"
        return f"{many} miss{own and 'es'} {name}, {of} {show_amount(value, 's', 3)} at least"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layout: degrees, requests at a time, latencies [s], tokens a second, memory [bytes]."""
        return [
            {
                **entry.degrees,
                "binds": entry.binds,
                **entry.load._asdict(),
                "largest": entry.serving.largest,
                "reason": entry.reason(self.best),
            }
            for entry in self.entries
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the question, then a row for each layout."""
        names = ("title", "question", "machine", "devices", "ttft", "tpot", "missed", "refused", "slower")
        return {
            **{name: getattr(self, name) for name in names},
            "closest": {name: closest._asdict() for name, closest in self.closest.items()},
            "deployments": self.rows(),
        }

    def sheet(self) -> Sheet:
        """A line for each of the first layouts, the best first, and why the others of these serve less."""
        goals = [f"{name} at most {show_amount(goal, 's')}" for name, goal in self._goals() if goal is not None]
        head = [", ".join([self.question, *goals])]
        first = self.entries[:MOST_SHOWN]
        rows = [
            (
                *(str(entry.degrees[axis]) for axis in SERVED),
                f"{entry.load.concurrency:,}",
                f"{entry.load.tokens_per_second:,.0f}",
                show_amount(entry.load.time_to_first_token, "s"),
                show_amount(entry.load.time_per_token, "s"),
                show_amount(entry.load.exposed, "s") if entry.load.exposed else "-",
                show_bytes(entry.load.memory),
                entry.binds,
            )
            for entry in first
        ]
        header = (*SERVED, "at once", "tokens/s", "first token", "per token", "waiting", "memory", "more would break")
        warnings = self.best.serving.without_units if self.entries else [f"no layout serves so: {self._missed()}"]
        notes = [f"{n}, {entry.text}: {entry.reason(self.best)}" for n, entry in enumerate(first[1:], 2)]
        if self.entries and (simplest := self.simplest) is not self.best:
            notes.append(f"the simplest within {self.within:.0%} of the best: {simplest.text}")
        if len(self.entries) > MOST_SHOWN:
            notes.append(f"{len(self.entries) - MOST_SHOWN:,} more serve less, and are worked out (rows)")
        if self.slower:
            notes.append(f"{self.slower:,} more serve less, if targets allow any, as bounds on what they serve show")
        notes += [self._closest(name) for name in self.missed] if self.entries else []
        notes += [f"{count} cannot be: {reason}" for reason, count in self.refused.items()]
        if rows:
            notes.append("waiting: of a decode step, that devices wait for each other")
        cluster = next((entry.serving.cluster for entry in self.entries if entry.serving.cluster is not None), None)
        notes += [f"cluster: {cluster.joins(self.devices)}"] if cluster is not None else []
        tables = [Table(header, rows, words=frozenset({10}), key=len(SERVED), worth=WORTH)] if rows else []
        return Sheet(head, tables, warnings, notes)

    def _goals(self) -> tuple[tuple[str, float | None], ...]:
        return ("first token", self.ttft), ("each other token", self.tpot)


def in_words(degrees: Mapping[str, int]) -> str:
    """Degrees above one, such as "tp 4, dp 2"."""
    return ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one device"


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


class LayoutAtMost:
    """A layout on the way to its load of most requests that fit and meet the targets, worked out as far as needed.

    With more requests no step is faster. So it serves no more than as many as targets may allow with the steps of as
    few as are known to meet them, or of one.
    """

    def __init__(self, degrees: dict[str, int], serving: Serving, goals: Mapping[str, float]) -> None:
        self.degrees = degrees
        self.serving = serving
        self.goals = goals
        self.missed = "" if serving.largest else "memory"
        self.least = 0.0
        """Of what is missed: the value."""
        self.best: Load | None = None
        """That meets the targets; None: none is known to."""
        self.binds = ""
        self.done = bool(self.missed)
        """Whether its requests are as many as they can be."""
        self._low, self._little, self._much = 0, 0.0, 0.0
        if self.missed:
            self.least = float(serving.standing_bytes + serving.request_bytes)
            return
        self._high = serving.largest // serving.layout.dp
        self.most = self._served(self._high, serving.least_latency(self._high * serving.layout.dp))
        """Tokens a second that it serves at most, or serves where it is done."""

    def _served(self, requests: int, latency: float) -> float:
        """Tokens a second of so many on each rank."""
        return requests * self.serving.layout.dp * self.serving.output / latency

    def _at(self, requests: int) -> tuple[Load, float, str]:
        """Of so many on each rank: the load, and the largest share of a target that it takes, with its name."""
        load = self.serving.at(requests * self.serving.layout.dp)
        values = {"ttft": load.time_to_first_token, "tpot": load.time_per_token}
        share, name = max(((values[name] / goal, name) for name, goal in self.goals.items()), default=(0.0, ""))
        return load, share, name

    def narrow(self) -> None:
        """Try one more number of requests: the most that fit, one, then between what meets the targets and what not."""
        if not self.binds:
            load, self._much, self.binds = self._at(self._high)
            if self._much <= 1:
                self._finish(load, "engine" if self._high == self.serving.engine.sequences else "memory")
            return
        if not self._low:
            load, self._little, missed = self._at(1)
            if self._little > 1:
                self.missed, self.least, self.done = missed, self._little * self.goals[missed], True
                return
            self._low, self.best = 1, load
        else:
            low, high = self._low, self._high
            guess = low + (high - low) * (1 - self._little) / (self._much - self._little)
            middle = min(max(round(guess), low + 1, low + (high - low) // 16), high - 1, high - (high - low) // 16)
            load, share, name = self._at(middle)
            if share <= 1:
                self._low, self.best, self._little = middle, load, share
            else:
                self._high, self._much, self.binds = middle, share, name
        assert self.best is not None
        if self._high - self._low <= max(1, PRECISION * self._low):
            self._finish(self.best, self.binds)
            return
        ranks = self.serving.layout.dp
        low, high = (self.serving.parts(n * ranks)["prompts"] for n in (self._low, self._high))
        self.most = min(self.most, self._served(self._high, self.best.latency + high - low))

    def _finish(self, load: Load, binds: str) -> None:
        self.best, self.binds, self.done, self.most = load, binds, True, load.tokens_per_second


def _ranked(candidates: list[LayoutAtMost], within: float | None) -> list[LayoutAtMost]:
    """Those that serve most, in order: the first ones, and all at most so much slower; None: all.

    The one that may serve most is always next, so that those are never narrowed down that are slower in any case.
    """
    ranked: list[LayoutAtMost] = []
    heap = [(-candidate.most, number) for number, candidate in enumerate(candidates) if not candidate.missed]
    heapify(heap)
    while heap:
        most, number = -heap[0][0], heap[0][1]
        if within is not None and len(ranked) >= MOST_SHOWN and most < (1 - within) * ranked[0].most:
            break
        candidate = candidates[number]
        if not candidate.done:
            candidate.narrow()
            heapreplace(heap, (-candidate.most, number))
            continue
        heappop(heap)
        if not candidate.missed:
            ranked.append(candidate)
    return ranked


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
    within: Probability = 0.05,
    every: bool = False,
    progress: Callable[[int, int], None] = lambda done, count: None,
    **settings: Unpack[ServedSettings],  # type: ignore[misc]
) -> Deployments:
    """The layouts that serve a decoder on so many devices best, ranked by tokens a second within latency targets.

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
        within: those are worked out that are at most so much slower than the best, of which the simplest is named; and
            the ten fastest.
        every: whether all others that serve are worked out too, instead of being counted as slower.
        progress: told how many layouts are looked at, and of how many.
        **settings: as `serve` takes them; degrees that are given stay.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.deployments("llama-3.1-70b", devices=8, on="h100-sxm", input=512, output=64, tp=8)
        >>> [entry.serving.where for entry in found]
        ['8 × h100-sxm (tp 8)']

    """
    transformer = decoder(model, settings.pop("over", None))
    if whole_size("devices", devices) > MOST_SERVED:
        raise SettingError(f"devices={shown(devices)}: layouts of serving are gone through for {MOST_SERVED:,} at most")
    targets = {"ttft": ttft, "tpot": tpot}
    goals = {name: read_amount(goal, name, "s") for name, goal in targets.items() if goal is not None}
    fixed = {n: whole_size(n, value) for n, value in settings.items() if n in SERVED and value is not None}
    others: dict[str, Any] = {name: value for name, value in settings.items() if name not in SERVED}
    cluster = load_cluster(on, network) if devices > 1 else None
    refused: Counter[str] = Counter()
    question: dict[str, Any] = {"on": on, "network": network} if cluster is None else {"on": cluster}
    question |= {"input": input, "output": output, "engine": engine, "arrivals": arrivals, "price": price, **others}
    first: CostModelError | None = None
    candidates: list[LayoutAtMost] = []
    every_degrees = [*_degrees(transformer, devices, 1 if cluster is None else cluster.size, fixed)]
    for done, degrees in enumerate(every_degrees):
        progress(done, len(every_degrees))
        try:
            serving = serve(transformer, **question, **{name: n for name, n in degrees.items() if n > 1})  # type: ignore[arg-type]
            candidates.append(LayoutAtMost(degrees, serving, goals))
        except CostModelError as error:
            refused[str(error)[:LONGEST_REASON]] += 1
            first = first or error
    if not candidates:
        words = ", ".join(f"{name}={value}" for name, value in fixed.items())
        raise first or SettingError(f"no layout of devices={devices} has {words}: use degrees that divide them")
    ranked = _ranked(candidates, None if every else within)
    missed = [candidate for candidate in candidates if candidate.missed]
    closest: dict[str, Closest] = {}
    for candidate in missed:
        if candidate.missed not in closest or candidate.least < closest[candidate.missed].value:
            closest[candidate.missed] = Closest(candidate.degrees, candidate.least)
    any_of = candidates[0].serving
    where = f"{devices:,} × {any_of.machine.name}"
    how = serving_question(transformer, where, any_of.settings, input, output, any_of.engine)
    return Deployments(
        transformer.title,
        f"{how}, requests {arrivals}",
        any_of.machine.name,
        devices,
        goals.get("ttft"),
        goals.get("tpot"),
        tuple(RankedDeployment(c.degrees, c.serving, c.best, c.binds) for c in ranked if c.best is not None),
        dict(Counter(candidate.missed for candidate in missed)),
        dict(refused),
        len(candidates) - len(ranked) - len(missed),
        closest,
        within,
    )
