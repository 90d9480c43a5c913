"""Constants of a machine from kernels timed on it: products, attention, copies, norms, launches; in under a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from math import log
from statistics import fmean
from typing import Any, NamedTuple

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_change, show_seconds
from costmodel.errors import CostModelError
from costmodel.graph.kernel import Kernel, Product, Sort
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine
from costmodel.performance.calibration import Calibration
from costmodel.performance.constants import UNITS, Constants, constant, typical
from costmodel.performance.fitting import drawn
from costmodel.performance.laws import KernelModel, KernelTable
from costmodel.training.dtypes import BITS, Dtype

PROBED = (
    "product_share",
    "vector_share",
    "bandwidth_share",
    "product_stream",
    "reduction_stream",
    "softmax_stream",
    "attention_share",
    "cache_speedup",
    "kernel_seconds",
    "product_seconds",
)
"""Constants that kernels can tell apart."""
LAUNCHES = 1000
"""Kernels in a row that the launch gap is the mean of: so small that the device waits for the host."""


class Probe(NamedTuple):
    """A kernel to time. operator: what runs it; sizes: what that takes (see `torch_timer`)."""

    operator: str
    sizes: tuple[int, ...]
    kernel: Kernel

    @property
    def row(self) -> str:
        """It as a line of a calibration."""
        return f"{self.operator} {'x'.join(map(str, self.sizes))} {self.kernel.dtype}"


Timer = Callable[[Probe], float]
"""Seconds of one kernel, back to back with others like it."""


def probes(machine: Machine) -> Iterator[Probe]:
    """What is timed: 24 products, 6 of fused attention, 7 copies, 6 norms and softmaxes, and a launch."""
    half: Dtype = "bf16" if machine.runs_in("bf16") == "bf16" else "fp16"
    for m, n, k in (
        *((s, s, s) for s in (512, 1024, 2048, 4096, 8192)),
        *((s, 4096, 4096) for s in (16, 128, 1024)),
        *((4096, 4096, 512), (8192, 1024, 4096), (2048, 11008, 4096), (32768, 768, 768)),
    ):
        yield _product("product", (m, n, k), half)
        yield _product("product", (m, n, k), "fp32")
    for heads, tokens, size in ((16, 1024, 64), (16, 4096, 64), (16, 2048, 128), (32, 4096, 128), (64, 512, 64)):
        yield _attention((heads, tokens, size), half)
    yield _attention((128, 1024, 64), half)
    for megabytes in (1, 4, 16, 64, 256, 512, 1024):
        yield _stream("copy", (megabytes * 2**20 // 4,), "pointwise", "copy", 0, "fp32")
    for rows, columns in ((4096, 1024), (16384, 4096), (65536, 768)):
        yield _stream("layernorm", (rows, columns), "reduction", "layernorm", 7, "fp32")
        yield _stream("softmax", (rows, columns), "reduction", "softmax", 5, "fp32")


def _product(operator: str, sizes: tuple[int, int, int], dtype: Dtype) -> Probe:
    m, n, k = sizes
    size = BITS[dtype] // 8
    product = Product(1, m, n, k)
    return Probe(
        operator,
        sizes,
        Kernel("product", "product", product.flops, size * (m * k + k * n), size * m * n, dtype, 1, product),
    )


def _attention(sizes: tuple[int, int, int], dtype: Dtype) -> Probe:
    heads, tokens, features = sizes
    moved = BITS[dtype] // 8 * heads * tokens * features
    flops = 4 * heads * tokens * tokens * features
    product = Product(heads, tokens, tokens, features)
    return Probe("attention", sizes, Kernel("attention", "attention", flops, 3 * moved, moved, dtype, 1, product))


def _stream(operator: str, sizes: tuple[int, ...], sort: Sort, name: str, work: int, dtype: Dtype) -> Probe:
    elements = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    moved = elements * BITS[dtype] // 8
    return Probe(operator, sizes, Kernel(name, sort, work * elements, moved, moved, dtype))


@dataclass(frozen=True, repr=False)
class Probing(Answer):
    """Constants that kernels gave, and how well each kernel is predicted before and after [s]."""

    calibration: Calibration
    timed: tuple[Probe, ...]
    measured: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]

    def errors(self) -> tuple[float, float]:
        """Mean of what kernels are off, before and after, relative."""
        means = [
            fmean(abs(guess / seconds - 1) for guess, seconds in zip(guesses, self.measured, strict=True))
            for guesses in (self.before, self.after)
        ]
        return means[0], means[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        columns = zip(self.timed, self.measured, self.before, self.after, strict=True)
        return {
            "calibration": self.calibration.model_dump(mode="json"),
            "kernels": [{"kernel": p.row, "measured": m, "before": b, "after": a} for p, m, b, a in columns],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel."""
        return self.to_dict()["kernels"]

    def sheet(self) -> Sheet:
        """What was found, and what it does to each kernel."""
        machine = load_machine(self.calibration.machine)
        found = self.calibration.constants
        constants = [(n, f"{v:.3g}", f"{constant(n, machine).typical:.3g}") for n, v in found.items()]
        columns = zip(self.timed, self.measured, self.before, self.after, strict=True)
        rows = [(p.row, show_seconds(m), show_change(b / m - 1), show_change(a / m - 1)) for p, m, b, a in columns]
        before, after = self.errors()
        said = f"{machine.name}: {len(rows)} kernels are off by {before:.1%} on average before, {after:.1%} after"
        tables = [
            Table(("Constant", "measured", "typical"), constants),
            Table(("Kernel", "measured", "before", "after"), rows),
        ]
        return Sheet([said], tables, notes=[f"{name}: {UNITS[name]}" for name in found])


def calibrate_machine(
    machine: str | Machine, timer: Timer | None = None, *, launch: float | None = None, software: str = ""
) -> Probing:
    """Time kernels on the GPU at hand, and take constants from them, each drawn to its typical value.

    Args:
        machine: a ready machine's name, or a `Machine`: whose constants they are.
        timer: what times a probe (default: PyTorch on the first CUDA device).
        launch: seconds of the host for one launch (default: timed with PyTorch where `timer` is left out).
        software: what ran (default: PyTorch's and CUDA's versions).

    Raises:
        CostModelError: there is no PyTorch, or no GPU.

    Example:
        >>> import costmodel as cm
        >>> def timer(probe):
        ...     return 1e-4  # seconds; on a GPU it is left out
        >>> found = cm.calibrate_machine("h100-sxm", timer, launch=4e-6)
        >>> type(found).__name__
        'Probing'

    """
    device = load_machine(machine)
    if timer is None:
        timer, launch, software = torch_timer(launch, software)
    timed, measured = [], []
    for probe in probes(device):
        timed.append(probe)
        measured.append(timer(probe))
    kernels = [probe.kernel for probe in timed]
    names = [name for name in PROBED if _matters(name, kernels, device)]
    wanted = [log(seconds) for seconds in measured]
    middle = typical(device)
    found = drawn(names, device, lambda constants: [log(s) for s in _seconds(kernels, device, constants)], wanted)
    constants = {name: getattr(found, name) for name in names}
    if launch is not None:
        constants["eager_seconds"] = launch
    rows = [f"{probe.row}: {show_seconds(seconds)}" for probe, seconds in zip(timed, measured, strict=True)]
    calibration = Calibration(
        machine=device.name, constants=constants, date=date.today().isoformat(), software=software, measured=rows
    )
    before, after = (_seconds(kernels, device, c) for c in (middle, calibration.on(device)))
    return Probing(calibration, tuple(timed), tuple(measured), tuple(before), tuple(after))


def _seconds(kernels: Sequence[Kernel], machine: Machine, constants: Constants) -> list[float]:
    return KernelTable(kernels).times(KernelModel(machine, constants, allow_tf32=False))


def _matters(name: str, kernels: Sequence[Kernel], machine: Machine) -> bool:
    """Whether a constant changes a kernel by a hundredth or more within its range."""
    of, middle = constant(name, machine), typical(machine)
    low, high = (_seconds(kernels, machine, middle.changed(**{name: end})) for end in (of.low, of.high))
    return any(abs(log(a / b)) > 0.01 for a, b in zip(low, high, strict=True))


def torch_timer(launch: float | None, software: str) -> tuple[Timer, float, str]:
    """What times probes with PyTorch on the first CUDA device, the time of a launch, and what ran.

    Raises CostModelError.
    """
    try:
        import torch
    except ImportError:
        raise CostModelError("calibrating a machine needs PyTorch: install torch, or fit to measured steps") from None
    if not torch.cuda.is_available():
        raise CostModelError("calibrating a machine needs a GPU that PyTorch sees: fit to measured steps instead")
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    functional = torch.nn.functional

    def runner(probe: Probe) -> Callable[[], Any]:
        made = {"device": "cuda", "dtype": types[probe.kernel.dtype]}
        if probe.operator == "product":
            m, n, k = probe.sizes
            a, b = torch.randn(m, k, **made), torch.randn(k, n, **made)
            return lambda: a @ b
        if probe.operator == "attention":
            heads, tokens, size = probe.sizes
            q, k_, v = (torch.randn(1, heads, tokens, size, **made) for _ in range(3))
            return lambda: functional.scaled_dot_product_attention(q, k_, v)
        x = torch.randn(*probe.sizes, **made)
        if probe.operator == "copy":
            y = torch.empty_like(x)
            return lambda: y.copy_(x)
        if probe.operator == "layernorm":
            return lambda: functional.layer_norm(x, x.shape[-1:])
        return lambda: x.softmax(-1)

    def events(run: Callable[[], Any], times: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / times

    def timer(probe: Probe) -> float:
        run = runner(probe)
        for _ in range(3):
            run()
        times = max(5, min(200, int(0.2 / max(events(run, 3), 1e-6))))
        return min(events(run, times) for _ in range(3))

    if launch is None:
        small = torch.zeros(1, device="cuda")
        for _ in range(3):
            launch = events(lambda: small.add_(1), LAUNCHES)
    assert launch is not None
    return timer, launch, software or f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"


def device_name() -> str:
    """The name of the GPU at hand, as its driver writes it. Raises CostModelError."""
    try:
        import torch
    except ImportError:
        raise CostModelError("the machine is not given, and without PyTorch its GPU cannot be named") from None
    if not torch.cuda.is_available():
        raise CostModelError("the machine is not given, and PyTorch sees no GPU: name the machine")
    return torch.cuda.get_device_name()
