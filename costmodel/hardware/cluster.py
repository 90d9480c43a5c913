"""A cluster: nodes of devices of one machine, the links inside a node and the network between; axes laid over it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, printable
from costmodel.display.units import show_amount
from costmodel.documents.arguments import typed
from costmodel.documents.description import ABSENT, ALL, Description, Reads
from costmodel.documents.files import SPECS, is_path, read_fields
from costmodel.errors import SettingError, SpecError, UnknownNameError, shown
from costmodel.hardware.catalogue import MachineLike, load_machine, machine_name
from costmodel.hardware.machine import Items, Link, Machine, Magnitude, Source, Text, read_link_speed, table_of
from costmodel.training.layout import Layout

CLUSTERS = Path(SPECS) / "clusters"

Topology = Literal["switch", "mesh", "ring", "torus", "pcie"]
"""How devices of a node are joined.

switch: each to any other with its whole bandwidth. mesh: each to each other with a share of it. ring: each to two
others. torus: each to two others along each of its axes. pcie: through the host.
"""

AXES = ("tp", "cp", "ep", "fsdp", "dp", "pp")
"""Axes of a layout in the order in which they are laid over devices, the first over neighbours.

Source: Megatron-LM's order of parallelism (``--use-tp-pp-dp-mapping`` off), torchtitan's ``ParallelDims``.
"""

HOSTED = 8
"""Devices of a node of a machine that is joined through the host alone: the boards that a server takes."""


def _links(value: Any, info: ValidationInfo) -> Any:
    """A link from its bandwidth alone, as "400 Gb/s" is, where bits are meant; or from a mapping of its fields."""
    if isinstance(value, Mapping) and (wrong := [name for name in value if not isinstance(name, str)]):
        raise SettingError(f"{info.field_name}: {shown(wrong[0])} is not the name of a field")
    if isinstance(value, Mapping) and "bandwidth" in value:
        return {**value, "bandwidth": read_link_speed(value["bandwidth"], f"{info.field_name}.bandwidth")}
    if value is None or isinstance(value, Mapping | Link):
        return value
    return {"name": "network", "bandwidth": read_link_speed(value, str(info.field_name))}


def _machine(value: Any) -> Machine:
    """A ready machine, or one from its fields. What a file of a cluster says opens no other file."""
    if isinstance(value, str) and is_path(value):
        raise SettingError(f"machine={shown(value)} is a path: give a ready machine's name, or the machine's fields")
    return load_machine(value)


LinkLike = Link | Mapping[str, Any] | Magnitude | None
MaybeLink = Annotated[Reads[Link | None, LinkLike], BeforeValidator(_links)]


class DeviceGroup(NamedTuple):
    """The devices of one axis that take part in a collective, as they lie over nodes.

    axis: of the layout. devices: in all. inside: of them in one node. nodes: that they span. stride: from one to the
    next, in devices. Where groups do not fill nodes evenly it is the one that spans the most.
    """

    axis: str
    devices: int
    inside: int
    nodes: int
    stride: int = 1


class Cluster(Answer, Description):
    """Nodes of devices of one machine. Fields hold SI units; text with a unit is taken for each.

    Only name and machine need be given; what is left out is the machine's. How many nodes there are follows from the
    layout that is laid over them.

    Example:
        >>> import costmodel as cm
        >>> own = cm.Cluster(name="lab", machine="h100-sxm", network="400 Gb/s")
        >>> own.size, own.network_bandwidth  # devices, B/s of a device
        (8, 50000000000.0)

    """

    READY: ClassVar[str] = "a ready cluster is cm.load_cluster('dgx-h100')"

    name: Text = Field(min_length=1, description="such as dgx-h100")
    aliases: Items[Text] = Field(default=ALL, description="other ways to write the name")
    machine: Annotated[Reads[Machine, MachineLike], BeforeValidator(_machine)] = Field(
        description="the devices: a ready machine's name, or fields"
    )
    node_size: int = Field(default=0, ge=0, le=1_000_000, description="devices of a node; 0: as many as the machine's")
    link: MaybeLink = Field(default=ABSENT, description="inside a node; None: the machine's first")
    topology: Topology | None = Field(default=None, description="how a node's devices are joined; None: by the link")
    shape: Items[int] = Field(default=ALL, description="of a torus: devices along each of its axes")
    in_switch_reduction: bool = Field(default=False, description="whether switches inside a node add up")
    network: MaybeLink = Field(default=ABSENT, description='of one adapter between nodes, such as "400 Gb/s"')
    nics: int = Field(default=0, ge=0, le=1_000_000, description="adapters of a node; 0: one for each device")
    oversubscription: float = Field(
        default=1.0,
        ge=1,
        le=1000,
        allow_inf_nan=False,
        description="bandwidth of nodes over that of the network's core",
    )
    network_reduction: bool = Field(default=False, description="whether switches between nodes add up")
    notes: Text = Field(default="", description="what else there is to know")
    sources: Items[Source] = Field(default=ALL, description="where the figures are from")

    @model_validator(mode="after")
    def _fields_say_something(self) -> Self:
        if self.network is None and (self.nics or self.oversubscription > 1 or self.network_reduction):
            raise ValueError("nics, oversubscription and network_reduction are of a network: give one as '400 Gb/s'")
        if self.shape and self.joined != "torus":
            raise ValueError(f"shape is of a torus, not of a {self.joined}: leave it out, or say topology: torus")
        if min(self.shape, default=1) < 1:
            raise ValueError(f"shape {list(self.shape)} has an axis of no devices: give devices along each axis")
        if self.shape and prod(self.shape) != self.size:
            raise ValueError(f"shape {list(self.shape)} is of {prod(self.shape)} devices, the node of {self.size}")
        if self.in_switch_reduction and self.joined != "switch":
            raise ValueError(f"in_switch_reduction is of switches, not of a {self.joined}: leave one of them out")
        return self

    @cached_property
    def inside(self) -> Link:
        """The link inside a node. Raises SettingError if neither cluster nor machine has one."""
        if self.link is not None:
            return self.link
        between = [link for link in self.machine.links if "CPU" not in link.name]
        if between:
            return max(between, key=lambda link: link.bandwidth)
        raise SettingError(f"{self.name}: {self.machine.name} has no link to other devices: give the cluster a link")

    @cached_property
    def size(self) -> int:
        """Devices of a node."""
        if self.node_size:
            return self.node_size
        alone = self.machine.node_size == 1 and self.machine.links
        return HOSTED if alone and self.joined == "pcie" else self.machine.node_size

    @cached_property
    def joined(self) -> Topology:
        """How devices of a node are joined: as it says, or by the name of the link."""
        if self.topology is not None:
            return self.topology
        name = self.inside.name.lower()
        for word, topology in _BY_LINK.items():
            if word in name:
                return topology
        return "switch"

    @cached_property
    def network_bandwidth(self) -> float:
        """Between nodes, for each device of a node that all use it [B/s]. Raises SettingError without a network."""
        if self.network is None:
            raise SettingError(
                f"{self.name} has no network between nodes of {self.size}: give one such as network='400 Gb/s', or "
                "fewer devices"
            )
        return self.network.bandwidth * (self.nics or self.size) / self.size / self.oversubscription

    def link_bandwidth(self, devices: int) -> float:
        """Inside a node, that each of so many devices has to the others together, each way [B/s]."""
        whole, size = self.inside.bandwidth, self.size
        if self.joined == "mesh":  # links to devices outside of the group are idle
            return whole * max(1, min(devices, size) - 1) / max(1, size - 1)
        if self.joined == "torus" and self.shape:
            axes = next(
                (n for n in range(1, len(self.shape)) if devices <= prod(sorted(self.shape)[:n])), len(self.shape)
            )
            return whole * axes / len(self.shape)
        return whole

    def group(self, axis: str, devices: int, stride: int = 1, total: int = 0) -> DeviceGroup:
        """So many devices, each `stride` after the one before, as they lie over nodes; total: of the whole layout.

        A layout has as many devices on each of the nodes that it needs, where that goes, as launchers start them: 256
        devices are 64 on each of four nodes of 72.
        """
        span = stride * devices
        needed = -(-total // self.size)
        size = self.size if needed < 2 or total % needed else total // needed
        if max(span, total) <= size or size % span == 0:
            nodes = 1
        elif size % stride == 0 and span % size == 0:
            nodes = span // size
        else:  # some group starts in the midst of a node
            nodes = min(devices, 1 + -(-(span - stride) // size))
        return DeviceGroup(axis, devices, devices // nodes, nodes, stride)

    def place(self, layout: Layout) -> dict[str, DeviceGroup]:
        """The devices of each axis of a layout, the innermost axis first; see `group_of`.

        Raises SettingError if devices are of several nodes, and there is no network.
        """
        degrees = {axis: layout.shards if axis == "fsdp" else getattr(layout, axis) for axis in AXES}
        groups = {axis: self.group_of(layout, axis, degree) for axis, degree in degrees.items() if degree > 1}
        if any(group.nodes > 1 for group in groups.values()):
            _ = self.network_bandwidth
        return groups

    def group_of(self, layout: Layout, axis: str, devices: int) -> DeviceGroup:
        """The devices of a collective along an axis.

        Ranks of fsdp are those of cp too, so of one sequence; ep takes its ranks from those of fsdp or dp, so what is
        split or summed beside it is of ranks that are `ep` apart.
        """
        dense = layout.tp * layout.cp
        over_copies = axis in ("fsdp", "dp")
        if layout.runtime == "megatron" and over_copies and devices * layout.ep * layout.expert_tp == dense * layout.dp:
            stride = layout.ep * layout.expert_tp
        elif layout.runtime == "megatron" and axis == "ep":  # all ranks of it, or those that split an expert too
            stride = layout.expert_tp if devices == layout.ep else 1
        elif over_copies:
            whole = layout.shards if axis == "fsdp" else layout.dp
            stride = layout.tp if axis == "fsdp" or devices > whole else dense * layout.fsdp
            stride *= layout.ep if devices * layout.ep == whole else 1
        else:
            stride = {"tp": 1, "cp": layout.tp, "ep": layout.tp, "pp": dense * layout.samplers}[axis]
        return self.group(axis, devices, stride, layout.devices)

    def joins(self, devices: int) -> str:
        """What joins so many devices, in words."""
        text = f"{self.name}, nodes of {self.size:,} by {_described(self.inside)}"
        if self.network is None or devices <= self.size:
            return printable(text)
        between = show_amount(self.network_bandwidth, "B/s", 4)
        return printable(f"{text}, {between} a device between them ({self.network.name})")

    def words(self, layout: Layout) -> str:
        """What joins the devices of a layout, and which of its axes cross nodes."""
        over = [f"{axis} over {group.nodes:,} nodes" for axis, group in self.place(layout).items() if group.nodes > 1]
        return ": ".join([self.joins(layout.devices), *([", ".join(over)] if over else [])])

    def to_dict(self) -> dict[str, Any]:
        """Every field that is given, in SI units, a ready machine by its name; of it `Cluster` makes an equal one."""
        fields = self.model_dump(exclude_none=True, exclude_defaults=True)
        try:
            fields["machine"] = machine_name(self.machine)
        except SettingError:
            fields["machine"] = self.machine.to_dict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each figure: its name, its value in SI units, and where it is from."""
        return [
            {"figure": figure, "value": value, "source": source.title if (source := self._source(of)) else None}
            for figure, value, _, of in self._figures()
        ]

    def sheet(self) -> Sheet:
        """Its figures, each with its source."""
        rows = [
            (name, text, str(self.sources.index(source) + 1) if (source := self._source(of)) else "-")
            for name, _, text, of in self._figures()
        ]
        tables = [Table(("cluster", "", "source"), rows, words=frozenset({0, 1}))]
        notes = [printable(self.notes)] if self.notes else []
        if self.sources:
            tables.append(table_of(self.sources))
        return Sheet([printable(f"{self.name}: nodes of {self.size} × {self.machine.name}")], tables, notes=notes)

    def _figures(self) -> Iterator[tuple[str, Any, str, str]]:
        """Name, value and text of each figure, and the field that it is of."""
        yield "devices of a node", self.size, str(self.size), "node_size"
        yield "link, each way", self.inside.bandwidth, _described(self.inside), "link"
        yield "topology", self.joined, self.joined, "topology"
        if self.shape:
            yield "shape", list(self.shape), " × ".join(map(str, self.shape)), "shape"
        yield "in-switch reduction", self.in_switch_reduction, _yes(self.in_switch_reduction), "in_switch_reduction"
        if self.network is None:
            yield "network", None, "none", "network"
            return
        yield "network, an adapter", self.network.bandwidth, _described(self.network), "network"
        if self.network.latency:
            yield "network, latency", self.network.latency, show_amount(self.network.latency, "s"), "latency"
        yield "adapters of a node", self.nics or self.size, str(self.nics or self.size), "nics"
        if self.oversubscription > 1:
            yield "oversubscription", self.oversubscription, f"{self.oversubscription:g}", "oversubscription"
        yield "network, a device", self.network_bandwidth, show_amount(self.network_bandwidth, "B/s", 4), "network"
        yield "reduction in network", self.network_reduction, _yes(self.network_reduction), "network_reduction"

    def _source(self, figure: str) -> Source | None:
        """The source that names a figure, else one of all figures."""
        named = [source for source in self.sources if figure in source.figures]
        return next(iter(named or [source for source in self.sources if not source.figures]), None)

    @classmethod
    @typed
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """The cluster that a YAML or JSON file describes. Raises SpecError, with the line."""
        return read_fields(path, "cluster", lambda data: cls(**data), "name: lab")


_BY_LINK: dict[str, Topology] = {"pcie": "pcie", "infinity": "mesh", "xe link": "mesh", "roce": "mesh", "ici": "torus"}
"""Topologies by a word of the link's name; all others are switches."""


def _described(link: Link) -> str:
    return printable(f"{show_amount(link.bandwidth, 'B/s', 4)} ({link.name})")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


ClusterLike = str | os.PathLike[str] | Cluster | Machine | Mapping[str, Any]
"""What is taken for a cluster: a ready one's name, the path of a file, a cluster, its fields, or a machine."""


class Clusters(Answer, tuple[Cluster, ...]):
    """Clusters by name, shown as a table with a line for each."""

    def to_dict(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Every figure of each, in SI units."""
        return [cluster.to_dict() for cluster in self]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cluster: its machine, devices of a node, and bandwidths of a device [B/s]."""
        return [
            {
                "cluster": cluster.name,
                "machine": cluster.machine.name,
                "node_size": cluster.size,
                "link": cluster.inside.bandwidth,
                "topology": cluster.joined,
                "network": None if cluster.network is None else cluster.network_bandwidth,
            }
            for cluster in self
        ]

    def sheet(self) -> Sheet:
        """What there is to read."""
        rows = [
            (
                *(str(row[name]) for name in ("cluster", "machine", "node_size")),
                show_amount(row["link"], "B/s", 3),
                row["topology"],
                "-" if row["network"] is None else show_amount(row["network"], "B/s", 3),
            )
            for row in self.rows()
        ]
        header = ("cluster", "machine", "node", "link", "topology", "network")
        notes = ("link, network: of a device, each way; node: devices that the link joins",)
        worth = ("node", "link", "network", "machine")
        return Sheet([], [Table(header, rows, words=frozenset({0, 1, 4}), worth=worth)], notes=notes)


@typed
def clusters(search: str | None = None) -> Clusters:
    """Every ready cluster, by name; or those with each word of `search` in a name or in that of the machine.

    Args:
        search: words, such as "h100" (default: every cluster).

    Raises:
        UnknownNameError: there is none.

    Example:
        >>> import costmodel as cm
        >>> [cluster.name for cluster in cm.clusters("dgx h100")]
        ['dgx-h100']

    """
    words = (search or "").lower().split()
    matches = [
        cluster
        for cluster in _all().values()
        if all(any(word in name.lower() for name in (*_names(cluster), cluster.machine.name)) for word in words)
    ]
    if not matches:
        raise _unknown(search or "")
    return Clusters(matches)


@typed
def load_cluster(cluster: ClusterLike, network: LinkLike = None) -> Cluster:
    """A cluster by its name, or from a YAML or JSON file; of a machine the ready cluster that is built of it.

    Of a machine that no ready cluster is built of, or that is described anew, it is one of nodes as the machine says,
    without a network.

    Args:
        cluster: a name such as "dgx-h100", that of a machine such as "h100-sxm", a path, or a mapping of fields.
        network: of one adapter between nodes, such as "400 Gb/s", in place of the cluster's; a device has one then.

    Raises:
        CostModelError: it is neither a cluster nor a machine, in one line.

    Example:
        >>> import costmodel as cm
        >>> cm.load_cluster("h100-sxm").name
        'dgx-h100'

    """
    loaded = _loaded(cluster)
    if network is None:
        return loaded
    return Cluster(
        **{name: getattr(loaded, name) for name in loaded.model_fields_set} | {"network": network, "nics": 0}
    )


def machine_or_cluster(on: ClusterLike) -> Machine | Cluster:
    """What time is asked of: a machine by its name, else a cluster, each from a file or its fields too.

    Raises CostModelError, of a name that is neither with the nearest machines.
    """
    if isinstance(on, Cluster | Machine):
        return on
    if isinstance(on, Mapping):
        return Cluster(**on) if "machine" in on else load_machine(on)
    if is_path(on):
        return read_fields(
            on, "machine", lambda data: Cluster(**data) if "machine" in data else Machine(**data), "name: lab"
        )
    try:
        return load_machine(on)
    except UnknownNameError:
        if (name := _known().get(_key(str(on)))) is None:
            raise
        return _all()[name]


def machine_of(on: ClusterLike) -> Machine:
    """The machine of what time is asked of, see `machine_or_cluster`."""
    device = machine_or_cluster(on)
    return device.machine if isinstance(device, Cluster) else device


def cluster_name(cluster: ClusterLike) -> str:
    """What `load_cluster` knows a cluster by: the path of its file, or the name of a ready one or of a ready machine.

    Raises SettingError for one of one's own that is in no file.
    """
    if is_path(cluster):
        return os.fspath(cluster)
    ready = load_cluster(cluster)
    if not isinstance(cluster, Cluster | Machine | Mapping):
        try:
            return machine_name(cluster)
        except UnknownNameError:
            return ready.name
    if _all().get(ready.name) != ready:
        return machine_name(ready.machine if isinstance(cluster, Cluster) else cluster)
    return ready.name


def _loaded(cluster: ClusterLike) -> Cluster:
    if isinstance(cluster, str) and not is_path(cluster) and (name := _known().get(_key(cluster))) is not None:
        return _all()[name]
    try:
        device = machine_or_cluster(cluster)
    except UnknownNameError:
        raise _unknown(str(cluster)) from None
    return _of_machine(device) if isinstance(device, Machine) else device


def _of_machine(machine: Machine) -> Cluster:
    """The ready cluster that has the machine's name among its own; else one of the machine's own figures."""
    if (name := _known().get(_key(machine.name))) is not None and _all()[name].machine == machine:
        return _all()[name]
    cluster = Cluster(name=machine.name, machine=machine)
    if machine.node_size == cluster.size:
        return cluster
    return Cluster(
        name=machine.name, machine=machine, notes=f"nodes of {HOSTED} boards, as servers have; none is ready"
    )


@cache
def _all() -> dict[str, Cluster]:
    return {path.stem: Cluster.load(path) for path in sorted(CLUSTERS.glob("*.yaml"), key=lambda path: path.stem)}


def _names(cluster: Cluster) -> tuple[str, ...]:
    return (cluster.name, *cluster.aliases)


@cache
def _known() -> dict[str, str]:
    """Names by the plain form of every way to write them. Raises SpecError if two clusters are written alike."""
    known: dict[str, str] = {}
    for cluster in _all().values():
        for name in _names(cluster):
            if known.setdefault(_key(name), cluster.name) != cluster.name:
                raise SpecError(f"{name!r} is both {cluster.name} and {known[_key(name)]}: give it to one")
    return known


def _key(name: str) -> str:
    return "".join(re.findall(r"[a-z0-9]+", name.lower()))


def _unknown(name: str) -> UnknownNameError:
    from difflib import get_close_matches  # only errors need it

    near = [_known()[key] for key in get_close_matches(_key(name), _known(), n=3, cutoff=0.6)]
    meant = f"did you mean {' or '.join(map(repr, dict.fromkeys(near)))}?" if near else "use one such as 'dgx-h100'"
    return UnknownNameError(f"unknown cluster {shown(name)}: {meant} (costmodel clusters, costmodel machines list all)")
