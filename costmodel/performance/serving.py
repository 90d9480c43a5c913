"""Serving a decoder: time to first token, time a token, tokens a second, by concurrency."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Unpack

from costmodel.architectures.transformer import Transformer
from costmodel.cost.question import question
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_amount, show_bytes
from costmodel.documents.arguments import Bounds, Positive, typed
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.hardware.cluster import Cluster, ClusterLike, LinkLike, load_cluster, machine_of
from costmodel.hardware.machine import Machine
from costmodel.importers.files import settings_of
from costmodel.performance.calibration import Calibration, calibration_of
from costmodel.performance.deployment import Deployment, EngineStep, HeldBytes, TimedPass, attention_served, fusible
from costmodel.training.declaration import built
from costmodel.training.engines import KERNELS, Engine
from costmodel.training.fields import check_fields, whole_size
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.keywords import ServedSettings
from costmodel.training.layout import Layout
from costmodel.training.precision import PRECISIONS, Precision
from costmodel.training.setting import plain
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrivals = Literal["together", "steady"]
"""together: requests of a batch start at once, and end at once. steady: whoever is done is followed by a new request,
whose prefill goes between the others' steps."""


SERVED = ("tp", "ep", "pp", "dp")
"""Degrees of serving, as titles name them."""
MOST_CHUNKS = 1_000
"""Steps that a prompt is read in."""
MOST_LOADS = 1_000
"""Numbers of requests at a time that are asked for at once."""
WORTH = ("price of 1M", "tokens/s, all", "per token", "first token", "memory", "request", "tokens/s, one", "bound")
"""Columns of the table of loads that a narrow page has first in front."""
STORED_FP8 = (PRECISIONS["fp8-w8a8"], Precision("fp8-w8a16", "bf16", quantised="fp8", scale="fp32"))
"""What "fp8" stands for where a model serves: weights cast once; the second on machines without units for 8 bits."""


@frozen()
class Drafts(Frozen):
    """Speculative decoding (Leviathan et al. 2023): a small model drafts tokens, the large one verifies all at once.

    model: drafts. count: drafts a step, γ. acceptance: chance that a draft is kept, α.

    Example:
        >>> import costmodel as cm
        >>> drafts = cm.Drafts("llama-3.2-1b", count=4, acceptance=0.8)
        >>> round(drafts.tokens, 2)  # a step
        3.36

    """

    model: str | Transformer
    count: Annotated[int, Bounds("a whole number from 1 to 64", 1, 64)] = 4
    acceptance: Annotated[float, Bounds("a chance from 0 to 1", 0, 1)] = 0.8

    def __post_init__(self) -> None:
        try:
            check_fields(self, "drafts")
        except CostModelError as error:
            raise SettingError(str(error)) from None

    @property
    def tokens(self) -> float:
        """Tokens that a step makes on average, (1 − α^(γ+1))/(1 − α) (eq. 1)."""
        if self.acceptance == 1:
            return self.count + 1.0
        return (1 - self.acceptance ** (self.count + 1)) / (1 - self.acceptance)


class Load(NamedTuple):
    """What so many requests at a time get [s, tokens/s, bytes].

    time_per_token: between a request's tokens. latency: of a whole request. tokens_per_second: output of all requests
    together; tokens_per_second_user: of one, once its first token is there. memory: that is in use, on the device that
    has least to spare. bound: what a decode step waits for. money_per_million: for a million output tokens, where a
    price is given. exposed: of a decode step that devices wait for each other.
    """

    concurrency: int
    time_to_first_token: float
    time_per_token: float
    latency: float
    tokens_per_second_user: float
    tokens_per_second: float
    requests_per_second: float
    memory: int
    fits: bool
    bound: str
    money_per_million: float | None
    exposed: float = 0.0


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Serving(Answer):
    """How a machine serves a model: `loads` by concurrency, up to the largest that fits or those asked for.

    model: the decoder. machine: what it runs on. engine: what serves it. input, output: tokens of a prompt, and of an
    answer. settings: of `predict`, that serving takes. arrivals: "together" or "steady". drafts: of speculative
    decoding. price: of an hour of one device. concurrencies: numbers of requests at a time; None: doublings. cluster:
    what joins several devices. calibration: constants that were measured on the machine.

    Example:
        >>> import costmodel as cm
        >>> served = cm.serve("llama-3.1-8b", on="h100-sxm", input=1024, output=256, concurrency=[1, 32])
        >>> [load.concurrency for load in served.loads]
        [1, 32]
        >>> served.at(1).tokens_per_second < served.at(32).tokens_per_second
        True

    """

    model: Transformer
    machine: Machine
    engine: Engine
    input: int
    output: int
    settings: dict[str, Any]
    arrivals: Arrivals = "together"
    drafts: Drafts | None = None
    price: float | None = None
    concurrencies: tuple[int, ...] | None = None
    cluster: Cluster | None = None
    calibration: Calibration | None = None

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """By concurrency."""
        return tuple(self.at(n) for n in self.concurrencies or _doublings(max(1, self.largest)))

    @cached_property
    def layout(self) -> Layout:
        """Over all devices."""
        return settings_of({**self.settings, "mode": "inference"}).layout

    @property
    def devices(self) -> int:
        """That serve together."""
        return self.layout.devices

    @cached_property
    def deployment(self) -> Deployment:
        """The model on the devices that one copy of it takes: the others are the same, with requests of their own."""
        return self._deployed(self.model, **{name: getattr(self.layout, name) for name in ("tp", "pp", "ep")})

    def _deployed(self, model: Transformer, **degrees: int) -> Deployment:
        degrees = {name: degree for name, degree in degrees.items() if degree > 1}
        if "ep" in degrees:
            degrees["dp"] = degrees["ep"]
        own = {name: value for name, value in self.settings.items() if name not in LAYOUT_NAMES} | degrees
        return Deployment(model, self.machine, self.cluster if degrees else None, self.engine, own, self.calibration)

    @typed
    def at(self, concurrency: int) -> Load:
        """What so many requests at a time get, whether they fit or not."""
        whole_size("concurrency", concurrency)
        requests, rest = self._share(concurrency), self.output - 1
        first, prompts = self._prompts(requests)
        step = self._decode(requests)
        latency = prompts + rest * step
        if self.arrivals == "steady":
            first += step / 2 * (requests > 1)
        each = (latency - first) / rest if rest else 0.0
        rate = concurrency * self.output / latency
        money = None if self.price is None else self.devices * self.price / 3600 / rate * 1e6
        steps = self._steps(requests, self.input + self.output // 2)
        slowest = max(steps, key=lambda step: step.device + step.exposed)
        return Load(
            concurrency, first, each, latency, 1 / each if each else self.output / latency, rate, concurrency / latency,
            max(held.standing + requests * held.request for held in self._held), concurrency <= self.largest,
            slowest.bound, money, sum(step.exposed for step in steps),
        )  # fmt: skip

    @typed
    def parts(self, concurrency: int) -> dict[str, float]:
        """What the latency of a request among so many goes to [s].

        prompts: reading, its own and others'. Of its other tokens: computing; waiting, of devices for each other;
        engine: what it adds to steps; host: where kernels wait for it; queueing: for other groups in the stages;
        drafting, where drafts are made.
        """
        requests, rest = self._share(whole_size("concurrency", concurrency)), self.output - 1
        parts = {name: rest * seconds for name, seconds in self._decode_parts(requests).items()}
        return {"prompts": self._prompts(requests)[1], **parts}

    @typed
    def least_latency(self, concurrency: int) -> float:
        """Of a request among so many at least [s]: their prompts, and its tokens as fast as those of one by itself."""
        alone = sum(self._token(1, self.input).values())
        return self._prompts(self._share(concurrency))[1] + (self.output - 1) * alone

    def _prompts(self, requests: int) -> tuple[float, float]:
        """Until a request's own prompt is read, and all prompts that are read while it is there [s]."""
        if self.arrivals == "together":
            seconds = self._prefill(requests)
            return seconds, seconds
        alone = self._read(1)  # every request waits for the prefills of all others, one after another
        return alone.seconds, alone.times(requests)

    def _share(self, concurrency: int) -> int:
        """Requests of the rank that has most of them."""
        return -(-concurrency // self.layout.dp)

    @cached_property
    def _held(self) -> list[HeldBytes]:
        """What devices of each stage hold."""
        held = self.deployment.held(self.input + self.output, self.input)
        if self.drafting is None:
            return held
        own = self.drafting.held(self.input + self.output, self.input)
        weights = self.drafting.predicted("decode", 1, past=self.input).memory.weights
        return [HeldBytes(a.standing + weights, a.request + b.request) for a, b in zip(held, own, strict=True)]

    @cached_property
    def _fullest(self) -> HeldBytes:
        """What the devices hold that have room for the fewest requests."""
        return min(self._held, key=lambda held: (self._room(held) // held.request, -held.standing))

    def _room(self, held: HeldBytes) -> int:
        return int(self.engine.utilisation * self.machine.memory) - held.standing

    @property
    def request_bytes(self) -> int:
        """What one request keeps on a device when its last token is made, in whole pages [bytes]."""
        return self._fullest.request

    @property
    def standing_bytes(self) -> int:
        """Weights, constants and what the largest prefill step needs beside what it keeps, on a device [bytes]."""
        return self._fullest.standing

    @property
    def pool_bytes(self) -> int:
        """What is left on a device for keys and values [bytes]; negative where the model itself does not fit."""
        return self._room(self._fullest)

    @cached_property
    def largest(self) -> int:
        """The most requests at a time that fit; 0 if none does."""
        return self.layout.dp * max(0, min(self.engine.sequences, self.pool_bytes // self.request_bytes))

    @property
    def where(self) -> str:
        """The devices, and how the model is laid out over them, in words."""
        if self.devices == 1:
            return self.machine.name
        degrees = ", ".join(f"{name} {degree}" for name in SERVED if (degree := getattr(self.layout, name)) > 1)
        return f"{self.devices:,} × {self.machine.name} ({degrees})"

    @property
    def question(self) -> str:
        """What is served, where and how, in one line."""
        how = serving_question(self.model, self.where, self.settings, self.input, self.output, self.engine)
        return f"{how}, requests {self.arrivals}"

    @property
    def binds(self) -> str:
        """What limits the concurrency."""
        if not self.largest:
            return f"nothing fits: it takes {show_bytes(self.standing_bytes + self.request_bytes)}"
        each = f" on each of {self.layout.dp} ranks" if self.layout.dp > 1 else ""
        if self.largest == self.layout.dp * self.engine.sequences:
            return f"{self.engine.name} takes at most {self.engine.sequences} requests at a time{each}"
        return f"memory: a request keeps {show_bytes(self.request_bytes)}"

    @cached_property
    def knee(self) -> Load | None:
        """The load from which more throughput costs the most time a token: the point farthest above the chord.

        Of throughput over time a token, both from 0 to 1 (Satopää et al. 2011, Kneedle, §II). None if nothing fits.
        """
        if not self.largest:
            return None
        loads, (least, most) = self.loads, (self.loads[0], self.loads[-1])
        slower, more = most.time_per_token - least.time_per_token, most.tokens_per_second - least.tokens_per_second
        if slower <= 0 or more <= 0:
            return max(loads, key=lambda load: load.tokens_per_second)
        return max(
            loads,
            key=lambda load: (
                (load.tokens_per_second - least.tokens_per_second) / more
                - (load.time_per_token - least.time_per_token) / slower
            ),
        )

    @typed
    def interval(self, concurrency: int) -> tuple[float, float]:
        """The range of a request's latency that about four of five measured runs fall into [s].

        It is as wide as that of a decode step's kernels; what the engine adds is taken as it is.
        """
        deployed, past = self.deployment, self.input + self.output // 2
        time = deployed.time(deployed.predicted("decode", self._share(concurrency), past=past))
        latency, share = self.at(concurrency).latency, self._kernel_share(concurrency)
        low, high = (1 + share * (end / time.seconds - 1) for end in (time.low, time.high))
        return latency * low, latency * high

    @typed
    def fitted(
        self, concurrency: int = 1, *, latency: Positive | None = None, tokens_per_second: Positive | None = None
    ) -> Engine:
        """The engine with a speed of kernels at which one measured run comes out: a latency [s], or output tokens/s.

        Raises SettingError where what the engine adds alone takes longer, or kernels would take a thousand times as
        long as predicted.
        """
        if (latency is None) == (tokens_per_second is None):
            raise SettingError("fitted takes one measured figure: latency [s] or tokens_per_second")
        goal = concurrency * self.output / tokens_per_second if latency is None else latency  # type: ignore[operator]
        low, high = 1e-3, 999.0
        if self._with_speed(low).at(concurrency).latency > goal:
            raise SettingError(
                f"engine {self.engine.name!r} alone takes longer than the {goal:.4g} s measured: give another engine"
            )
        if self._with_speed(high).at(concurrency).latency < goal:
            raise SettingError(
                f"the {goal:.4g} s measured are more than {high:,.0f} times the predicted: they are of something else"
            )
        for _ in range(60):
            middle = (low * high) ** 0.5
            slower = self._with_speed(middle).at(concurrency).latency > goal
            low, high = (low, middle) if slower else (middle, high)
        return replace(self.engine, speed=high)

    def _with_speed(self, speed: float) -> Serving:
        other = replace(self, engine=replace(self.engine, speed=speed))
        vars(other).update(deployment=self.deployment, drafting=self.drafting)  # which do not depend on it
        return other

    def _kernel_share(self, concurrency: int) -> float:
        """Share of a decode step that is its kernels', and what they wait for."""
        requests, past = self._share(concurrency), self.input + self.output // 2
        kernels = sum(self.engine.speed * step.device + step.exposed for step in self._steps(requests, past))
        return min(1.0, kernels / self._passage(requests, past).seconds)

    @typed
    def prompt_seconds(self, requests: int) -> TimedPass:
        """Until the prompts of so many requests of one rank are read together, and until the next may follow [s]."""
        return self._read(whole_size("requests", requests))

    @typed
    def token_seconds(self, concurrency: int) -> float:
        """A token of each of so many requests, without prompts between them [s]."""
        return self._decode(self._share(whole_size("concurrency", concurrency)))

    def _prefill(self, requests: int) -> float:
        """Until the prompts of so many requests are read [s], in steps of as many tokens as the engine takes."""
        together = min(requests, max(1, self.engine.chunk // self.input))
        times, rest = divmod(requests, together)
        return self._read(together).times(times) + (self._read(rest).slowest if rest else 0.0)

    def _read(self, requests: int) -> TimedPass:
        """The prompts of so many requests, in one step or in chunks, of which each goes on where the last stopped.

        A model that drafts reads each after the other model has: it needs keys and values of its own.
        """
        total, past = TimedPass(0.0, 0.0), 0
        while past < self.input:
            tokens = min(self.engine.chunk, self.input - past)
            sizes: dict[str, Any] = {"seq": tokens} | ({"past": past} if past else {})
            total += self.deployment.passage(self.engine, requests, "prefill", **sizes)
            if self.drafting is not None:
                total += self.drafting.passage(self._drafting_engine, requests, "prefill", **sizes)
            past += tokens
        return total

    def _decode(self, requests: int) -> float:
        """A token of each request [s]: the mean over a request's steps."""
        return sum(self._decode_parts(requests).values())

    def _decode_parts(self, requests: int) -> dict[str, float]:
        """What that goes to, by Simpson's rule over a request's tokens."""
        first, last = self.input, self.input + self.output - 1
        ends = [self._token(requests, past) for past in (first, (first + last) // 2, last)]
        return {name: (ends[0][name] + 4 * ends[1][name] + ends[2][name]) / 6 for name in ends[0]}

    def _token(self, requests: int, past: int) -> dict[str, float]:
        """What a token goes to [s]; see `parts`.

        Groups of requests follow each other through stages: a token comes when its group has passed, or all have.
        """
        engine, groups = self.engine, min(self.layout.pp, requests)
        passage, steps = self._passage(requests, past), self._steps(requests, past)
        parts = {
            "computing": sum(engine.speed * step.device for step in steps),
            "waiting": sum(step.exposed for step in steps),
            "engine": engine.added_seconds(self._sizes(requests, past)[0]),
            "queueing": max(0.0, groups * passage.slowest - passage.seconds),
        }
        parts["host"] = max(0.0, passage.seconds - sum(parts[name] for name in ("computing", "waiting", "engine")))
        if self.drafts is None or self.drafting is None:
            return parts
        one = self.drafting.passage(self._drafting_engine, requests, "decode", past=past).seconds
        parts["drafting"] = self.drafts.count * one
        return {name: seconds / self.drafts.tokens for name, seconds in parts.items()}

    def _sizes(self, requests: int, past: int) -> tuple[int, dict[str, Any]]:
        """Of a decode step: requests of a group that goes through the stages, and what each finds."""
        drafts = {} if self.drafts is None else {"speculative": self.drafts.count}
        return -(-requests // self.layout.pp), {"past": past, **drafts}

    def _passage(self, requests: int, past: int) -> TimedPass:
        group, sizes = self._sizes(requests, past)
        return self.deployment.passage(self.engine, group, "decode", **sizes)

    def _steps(self, requests: int, past: int) -> tuple[EngineStep, ...]:
        group, sizes = self._sizes(requests, past)
        return self.deployment.steps("decode", group, **sizes)

    @property
    def _drafting_engine(self) -> Engine:
        """What runs the model that drafts: within a step of the other, so that none adds to its kernels again."""
        return replace(self.engine, step=0.0, sequence=0.0)

    @cached_property
    def drafting(self) -> Deployment | None:
        """The model that drafts, on the devices of one stage; None where none does."""
        return None if self.drafts is None else self._deployed(decoder(self.drafts.model), tp=self.layout.tp)

    @typed
    def plot(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """Tokens a second of all over time a token, with the knee; also written to `path`.

        Raises CostModelError without matplotlib (extra `plot`), or if `path` cannot be written.
        """
        from costmodel.display.figures import save
        from costmodel.display.scatter import Mark, curve

        marks = [
            Mark(1e3 * load.time_per_token, load.tokens_per_second, f"{load.concurrency:,}", load is self.knee)
            for load in self.loads
        ]
        title = f"{self.question}\nnumbers: requests at a time"
        return save(curve(marks, "time per token [ms]", "output [tokens/s]", title, "knee", dark=dark), path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s, bytes, tokens/s]."""
        return {
            "model": self.model.title,
            "machine": self.machine.name,
            "cluster": None if self.cluster is None else self.cluster.to_dict(),
            "devices": self.devices,
            "engine": plain(self.engine),
            "input": self.input,
            "output": self.output,
            "arrivals": self.arrivals,
            "settings": {name: plain(value) for name, value in self.settings.items()},
            "price": self.price,
            "largest": self.largest,
            "binds": self.binds,
            "knee": None if self.knee is None else self.knee.concurrency,
            "loads": [load._asdict() for load in self.loads],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each concurrency."""
        return [load._asdict() for load in self.loads]

    def sheet(self) -> Sheet:
        """Loads by concurrency."""
        head = [
            self.question,
            f"at most {self.largest:,} requests at a time ({self.binds})",
        ]
        if (knee := self.knee) is not None:
            head.append(
                f"knee: {knee.concurrency:,} at a time, {knee.tokens_per_second:,.0f} tokens/s, "
                f"{show_amount(knee.time_per_token, 's')} per token"
            )
        priced = [] if self.price is None else ["price of 1M"]
        header = ("at once", "first token", "per token", "request", "tokens/s, one", "tokens/s, all", "memory", "bound")
        rows = [
            (
                f"{load.concurrency:,}", show_amount(load.time_to_first_token, "s"),
                show_amount(load.time_per_token, "s"), show_amount(load.latency, "s"),
                f"{load.tokens_per_second_user:,.1f}", f"{load.tokens_per_second:,.1f}", show_bytes(load.memory),
                load.bound, *(() if load.money_per_million is None else (f"{load.money_per_million:.3f}",)),
            )
            for load in self.loads
        ]  # fmt: skip
        table = Table((*header, *priced), rows, words=frozenset({7}), worth=WORTH)
        warnings = [] if self.largest else [f"it does not fit {show_bytes(self.machine.memory)}: {self.binds}"]
        return Sheet(head, [table], [*warnings, *self.without_units], self._notes())

    @property
    def without_units(self) -> list[str]:
        """That the machine has no units for the type that products run in, if it has none."""
        settings = settings_of({"precision": self.settings["precision"], "mode": "inference"})
        return self.machine.without_units([settings.policy.operands])

    def _notes(self) -> list[str]:
        low, high = self.interval(self.loads[0].concurrency)
        calibration = self.calibration
        notes = [] if calibration is None else [f"calibrated: {', '.join(calibration.known)} as measured"]
        if self.settings["precision"] in STORED_FP8:
            notes.append("fp8: weights of linear layers are stored in 8 bits, not cast in every step")
        notes += [
            f"range: a request of {self.loads[0].concurrency} at a time takes {show_amount(low, 's', 3)} to "
            f"{show_amount(high, 's', 3)} in about four of five measured runs",
            f"engine: {self.engine.source}",
            *self._shared_notes(),
            "arrivals: " + _ARRIVALS[self.arrivals],
        ]
        if self.drafts is not None:
            notes.append(
                f"drafts: {self.drafts.count} a step, kept with a chance of {self.drafts.acceptance:g}: "
                f"{self.drafts.tokens:.2f} tokens a step (Leviathan et al. 2023, eq. 1)"
            )
        if self.price is not None:
            notes.append(f"price: {self.price:g} an hour of the device; for a million output tokens")
        if fusible(self.model) is not self.model and "attention" not in self.settings:
            notes.append("attention: fused; its sinks or soft cap, a few operations a score, are left out")
        return notes

    def _shared_notes(self) -> list[str]:
        """What devices do together."""
        if self.cluster is None:
            return []
        load, layout = self.loads[-1], self.layout
        notes = [f"cluster: {self.cluster.words(layout)}"]
        if load.exposed:
            of = "a request" if load.concurrency == 1 else f"{load.concurrency:,} requests"
            waited = show_amount(load.exposed, "s", 3)
            notes.append(f"devices wait {waited} of a decode step of {of} for each other")
        if layout.pp > 1:
            notes.append(f"pp: {layout.pp} groups of requests are in the stages at the same time")
        if layout.dp > 1:
            tokens = "send tokens to each other's experts" if layout.ep > 1 else "are copies of the model"
            notes.append(f"dp: requests are spread evenly over {layout.dp} ranks, which {tokens}")
        if self.model.latent is not None and layout.tp > 1:
            notes.append("tp: each rank has the whole latent cache")
        elif self.model.latent is None and layout.tp > self.model.key_heads:
            notes.append(
                f"tp: each of {self.model.key_heads} key heads is on {layout.tp // self.model.key_heads} ranks"
            )
        return notes


_ARRIVALS: dict[Arrivals, str] = {
    "together": "requests of a batch start at once; the first token is there when all prompts are read",
    "steady": "whoever is done is followed by a new request, whose prompt is read between the others' steps",
}


def serving_question(
    model: Transformer, where: str, settings: Mapping[str, Any], input: int, output: int, engine: Engine
) -> str:
    """What is served, where and how, in one line; but degrees, which are in `where`."""
    own = {**settings, "attention": attention_served(model, settings), "mode": "inference"}
    how = question(model, settings_of(own), (*_SIZES, *LAYOUT_NAMES)).removeprefix(f"{model.title}: ")
    return f"{model.title} on {where}: serving, input {input:,}, output {output:,} tokens, {how}, engine {engine.name}"


_SIZES = ("mode", "batch", "seq", "past", "on")
"""Settings of a pass, which serving chooses."""


def _doublings(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    numbers = [1]
    while numbers[-1] * 2 < most:
        numbers.append(numbers[-1] * 2)
    return [*numbers, most] if most > numbers[-1] else numbers


def decoder(model: Any, over: Mapping[str, Any] | None = None) -> Transformer:
    """A model that makes tokens, with other values for fields of it. Raises CostModelError."""
    if over is not None or isinstance(model, str | os.PathLike):
        from costmodel.importers.zoo import load

        model = load(model, over=over)
    if not isinstance(model, Transformer) or not model.causal or model.head is None:
        title = getattr(model, "title", model)
        raise SettingError(f"{type(model).__name__} {title!r} is no decoder of tokens: serve one such as llama-3.1-8b")
    return model


def _cluster(layout: Layout, on: ClusterLike, network: LinkLike) -> Cluster | None:
    """What joins the devices; None where there is one. Raises SettingError for a network that is not there."""
    if layout.devices == 1:
        if network is not None:
            raise SettingError(f"network={shown(network)} is between devices, of which there is one: leave it out")
        return None
    cluster = load_cluster(on, network)
    cluster.place(layout._replace(dp=layout.ep))  # copies of the model send each other nothing
    return cluster


@typed
def serve(
    model: Transformer | str,
    *,
    on: ClusterLike | Calibration,
    input: int,
    output: int,
    network: LinkLike = None,
    engine: str | Engine | Mapping[str, Any] | os.PathLike[str] | None = None,
    concurrency: int | Iterable[int] | None = None,
    arrivals: Arrivals = "together",
    drafts: Drafts | Mapping[str, Any] | None = None,
    price: float | None = None,
    **settings: Unpack[ServedSettings],
) -> Serving:
    """Time to first token, time a token and tokens a second of a decoder, by concurrency.

    Args:
        model: as `predict` takes it.
        on: a machine, a cluster or the file of a calibration, as `Prediction.on` takes it.
        input: tokens of a prompt.
        output: tokens that a request asks for.
        network: of one adapter between nodes, such as "400 Gb/s", in place of the cluster's.
        engine: a ready engine's name such as "vllm", an `Engine`, its fields or a file of them; None: kernels alone.
        concurrency: requests at a time, one number or several (default: doublings up to the largest that fits).
        arrivals: "together", a batch at once, or "steady", a new request whenever one is done.
        drafts: speculative decoding: `Drafts` or its fields, as in {"model": "llama-3.2-1b", "count": 4,
            "acceptance": 0.8}.
        price: of an hour of one device, for money a million output tokens.
        **settings: precision ("bf16" unless given; "fp8" stores weights so, see `STORED_FP8`), attention,
            cache_precision and latent_attention, as in `predict`; and over several devices tp, which split each layer,
            pp, which have a part of the blocks each, dp, which have requests of their own, ep of these, which each have
            some of the experts, and devices in all.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> served = cm.serve("llama-3.1-8b", on="h100-sxm", input=1024, output=256, engine="vllm")
        >>> served.largest
        359
        >>> cm.serve("llama-3.1-70b", on="h100-sxm", input=1024, output=256, engine="vllm", tp=8).devices
        8

    """
    transformer = decoder(model, settings.pop("over", None))
    names = [name for name, setting in SETTINGS.items() if setting.served]
    for name in settings:
        if name not in names:
            raise unknown("setting of serving", name, names)
    for name, value in (("input", input), ("output", output)):
        whole_size(name, value)
    if input + output > transformer.context:
        raise SettingError(
            f"input {input} and output {output} are beyond the context {transformer.context} of {transformer.title}: "
            f"use at most {transformer.context} together"
        )
    if price is not None and not 0 < price < 1e9:
        raise SettingError(f"price={shown(price)} is not money for an hour, such as 2.5")
    concurrencies = None
    if concurrency is not None:
        several = [concurrency] if isinstance(concurrency, int) else list(islice(concurrency, MOST_LOADS + 1))
        concurrencies = tuple(sorted({whole_size("concurrency", value) for value in several}))
        if not concurrencies:
            raise SettingError("concurrency is empty: give numbers of requests such as [1, 8, 64]")
        if len(several) > MOST_LOADS:
            raise SettingError(f"concurrency has more than {MOST_LOADS:,} values: give fewer, such as every tenth")
    drafting: Drafts | None = built(Drafts, drafts, "drafts") if isinstance(drafts, Mapping) else drafts
    calibration = calibration_of(on)
    base: Any = on if calibration is None else calibration.machine
    own: dict[str, Any] = {"precision": "bf16", **settings}
    if settings_of({"precision": own["precision"], "mode": "inference"}).policy is PRECISIONS["fp8"]:
        own["precision"] = STORED_FP8[machine_of(base).runs_in("fp8") != "fp8"]
    read = settings_of({**own, "mode": "inference"})
    own = {name: getattr(read, name) for name in own}
    engine = KERNELS if engine is None else Engine.of(engine)
    if input > MOST_CHUNKS * engine.chunk:
        raise SettingError(
            f"input={input} in steps of {engine.chunk:,} tokens, the engine's chunk, is over {MOST_CHUNKS:,} steps: "
            "use a larger chunk"
        )
    cluster = _cluster(read.layout, base, network)
    machine = machine_of(base) if cluster is None else cluster.machine
    if drafting is not None and read.layout.pp * read.layout.ep > 1:
        raise SettingError("drafts are not worked out with pp or ep: leave one of them out")
    serving = Serving(
        transformer, machine, engine, input, output,
        own, arrivals, drafting, None if price is None else float(price), concurrencies, cluster, calibration,
    )  # fmt: skip
    _ = serving.largest, serving.drafting  # what is wrong with a setting is said now
    return serving
