"""Prompts read on some devices, tokens made on others: what is sent between them, and how many of each keep pace.

Source: Zhong et al. 2024, DistServe (OSDI); Patel et al. 2024, Splitwise (ISCA).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import read_amount, show_amount, show_bytes
from costmodel.documents.arguments import typed
from costmodel.errors import SettingError, shown
from costmodel.hardware.cluster import Cluster, LinkLike, load_cluster
from costmodel.performance.communication import CollectiveModel
from costmodel.performance.constants import typical
from costmodel.performance.deployment import Deployment
from costmodel.performance.serving import Load, Serving, serving_question
from costmodel.training.settings import LAYOUT_NAMES


class Pools(NamedTuple):
    """Devices in two pools. requests_per_second: of both together; tokens_per_second: output of all devices.

    prefill, decode: groups of devices of each; idle: devices that are in neither. bound: the pool that has no more
    to give, "prefill" or "decode".
    """

    prefill: int
    decode: int
    idle: int
    requests_per_second: float
    tokens_per_second: float
    bound: str


@typed
@dataclass(frozen=True, eq=False, repr=False)
class Disaggregated(Answer):
    """Prefill and decode apart.

    prefill, decode: how a group of devices of each pool serves the model; of the first prompts count alone, of the
    second all other tokens. concurrency: requests that a group decodes at a time. devices: in all; None: as many as are
    asked for later. tpot: the most seconds of a token that were asked for; None: any. network: of one adapter between
    the pools, in place of their clusters'.

    Example:
        >>> import costmodel as cm
        >>> load = {"on": "h100-sxm", "input": 2048, "output": 256, "engine": "vllm"}
        >>> four, eight = (cm.serve("llama-3.1-70b", tp=tp, **load) for tp in (4, 8))
        >>> apart = cm.disaggregated(four, eight, concurrency=64)
        >>> apart.over(32).prefill, apart.over(32).decode
        (4, 2)

    """

    prefill: Serving
    decode: Serving
    concurrency: int
    devices: int | None = None
    tpot: float | None = None
    network: LinkLike = None

    def __post_init__(self) -> None:
        _ = self.clusters  # what is no network is refused here

    @cached_property
    def clusters(self) -> tuple[Cluster, Cluster]:
        """What the devices of each pool are of; a single device, of the other pool's if that has the same machine."""
        one, other = self.prefill, self.decode
        alike = (one.cluster or other.cluster) if one.machine == other.machine else None
        ready = (pool.cluster or alike or load_cluster(pool.machine) for pool in (one, other))
        return tuple(load_cluster(each, self.network) for each in ready)  # type: ignore[return-value]

    @cached_property
    def prefill_rate(self) -> float:
        """Requests a second whose prompts a group of the first pool reads, one after the other."""
        together = max(1, self.prefill.engine.chunk // self.prefill.input)
        return self.prefill.layout.dp * together / self.prefill.prompt_seconds(together).slowest

    @cached_property
    def decode_rate(self) -> float:
        """Requests a second that a group of the second pool is done with."""
        return self.concurrency / (max(1, self.decode.output - 1) * self.time_per_token)

    @cached_property
    def time_per_token(self) -> float:
        """Of a request, after its first [s]."""
        return self.decode.token_seconds(self.concurrency)

    @cached_property
    def sent_bytes(self) -> int:
        """Keys and values of a prompt that the decoding devices are sent, all of them together [bytes]."""
        return sum(self._received) * self.decode.layout.tp

    @cached_property
    def _received(self) -> list[int]:
        """What a device of each stage is sent, with keys and values of the model that drafts [bytes]."""
        sent = [self._cached(self.decode.deployment)]
        if self.decode.drafting is not None:
            sent.append(self._cached(self.decode.drafting))
        return [sum(caches) for caches in zip(*sent, strict=True)]

    def _cached(self, deployment: Deployment) -> list[int]:
        """Keys and values of a prompt on a device of each stage [bytes]."""
        ranks = deployment.ranks("decode", 1, past=self.decode.input - 1)
        return [rank.memory.cache for rank, count in ranks for _ in range(count)]

    @cached_property
    def transfer_seconds(self) -> float:
        """Until a prompt's keys and values are there, sent by each device of its group over its own adapter [s].

        Of the share of a device that sends and that of one that receives, each over its own network, the longer.
        """
        senders = self.prefill.layout.tp * self.prefill.layout.pp
        shares = -(-self.sent_bytes // senders), max(self._received)
        return max(_send_seconds(cluster, share) for cluster, share in zip(self.clusters, shares, strict=True))

    @cached_property
    def time_to_first_token(self) -> float:
        """Of a request that no other is before, with what is sent [s]."""
        return self.prefill.prompt_seconds(1).seconds + self.transfer_seconds

    @property
    def ratio(self) -> float:
        """Groups that read prompts for each that decodes, where both keep pace."""
        return self.decode_rate / self.prefill_rate

    @typed
    def over(self, devices: int) -> Pools:
        """The pools of so many devices that serve most requests a second. Raises SettingError if they are too few."""
        own, others = self.prefill.devices, self.decode.devices
        if devices < own + others:
            raise SettingError(f"devices={shown(devices)} are fewer than the {own} and {others} of a group of each")
        balanced = devices / (self.ratio * own + others)  # groups that decode, if parts of groups could
        near = (int(balanced), int(balanced) + 1)
        counts = [n for n in near if n >= 1 and n * others + own <= devices]
        pools = [self._pools(devices, (devices - n * others) // own, n) for n in counts or [1]]
        return max(pools, key=lambda pool: (pool.requests_per_second, pool.idle))

    def _pools(self, devices: int, prefill: int, decode: int) -> Pools:
        rate = min(prefill * self.prefill_rate, decode * self.decode_rate)
        idle = devices - prefill * self.prefill.devices - decode * self.decode.devices
        bound = "prefill" if prefill * self.prefill_rate < decode * self.decode_rate else "decode"
        return Pools(prefill, decode, idle, rate, rate * self.decode.output, bound)

    @cached_property
    def pools(self) -> Pools | None:
        """Those of the devices that were asked for."""
        return None if self.devices is None else self.over(self.devices)

    @cached_property
    def together(self) -> Load:
        """What as many requests get where a group that decodes reads their prompts too, between other steps."""
        return replace(self.decode, arrivals="steady").at(self.concurrency)

    @property
    def question(self) -> str:
        """What is served, where and how prompts are read, in one line."""
        read = self.prefill
        where = f"{read.where} (prompts) and {self.decode.where} (tokens)"
        return serving_question(read.model, where, read.settings, read.input, read.output, read.engine)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s, bytes, requests/s]."""
        names = ("concurrency", "prefill_rate", "decode_rate", "ratio", "sent_bytes", "transfer_seconds")
        return {
            "question": self.question,
            "model": self.decode.model.title,
            "prefill": self.prefill.where,
            "decode": self.decode.where,
            **{name: getattr(self, name) for name in (*names, "time_to_first_token", "time_per_token", "tpot")},
            "devices": self.devices,
            "pools": None if self.pools is None else self.pools._asdict(),
            "together": self.together._asdict(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [self.to_dict()]

    def sheet(self) -> Sheet:
        """Both pools, what is sent, and how many keep pace."""
        read, made = self.prefill, self.decode
        head = [self.question]
        if _how(read) != _how(made):
            head.append(f"tokens: {made.question}")
        if (pools := self.pools) is not None:
            idle = f", {pools.idle:,} idle" if pools.idle else ""
            head.append(
                f"{self.devices:,} devices: {pools.prefill:,} groups of {read.devices:,} read prompts, "
                f"{pools.decode:,} of {made.devices:,} decode{idle}: {pools.requests_per_second:,.3g} requests/s, "
                f"{pools.tokens_per_second:,.0f} tokens/s ({pools.bound} binds)"
            )
        if self.tpot is not None:
            head.append(f"each other token at most {show_amount(self.tpot, 's')}: {self.concurrency:,} at a time")
        rows = [
            ("prompts of a group", f"{self.prefill_rate:,.3g} requests/s"),
            (f"decoding of a group, {self.concurrency:,} at a time", f"{self.decode_rate:,.3g} requests/s"),
            ("groups of prompts for one that decodes", f"{self.ratio:.3g}"),
            ("sent of a prompt", show_bytes(self.sent_bytes)),
            ("until it is there", show_amount(self.transfer_seconds, "s")),
            ("first token, with that", show_amount(self.time_to_first_token, "s")),
            ("per token", show_amount(self.time_per_token, "s")),
            ("per token, were prompts read between", show_amount(self.together.time_per_token, "s")),
        ]
        notes = [
            f"a group that decodes would serve {self.together.requests_per_second:,.3g} requests/s if it read "
            f"prompts too, with {self.concurrency:,} at a time",
            "DistServe (Zhong et al. 2024), Splitwise (Patel et al. 2024): each device sends over its own adapter",
        ]
        return Sheet(head, [Table(("disaggregated", ""), rows, words=frozenset({0, 1}))], notes=notes)


def _how(pool: Serving) -> tuple[Any, ...]:
    """Settings and engine, without degrees."""
    own = {name: value for name, value in pool.settings.items() if name not in LAYOUT_NAMES}
    return own, pool.engine


def _send_seconds(cluster: Cluster, size: int) -> float:
    """From a device of one node to one of another [s]."""
    model = CollectiveModel(cluster, typical(cluster.machine))
    return float(model.time("send", float(size), cluster.group("pp", 2, cluster.size)).seconds)


@typed
def disaggregated(
    prefill: Serving,
    decode: Serving,
    *,
    concurrency: int | None = None,
    tpot: float | str | None = None,
    devices: int | None = None,
    network: LinkLike = None,
) -> Disaggregated:
    """A model whose prompts are read by other devices than those that make its tokens.

    Args:
        prefill: how a group of devices that reads prompts would serve it, as `serve` answers.
        decode: how a group of those that decode would.
        concurrency: requests that a group decodes at a time (default: the most that fit, within `tpot`).
        tpot: most seconds for each token but the first, or text such as "50 ms" (default: any).
        devices: in all, shared out so that they serve most; also `over` (default: none are shared out).
        network: of one adapter between the pools, such as "400 Gb/s", in place of their clusters'.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> served = cm.serve("llama-3.1-8b", on="h100-sxm", input=4096, output=256, engine="vllm")
        >>> apart = cm.disaggregated(served, served, concurrency=64)
        >>> apart.sent_bytes, 0.1 < apart.ratio < 10
        (536870912, True)

    """
    for name, of in (("model", lambda s: s.model.title), ("input", lambda s: s.input), ("output", lambda s: s.output)):
        if of(prefill) != of(decode):
            raise SettingError(f"{name} {shown(of(prefill))} of prefill is not the {shown(of(decode))} of decode")
    if prefill.settings.get("cache_precision") != decode.settings.get("cache_precision"):
        raise SettingError("cache_precision of prefill is not that of decode: keys and values are sent as they are")
    if prefill.drafts != decode.drafts:
        raise SettingError("drafts of prefill are not those of decode, which is sent that model's keys and values too")
    if prefill.pool_bytes < 0:
        raise SettingError(f"prefill: {prefill.binds}")
    most = decode.largest
    if not most:
        raise SettingError(f"decode: {decode.binds}")
    if concurrency is not None and concurrency > most:
        raise SettingError(
            f"concurrency={shown(concurrency)}: decode takes {most:,} requests at a time ({decode.binds})"
        )
    goal = None if tpot is None else read_amount(tpot, "tpot", "s")
    if concurrency is None:
        concurrency = most if goal is None else _most_within(decode, most, goal)
    answer = Disaggregated(prefill, decode, concurrency, devices, goal, network)
    if goal is not None and answer.time_per_token > goal:
        many = "a request" if concurrency == 1 else f"{concurrency:,} requests"
        raise SettingError(
            f"tpot={shown(tpot)}: a token takes {show_amount(answer.time_per_token, 's', 3)} with {many} at a time: "
            "give fewer, a longer tpot, or decode with more devices"
        )
    _ = answer.transfer_seconds, answer.pools  # what cannot be is refused here
    return answer


def _most_within(decode: Serving, most: int, goal: float) -> int:
    """Requests at a time whose tokens take no longer, as many on each rank; one on each where none are."""
    ranks = decode.layout.dp
    fewer = bisect_right(range(1, most // ranks + 1), goal, key=lambda n: decode.token_seconds(n * ranks))
    return max(1, fewer) * ranks
