"""Seconds of collectives on a cluster: by algorithm and protocol, of which the library takes the fastest.

A collective takes its start, so many hops one after the other, and its bytes over the bandwidth that is reached. In
the three protocols that NCCL has, messages come with flags in every 8 bytes (LL), in every 128 bytes (LL128), or in
large pieces that are waited for (Simple): latency is paid for with bandwidth.

Source: NCCL, src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime), src/enqueue.cc; NCCL tests,
doc/PERFORMANCE.md; Thakur et al. 2005, Optimization of collective communication operations in MPICH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, inf, log2
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import read_amount, read_budget, show_amount, show_bytes, show_seconds
from costmodel.documents.arguments import typed
from costmodel.errors import SettingError, UnknownNameError, shown, unknown
from costmodel.graph.kernel import Operation, wire_bytes
from costmodel.hardware.cluster import Cluster, ClusterLike, DeviceGroup, LinkLike, load_cluster
from costmodel.performance.calibration import SHARES, Calibration, calibration_of
from costmodel.performance.constants import Constants, typical
from costmodel.performance.intervals import Interval, interval
from costmodel.performance.laws import Numbers, Tier


class Latencies(NamedTuple):
    """Of an algorithm with a protocol: its start beyond the least, and a hop by link, host and network [s]."""

    start: float
    link: float
    host: float
    network: float


LATENCIES: dict[tuple[str, str], Latencies] = {
    ("ring", "LL"): Latencies(0.0, 0.6e-6, 1.0e-6, 2.7e-6),
    ("ring", "LL128"): Latencies(2.2e-6, 1.1e-6, 1.8e-6, 4.0e-6),
    ("ring", "Simple"): Latencies(6.5e-6, 2.1e-6, 3.5e-6, 14e-6),
    ("tree", "LL"): Latencies(0.2e-6, 0.6e-6, 1.0e-6, 5.0e-6),
    ("tree", "LL128"): Latencies(2.2e-6, 1.25e-6, 1.9e-6, 8.5e-6),
    ("tree", "Simple"): Latencies(6.5e-6, 2.1e-6, 3.5e-6, 14e-6),
    ("exchange", "LL"): Latencies(0.0, 0.6e-6, 1.0e-6, 2.7e-6),
    ("exchange", "Simple"): Latencies(6.8e-6, 0.6e-6, 1.0e-6, 14e-6),
    ("in-switch", "Simple"): Latencies(65e-6, 6e-6, inf, 18e-6),
    ("in-switch tree", "Simple"): Latencies(65e-6, 6e-6, inf, 14e-6),
}
"""Hops of LL and between nodes are those of NCCL's tuning (``hwLat``); constants say how much longer they are.

Starts, and other hops inside a node over those of LL, are from NCCL tests on H200, B200, B300, GB200 and GB300
(aiconfigurator-core): large pieces take 20 µs beyond their bytes on 8 H200, sums in switches 75 µs there and on 8 B200.
"""
_LEAST = LATENCIES["ring", "LL"]

PROTOCOL_SHARES: dict[tuple[str, str], float] = {
    ("ring", "LL"): 0.43,
    ("ring", "LL128"): 0.92,
    ("ring", "Simple"): 1.0,
    ("tree", "LL"): 0.92 / 3.8,
    ("tree", "LL128"): 0.92 * 7 / 9,
    ("tree", "Simple"): 0.92,
}
"""Bandwidth over that of a ring with Simple (LL: the same tests; LL128 and trees: NCCL's tuning, 0.92, 1/3.8 and 7/9).

What LL128 has of it a constant says too.
"""

CHANNEL = 5e9
"""Bandwidth of the one channel that an exchange with LL has to each other device [B/s], from the same tests."""
PLATEAU = 1.5
"""Times the latency of rings with Simple between nodes is longer where messages are large (``ncclTopoGetAlgoTime``)."""
DOUBLING = 0.75
"""Bandwidth of trees of one device a node over that of a ring (NCCL's PAT)."""
PIECE = 2**15
"""Bytes for each processor at least: 64 bytes for each of 512 threads (``threadThresholds``)."""

_TURNS: dict[Operation, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often the whole but a rank's own share passes a device of a ring."""


class SizedCollective(Protocol):
    """A collective as `Message` and `CollectiveCalls` are: what it is, and bytes of the whole tensor."""

    @property
    def operation(self) -> Operation:
        """As ``torch.distributed`` names it."""
        ...

    @property
    def bytes(self) -> Any:
        """Of the whole tensor, once."""
        ...


class CollectiveTime(NamedTuple):
    """One collective. seconds: of it; algorithm, protocol: the fastest ones; link: the slowest that it goes over.

    processors: of each device that it takes as long as it runs. Of arrays of bytes or constants seconds and processors
    are arrays, and algorithm and protocol are those of the first.
    """

    seconds: Numbers
    algorithm: str
    protocol: str
    link: str
    processors: Numbers


class Way(NamedTuple):
    """A collective by one algorithm and protocol: its start and hops, and its bytes over the bandwidth reached [s]."""

    latency: Numbers
    bytes: Numbers
    algorithm: str
    protocol: str


NONE = CollectiveTime(0.0, "none", "", "", 0.0)
"""Of a group of one device."""


class CollectiveModel:
    """How long collectives take on a cluster.

    cluster: on what. constants: shares of bandwidth and latencies, which may be arrays. tier: with "ceiling" nothing
    but bytes over the datasheet's bandwidth counts. factors: how much longer bytes were measured to take, by link and
    group size, see `factor_name`. direct: whether sums inside a node may be exchanged directly, as serving engines do.
    """

    def __init__(
        self,
        cluster: Cluster,
        constants: Constants,
        tier: Tier = "typical",
        factors: Mapping[str, float] | None = None,
        direct: bool = False,
    ) -> None:
        self.cluster = cluster
        self.direct = direct
        self.constants = c = constants
        self.ideal = tier == "ceiling"
        self.factors = dict(factors or {})
        hosted = cluster.joined == "pcie"
        self._link_share = 1.0 if self.ideal else c.host_share if hosted else c.link_share
        self._network_share = 1.0 if self.ideal else c.network_share
        self._switch_share = 1.0 if self.ideal else c.switch_share
        line = c.line_share / PROTOCOL_SHARES["ring", "LL128"]
        self._shares: dict[tuple[str, str], Numbers] = {
            way: 1.0 if self.ideal else share * line if way[1] == "LL128" else share
            for way, share in PROTOCOL_SHARES.items()
        }
        self._start = 0.0 if self.ideal else c.collective_seconds
        free = self.ideal or hosted  # own memory is written much faster than PCIe brings
        self._own = 0.0 if free else c.own_part - 1
        self._kept = 0.0 if free else c.kept_part
        self._library = 0.0 if self.ideal or cluster.machine.category == "tpu" else 1.0
        self._hop = 0.0 if self.ideal else (c.host_hop_seconds / _LEAST.host if hosted else c.hop_seconds / _LEAST.link)
        self._network_hop = 0.0 if self.ideal else c.network_hop_seconds / _LEAST.network
        self._hosted = hosted
        self._protocols = ("Simple",) if cluster.machine.category == "tpu" else ("LL", "LL128", "Simple")

    def seconds(self, call: SizedCollective, group: DeviceGroup) -> CollectiveTime:
        """Of one collective of a group, and how it is done. Raises SettingError if the cluster lacks the link."""
        return self.time(call.operation, call.bytes, group)

    def time(self, operation: Operation, size: Numbers, group: DeviceGroup) -> CollectiveTime:
        """The same from the bytes of the whole tensor, or an array of them."""
        if group.devices == 1:
            return NONE
        factor = 1.0 if self.ideal else self.factor(group)
        conditions = 1.0 if self.ideal else self.constants.collective_conditions
        ways = list(self.ways(operation, size, group))
        seconds, fastest = _fastest([way.latency + factor * way.bytes for way in ways])
        of = ways[fastest]
        return CollectiveTime(conditions * seconds, of.algorithm, of.protocol, self.link(group), self._processors(size))

    def link(self, group: DeviceGroup) -> str:
        """The name of the slowest link that a group's messages go over."""
        network = self.cluster.network
        return network.name if group.nodes > 1 and network is not None else self.cluster.inside.name

    def factor(self, group: DeviceGroup) -> float:
        """How much longer bytes take than typical: as measured with that link and group size, else the nearest size."""
        link = self.link(group)
        sizes = {int(size): value for name, value in self.factors.items() for size in _size_of(name, link)}
        if not sizes:
            return 1.0
        return sizes[min(sizes, key=lambda size: (abs(log2(size / group.devices)), size))]

    def ways(self, operation: Operation, size: Numbers, group: DeviceGroup) -> Iterator[Way]:
        """Each algorithm and protocol that there is for an operation."""
        if operation == "all_to_all":
            yield from self._pairwise(size, group)
        elif operation in ("send", "receive"):
            yield from self._point_to_point(size, group)
        elif operation == "broadcast":
            yield from self._ring(size, group, 1.0, group.devices - 1, 0)
        else:
            turns, n = _TURNS[operation], group.devices
            yield from self._ring(size, group, turns * (n - 1) / n, turns * (n - 1), turns * (group.nodes - 1))
            if operation == "all_reduce":
                yield from self._tree(size, group)
                yield from self._in_switch(size, group)
                if self.direct and group.nodes == 1 and (group.devices == 2 or self.cluster.joined != "pcie"):
                    yield from self._directly(size, group)
            elif group.inside == 1:
                yield self._doubling(size, group)

    def _inside(self, group: DeviceGroup) -> Numbers:
        """Bandwidth inside a node that a device of the group reaches [B/s]."""
        crossing = self.constants.host_crossing if self._hosted and group.inside > 2 and not self.ideal else 1.0
        return self.cluster.link_bandwidth(group.inside) * self._link_share * crossing

    def _across(self, group: DeviceGroup) -> Numbers:
        """Bandwidth between nodes that a device of the group reaches, when all devices of a node use it [B/s]."""
        return self.cluster.network_bandwidth * self._network_share

    def _network(self, size: Numbers, group: DeviceGroup) -> Numbers:
        """What a device's bytes for other nodes take; with few pieces the network is not full [s]."""
        fill = 0.0 if self.ideal else _least(self.constants.network_fill, 2.0 * size)
        return (size + fill) / self._across(group)

    def _hops(self, way: tuple[str, str], inside: float, across: float) -> Numbers:
        """Start and hops, one after the other [s]."""
        of = LATENCIES[way]
        hop = of.host if self._hosted else of.link
        network = self.cluster.network
        wire = network.latency if across and network is not None and network.latency else 0.0
        seconds = self._start + self._library * of.start + inside * self._hop * hop
        return seconds + across * (self._network_hop * of.network + (0.0 if self.ideal else wire))

    def _ring(self, size: Numbers, group: DeviceGroup, turns: float, hops: int, across: int) -> Iterator[Way]:
        """Around all devices, of a node's part over all its adapters at the same time.

        A device's own part is not only handed on but also written where the result is to be.
        """
        g = group.inside
        link = 0.0 if g == 1 else (turns + self._own / group.devices) * size / self._inside(group)
        network = 0.0 if group.nodes == 1 else self._network(turns * size / g, group)
        seconds = _most(link, network)
        for protocol in self._protocols:
            way = ("ring", protocol)
            slow = PLATEAU if protocol == "Simple" and group.nodes > 1 else 1.0
            yield Way(slow * self._hops(way, hops - across, across), seconds / self._shares[way], *way)

    def _tree(self, size: Numbers, group: DeviceGroup) -> Iterator[Way]:
        """Two binary trees over nodes, and a chain inside each, up and down (Sanders et al. 2009).

        Each node sends twice the tensor where it has two children and a parent, and once where there are two nodes.
        """
        nodes, turns = group.nodes, 2 * (group.nodes - 1) / group.nodes
        for protocol in self._protocols:
            way = ("tree", protocol)
            latency = self._hops(way, 2 * (group.inside - 1), 2 * ceil(log2(nodes)))
            inside = 0.0 if group.inside == 1 else 2 * size / (self._inside(group) * self._shares[way])
            across = 0.0 if nodes == 1 else self._network(turns * size / group.inside, group)
            across = across / self._shares["ring", protocol]
            yield Way(latency, _most(inside, across), *way)

    def _in_switch(self, size: Numbers, group: DeviceGroup) -> Iterator[Way]:
        """Switches add up what each device sends, once, and hand each its share, and the sum of all shares to all.

        So a device sends and receives 1 + 1/n of the tensor. Between nodes each device sums its share with those of its
        kind in other nodes: in the network's switches if they can, else by trees.
        """
        cluster, g = self.cluster, group.inside
        if not cluster.in_switch_reduction or g == 1:
            return
        inside = (1 + 1 / g) * size / (cluster.link_bandwidth(g) * self._switch_share)
        if group.nodes == 1:
            yield Way(self._hops(("in-switch", "Simple"), 1, 0), inside, "in-switch", "Simple")
            return
        way = ("in-switch" if cluster.network_reduction else "in-switch tree", "Simple")
        steps = 1 if cluster.network_reduction else 2 * ceil(log2(group.nodes))
        passes = 1 if cluster.network_reduction else 2 * (group.nodes - 1) / group.nodes
        across = self._network(passes * size / g, group)
        yield Way(self._hops(way, 1, steps), _most(inside, across), *way)

    def _directly(self, size: Numbers, group: DeviceGroup) -> Iterator[Way]:
        """Each device reads the whole of all others (one shot); or its share of them, and then their sums (two shots).

        Not between more than two devices over PCIe. Source: vLLM and TensorRT-LLM, kernels of custom all-reduce.
        """
        start = 0.0 if self.ideal else self.constants.direct_seconds
        n, bandwidth = group.devices, self._inside(group)
        yield Way(start, (n - 1) * size / bandwidth, "direct", "one shot")
        yield Way(1.5 * start, (2 * (n - 1) + self._own) / n * size / bandwidth, "direct", "two shots")

    def _doubling(self, size: Numbers, group: DeviceGroup) -> Way:
        """Parallel trees of one device a node: of logarithmic depth, at 3/4 of the bandwidth (NCCL's PAT)."""
        n = group.devices
        latency = self._hops(("ring", "Simple"), 0, ceil(log2(n)) / 3.5)
        share = 1.0 if self.ideal else DOUBLING
        return Way(latency, self._network((n - 1) / n * size, group) / share, "tree", "Simple")

    def _pairwise(self, size: Numbers, group: DeviceGroup) -> Iterator[Way]:
        """Each device sends each other its part; to other nodes over the device's own adapter, at the same time.

        Its own part it copies beside. Small parts go over one channel to each other device of the node.
        """
        n, g = group.devices, group.inside
        inside = 0.0 if g == 1 else (g - 1 + self._kept) / n * size / self._inside(group)
        across = 0.0 if group.nodes == 1 else self._network((n - g) / n * size, group)
        latency = self._hops(("exchange", "Simple"), 1 if g > 1 else 0, 1 if group.nodes > 1 else 0)
        yield Way(latency, _most(inside, across), "pairwise", "Simple")
        if group.nodes == 1 and "LL" in self._protocols and not self.ideal:
            way = ("exchange", "LL")
            yield Way(
                self._hops(way, 1, 0), _most(inside / self._shares["ring", "LL"], size / n / CHANNEL), "pairwise", "LL"
            )

    def _point_to_point(self, size: Numbers, group: DeviceGroup) -> Iterator[Way]:
        """From a device to the next of its group, over the network if that is in another node."""
        between = group.nodes > 1
        seconds = self._network(size, group) if between else size / self._inside(group)
        for protocol in self._protocols:
            if protocol != "LL128":
                way = ("ring", protocol)
                latency = self._hops(way, 0 if between else 1, 1 if between else 0)
                yield Way(latency, seconds / self._shares[way], "point-to-point", protocol)

    def _processors(self, size: Numbers) -> Numbers:
        """Of each device that are busy with it: one for each piece, until all that communication takes are."""
        return _least(self.constants.collective_processors, _most(1.0, size / PIECE))

    def __repr__(self) -> str:
        return f"<CollectiveModel of {self.cluster.name}>"


def factor_name(link: str, devices: int) -> str:
    """What a measured factor is called, such as "NVLink 4 on 8"."""
    return f"{link} on {devices}"


@cache
def _size_of(name: str, link: str) -> tuple[int, ...]:
    """The group size of a measured factor of a link; none for another link's."""
    start, size = name[: len(link) + 4], name[len(link) + 4 :]
    return (int(size),) if start == f"{link} on " and size.isdecimal() else ()


def _least(a: Numbers, b: Numbers) -> Numbers:
    return min(a, b) if isinstance(a, float) and isinstance(b, float) else np.minimum(a, b)


def _most(a: Numbers, b: Numbers) -> Numbers:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)


def _fastest(seconds: list[Numbers]) -> tuple[Numbers, int]:
    """The least time, of arrays each of them, and which it is, of arrays that of the first."""
    if not any(isinstance(each, np.ndarray) for each in seconds):
        least = min(seconds)
        return least, seconds.index(least)
    together = np.broadcast_arrays(*seconds)
    first = [float(each.flat[0]) for each in together]
    return np.minimum.reduce(together), first.index(min(first))


@dataclass(frozen=True, repr=False)
class TimedCollective(Answer):
    """Seconds of one collective, how it is done, and the range that about four of five measured ones fall into.

    operation, bytes: what it is, and the size of the whole tensor. group: of which devices. model: of the cluster's
    links. tier: "ceiling", "typical" or "calibrated".

    Example:
        >>> import costmodel as cm
        >>> reduction = cm.collective_seconds("all-reduce", "1 GiB", devices=8, on="dgx-a100")
        >>> reduction.algorithm, reduction.low < reduction.seconds < reduction.high
        ('ring', True)

    """

    operation: Operation
    bytes: int
    group: DeviceGroup
    model: CollectiveModel
    tier: Tier

    @cached_property
    def time(self) -> CollectiveTime:
        """Seconds, algorithm, protocol, link and processors."""
        return self.model.time(self.operation, self.bytes, self.group)

    @property
    def seconds(self) -> float:
        """Of it."""
        return float(self.time.seconds)

    def __float__(self) -> float:
        return self.seconds

    @property
    def algorithm(self) -> str:
        """The fastest."""
        return self.time.algorithm

    @property
    def protocol(self) -> str:
        """The fastest."""
        return self.time.protocol

    @property
    def link(self) -> str:
        """The slowest that it goes over."""
        return self.time.link

    @property
    def processors(self) -> float:
        """Of each device that it takes as long as it runs."""
        return float(self.time.processors)

    @property
    def wire_bytes(self) -> int:
        """What a device sends for it around a ring [bytes]."""
        return wire_bytes(self.operation, self.group.devices, self.bytes)

    @property
    def bus_bandwidth(self) -> float:
        """What NCCL's tests call so: bytes that a ring sends, over the seconds [B/s]."""
        return self.wire_bytes / self.seconds if self.seconds else 0.0

    @cached_property
    def interval(self) -> Interval:
        """The range of the seconds, and what makes it wide."""
        if self.tier == "ceiling" or self.group.devices == 1:
            return Interval(self.seconds, self.seconds, self.seconds, ())
        cluster, factors = self.model.cluster, self.model.factors

        def seconds(constants: Constants, tier: Tier = "typical") -> Numbers:
            model = CollectiveModel(cluster, constants, tier, factors, self.model.direct)
            return model.time(self.operation, float(self.bytes), self.group).seconds

        least = float(seconds(self.model.constants, "ceiling"))
        known = SHARES if factor_name(self.link, self.group.devices) in factors else ()
        return interval(seconds, cluster.machine, least=least, known=known, at=self.model.constants)

    @property
    def low(self) -> float:
        """The faster end of that range [s]."""
        return self.interval.low

    @property
    def high(self) -> float:
        """The slower end of it [s]."""
        return self.interval.high

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, s, B/s]."""
        return {
            "cluster": self.model.cluster.name,
            "operation": self.operation,
            "bytes": self.bytes,
            "devices": self.group.devices,
            "nodes": self.group.nodes,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "tier": self.tier,
            **{name: value for name, value in self.time._asdict().items() if name != "seconds"},
            "wire_bytes": self.wire_bytes,
            "bus_bandwidth": self.bus_bandwidth,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [self.to_dict()]

    def sheet(self) -> Sheet:
        """The time with its range, then how it is done."""
        group, cluster = self.group, self.model.cluster
        nodes = "a node" if group.nodes == 1 else f"{group.nodes:,} nodes"
        what = f"{self.operation} of {show_bytes(self.bytes)} by {group.devices:,} devices of {nodes}: {cluster.name}"
        rows = [
            ("time", f"{show_seconds(self.seconds)} ({show_seconds(self.low)} to {show_seconds(self.high)})"),
            ("algorithm", " ".join(filter(None, (self.algorithm, self.protocol)))),
            ("link", self.link),
            ("sent by a device, on a ring", show_bytes(self.wire_bytes)),
            ("bus bandwidth", show_amount(self.bus_bandwidth, "B/s", 3) if self.bus_bandwidth else "-"),
            ("processors taken", f"{self.processors:.3g} of {cluster.machine.processors or '?'}"),
        ]
        notes = [f"{effect.name}: {effect.constant.source.title}" for effect in self.interval.widest]
        return Sheet([what], [Table(("collective", ""), rows, words=frozenset({0, 1}))], notes=notes)


def operation_of(name: str) -> Operation:
    """An operation by its name, such as "all-reduce", "AllReduce" or "all_reduce". Raises UnknownNameError."""
    key = re.sub(r"[^a-z]", "", name.lower()) if isinstance(name, str) else ""
    for operation in get_args(Operation):
        if key in (operation.replace("_", ""), *_ALIASES.get(operation, ())):
            return operation
    raise unknown("collective", name, [operation.replace("_", "-") for operation in get_args(Operation)])


_ALIASES: dict[Operation, tuple[str, ...]] = {"all_to_all": ("alltoall",), "send": ("sendrecv", "pointtopoint", "pp")}
"""Other ways to write operations, in small letters alone."""


def collective_model(
    on: ClusterLike | Calibration, network: LinkLike = None, tier: Tier | None = None, direct: bool = False
) -> tuple[CollectiveModel, Tier]:
    """The links of a cluster, or of that which a calibration was measured on, with its factors; and the tier.

    Raises SettingError if calibrated seconds are asked for of what is no calibration.
    """
    calibration = calibration_of(on)
    if calibration is None:
        if tier == "calibrated":
            raise SettingError(
                f"no calibration is given: give the file that costmodel machines fit wrote, not {shown(on)}"
            )
        cluster = load_cluster(on)  # type: ignore[arg-type]
    else:
        cluster = load_cluster(calibration.machine)
    cluster = cluster if network is None else load_cluster(cluster, network)
    if calibration is None or tier not in (None, "calibrated"):
        tier = tier or "typical"
        return CollectiveModel(cluster, typical(cluster.machine), tier, direct=direct), tier
    constants = calibration.on(cluster.machine)
    return CollectiveModel(cluster, constants, "calibrated", calibration.collectives, direct), "calibrated"


@typed
def collective_seconds(
    operation: str,
    size: int | str,
    *,
    devices: int,
    on: ClusterLike | Calibration,
    network: LinkLike = None,
    apart: int = 1,
    direct: bool = False,
    tier: Tier | None = None,
) -> TimedCollective:
    """How long one collective takes on a cluster.

    Args:
        operation: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send" or "receive".
        size: of the whole tensor over all devices, as "64 MiB" or a number of bytes; of an all-to-all what one device
            hands to all.
        devices: that take part.
        on: a ready cluster's or machine's name, a file of one or of a calibration, or a `Cluster`.
        network: of one adapter between nodes, such as "400 Gb/s", in place of the cluster's.
        apart: from each device to the next, as 8 where one of each node of 8 takes part.
        direct: whether sums inside a node may be exchanged directly, as serving engines do.
        tier: "ceiling", "typical" or "calibrated" (default: calibrated where `on` is a calibration, else typical).

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> cm.collective_seconds("all-gather", "1 GiB", devices=16, on="dgx-h100").link
        'InfiniBand NDR'

    """
    for name, number in (("devices", devices), ("apart", apart)):
        if not 1 <= number <= MOST_DEVICES:
            raise SettingError(f"{name}={shown(number)} is not between 1 and {MOST_DEVICES:,}")
    model, tier = collective_model(on, network, tier, direct)
    named, whole = operation_of(operation), read_budget(size, "size").bytes
    answer = TimedCollective(named, whole, model.cluster.group("", devices, apart), model, tier)
    _ = answer.time  # a link or a network that there is not is refused here
    return answer


MOST_DEVICES = 10_000_000
"""Of a collective."""


class MeasuredCollective(NamedTuple):
    """A collective as it was measured. row: the text that says so; bytes: of the whole tensor."""

    row: str
    operation: Operation
    bytes: int
    devices: int
    seconds: float


@typed
def measured_collective(row: str) -> MeasuredCollective | None:
    """A collective from text such as "all-reduce 64 MiB on 8: 0.42 ms"; None for text that begins with none.

    Raises CostModelError if it says what cannot be.
    """
    form = _MEASURED.fullmatch(row) if len(row) < LONGEST_ROW else None
    if form is None:
        with suppress(UnknownNameError):
            _ = operation_of((row.split() or [""])[0])
            raise SettingError(
                f"measured {shown(row)}: a collective is measured in text such as 'all-reduce 64 MiB on 8: 0.42 ms'"
            )
        return None
    operation, size, devices, seconds = form.groups()
    try:
        operation, size = operation_of(operation), read_budget(size, "size").bytes
        return MeasuredCollective(row, operation, size, int(devices), read_amount(seconds, "time", "s"))
    except SettingError as error:
        raise SettingError(f"measured {shown(row)}: {error}") from None


LONGEST_ROW = 200
_MEASURED = re.compile(r"\s*([A-Za-z_-]+)\s+(\d[^:]*?)\s+on\s+([1-9]\d{0,6})(?:\s+devices)?\s*:\s*(\S.*?)\s*")
"""Operation, size, devices, seconds."""
