"""Serving a decoder from one device: time to first token, time a token, tokens a second, by concurrency."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Unpack

from costmodel.architectures.transformer import Transformer
from costmodel.cost.costs import Costs
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_amount, show_bytes
from costmodel.documents.arguments import Bounds, Positive, typed
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.hardware.cluster import ClusterLike, machine_of
from costmodel.hardware.machine import Machine
from costmodel.importers.files import settings_of
from costmodel.performance.constants import typical
from costmodel.performance.time import Time
from costmodel.training.declaration import built
from costmodel.training.engines import KERNELS, Engine
from costmodel.training.fields import check_fields, whole_size
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.keywords import ServedSettings
from costmodel.training.setting import plain
from costmodel.training.settings import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrivals = Literal["together", "steady"]
"""together: requests of a batch start at once, and end at once. steady: whoever is done is followed by a new request,
whose prefill goes between the others' steps."""


MOST_CHUNKS = 1_000
"""Steps that a prompt is read in."""
MOST_LOADS = 1_000
"""Numbers of requests at a time that are asked for at once."""


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
    together; tokens_per_second_user: of one, once its first token is there. memory: that is in use. bound: what a
    decode step waits for. money_per_million: for a million output tokens, where a price is given.
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


class EngineStep(NamedTuple):
    """A step of kernels: of the device, and of the host that starts them [s]; what it waits for."""

    device: float
    host: float
    bound: str


@typed
@dataclass(frozen=True, eq=False)
class Serving(Answer):
    """How a machine serves a model: `loads` by concurrency, up to the largest that fits or those asked for.

    model: the decoder. machine: what it runs on. engine: what serves it. input, output: tokens of a prompt, and of an
    answer. settings: of `predict`, that serving takes. arrivals: "together" or "steady". drafts: of speculative
    decoding. price: of an hour of the machine. concurrencies: numbers of requests at a time; None: doublings.

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

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """By concurrency."""
        return tuple(self.at(n) for n in self.concurrencies or _doublings(max(1, self.largest)))

    @typed
    def at(self, concurrency: int) -> Load:
        """What so many requests at a time get, whether they fit or not."""
        whole_size("concurrency", concurrency)
        first, rest = self._prefill(concurrency), self.output - 1
        step = self._decode(concurrency)
        if self.arrivals == "together":
            latency = first + rest * step
        else:  # every request waits for the prefills of all others, one after another
            alone = self._prefill(1)
            first, latency = alone + step / 2 * (concurrency > 1), concurrency * alone + rest * step
        each = (latency - first) / rest if rest else 0.0
        rate = concurrency * self.output / latency
        money = None if self.price is None else self.price / 3600 / rate * 1e6
        memory = self.standing_bytes + concurrency * self.request_bytes
        return Load(
            concurrency, first, each, latency, 1 / each if each else self.output / latency, rate, concurrency / latency,
            memory, concurrency <= self.largest, self._step(concurrency, self.input + self.output // 2).bound, money,
        )  # fmt: skip

    @cached_property
    def request_bytes(self) -> int:
        """What one request keeps when its last token is made, in whole pages [bytes]."""
        own = self._kept(self.model)
        return own + (0 if self._drafting is None else self._kept(self._drafting))

    def _kept(self, model: Transformer) -> int:
        return self._predicted(model, "decode", 1, past=self.input + self.output - 1).memory.cache

    @cached_property
    def standing_bytes(self) -> int:
        """Weights, constants and what the largest prefill step needs beside what it keeps [bytes]."""
        step = self._predicted(self.model, "prefill", 1, seq=min(self.input, self.engine.chunk))
        count = max(1, self.engine.chunk // self.input) if self.engine.sequences > 1 else 1
        step = self._predicted(self.model, "prefill", count, seq=step.batch_shape.seq) if count > 1 else step
        weights = step.memory.weights + step.memory.buffers + step.memory.inputs + step.memory.temporaries
        if self._drafting is not None:
            weights += self._predicted(self._drafting, "decode", 1, past=self.input).memory.weights
        return weights

    @cached_property
    def pool_bytes(self) -> int:
        """What is left for keys and values [bytes]; negative where the model itself does not fit."""
        return int(self.engine.utilisation * self.machine.memory) - self.standing_bytes

    @cached_property
    def largest(self) -> int:
        """The most requests at a time that fit; 0 if none does."""
        return max(0, min(self.engine.sequences, self.pool_bytes // self.request_bytes))

    @property
    def binds(self) -> str:
        """What limits the concurrency."""
        if not self.largest:
            return f"nothing fits: it takes {show_bytes(self.standing_bytes + self.request_bytes)}"
        if self.largest == self.engine.sequences:
            return f"{self.engine.name} takes at most {self.engine.sequences} requests at a time"
        return f"memory: a request keeps {show_bytes(self.request_bytes)}"

    @cached_property
    def knee(self) -> Load:
        """The load from which more throughput costs the most time a token: the point farthest above the chord.

        Of throughput over time a token, both from 0 to 1 (Satopää et al. 2011, Kneedle, §II).
        """
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
        time = self._time(self.model, "decode", concurrency, past=self.input + self.output // 2)
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
        vars(other)["_steps"] = self._steps  # what kernels take does not depend on it
        return other

    def _kernel_share(self, concurrency: int) -> float:
        """Share of a decode step that is its kernels'."""
        step = self._step(concurrency, self.input + self.output // 2)
        return min(1.0, self.engine.speed * step.device / self._seconds(step, concurrency, self.model))

    def _prefill(self, requests: int) -> float:
        """Until the prompts of so many requests are read [s], in steps of as many tokens as the engine takes."""
        chunk = self.engine.chunk
        together = min(requests, max(1, chunk // self.input))
        times, rest = divmod(requests, together)
        return times * self._read(together) + (self._read(rest) if rest else 0.0)

    def _read(self, requests: int) -> float:
        """The prompts of so many requests, in one step or in chunks, of which each goes on where the last stopped."""
        total, past = 0.0, 0
        while past < self.input:
            tokens = min(self.engine.chunk, self.input - past)
            sizes: dict[str, Any] = {"seq": tokens} | ({"past": past} if past else {})
            total += self._seconds(self._kernels(self.model, "prefill", requests, **sizes), requests, self.model)
            past += tokens
        return total

    def _decode(self, requests: int) -> float:
        """A token of each request [s]: the mean over a request's steps, by Simpson's rule over its tokens."""
        first, last = self.input, self.input + self.output - 1
        ends = [self._token(requests, past) for past in (first, (first + last) // 2, last)]
        return (ends[0] + 4 * ends[1] + ends[2]) / 6

    def _token(self, requests: int, past: int) -> float:
        drafts = self.drafts
        verified = self._seconds(self._step(requests, past), requests, self.model)
        if drafts is None or self._drafting is None:
            return verified
        draft = self._kernels(self._drafting, "decode", requests, past=past)
        own = replace(self.engine, step=0.0, sequence=0.0)
        one = own.seconds(draft.device, draft.host, requests, int(self._drafting.layers))
        return (verified + drafts.count * one) / drafts.tokens

    def _step(self, requests: int, past: int) -> EngineStep:
        sizes = {"past": past} | ({} if self.drafts is None else {"speculative": self.drafts.count})
        return self._kernels(self.model, "decode", requests, **sizes)

    def _seconds(self, step: EngineStep, requests: int, model: Transformer) -> float:
        return self.engine.seconds(step.device, step.host, requests, int(model.layers))

    def _kernels(self, model: Transformer, mode: str, batch: int, **sizes: Any) -> EngineStep:
        key = (model.name, mode, batch, *sizes.items())
        if key not in self._steps:
            time = self._time(model, mode, batch, **sizes)
            phase = time.phases[0]
            self._steps[key] = EngineStep(phase.device_seconds, phase.host_seconds, time.bound)
        return self._steps[key]

    @cached_property
    def _steps(self) -> dict[Any, EngineStep]:
        return {}

    def _time(self, model: Transformer, mode: str, batch: int, **sizes: Any) -> Time:
        costs = self._predicted(model, mode, batch, **sizes)
        constants, unpack = typical(self.machine), self.engine.unpack
        constants = constants if unpack is None else constants.changed(unpack8=unpack, unpack4=unpack)
        return Time(costs, self.machine, self.engine.starts, "typical", constants)

    def _predicted(self, model: Transformer, mode: str, batch: int, **sizes: Any) -> Costs:
        cache: dict[str, Any] = {"cache": self.engine.cache}
        if self.engine.cache == "paged":
            cache["page_size"] = self.engine.page_size
        fused = _fusible(model, merged=self.engine.merged)
        own = {"latent_attention": "absorbed" if mode == "decode" else "expanded"} | self.settings
        if "attention" not in own:
            own["attention"] = "efficient" if model.latent is not None or model.positions == "relative" else "flash"
        else:
            fused = model  # the kernels of PyTorch that were asked for
        return Costs.of(fused, **{"mode": mode, "batch": batch, **cache, **own, **sizes})  # type: ignore[arg-type]

    @cached_property
    def _drafting(self) -> Transformer | None:
        return None if self.drafts is None else decoder(self.drafts.model)

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
        precision = self.settings["precision"]
        title = (
            f"{self.model.title} on {self.machine.name}, {self.engine.name}, "
            f"{getattr(precision, 'name', precision)}, input {self.input:,}, output {self.output:,} tokens: "
            "requests at a time"
        )
        return save(curve(marks, "time per token [ms]", "output [tokens/s]", title, "knee", dark=dark), path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s, bytes, tokens/s]."""
        return {
            "model": self.model.title,
            "machine": self.machine.name,
            "engine": plain(self.engine),
            "input": self.input,
            "output": self.output,
            "arrivals": self.arrivals,
            "settings": {name: plain(value) for name, value in self.settings.items()},
            "price": self.price,
            "largest": self.largest,
            "binds": self.binds,
            "knee": self.knee.concurrency,
            "loads": [load._asdict() for load in self.loads],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each concurrency."""
        return [load._asdict() for load in self.loads]

    def sheet(self) -> Sheet:
        """Loads by concurrency."""
        precision = self.settings["precision"]
        head = [
            f"{self.model.title} on {self.machine.name}, engine {self.engine.name}, "
            f"{getattr(precision, 'name', precision)}: input {self.input:,}, output {self.output:,} tokens",
            f"at most {self.largest:,} requests at a time ({self.binds})",
            f"knee: {self.knee.concurrency:,} at a time, {self.knee.tokens_per_second:,.0f} tokens/s, "
            f"{show_amount(self.knee.time_per_token, 's')} per token",
        ]
        priced = [] if self.price is None else ["per 1M tokens"]
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
        table = Table((*header, *priced), rows, words=frozenset({7}), spare=(7, 6))
        warnings = [] if self.largest else [f"it does not fit {show_bytes(self.machine.memory)}: {self.binds}"]
        return Sheet(head, [table], warnings, self._notes())

    def _notes(self) -> list[str]:
        low, high = self.interval(self.loads[0].concurrency)
        notes = [
            f"range: a request of {self.loads[0].concurrency} at a time takes {show_amount(low, 's', 3)} to "
            f"{show_amount(high, 's', 3)} in about four of five measured runs",
            f"engine: {self.engine.source}",
            "arrivals: " + _ARRIVALS[self.arrivals],
        ]
        if self.drafts is not None:
            notes.append(
                f"drafts: {self.drafts.count} a step, kept with a chance of {self.drafts.acceptance:g}: "
                f"{self.drafts.tokens:.2f} tokens a step (Leviathan et al. 2023, eq. 1)"
            )
        if self.price is not None:
            notes.append(f"price: {self.price:g} an hour of the device; for a million output tokens")
        if _fusible(self.model) is not self.model and "attention" not in self.settings:
            notes.append("attention: fused; its sinks or soft cap, a few operations a score, are left out")
        return notes

    def __repr__(self) -> str:
        return f"<Serving {self.model.title} on {self.machine.name}: up to {self.largest} at a time>"


_ARRIVALS: dict[Arrivals, str] = {
    "together": "requests of a batch start at once; the first token is there when all prompts are read",
    "steady": "whoever is done is followed by a new request, whose prompt is read between the others' steps",
}


def _fusible(model: Transformer, *, merged: bool = False) -> Transformer:
    """The model as an engine runs it: fused attention without what PyTorch's own has no place for.

    merged: with one product for query, key and value.
    """
    changes: dict[str, Any] = {} if model.score_cap is None else {"score_cap": None}
    if model.sinks:
        changes["sinks"] = False
    if merged and not model.fused_qkv and model.latent is None and model.key_bias:
        changes["fused_qkv"] = True
    return model.with_fields(changes) if changes else model


def _doublings(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    numbers = [1]
    while numbers[-1] * 2 < most:
        numbers.append(numbers[-1] * 2)
    return [*numbers, most] if most > numbers[-1] else numbers


def decoder(model: Any) -> Transformer:
    """A model that makes tokens. Raises CostModelError."""
    if isinstance(model, str | os.PathLike):
        from costmodel.importers.zoo import load

        model = load(model)
    if not isinstance(model, Transformer) or not model.causal or model.head is None:
        title = getattr(model, "title", model)
        raise SettingError(f"{type(model).__name__} {title!r} is no decoder of tokens: serve one such as llama-3.1-8b")
    return model


@typed
def serve(
    model: Transformer | str,
    *,
    on: ClusterLike,
    input: int,
    output: int,
    engine: str | Engine | Mapping[str, Any] | os.PathLike[str] | None = None,
    concurrency: int | Iterable[int] | None = None,
    arrivals: Arrivals = "together",
    drafts: Drafts | Mapping[str, Any] | None = None,
    price: float | None = None,
    **settings: Unpack[ServedSettings],
) -> Serving:
    """Time to first token, time a token and tokens a second of a decoder on one device, by concurrency.

    Args:
        model: as `predict` takes it.
        on: a machine, as `Prediction.on` takes it.
        input: tokens of a prompt.
        output: tokens that a request asks for.
        engine: a ready engine's name such as "vllm", an `Engine`, its fields or a file of them; None: kernels alone.
        concurrency: requests at a time, one number or several (default: doublings up to the largest that fits).
        arrivals: "together", a batch at once, or "steady", a new request whenever one is done.
        drafts: speculative decoding: `Drafts` or its fields, as in {"model": "llama-3.2-1b", "count": 4,
            "acceptance": 0.8}.
        price: of an hour of the device, for money a million output tokens.
        **settings: precision ("bf16" unless given), attention, cache_precision and latent_attention, as in `predict`.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> served = cm.serve("llama-3.1-8b", on="h100-sxm", input=1024, output=256, engine="vllm")
        >>> served.largest
        359

    """
    transformer = decoder(model)
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
    own: dict[str, Any] = {"precision": "bf16", **settings}
    read = settings_of({**own, "mode": "inference"})
    own = {name: getattr(read, name) for name in own}
    engine = KERNELS if engine is None else Engine.of(engine)
    if input > MOST_CHUNKS * engine.chunk:
        raise SettingError(
            f"input={input} in steps of {engine.chunk:,} tokens, the engine's chunk, is over {MOST_CHUNKS:,} steps: "
            "use a larger chunk"
        )
    serving = Serving(
        transformer, machine_of(on), engine, input, output,
        own, arrivals, drafting, None if price is None else float(price), concurrencies,
    )  # fmt: skip
    _ = serving.largest, serving._drafting  # what is wrong with a setting is said now
    return serving
