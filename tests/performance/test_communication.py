"""Seconds of collectives: laws that hold on any cluster, and tables that were published."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import costmodel as cm
from costmodel.graph.kernel import Message, Operation, wire_bytes
from costmodel.hardware.cluster import Cluster, load_cluster
from costmodel.performance.communication import CollectiveModel, factor_name
from costmodel.performance.constants import constant, typical
from costmodel.performance.parallel import Prices
from tests.benchmarks import bench_collectives
from tests.command import error_of, here

CLUSTERS = ("dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x-8", "tpu-v5p-pod", "p4d")
SIZES = [2**k for k in range(8, 36, 3)]


def model(name: str, **how: Any) -> CollectiveModel:
    cluster = load_cluster(name)
    return CollectiveModel(cluster, typical(cluster.machine), **how)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("operation", get_args(Operation))
@pytest.mark.parametrize("devices", [2, 8, 64])
def test_more_bytes_take_longer_and_never_less_than_the_sheet_allows(
    name: str, operation: Operation, devices: int
) -> None:
    typically, ideally = model(name), model(name, tier="ceiling")
    group = typically.cluster.group("dp", devices)
    seconds = [typically.time(operation, size, group).seconds for size in SIZES]
    assert seconds == sorted(seconds)
    assert all(ideally.time(operation, size, group).seconds < time for size, time in zip(SIZES, seconds, strict=True))


@pytest.mark.parametrize("operation", get_args(Operation))
def test_arrays_are_each_of_their_numbers(operation: Operation) -> None:
    typically = model("dgx-h100")
    for devices in (4, 32):
        group = typically.cluster.group("dp", devices)
        together = typically.time(operation, np.array(SIZES, dtype=float), group).seconds
        assert together == pytest.approx([typically.time(operation, size, group).seconds for size in SIZES], rel=1e-12)


def test_constants_may_be_arrays() -> None:
    cluster = load_cluster("dgx-h100")
    ends = typical(cluster.machine).with_ends({"link_share": constant("link_share", cluster.machine)})
    low, high, middle = CollectiveModel(cluster, ends).time("all_gather", 2**30, cluster.group("dp", 8)).seconds
    assert high < middle < low


MEASURED = {
    # Public outputs of NCCL tests (all_reduce_perf, out of place): where, devices, and microseconds by MiB.
    "8 A100-SXM4-80GB of a node, NVSwitch": ("dgx-a100", 8, {
        0.25: 27.65, 1: 37.89, 2: 55.39, 4: 81.66, 8: 130.6, 16: 213.3, 32: 377.6, 64: 615.7, 256: 2218.2, 1024: 8244.5,
    }),
    "8 H100-SXM of a node, sums in switches (Supermicro)": ("dgx-h100", 8, {
        256: 1119.8, 512: 2157.5, 1024: 4027.3, 2048: 7983.5,
    }),
    "2 p4de of 8 A100, EFA (AWS ParallelCluster workshop)": ("p4de", 16, {
        1: 307.4, 4: 522.7, 8: 761.2, 64: 2724.5, 128: 4071.8, 512: 13605.0, 1024: 25940.0,
    }),
    "2 DGX H100, InfiniBand": ("dgx-h100", 16, {2048: 9270.2, 4096: 17662.0, 8192: 34409.0, 16384: 68195.0}),
}  # fmt: skip


@pytest.mark.parametrize("where", MEASURED)
def test_published_sums_are_near_and_within_the_range(where: str) -> None:
    name, devices, rows = MEASURED[where]
    times = [cm.collective_seconds("all-reduce", int(size * 2**20), devices=devices, on=name) for size in rows]
    off = [time.seconds / (us * 1e-6) - 1 for time, us in zip(times, rows.values(), strict=True)]
    assert sum(map(abs, off)) / len(off) < 0.12
    inside = [time.low <= us * 1e-6 <= time.high for time, us in zip(times, rows.values(), strict=True)]
    assert sum(inside) >= 0.75 * len(inside)


# The same of other collectives: where, operation, devices, and microseconds by MiB in all.
EXCHANGES: dict[str, list[tuple[str, str, int, dict[float, float]]]] = {
    # microsoft/mscclpp, docs/performance-ndmv4.md: NCCL 2.17.1, from bandwidths of the bus; 1 KiB as published.
    "Azure NDmv4, A100": [
        ("dgx-a100", "all-gather", 8, {1 / 1024: 12.53, 1024: 3704.9}),
        ("dgx-a100", "all-to-all", 8, {1 / 1024: 9.34, 1024: 3688.9}),
        ("dgx-a100", "all-gather", 16, {1 / 1024: 33.74, 1024: 5685.6, 4096: 21646.9}),
        ("dgx-a100", "all-to-all", 16, {1 / 1024: 49.75, 1024: 26630.5, 4096: 106493.8}),
    ],
    # li-plus/playground, cuda/nccl.md: sendrecv_perf, in a ring of 8.
    "A100, NVSwitch": [("dgx-a100", "send", 2, {256: 1423.3, 512: 2785.4, 1024: 5503.4})],
    "NVIDIA/nccl issue 2169, H100": [("dgx-h100", "all-to-all", 4, {500: 1174.14})],
    # Oracle, getting started with BM.GPU.GB300.4 and BM.GPU.MI355X.8: NCCL 2.28, RCCL of ROCm 7.0.
    "OCI, GB300": [
        ("gb300-nvl72", "all-to-all", 4, {8192: 10308.0, 16384: 20527.0}),
        ("gb300-nvl72", "all-to-all", 8, {8192: 11059.0, 16384: 21943.0}),
        ("gb300-nvl72", "all-to-all", 64, {8192: 13028.0, 16384: 25357.0}),
    ],
    "OCI, MI355X": [("mi355x-8", "all-to-all", 8, {8192: 20837.0, 16384: 41593.0})],
    # google/dranet, site/content/docs: all_gather_perf of 2 A4 with gIB, NCCL 2.26.
    "GKE, B200": [
        ("dgx-b200", "all-gather", 16, {512: 3332.1, 1024: 4057.5, 2048: 7753.4, 4096: 15394.0, 8192: 30970.0}),
    ],
}  # fmt: skip


def test_published_gathers_exchanges_and_sends_are_in_range_and_near_after_one_factor_a_group() -> None:
    """Three of four in range, and one factor for each group size leaves 12 %: none is a constant's typical value."""
    inside, left = [], []
    for name, operation, devices, rows in (row for of in EXCHANGES.values() for row in of):
        times = {size: cm.collective_seconds(operation, int(size * 2**20), devices=devices, on=name) for size in rows}
        inside += [time.low <= rows[size] * 1e-6 <= time.high for size, time in times.items()]
        ratios = [time.seconds / (rows[size] * 1e-6) for size, time in times.items() if size >= 1 / 16]
        factor = math.prod(ratios) ** (1 / len(ratios))
        left += [abs(ratio / factor - 1) for ratio in ratios]
        assert abs(factor - 1) < 0.35
    assert sum(inside) >= 0.75 * len(inside)
    assert sum(left) / len(left) < 0.12


@pytest.mark.parametrize("on", ["dgx-a100", "dgx-h100"])
def test_operations_inside_nodes_that_no_constant_is_from_are_near_after_one_factor(on: str) -> None:
    kept = bench_collectives.scores(on)
    for devices in (2, 4, 8):
        from_them, of = kept[on, devices]
        assert not from_them
        assert of["all"].rows == 56
        assert of["all"].after_factor < (0.14 if on == "dgx-a100" else 0.10)
        assert of["all"].within >= 0.9


@pytest.mark.parametrize(("operation", "part"), [("all_gather", "own_part"), ("all_to_all", "kept_part")])
def test_what_a_device_keeps_takes_time_too(operation: Operation, part: str) -> None:
    cluster = load_cluster("dgx-h100")
    ends = typical(cluster.machine).with_ends({part: constant(part, cluster.machine)})
    low, high, middle = CollectiveModel(cluster, ends).time(operation, 2**30, cluster.group("tp", 8)).seconds
    assert low < middle < high


def test_small_exchanges_inside_a_node_go_over_one_channel_a_peer() -> None:
    machine = model("dgx-h100")
    group = machine.cluster.group("ep", 8)
    assert [machine.time("all_to_all", size, group).protocol for size in (2**16, 2**28)] == ["LL", "Simple"]


def test_more_boards_than_two_share_the_processor_of_their_host() -> None:
    boards = model("l40s")
    pair, four = (boards.time("all_gather", 2**28, boards.cluster.group("tp", n)).seconds / (1 - 1 / n) for n in (2, 4))
    assert four > 1.2 * pair


def test_without_latency_a_ring_is_its_bytes_over_the_link() -> None:
    ideally = model("dgx-a100", tier="ceiling")
    for operation in ("all_gather", "reduce_scatter"):
        time = ideally.time(operation, 2**30, ideally.cluster.group("tp", 8))
        assert time.seconds == pytest.approx(wire_bytes(operation, 8, 2**30) / 300e9)


def test_a_group_of_one_says_nothing_to_anyone() -> None:
    only = model("dgx-a100")
    assert only.time("all_reduce", 2**30, only.cluster.group("tp", 1)).seconds == 0.0


def test_switches_that_add_up_are_used_for_large_sums_alone() -> None:
    hopper, group = model("dgx-h100"), load_cluster("dgx-h100").group("tp", 8)
    assert hopper.time("all_reduce", 2**12, group)[1:3] == ("ring", "LL")
    assert hopper.time("all_reduce", 2**28, group).algorithm == "in-switch"
    assert hopper.time("all_gather", 2**28, group).algorithm == "ring"


def test_small_sums_are_exchanged_directly_where_they_may_be() -> None:
    """vLLM's custom all-reduce: one shot below half a mebibyte on eight devices, two shots above, then the library."""
    question: dict[str, Any] = {"devices": 8, "on": "dgx-a100", "direct": True}
    small, middle, large = (cm.collective_seconds("all-reduce", size, **question) for size in (2**14, 2**21, 2**30))
    assert (small.algorithm, small.protocol) == ("direct", "one shot")
    assert (middle.algorithm, middle.protocol) == ("direct", "two shots")
    plain = cm.collective_seconds("all-reduce", 2**14, devices=8, on="dgx-a100")
    assert 5e-6 < small.seconds < 1e-5 < plain.seconds
    assert small.low < small.seconds < small.high
    assert large.seconds == pytest.approx(
        cm.collective_seconds("all-reduce", 2**30, devices=8, on="dgx-a100").seconds, rel=0.02
    )


def test_nodes_are_crossed_at_the_network_s_pace() -> None:
    """NCCL tests on DGX H100 (NVIDIA/nccl-tests issues 212 and 290): 46-48 GB/s an adapter, eight of them a node."""
    hopper, size = model("dgx-h100"), 2**33
    group = hopper.cluster.group("dp", 16)
    time = hopper.time("all_gather", size, group)
    assert time.link == "InfiniBand NDR"
    assert 15 / 16 * size / time.seconds == pytest.approx(8 * 47e9, rel=0.1)


def test_a_measured_factor_is_of_the_bytes_over_its_link_by_the_nearest_group_size() -> None:
    cluster = load_cluster("dgx-a100")
    measured = {factor_name("NVLink 3", 2): 1.5, factor_name("NVLink 3", 8): 2.0, factor_name("other", 4): 9.0}
    plain, scaled = model("dgx-a100"), CollectiveModel(cluster, typical(cluster.machine), factors=measured)
    for devices, factor in ((2, 1.5), (3, 1.5), (6, 2.0), (8, 2.0)):
        group = cluster.group("tp", devices)
        large, small = 2**36, 2**10
        times = [(one.time("all_reduce", large, group).seconds, one.time("all_reduce", small, group).seconds)
                 for one in (plain, scaled)]  # fmt: skip
        assert math.isclose(times[1][0] / times[0][0], factor, rel_tol=1e-3)
        assert math.isclose(times[1][1] / times[0][1], 1.0, rel_tol=1e-2)


def test_processors_follow_the_pieces_of_a_message() -> None:
    ampere, group = model("dgx-a100"), load_cluster("dgx-a100").group("tp", 8)
    assert [ampere.time("all_reduce", size, group).processors for size in (2**10, 2**18, 2**30)] == [1.0, 8.0, 24.0]


def test_kernels_beside_a_large_collective_take_as_much_longer_as_measured() -> None:
    """Products beside FSDP's collectives on 8 H100 (PyTorch's pull request 179937); small messages slow nothing."""
    layout = cm.predict("llama-3.1-8b", fsdp=8, precision="bf16-master").settings.layout
    prices = Prices(CollectiveModel(load_cluster("h100-sxm"), typical(load_cluster("h100-sxm").machine)), layout)
    lost = [prices(Message("all_gather", "fsdp", 8, size // 2, "bf16")).processors for size in (436 << 20, 1 << 10)]
    assert 1.3 < 1 / (1 - lost[0]) < 1.4
    assert 1 / (1 - lost[1]) < 1.02


def test_boards_that_pcie_joins_are_slower_than_those_of_a_switch() -> None:
    pcie, switch = model("rtx-4090-pair"), Cluster(name="s", machine="rtx-4090", topology="switch", node_size=2)
    joined = CollectiveModel(switch, typical(switch.machine)).time("all_reduce", 2**28, switch.group("tp", 2))
    assert pcie.time("all_reduce", 2**28, pcie.cluster.group("tp", 2)).seconds > 1.5 * joined.seconds


@pytest.mark.parametrize("on", ["h100-sxm", "dgx-h100", cm.load_cluster("dgx-h100"), cm.load_machine("h100-sxm")])
def test_a_collective_is_asked_for_by_name(on: Any) -> None:
    answer = cm.collective_seconds("all-reduce", "64 MiB", devices=8, on=on)
    assert (
        answer.seconds == model("dgx-h100").time("all_reduce", 2**26, load_cluster("dgx-h100").group("tp", 8)).seconds
    )
    assert answer.low < float(answer) < answer.high
    assert answer.to_dict()["operation"] == "all_reduce"
    assert answer.bus_bandwidth == pytest.approx(7 / 4 * 2**26 / answer.seconds)
    for spelling in ("allreduce", "AllReduce", "all_reduce", "ALL-REDUCE"):
        assert cm.collective_seconds(spelling, 2**26, devices=8, on=on).seconds == answer.seconds


def test_one_of_each_node_goes_over_the_network_alone() -> None:
    near = cm.collective_seconds("all-gather", "1 GiB", devices=8, on="dgx-h100")
    far = cm.collective_seconds("all-gather", "1 GiB", devices=8, on="dgx-h100", apart=8)
    assert (near.group.nodes, far.group.nodes) == (1, 8)
    assert far.seconds > 5 * near.seconds
    slower = cm.collective_seconds("all-gather", "1 GiB", devices=8, on="dgx-h100", apart=8, network="100 Gb/s")
    assert slower.seconds == pytest.approx(4 * far.seconds, rel=0.02)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (("sum", "1 GiB", 8, "h100-sxm"), ["unknown collective 'sum'", "all-reduce"]),
        (("send", "1 GB/s", 8, "h100-sxm"), ["size='1 GB/s'"]),
        (("send", "1 GiB", 0, "h100-sxm"), ["devices=0"]),
        (("send", "1 GiB", 16, "l40s"), ["network='400 Gb/s'"]),
        (("send", "1 GiB", 2, "m2"), ["no link"]),
        (("send", "1 GiB", 2, "h1000"), ["unknown cluster 'h1000'"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(question: tuple[Any, ...], words: list[str]) -> None:
    operation, size, devices, on = question
    message = error_of(lambda: cm.collective_seconds(operation, size, devices=devices, on=on))
    assert all(word in message for word in words)


def test_measured_collectives_give_a_factor_for_each_link_and_group_size(tmp_path: Path) -> None:
    rows = ["all-reduce 64 MiB on 8: 0.42 ms", "all-gather 1 GiB on 8: 4 ms", "all-reduce 64 MiB on 2 devices: 0.3 ms"]
    fit = cm.fit_machine("h100-sxm", rows)
    assert list(fit.calibration.collectives) == ["NVLink 4 on 8", "NVLink 4 on 2"]
    assert fit.calibration.constants == {}
    assert fit.collectives_after[2] == pytest.approx(3e-4)
    assert fit.collectives_after[0] / 0.42e-3 == pytest.approx(4e-3 / fit.collectives_after[1], rel=0.1)
    fit.save(tmp_path / "lab.yaml")
    plain = cm.collective_seconds("all-reduce", "64 MiB", devices=2, on="h100-sxm")
    lab = cm.collective_seconds("all-reduce", "64 MiB", devices=2, on=tmp_path / "lab.yaml")
    assert (lab.seconds, lab.tier) == (pytest.approx(3e-4), "calibrated")
    assert lab.high / lab.low < plain.high / plain.low
    typically = cm.collective_seconds("all-reduce", "64 MiB", devices=2, on=tmp_path / "lab.yaml", tier="typical")
    assert typically.seconds == plain.seconds


@pytest.mark.parametrize(("devices", "share"), [(2, 0.56), (4, 0.24), (8, 0.5)])
def test_one_large_sum_tells_a_host_of_slow_links_from_a_quick_one(devices: int, share: float) -> None:
    """Of a host whose starts are as usual and whose links are not, one line says what all sizes take."""
    links = typical(cm.load_machine("a100-sxm-80gb")).link_share / share
    cluster = load_cluster("dgx-a100")
    host = CollectiveModel(cluster, typical(cluster.machine), factors={factor_name("NVLink 3", devices): links})
    group = cluster.group("tp", devices)
    seconds = {2**k: host.time("all_reduce", 2**k, group).seconds for k in range(16, 31)}
    fit = cm.fit_machine("dgx-a100", f"all-reduce 64 MiB on {devices}: {seconds[2**26] * 1e6:.3f} us")
    after = {s: cm.collective_seconds("all-reduce", s, devices=devices, on=fit.calibration).seconds for s in seconds}
    assert max(abs(after[size] / seconds[size] - 1) for size in seconds) < 1e-3


def test_small_collectives_tell_what_starts_take() -> None:
    cluster = load_cluster("dgx-h100")
    slow = typical(cluster.machine)
    slow = slow.changed(collective_seconds=2 * slow.collective_seconds, hop_seconds=2 * slow.hop_seconds)
    host, sizes = CollectiveModel(cluster, slow), [2**12, 2**16, 2**20, 2**26, 2**30]
    rows = [
        f"all-gather {size} bytes on {n}: {host.time('all_gather', size, cluster.group('', n)).seconds * 1e6:.4f} us"
        for size in sizes
        for n in (2, 8)
    ]
    fit = cm.fit_machine("dgx-h100", rows)
    off = [after / row.seconds - 1 for after, row in zip(fit.collectives_after, fit.collectives, strict=True)]
    assert max(map(abs, off)) < 0.12
    assert fit.calibration.constants["collective_seconds"] == pytest.approx(slow.collective_seconds, rel=0.1)


def test_steps_and_collectives_are_measured_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = ("--measured", "gpt2-small batch=4 seq=128: 0.1 s", "--measured", "all-reduce 64 MiB on 8: 1 ms")
    code, out, _ = here(capsys, "machines", "fit", "dgx-a100", *measured, "--out", str(tmp_path / "lab.yaml"))
    assert code == 0
    assert "NVLink 3 on 8" in out
    assert "all-reduce 64 MiB on 8: 1 ms" in out
    p = cm.predict("gpt2-small", batch=4, seq=128)
    assert p.on(tmp_path / "lab.yaml").seconds == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize(
    "row",
    [
        "all-reduce 64 MiB on 1: 1 ms",
        "all-reduce 64 XB on 8: 1 ms",
        "all-reduce 64 MiB on 8: 0 ms",
        "all-reduce 64 MiB on 8: 1 MiB",
        "sum 64 MiB on 8: 1 ms",
    ],
)
def test_collectives_that_cannot_be_are_refused(row: str) -> None:
    assert "Traceback" not in error_of(lambda: cm.fit_machine("h100-sxm", [row]))


def test_collectives_of_a_step_have_seconds_where_a_cluster_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("gpt2-small", "--seq", "64", "--tp", "4")
    code, out, _ = here(capsys, "collectives", *question, "--on", "p4d", "--json")
    assert code == 0
    rows = json.loads(out)["collectives"]
    first = cm.collective_seconds(rows[0]["operation"], rows[0]["bytes"], devices=4, on="p4d")
    assert rows[0]["seconds"] / rows[0]["times"] == pytest.approx(first.seconds)
    assert sum(row["times"] for row in rows) == sum(
        call.times for call in cm.predict("gpt2-small", seq=64, tp=4).collectives
    )
    code, out, _ = here(capsys, "collectives", *question, "--on", "p4d")
    assert all(word in out for word in ("tp all_reduce", "exposed", "embedding.reduce"))
    code, _, err = here(capsys, "collectives", *question, "--network", "100Gb/s")
    assert code == 2
    assert "give --on CLUSTER too" in err


def test_a_fit_says_of_what_it_is() -> None:
    collective = "all-reduce 64 MiB on 4: 0.5 ms"
    alone = str(cm.fit_machine("dgx-a100", [collective]))
    assert alone.startswith("constants of a100-sxm-80gb from 1 measured collective\n")
    step = "gpt2-small batch=1 seq=64: 30 ms"
    both = str(cm.fit_machine("dgx-a100", [collective, step, collective.replace("on 4", "on 8")]))
    assert both.startswith("constants of a100-sxm-80gb from 1 measured step and 2 measured collectives\n")


def test_measured_collectives_narrow_the_range_of_a_step(tmp_path: Path) -> None:
    p = cm.predict("gpt2-small", batch=1, seq=1024, tp=4, precision="bf16")
    fit = cm.fit_machine("dgx-a100", ["all-reduce 64 MiB on 4: 0.5 ms"])
    fit.save(tmp_path / "lab.yaml")
    plain, lab = p.on("dgx-a100"), p.on(tmp_path / "lab.yaml")
    assert lab.high / lab.low < plain.high / plain.low
    (part, *_) = lab.collectives
    asked = cm.collective_seconds(part.operation, part.bytes, devices=4, on=fit.calibration)
    assert part.seconds / part.times == pytest.approx(asked.seconds)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_sums_over_tensor_parallel_ranks_stay_in_a_node_where_there_are_as_many_copies(degree: int) -> None:
    """Megatron-Core's order of ranks is tp, cp, ep, dp, pp: ranks of tp are neighbours whatever the other degrees."""
    cluster = load_cluster("dgx-a100")
    for runtime in ("torch", "megatron"):
        settings = cm.predict(
            cm.GPT(vocab=512, context=64, width=64, layers=4, heads=8),
            batch=1,
            seq=64,
            tp=degree,
            dp=degree,
            pp=2,
            accumulate=2,
            runtime=runtime,
        )
        groups = cluster.place(settings.settings.layout)
        assert (groups["tp"].nodes, groups["tp"].stride) == (1, 1)
        assert groups["dp"].stride == degree


def test_boards_for_games_exchange_through_the_host_and_others_of_their_dies_do_not() -> None:
    """tinygrad/open-gpu-kernel-modules issue 6: the driver lets GeForce boards reach no other's memory over PCIe."""
    games = ("rtx-3090", "rtx-4090", "rtx-5090")
    boards = ("a40", "a10", "l40s", "rtx-6000-ada", "rtx-pro-6000")
    shares = {name: typical(cm.load_machine(name)).host_share for name in (*games, *boards)}
    assert max(shares[name] for name in games) < min(shares[name] for name in boards)
