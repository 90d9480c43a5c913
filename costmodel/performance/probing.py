"""Constants of a machine from kernels timed on it: products, attention, copies, norms, launches; in under a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from costmodel.display.answer import Sheet
from costmodel.display.units import show_change, show_seconds
from costmodel.documents.arguments import Positive, typed
from costmodel.errors import CostModelError
from costmodel.graph.kernel import Kernel, Product, Sort
from costmodel.hardware.catalogue import MachineLike, load_machine, machine_name
from costmodel.hardware.machine import Machine
from costmodel.performance.calibration import Calibration
from costmodel.performance.constants import ATTENTION_SHARES, Constants, typical
from costmodel.performance.fitting import MachineFit, calibrated, effective
from costmodel.performance.laws import KernelModel, KernelTable
from costmodel.training.dtypes import BITS, Dtype

PROBED = (
    "product_share",
    "vector_share",
    "bandwidth_share",
    "product_stream",
    "reduction_stream",
    "softmax_stream",
    *ATTENTION_SHARES.values(),
    "cache_speedup",
    "kernel_seconds",
    "product_seconds",
)
"""Constants that kernels can tell apart."""
LAUNCHES = 1000
"""Kernels in a row that the launch gap is the mean of: so small that the device waits for the host."""


class KernelProbe(NamedTuple):
    """A kernel to time. operator: what runs it; sizes: what that takes (see `torch_timer`)."""

    operator: str
    sizes: tuple[int, ...]
    kernel: Kernel

    @property
    def row(self) -> str:
        """It as a line of a calibration."""
        return f"{self.operator} {'x'.join(map(str, self.sizes))} {self.kernel.dtype}"


Timer = Callable[[KernelProbe], float]
"""Seconds of one kernel, back to back with others like it."""


def probes(machine: Machine) -> Iterator[KernelProbe]:
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


def _product(operator: str, sizes: tuple[int, int, int], dtype: Dtype) -> KernelProbe:
    m, n, k = sizes
    size = BITS[dtype] // 8
    product = Product(1, m, n, k)
    return KernelProbe(
        operator,
        sizes,
        Kernel("product", "product", product.flops, size * (m * k + k * n), size * m * n, dtype, 1, product),
    )


def _attention(sizes: tuple[int, int, int], dtype: Dtype) -> KernelProbe:
    heads, tokens, features = sizes
    moved = BITS[dtype] // 8 * heads * tokens * features
    flops = 4 * heads * tokens * tokens * features
    product = Product(heads, tokens, tokens, features)
    return KernelProbe("attention", sizes, Kernel("attention", "attention", flops, 3 * moved, moved, dtype, 1, product))


def _stream(operator: str, sizes: tuple[int, ...], sort: Sort, name: str, work: int, dtype: Dtype) -> KernelProbe:
    elements = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    moved = elements * BITS[dtype] // 8
    return KernelProbe(operator, sizes, Kernel(name, sort, work * elements, moved, moved, dtype))


@dataclass(frozen=True, repr=False)
class KernelFit(MachineFit):
    """Constants that kernels gave. measured, before, after: seconds of each that was timed; least: by the datasheet."""

    calibration: Calibration
    timed: tuple[KernelProbe, ...]
    measured: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    least: tuple[float, ...]

    OF = "kernel"

    @property
    def counts(self) -> dict[str, int]:
        """Kernels."""
        return {"kernel": len(self.timed)}

    @property
    def warnings(self) -> list[str]:
        """Kernels faster than the datasheet allows, which others are fitted without; where the fit stopped."""
        possible = any(seconds >= least for seconds, least in zip(self.measured, self.least, strict=True))
        left_out = ": it is left out" if possible else ""
        return [
            f"{probe.row} is faster than the datasheet allows ({show_seconds(least)}){left_out}"
            for probe, seconds, least in zip(self.timed, self.measured, self.least, strict=True)
            if seconds < least
        ] + self.stops

    def errors(self) -> tuple[float, float]:
        """Mean of what kernels are off, before and after, relative."""
        means = [
            fmean(abs(guess / seconds - 1) for guess, seconds in zip(guesses, self.measured, strict=True))
            for guesses in (self.before, self.after)
        ]
        return means[0], means[1]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel."""
        columns = zip(self.timed, self.measured, self.before, self.after, strict=True)
        return [{"kernel": p.row, "measured": m, "before": b, "after": a} for p, m, b, a in columns]

    def sheet(self) -> Sheet:
        """The constants, and what they do to each kernel."""
        before, after = self.errors()
        head = (
            f"{self.calibration.machine}: {len(self.timed)} kernels are off by {before:.1%} on average before, "
            f"{after:.1%} after"
        )
        tables = self.tables(
            ("Constant", "measured"), "Kernel", lambda guess, seconds: show_change(guess / seconds - 1)
        )
        return Sheet([head], tables, warnings=self.warnings, notes=self.notes)


@typed
def calibrate_machine(
    machine: MachineLike, timer: Timer | None = None, *, launch: Positive | None = None, software: str = ""
) -> KernelFit:
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
        >>> fit = cm.calibrate_machine("h100-sxm", timer, launch=4e-6)
        >>> type(fit).__name__
        'KernelFit'

    """
    device, name = load_machine(machine), machine_name(machine)
    if timer is None:
        timer, launch, software = torch_timer(launch, software)
    timed, measured = [], []
    for probe in probes(device):
        timed.append(probe)
        measured.append(timer(probe))
    every = KernelTable([probe.kernel for probe in timed])
    least = every.times(KernelModel(device, tier="ceiling", allow_tf32=False))
    possible = [number for number, seconds in enumerate(measured) if seconds >= least[number]] or range(len(timed))
    table = KernelTable([timed[number].kernel for number in possible])

    def predicted(constants: Constants) -> list[Any]:
        return table.times(KernelModel(device, constants, allow_tf32=False))

    rows = [(f"{timed[number].row}: {show_seconds(measured[number])}", measured[number]) for number in possible]
    known = {} if launch is None else {"eager_seconds": launch}
    calibration = calibrated(
        device, effective(PROBED, device, predicted, 0.01), predicted, rows, software, name, **known
    )
    before, after = (
        tuple(every.times(KernelModel(device, constants, allow_tf32=False)))
        for constants in (typical(device), calibration.on(device))
    )
    return KernelFit(calibration, tuple(timed), tuple(measured), before, after, tuple(least))


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

    def runner(probe: KernelProbe) -> Callable[[], Any]:
        kind = {"device": "cuda", "dtype": types[probe.kernel.dtype]}
        if probe.operator == "product":
            m, n, k = probe.sizes
            a, b = torch.randn(m, k, **kind), torch.randn(k, n, **kind)
            return lambda: a @ b
        if probe.operator == "attention":
            heads, tokens, size = probe.sizes
            q, k_, v = (torch.randn(1, heads, tokens, size, **kind) for _ in range(3))
            return lambda: functional.scaled_dot_product_attention(q, k_, v)
        x = torch.randn(*probe.sizes, **kind)
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

    def timer(probe: KernelProbe) -> float:
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
