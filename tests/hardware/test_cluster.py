"""A cluster is nodes of devices: its figures however they are written, and where the axes of a layout come to lie."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.errors import CostModelError
from costmodel.hardware.cluster import Cluster, DeviceGroup, clusters, load_cluster
from costmodel.training.layout import Layout
from tests.command import error_of, here


def lab(**fields: Any) -> Cluster:
    return cm.Cluster(**{"name": "lab", "machine": "h100-sxm"} | fields)


@pytest.mark.parametrize("cluster", clusters(), ids=lambda cluster: cluster.name)
def test_every_ready_cluster_is_found_shown_and_made_again(cluster: Cluster) -> None:
    for name in (cluster.name, *cluster.aliases):
        assert load_cluster(name) == cluster
    assert all(len(line) <= 80 for line in str(cluster).splitlines() if line != cluster.notes)
    fields = json.loads(json.dumps(cluster.to_dict()))
    again = Cluster(**fields)
    assert again.to_dict() == cluster.to_dict()
    assert cluster.sources, "a figure without a source"


def test_a_machine_alone_is_the_ready_cluster_built_of_it_or_one_of_its_own_figures() -> None:
    assert load_cluster("h100-sxm").name == "dgx-h100"
    assert load_cluster(cm.load_machine("a100-sxm-80gb")).name == "dgx-a100"
    own = load_cluster("gaudi-3")
    assert (own.name, own.size, own.network) == ("gaudi-3", 8, None)
    assert load_cluster("l40s").size == 8, "boards of a server, which PCIe joins"
    assert load_cluster("m2").size == 1


@pytest.mark.parametrize(
    "text", ["400 Gb/s", "400 Gbit/s", "400Gbps", "50 GB/s", 5e10, {"name": "x", "bandwidth": "400 Gb/s"}]
)
def test_a_network_is_the_same_however_it_is_written(text: Any) -> None:
    assert lab(network=text).network_bandwidth == 5e10
    assert load_cluster("dgx-a100", network=text).network_bandwidth == 5e10


@pytest.mark.parametrize("text", ["-4 Gb/s", "0 Gb/s", "fast Gb/s", "400 Gb", "1e400 Mb/s", "400 mb/s"])
def test_a_network_that_is_refused_is_said_as_it_was_given(text: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(f"network={text!r} is ")) as refusal:
        load_cluster("dgx-a100", network=text)
    assert "bit/s" not in str(refusal.value)


def test_adapters_and_oversubscription_share_the_network_out() -> None:
    assert lab(network="100 Gb/s", nics=32).network_bandwidth == 5e10
    assert lab(network="100 Gb/s", nics=4).network_bandwidth == 6.25e9
    assert lab(network="400 Gb/s", oversubscription=4).network_bandwidth == 1.25e10


def test_part_of_a_mesh_uses_part_of_its_links_and_a_switch_all() -> None:
    mesh, switch = load_cluster("mi300x"), load_cluster("h100-sxm")
    assert [mesh.link_bandwidth(n) for n in (2, 4, 8)] == [64e9, 192e9, 448e9]
    assert {switch.link_bandwidth(n) for n in (2, 4, 8)} == {450e9}
    torus = load_cluster("tpu-v5p")
    assert [torus.link_bandwidth(n) for n in (8, 256, 8960)] == [200e9, 400e9, 600e9]


def members(layout: Layout, axis: str) -> list[list[int]]:
    """Ranks of each group of an axis, numbered with tp innermost, then cp, fsdp, dp and pp."""
    order = ("tp", "cp", "fsdp", "dp", "pp")
    degrees = [getattr(layout, name) for name in order]
    groups: dict[tuple[int, ...], list[int]] = {}
    for at in product(*map(range, reversed(degrees))):
        at = at[::-1]
        rank, stride = 0, 1
        for place, degree in zip(at, degrees, strict=True):
            rank, stride = rank + place * stride, stride * degree
        split = ("cp", "fsdp") if axis == "fsdp" else (axis,)
        groups.setdefault(tuple(p for p, name in zip(at, order, strict=True) if name not in split), []).append(rank)
    return list(groups.values())


@pytest.mark.parametrize(
    ("tp", "cp", "fsdp", "dp", "pp"), list(product((1, 2, 3, 8, 16), (1, 2), (1, 4, 6), (1, 5), (1, 3)))
)
def test_nodes_that_a_group_spans_are_those_of_its_ranks(tp: int, cp: int, fsdp: int, dp: int, pp: int) -> None:
    layout = Layout(tp=tp, cp=cp, fsdp=fsdp, dp=dp, pp=pp)
    needed = -(-layout.devices // 8)
    node = 8 if layout.devices % needed or needed == 1 else layout.devices // needed  # as many on each
    for axis, group in lab(network="400 Gb/s").place(layout).items():
        spans = [len({rank // node for rank in ranks}) for ranks in members(layout, axis)]
        assert all(len(ranks) == group.devices for ranks in members(layout, axis))
        assert max(spans) <= group.nodes
        if all(node % size == 0 or size % node == 0 for size in (group.stride, group.stride * group.devices)):
            assert max(spans) == group.nodes, axis


def test_nodes_of_72_have_as_many_devices_each_so_that_groups_of_powers_of_two_stay_inside() -> None:
    rack = load_cluster("gb200-nvl72")
    inside = rack.group_of(Layout(dp=64, ep=16, pp=4, runtime="megatron"), "ep", 16)
    assert (inside.nodes, rack.group("pp", 4, 64, 256).nodes) == (1, 4)
    assert rack.group("ep", 64, 1, 64).nodes == 1


def test_axes_lie_innermost_first() -> None:
    placed = lab(network="400 Gb/s").place(Layout(tp=8, fsdp=4, dp=2, pp=2))
    assert placed == {
        "tp": DeviceGroup("tp", 8, 8, 1, 1),
        "fsdp": DeviceGroup("fsdp", 4, 1, 4, 8),
        "dp": DeviceGroup("dp", 2, 1, 2, 32),
        "pp": DeviceGroup("pp", 2, 1, 2, 64),
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"machine": "h1000"}, ["unknown machine 'h1000'"]),
        ({"network": "400"}, ["no unit"]),
        ({"network": "400 GiB"}, ["network"]),
        ({"network": -1}, ["network=-1"]),
        ({"nics": -1}, ["nics"]),
        ({"topology": "star"}, ["topology"]),
        ({"oversubscription": 0.5}, ["oversubscription"]),
        ({"rails": 8}, ["rails"]),
        ({"node_size": 2.5}, ["node_size"]),
        ({"nics": 4}, ["of a network"]),
        ({"network_reduction": True}, ["of a network"]),
        ({"shape": [2, 4]}, ["shape is of a torus"]),
        ({"shape": [2, 2], "topology": "torus"}, ["of 4 devices, the node of 8"]),
        ({"shape": [-2, -4], "topology": "torus"}, ["no devices"]),
        ({"topology": "mesh", "in_switch_reduction": True}, ["in_switch_reduction is of switches"]),
    ],
)
def test_what_is_no_cluster_is_refused_in_one_line(fields: dict[str, Any], words: list[str]) -> None:
    message = error_of(lambda: lab(**fields))
    for word in words:
        assert word in message


def test_nodes_without_a_network_are_refused() -> None:
    assert "give one such as network='400 Gb/s'" in error_of(lambda: lab().place(Layout(tp=16)))
    assert "did you mean 'dgx-h100'" in error_of(lambda: load_cluster("dgx-h10O"))
    assert "no link" in error_of(
        lambda: (
            load_cluster(cm.Machine(name="x", peak={"fp32": "1 TFLOP/s"}, bandwidth="9 GB/s", memory="1 GiB")).inside
        )
    )


@pytest.mark.parametrize(
    "on", ["p4d", "mi300x-8", load_cluster("p4d"), {"name": "x", "machine": "h100-sxm", "node_size": 4}]
)
def test_a_cluster_is_taken_wherever_a_machine_is(on: Any) -> None:
    plain = cm.predict("mlp-mnist", batch=8)
    asked = cm.predict("mlp-mnist", batch=8, on=on)
    cluster = load_cluster(on)
    assert plain.on(on).seconds == plain.on(cluster.machine).seconds == asked.value("seconds")
    assert cm.Prediction.from_dict(asked.to_dict()).settings.on == asked.settings.on


def test_a_cluster_stands_for_its_machine_where_one_device_is_asked_about() -> None:
    asked: dict[str, Any] = {"input": 64, "output": 8, "concurrency": [1]}
    served = [cm.serve("llama-3.2-1b", on=on, **asked).to_dict() for on in ("p4d", "a100-sxm-40gb")]
    assert served[0] == served[1]


def test_a_cluster_of_a_file_is_the_same(tmp_path: Any) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\nmachine: h100-sxm\nnode_size: 4\nnetwork: 200 Gb/s\n")
    assert load_cluster(path) == lab(node_size=4, network="200 Gb/s")
    assert cm.predict("mlp-mnist", batch=8).on(path).machine.name == "h100-sxm"
    path.write_text("name: lab\nmachine: h100-sxm\nnode_size: 4\nnetwork: 200\n")
    assert f"{path}, line 4" in error_of(lambda: load_cluster(path))


@pytest.mark.parametrize(
    ("line", "words"),
    [("machine: h1000", "unknown machine"), ("machine: {name: x, peaks: {}}", "unknown field 'peaks'")],
)
def test_errors_of_a_file_name_the_line_of_the_machine(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(f"name: lab\nnode_size: 4\n{line}\n")
    message = error_of(lambda: cm.load_cluster(path))
    assert "lab.yaml, line 3: Cluster" in message
    assert words in message


def test_a_file_of_a_cluster_opens_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("password", encoding="utf-8")
    path = tmp_path / "cluster.yaml"
    path.write_text(f"name: lab\nmachine: {tmp_path / 'secret.yaml'}\n", encoding="utf-8")
    error = error_of(lambda: cm.predict("gpt2-small", devices=2, dp=2).on(path))
    assert "is a path: give a ready machine's name" in error
    assert "password" not in error


def test_every_answer_over_several_nodes_says_what_joins_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A network that nobody named is a default like any other, and is said; so is which axis crosses it."""
    run: dict[str, Any] = {"seq": 64, "precision": "bf16-master-fp32-gradients", "attention": "flash"}
    load: dict[str, Any] = {"input": 64, "output": 16}
    joined = "cluster: dgx-h100, nodes of 8 by 450 GB/s (NVLink 4)"
    between = f"{joined}, 50 GB/s a device between them (InfiniBand NDR)"

    def said(answer: Any) -> str:
        return " ".join(str(answer).split())

    inside = cm.predict("gpt2-small", **run, tp=4, on="h100-sxm").time
    assert f"{joined} attention" in said(inside)
    across = cm.predict("gpt2-small", **run, tp=4, dp=4, runtime="megatron", on="h100-sxm").time
    assert f"{between}: dp over 2 nodes" in said(across)
    lab = cm.Cluster(name="lab", machine="h100-sxm", node_size=4, network="400 Gb/s", nics=2, oversubscription=2)
    own = across.prediction.on(lab)
    assert "cluster: lab, nodes of 4 by 450 GB/s (NVLink 4), 12.5 GB/s a device between them (network)" in said(own)
    assert f"{joined} attention" not in said(cm.predict("gpt2-small", **run, on="h100-sxm").time)
    found = cm.layouts(
        "gpt2-small", devices=16, global_batch=16, seq=64, on="h100-sxm", runtime="megatron", cp=1, pp=1, tp=1
    )
    assert between in said(found)
    assert "12.5 GB/s a device between them" in said(found.at("100 Gb/s"))
    assert f"{between}: pp over 2 nodes" in said(cm.serve("gpt2-small", on="h100-sxm", tp=4, pp=4, **load))
    assert between in said(cm.deployments("gpt2-small", on="h100-sxm", devices=16, **load))
    assert between in said(
        here(capsys, *["collectives", "gpt2-small", "--seq", "64", "--tp", "4", "--fsdp", "4", "--on", "h100-sxm"]).out
    )


@pytest.mark.parametrize("network", ["fast", "400", "0 Gb/s", "-4 Gb/s", 0, -1.0])
def test_a_network_that_has_no_bandwidth_is_told_one_as_networks_have(network: Any) -> None:
    with pytest.raises(cm.CostModelError, match=r"network=.* '400 Gb/s'"):
        load_cluster("dgx-h100", network=network)
