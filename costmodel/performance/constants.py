"""What a datasheet does not say: every constant of the laws of kernels, with its range, unit and source.

None is fitted to the time of a whole model. A constant belongs to a family of chips, never to a product's name: "" is
what holds where nothing more exact is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.errors import unknown
from costmodel.training.stacks import AttentionKernel

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine


class Reference(NamedTuple):
    """Where values are from. confirmed: whether it was at hand when they were written down."""

    title: str
    confirmed: bool = False


class ConstantRange(NamedTuple):
    """A measured value. low, high: an interval that holds about four of five machines and libraries of its family."""

    low: float
    typical: float
    high: float
    source: Reference
    evidence: str


SQUARE = Reference(
    "zzc0721/torch-performance-test-data: torch.matmul of 1024 to 10240 squared on 60 devices", confirmed=True
)
MAMF = Reference("Bekman, Machine Learning Engineering: maximum achievable matmul FLOPS", confirmed=True)
LLMC = Reference("LLMCompass (Zhang et al., ISCA 2024): measured operators", confirmed=True)
FA3 = Reference(
    "Shah et al. 2024, FlashAttention-3, figure 5; Dao-AILab/flash-attention issue 1310, pull request 2688",
    confirmed=True,
)
FA3_TABLES = Reference(
    "Dao-AILab/flash-attention issue 1310, pull request 1791; pytorch/benchmark pull request 2391", confirmed=True
)
FA4_TABLES = Reference("Dao-AILab/flash-attention pull request 2605: FlashAttention-4 and cuDNN", confirmed=True)
FA2_PARTS = Reference("liangan1/GPU_travel: FlashAttention-2 on A100, with and without softmax", confirmed=True)
FA2_GAMES = Reference("gpu-mode/ring-attention issue 10 (A5000); apache/tvm tl_doc (RTX 4090)", confirmed=True)
FA2_B200 = Reference("Dao-AILab/flash-attention issue 1589", confirmed=True)
EFFICIENT = Reference(
    "Dao-AILab/flash-attention issue 416; NVIDIA/TileGym pull request 49; facebookresearch/xformers pull request 587",
    confirmed=True,
)
ODD = Reference(
    "He 2024, What Shapes Do Matrix Multiplications Like, answers; pytorch/pytorch issue 181718", confirmed=True
)
ADDING = Reference(
    "MooreThreads/SimuMax, configs/system/a100_pcie.json: products of weights' gradients, added up in fp32",
    confirmed=True,
)
VLLM_ROWS = Reference("vllm-project/vllm pull request 49363: bf16 and fp8 products of few rows on H100", confirmed=True)
CCCL = Reference("NVIDIA/cccl pull requests 7391, 9881: element by element, 2^24 to 2^28 of them", confirmed=True)
MLA = Reference("deepseek-ai/FlashMLA: memory-bound decoding on H800")
P2P = Reference("tinygrad/open-gpu-kernel-modules issue 6", confirmed=True)
FA = Reference("Dao 2023, FlashAttention-2, figures 5-7")
STREAM = Reference("BabelStream triad over the datasheet's bandwidth")
TILES = Reference("NVIDIA, Matrix Multiplication Background User's Guide")
TVM = Reference("masahi/tvm-cutlass-eval: cuDNN and CUTLASS convolutions of ResNet-50 on RTX 3070", confirmed=True)
GRAPHS = Reference("Gray 2019, Getting Started with CUDA Graphs")
VOLTA = Reference("Jia et al. 2018, Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking")
TE_HOST = Reference("NVIDIA/TransformerEngine issue 2053: time of the host for nn.Linear and te.Linear", confirmed=True)
POWER = Reference("power of CMOS: f·V², between linear and cubic in f")
V100_POWER = Reference("1CatAI/1Cat-vLLM issue 535: nvidia-smi while a V100 prefills and decodes", confirmed=True)
CAPPED = Reference(
    "facebookexperimental/triton pull requests 854, 2023, pytorch/helion pull request 347, meta-pytorch/tritonbench"
    " pull request 1011: cuBLAS on boards whose power is limited",
    confirmed=True,
)
GEMMS = Reference(
    "aiconfigurator-core 0.12.0: products of random numbers under TensorRT-LLM 1.3 and SGLang 0.5", confirmed=True
)
EXPERTS = Reference(
    "aiconfigurator-core 0.12.0: mixtures of experts under TensorRT-LLM 1.0 and 1.3, SGLang 0.5 and vLLM 0.24",
    confirmed=True,
)
P3090 = Reference(
    "jeanfbrito.github.io: RTX 3090 power limit sweet spot, llama.cpp; noonghunna/club-3090 issues 58, 222",
    confirmed=True,
)
P5060 = Reference("inventivehq.com: GPU power limit, tokens per watt, RTX 5060 Ti, llama.cpp", confirmed=True)
NCCL = Reference("NCCL 2.19 to 2.27: tuning model and search (src/graph), nccl-tests as published", confirmed=True)
TESTS = Reference(
    "aiconfigurator-core 0.12.0: NCCL 2.29.2 on H200, B200, B300, GB200, GB300, RTX PRO 6000", confirmed=True
)
BESIDE = Reference("NVIDIA/nccl issue 1428 (A100); pytorch/pytorch pull request 179937 (H100)", confirmed=True)
RCCL = Reference("RCCL: tuning model (src/graph/tuning.cc)", confirmed=True)
XGMI = Reference("AMD ROCm blog: RCCL bandwidth and xGMI performance on MI300X", confirmed=True)
RELEASES = Reference(
    "huggingface/pytorch-image-models, results: one RTX 4090, compiled by PyTorch 2.4 and by 2.9", confirmed=True
)
VARIED = Reference("Sinha et al. 2022, Not All GPUs Are Created Equal (SC22)")
KNOWN = Reference("general knowledge")
HERE = Reference("the machine itself", confirmed=True)

ATTAINED = ("product_share", "vector_share", "bandwidth_share")
"""Shares of published peaks, which are 1 of peaks that were measured."""


def _by_family(meaning: str, *rows: tuple[str, float, float, float, Reference, str]) -> Any:
    """A constant: what it is, with its unit, and a row for each family that has a range of its own, see `family`."""
    return field(metadata={"meaning": meaning, "families": {row[0]: ConstantRange(*row[1:]) for row in rows}})


@dataclass(frozen=True, slots=True)
class Constants:
    """One value of each constant, for one machine; or of each an array of values."""

    product_share: float = _by_family(
        "share of the sustained peak that large products reach on matrix units",
        ("", 0.65, 0.8, 0.93, KNOWN, "between the families below"),
        ("volta", 0.8, 0.9, 0.95, SQUARE, "V100 97 of 125, V100S 89 of 130 TFLOP/s"),
        ("turing", 0.78, 0.9, 0.96, SQUARE, "RTX 2080 Ti 48-57 of 53.8 TFLOP/s"),
        ("ampere", 0.85, 0.91, 0.97, MAMF, "A100 of 400 W 271 of 312; LLMCompass: up to 293"),
        ("ampere-graphics", 0.9, 0.97, 1.0, SQUARE, "A10G 69 of 70, RTX 3060 25 of 25.5 TFLOP/s"),
        ("ada", 0.9, 0.95, 1.0, SQUARE, "L20 107-114 of 119.5, RTX 4090 152-173 of 165 TFLOP/s"),
        ("hopper", 0.88, 0.95, 0.98, SQUARE, "H20, whose power allows its clock, 142 of 148 TFLOP/s"),
        ("blackwell", 0.85, 0.93, 0.97, SQUARE, "B200 1,696 of 2,250 TFLOP/s on 1,000 W"),
        ("blackwell-graphics", 0.88, 0.97, 1.0, SQUARE, "RTX 5090 224-240 of 209.5, RTX 5080 102 of 112.6"),
        ("cdna1", 0.55, 0.7, 0.8, KNOWN, "as cdna2"),
        ("cdna2", 0.64, 0.7, 0.78, SQUARE, "MI210 117-131 of 181; Bekman: MI250X 147 of 191.5 a die"),
        ("cdna3", 0.68, 0.8, 0.9, MAMF, "MI300X 668-782 of 1,307, MI325X 785; AMD ROCm blog"),
        ("tpu", 0.8, 0.92, 0.97, KNOWN, "Google, Cloud TPU performance guide; JAX scaling book, 0.90-0.95"),
        ("gaudi2", 0.9, 0.97, 0.99, MAMF, "429 of 432"),
        ("gaudi3", 0.66, 0.72, 0.78, MAMF, "1,289 of 1,677 (1,835 on the sheet)"),
        ("apple", 0.55, 0.72, 0.85, SQUARE, "M3 Max 11.5-12.8 of 14.2, M4 3.0 of 4.3 TFLOP/s"),
        ("cpu", 0.5, 0.7, 0.9, KNOWN, "OpenBLAS and oneDNN, 50-90 % of peak by core and clock"),
        ("cdna4", 0.72, 0.85, 0.92, KNOWN, "as cdna3, with newer libraries"),
        ("rdna3", 0.7, 0.8, 0.85, SQUARE, "RX 7900 XT 82-83 of 103 TFLOP/s"),
        ("rdna4", 0.55, 0.64, 0.72, SQUARE, "RX 9060 XT 66 of 103 TFLOP/s"),
    )
    narrow_watts: float = _by_family(
        "power of products of 8 bits and fewer over what their bits alone would have it",
        ("", 1.0, 1.2, 1.5, GEMMS, "1.13 to 1.28 on H100 to GB300, L40S 1.5; Bekman: H100 fp8 0.71, bf16 0.80 of peak"),
    )
    vector_share: float = _by_family(
        "share of the sustained peak that large products reach on vector units",
        ("", 0.7, 0.82, 0.93, KNOWN, "between the families below"),
        ("pascal", 0.86, 0.92, 0.95, SQUARE, "P100 8.6 of 9.3, GTX 1080 Ti 10.1 of 11.3 TFLOP/s"),
        ("volta", 0.86, 0.93, 0.96, SQUARE, "V100 14.4 of 15.7 TFLOP/s"),
        ("turing", 0.84, 0.92, 0.96, SQUARE, "RTX 2080 9.2 of 10.1 TFLOP/s"),
        ("ampere", 0.9, 0.97, 0.99, SQUARE, "A100 19.1 of 19.5 TFLOP/s"),
        ("ampere-graphics", 0.62, 0.7, 0.76, SQUARE, "RTX 3080 21.3 of 29.8: one pipe of two is for integers too"),
        ("ada", 0.58, 0.64, 0.7, SQUARE, "RTX 4090 53-56 of 82.6, L20 36 of 59.8 TFLOP/s"),
        ("hopper", 0.7, 0.77, 0.82, SQUARE, "H100 52 of 67, H20 32 of 44 TFLOP/s"),
        ("blackwell", 0.75, 0.83, 0.88, SQUARE, "B200 66 of 80 TFLOP/s"),
        ("blackwell-graphics", 0.54, 0.6, 0.66, SQUARE, "RTX 5090 66 of 104.8, RTX 5080 33 of 56.3"),
        ("apple", 0.55, 0.72, 0.85, SQUARE, "M3 Max 11.5 of 14.2, M4 3.0 of 4.3 TFLOP/s"),
        ("cpu", 0.5, 0.7, 0.9, KNOWN, "OpenBLAS and oneDNN"),
        ("rdna3", 0.38, 0.45, 0.55, SQUARE, "RX 7900 XT 23 of 51.5: two instructions at once are rare"),
        ("rdna4", 0.32, 0.37, 0.45, SQUARE, "RX 9060 XT 9.4 of 25.6 TFLOP/s"),
    )
    product_watts: float = _by_family(
        "dynamic power of 16-bit products at the boost clock [W per TFLOP/s]",
        ("", 0.6, 0.8, 1.1, KNOWN, "between the families below"),
        ("volta", 2.0, 2.35, 2.7, SQUARE, "V100 of 300 W 0.78, V100S of 250 W 0.68 of peak"),
        ("turing", 1.7, 2.6, 3.5, SQUARE, "T4 of 70 W up to 42 of 65; NVIDIA forum 264462: 24 TFLOP/s sustained"),
        ("ampere", 0.95, 1.05, 1.15, SQUARE, "A100 of 400 W 0.85, of 250 W 0.63-0.77 of peak"),
        ("ampere-graphics", 1.8, 2.05, 2.4, SQUARE, "A40 and A6000 of 300 W 0.80, A4000 of 140 W 0.77"),
        ("ada", 1.05, 1.2, 1.4, SQUARE, "L40S of 350 W 0.74, L4 of 72 W 0.44-0.57 of peak"),
        ("hopper", 0.7, 0.79, 0.9, SQUARE, "H100 of 700 W 0.80, of 350 W 0.58-0.66 of peak"),
        (
            "blackwell",
            0.45,
            0.53,
            0.8,
            CAPPED,
            "B200 of 1,000 W 0.75 of peak by squares, at 750 W 0.48, elsewhere 0.42",
        ),
        ("blackwell-graphics", 1.15, 1.4, 1.7, SQUARE, "RTX PRO 6000 of 600 W 0.81 of peak"),
        ("cdna1", 0.8, 1.0, 1.2, KNOWN, "as cdna2"),
        ("cdna2", 0.7, 0.9, 1.2, MAMF, "MI250X of 560 W"),
        ("cdna3", 0.8, 0.95, 1.1, MAMF, "MI300X of 750 W 0.51-0.60, MI325X of 1,000 W 0.60; AMD ROCm blog"),
        ("tpu", 0.2, 0.4, 0.6, KNOWN, "TPU v4 of 192 W does not throttle (Jouppi et al. 2023)"),
        ("gaudi2", 0.5, 0.8, 1.0, MAMF, "0.99 of peak on 600 W"),
        ("gaudi3", 0.2, 0.3, 0.4, MAMF, "does not throttle"),
        ("cdna4", 0.55, 0.7, 0.85, KNOWN, "MI355X of 1,400 W about 0.67 of peak"),
    )
    sustained_watts: float = _by_family(
        "power of products that run for seconds on end over that in tests of milliseconds, before limits set in",
        ("", 1.0, 1.1, 1.4, GEMMS, "between the families below"),
        ("volta", 0.95, 1.0, 1.1, SQUARE, "each of the largest squares takes 22 ms on V100"),
        ("turing", 0.95, 1.0, 1.1, SQUARE, "each of the largest squares takes 40 ms on RTX 2080 Ti"),
        ("ampere-graphics", 0.95, 1.0, 1.1, SQUARE, "each of the largest squares takes 18 ms on A40"),
        ("cdna2", 0.95, 1.0, 1.1, SQUARE, "each of the largest squares takes 18 ms on MI210"),
        ("ampere", 1.0, 1.1, 1.2, GEMMS, "A100 0.80-0.84 of peak in products of 1 to 100 ms, elsewhere 0.87-0.94"),
        ("ada", 1.0, 1.5, 2.2, GEMMS, "L40S of 350 W 0.50-0.55 of peak in products of 10 ms and more, squares 0.74"),
        ("hopper", 1.0, 1.2, 1.4, GEMMS, "H100 0.70-0.74, H200 0.68-0.70 in products of 10 ms and more, others 0.77"),
        (
            "blackwell",
            1.0,
            1.35,
            1.7,
            GEMMS,
            "B200 0.60-0.62, GB300 0.67-0.70, GB200 0.55-0.58 in products of 10 ms and more, others 0.68, 0.76, 0.68",
        ),
        ("blackwell-graphics", 0.95, 1.0, 1.1, GEMMS, "RTX PRO 6000 0.81-0.83 of peak in products however long"),
    )
    vector_watts: float = _by_family(
        "dynamic power of fp32 products on vector units at the boost clock [W per TFLOP/s]",
        ("", 3.0, 4.5, 7.0, KNOWN, "between the families below"),
        ("pascal", 8.0, 10.5, 16.0, SQUARE, "P4 of 75 W 5.0 of 5.5, P40 of 250 W 10.1 of 11.8 TFLOP/s"),
        ("volta", 11.0, 13.0, 14.5, SQUARE, "V100 of 300 W 0.92, V100S of 250 W 0.83 of peak"),
        ("turing", 11.0, 13.4, 15.0, SQUARE, "T4 of 70 W 4.2-4.4 of 8.1, RTX 2080 Ti of 250 W 11.5 of 13.5"),
        ("ampere", 9.0, 11.5, 13.0, SQUARE, "A100 of 400 W 0.98, of 250 W 0.85-0.90 of peak"),
        ("ampere-graphics", 6.2, 7.4, 8.5, SQUARE, "A40 and A6000 of 300 W 0.62 of peak"),
        ("ada", 3.6, 4.2, 4.9, SQUARE, "L40S of 350 W 0.51, L4 of 72 W 0.35-0.41 of peak"),
        ("hopper", 5.0, 5.9, 6.8, SQUARE, "H100 of 350 W 0.72 of peak"),
        ("cdna1", 3.0, 4.5, 6.0, POWER, "MI100 of 300 W at 46 TFLOP/s"),
        ("cdna2", 3.0, 4.5, 6.0, POWER, "MI210 of 300 W at 45 TFLOP/s"),
    )
    byte_watts: float = _by_family(
        "dynamic power of bytes from memory, with the caches and processors that they pass [W per TB/s]",
        ("", 60.0, 100.0, 160.0, KNOWN, "stacked memory, 4-7 pJ a bit, and as much again to processors"),
        ("volta", 115.0, 140.0, 165.0, V100_POWER, "decoding 180-200 W of 300, of which 80 follow no work"),
        ("turing", 110.0, 150.0, 220.0, KNOWN, "GDDR6"),
        ("ampere-graphics", 240.0, 320.0, 380.0, P3090, "RTX 3090 decodes at 337-389 W, 1 % slower at 280 W"),
        ("ada", 150.0, 210.0, 290.0, KNOWN, "GDDR6X and a large cache"),
        ("blackwell-graphics", 230.0, 280.0, 320.0, P5060, "RTX 5060 Ti decodes at 173 W, as fast at 147 W"),
        ("cpu", 30.0, 60.0, 120.0, KNOWN, "DDR4 and DDR5, memory modules apart"),
    )
    static_watts: float = _by_family(
        "power of any board that does not follow the clock of its processors [W]",
        ("", 12.0, 20.0, 28.0, KNOWN, "memory and regulators of boards of 70-75 W, at 10 W idle"),
    )
    static_power: float = _by_family(
        "share of the board's power that does not follow the clock of the processors, on top",
        ("", 0.12, 0.2, 0.28, KNOWN, "memory and leakage: A100 60-80 of 400 W with idle processors"),
    )
    power_limit: float = _by_family(
        "power that a board is let draw over the datasheet's",
        ("", 1.0, 1.0, 1.0, KNOWN, "as the maker sets it"),
        ("hopper", 0.71, 1.0, 1.0, CAPPED, "H100 of 700 W at 500 W"),
        ("blackwell", 0.75, 1.0, 1.0, CAPPED, "B200 of 1,000 W at 750 W, GB200 and GB300 at the maker's"),
    )
    power_exponent: float = _by_family(
        "power grows as the clock to this power",
        ("", 1.5, 2.0, 2.8, POWER, "lowest voltage to highest clock"),
    )
    headroom: float = _by_family(
        "clock over the datasheet's boost clock where power allows",
        ("", 0.98, 1.0, 1.0, KNOWN, "boards for data centres state their highest clock"),
        ("ampere-graphics", 1.0, 1.04, 1.1, KNOWN, "cards for games state an average: RTX 3090 1.75-1.9 of 1.695 GHz"),
        ("ada", 1.0, 1.05, 1.1, KNOWN, "cards for games state an average: RTX 4090 2.7 of 2.52 GHz"),
        ("blackwell-graphics", 1.02, 1.08, 1.12, KNOWN, "RTX 5090: mma at 0.885 of an int8 peak that counts 838"),
    )
    tile_intensity: float = _by_family(
        "m·n/(m+n) of the smallest tile that keeps matrix units of 2,048 FLOPs a clock and processor busy [elements]",
        (
            "",
            48.0,
            64.0,
            80.0,
            TILES,
            "128x128 and above at full speed; half of A100's products a clock ask for 0.8 of it",
        ),
    )
    vector_tile_intensity: float = _by_family(
        "m·n/(m+n) of the smallest tile that keeps vector units busy [elements]",
        ("", 24.0, 36.0, 48.0, KNOWN, "CUTLASS, Efficient GEMM in CUDA: 128x64 at full speed"),
    )
    tile_fill: float = _by_family(
        "start and end of a tile, as so many more elements of k",
        ("", 0.0, 32.0, 96.0, TILES, "a pipeline of 2-4 stages of 32 elements"),
    )
    split_share: float = _by_family(
        "share of speed left when tiles are cut along k to fill the last wave",
        ("", 0.7, 0.85, 0.95, KNOWN, "Osama et al. 2023, Stream-K, figures 5-8"),
    )
    added_share: float = _by_family(
        "share of the time of reading what a product adds to that nothing hides",
        (
            "",
            0.3,
            0.7,
            1.1,
            ADDING,
            "A100 of 300 W in fp32 0.52 of peak with 616 rows, 0.71 with 4,096, 0.75 with 33,024",
        ),
    )
    misaligned: float = _by_family(
        "times as long where rows of operands do not start at multiples of 16 bytes",
        ("", 1.1, 1.6, 2.5, KNOWN, "NVIDIA, Matrix Multiplication guide, figure 2: multiples of 8 or not"),
    )
    odd_rows: float = _by_family(
        "the same of operands of 16 bits whose rows start at odd elements, which no asynchronous copy loads",
        ("", 1.5, 2.1, 3.2, ODD, "products of 2,048 over 2 times as fast as with 2,047 in a row"),
        ("ampere-graphics", 1.2, 1.4, 1.9, ODD, "as ada"),
        ("ada", 1.2, 1.4, 1.9, ODD, "RTX 4090 156 TFLOP/s with 2,040 in a row, 107-116 with 2,055 to 2,073"),
        ("blackwell-graphics", 1.2, 1.4, 1.9, ODD, "as ada"),
    )
    expert_share: float = _by_family(
        "speed of products of several experts at once over that of one product",
        (
            "",
            0.5,
            1.0,
            1.15,
            EXPERTS,
            "TensorRT-LLM: H100 0.95-1.10, L40S 0.94-0.97, RTX PRO 6000 0.84-1.0; others 0.5-0.9",
        ),
        ("ampere", 0.45, 0.59, 0.85, EXPERTS, "A100 153 of 261 TFLOP/s by TensorRT-LLM, 134 by SGLang"),
    )
    product_stream: float = _by_family(
        "share of attained bandwidth that products of 16 rows and more reach where memory bounds them",
        ("", 0.85, 0.97, 1.05, LLMC, "A100 0.76-0.80 of the datasheet's at 64 and 128 rows"),
        ("hopper", 0.86, 1.02, 1.08, VLLM_ROWS, "H100 2.9-3.0 of 3.35 TB/s with 16 to 64 rows, start and end among it"),
        ("cdna1", 0.36, 0.48, 0.8, KNOWN, "as cdna2"),
        ("cdna2", 0.36, 0.46, 0.7, LLMC, "MI210 0.34 of the datasheet's at 32 and 64 rows"),
        ("cdna3", 0.6, 0.8, 0.95, KNOWN, "hipBLASLt, products of few rows"),
        ("cdna4", 0.6, 0.8, 0.95, KNOWN, "as cdna3"),
    )
    row_stream: float = _by_family(
        "the same of products of one row",
        ("", 0.85, 0.97, 1.05, KNOWN, "kernels of a vector read as streams do"),
        ("hopper", 0.86, 1.02, 1.08, VLLM_ROWS, "H100 2.9-3.1 of 3.35 TB/s with one row, start and end among it"),
        ("cdna1", 0.5, 0.75, 0.95, KNOWN, "as cdna2"),
        ("cdna2", 0.5, 0.75, 0.95, KNOWN, "rocBLAS, kernels of a vector"),
        ("cdna3", 0.65, 0.85, 0.97, KNOWN, "hipBLASLt, kernels of a vector"),
        ("cdna4", 0.65, 0.85, 0.97, KNOWN, "as cdna3"),
    )
    unpacked_weights: float = _by_family(
        "weights of few bits that a processor reads and unpacks in a clock",
        (
            "",
            8.0,
            16.0,
            40.0,
            VOLTA,
            "2,048 threads a load of 4 to 16 bytes each, a third of them busy, in 500-700 clocks",
        ),
    )
    unpack8: float = _by_family(
        "share of that left where weights of 8 bits are unpacked as they are read",
        (
            "",
            0.65,
            0.85,
            1.0,
            KNOWN,
            "kernels of one row in torchao and llama.cpp reach 0.5-0.85 of the datasheet's bandwidth",
        ),
    )
    unpack4: float = _by_family(
        "share of that left where weights of 4 bits are unpacked as they are read",
        (
            "",
            0.5,
            0.75,
            1.0,
            KNOWN,
            "Frantar et al. 2024, Marlin: 0.95; torchao and llama.cpp 0.4-0.8 of the datasheet's bandwidth",
        ),
    )
    convolution_share: float = _by_family(
        "share of a matrix product's speed that an implicit one reaches on matrix units whose addresses take no time",
        ("", 0.6, 0.8, 0.95, KNOWN, "libraries of other vendors, addresses among them"),
        ("nvidia", 0.85, 1.0, 1.05, TVM, "RTX 3070, 3x3 of 128 to 512 channels: fprop 39.9 of 40.6 TFLOP/s"),
    )
    address_share: float = _by_family(
        "time of the addresses of an implicit product over its own, for 1,024 FLOPs a clock and processor",
        ("", 0.0, 0.0, 0.0, KNOWN, "within the share of convolutions"),
        (
            "nvidia",
            0.05,
            0.11,
            0.2,
            TVM,
            "RTX 3070 of 512 0.83-0.98 of products; A100 of 2,048 about 0.8 (NVIDIA, Convolutional Layers)",
        ),
    )
    vector_convolution_share: float = _by_family(
        "share of a matrix product's speed that a convolution reaches on vector units",
        ("", 0.7, 0.92, 1.1, KNOWN, "Lavin and Gray 2016: Winograd halves products of 3x3; others reach 0.7-0.9"),
    )
    transpose_stream: float = _by_family(
        "share of attained bandwidth that transposes of operands with channels first reach",
        ("", 0.6, 0.9, 1.05, TVM, "RTX 3070: 6.4 MB in 18.4 us, of which 2.5 are its start; 0.78 of the datasheet's"),
    )
    direct_share: float = _by_family(
        "share of vector peak that depthwise and grouped convolutions reach without matrix units",
        ("", 0.1, 0.25, 0.45, KNOWN, "cuDNN and PyTorch kernels of depthwise convolutions"),
    )
    direct_stream: float = _by_family(
        "share of attained bandwidth that depthwise and grouped convolutions reach",
        ("", 0.45, 0.7, 0.9, KNOWN, "a window is read again through caches: 0.4-0.8 of the datasheet's"),
    )
    direct_weight: float = _by_family(
        "speed of their weights' gradients, sums over all images and places, over that of the rest",
        ("", 0.15, 0.4, 0.8, KNOWN, "PyTorch and cuDNN kernels of weights' gradients of depthwise layers"),
    )
    flash1_share: float = _by_family(
        "share of the peak that products of FlashAttention reach, the exponentials left out",
        ("", 0.35, 0.45, 0.6, FA, "A100 104-124 of 312 TFLOP/s, heads of 64 and 128"),
        ("hopper", 0.25, 0.34, 0.45, FA3, "without Hopper's own instructions, as flash2_share falls to 0.62 of 0.82"),
        ("blackwell", 0.09, 0.13, 0.2, FA2_B200, "likewise, 0.23 of 0.82"),
    )
    flash2_share: float = _by_family(
        "share of the peak that products of FlashAttention-2 reach, the exponentials left out",
        ("", 0.6, 0.8, 0.95, KNOWN, "between the families below"),
        ("ampere", 0.74, 0.82, 0.92, FA2_PARTS, "A100 at 1.2 GHz 220 of 265 TFLOP/s; Dao 2023: 227 of 312 with them"),
        ("ampere-graphics", 0.72, 0.82, 0.95, FA2_GAMES, "A5000 of 230 W 82 of 111 TFLOP/s"),
        ("ada", 0.88, 0.98, 1.05, FA2_GAMES, "RTX 4090 169 of 165 TFLOP/s at its boost clock"),
        (
            "hopper",
            0.48,
            0.62,
            0.68,
            FA3,
            "without Hopper's own instructions: H20 84 of 148, H100 370 of 989 with them",
        ),
        ("blackwell", 0.18, 0.23, 0.3, FA2_B200, "B200 380 of 2,250 TFLOP/s, heads of 64"),
        ("blackwell-graphics", 0.8, 0.92, 1.02, KNOWN, "as ada"),
    )
    flash3_share: float = _by_family(
        "share of the peak that products of FlashAttention-3 reach, the exponentials left out",
        ("", 0.86, 0.95, 1.0, FA3_TABLES, "H100 621-659 of 989, H20 126 of 148 TFLOP/s with them"),
    )
    cudnn_share: float = _by_family(
        "share of the peak that products of cuDNN's fused attention reach, the exponentials left out",
        ("", 0.85, 0.95, 1.0, FA3_TABLES, "H100 631 of 989, H20 129 of 148 TFLOP/s with them"),
        ("blackwell", 0.75, 0.85, 0.92, FA4_TABLES, "B200 1,428 of 2,250 TFLOP/s with 1,024 tokens"),
    )
    efficient_share: float = _by_family(
        "share of the peak that products of memory-efficient attention reach, the exponentials left out",
        ("", 0.3, 0.42, 0.6, EFFICIENT, "0.42-0.8 of FlashAttention-2's speed; A100 in fp32 7.6 of 19.5 TFLOP/s"),
        ("volta", 0.4, 0.55, 0.75, KNOWN, "V100 50-65 of 125 TFLOP/s"),
        ("turing", 0.4, 0.55, 0.75, KNOWN, "as volta"),
    )
    attention_share: float = _by_family(
        "share of the peak that products of fused attention reach elsewhere, the exponentials left out",
        ("", 0.38, 0.53, 0.8, KNOWN, "between the families below"),
        ("cdna1", 0.16, 0.27, 0.4, KNOWN, "as cdna2"),
        ("cdna2", 0.2, 0.31, 0.45, KNOWN, "Composable Kernel FlashAttention-2, MI250 60-80 of 181 TFLOP/s a die"),
        ("cdna3", 0.38, 0.53, 0.7, KNOWN, "Composable Kernel FlashAttention-2, MI300X 400-550 of 1,307 TFLOP/s"),
        ("cdna4", 0.38, 0.55, 0.75, KNOWN, "as cdna3"),
        ("tpu", 0.4, 0.58, 0.8, KNOWN, "Pallas splash attention"),
    )
    attention_watts: float = _by_family(
        "power of attention whose exponentials are not beside products, over that of products at the same rate",
        ("", 0.95, 1.15, 1.5, FA2_PARTS, "A100 at 1.2 of 1.41 GHz by its power limit"),
    )
    attention_backward: float = _by_family(
        "share that its backward pass reaches over that of its forward pass",
        ("", 0.65, 0.78, 0.92, FA, "A100 170 of 193 with heads of 64, 195 of 227 with heads of 128"),
        ("ampere-graphics", 0.8, 0.92, 1.0, FA2_GAMES, "A5000 52.9-77.4 against 82-84 TFLOP/s"),
        ("ada", 0.75, 0.87, 1.0, FA2_GAMES, "RTX 4090 125 against 169 TFLOP/s"),
        ("hopper", 0.52, 0.6, 0.7, FA3, "H100 FlashAttention-2 287-337 against 355-370 TFLOP/s"),
    )
    overlapped_backward: float = _by_family(
        "the same of kernels that run exponentials beside products (FlashAttention-3, cuDNN)",
        ("", 0.6, 0.72, 0.85, FA3_TABLES, "H100 554 against 659, 532 against 630 TFLOP/s"),
    )
    exponential_share: float = _by_family(
        "exponentials over those that special-function units, 16 a clock and processor, hide behind products",
        ("", 0.5, 0.9, 1.3, FA2_PARTS, "A100 185 TFLOP/s with, 220 without them"),
        ("volta", 0.1, 0.4, 1.0, KNOWN, "half of GA100's products a clock"),
        ("turing", 0.1, 0.4, 1.0, KNOWN, "half of GA100's products a clock"),
        ("ampere-graphics", 0.0, 0.25, 0.6, FA2_GAMES, "a quarter to half of GA100's products a clock"),
        ("ada", 0.0, 0.15, 0.5, FA2_GAMES, "RTX 4090: heads of 64 as fast as of 128"),
        ("blackwell-graphics", 0.0, 0.15, 0.5, KNOWN, "as ada"),
        ("hopper", 1.2, 1.9, 2.3, FA3, "H100 312 TFLOP/s with heads of 64, 370 with heads of 128"),
    )
    overlapped_exponentials: float = _by_family(
        "the same of kernels that run exponentials beside products (FlashAttention-3, cuDNN)",
        ("", 0.6, 0.9, 1.15, FA3_TABLES, "H100 621-659 of 989, H20 126 of 148 TFLOP/s with heads of 128"),
        ("blackwell", 0.2, 0.4, 0.7, FA4_TABLES, "in part on other units: B200 1,157 TFLOP/s with heads of 64"),
    )
    attention_ends: float = _by_family(
        "share of the time of reading queries and writing outputs that attention does not hide",
        ("", 0.1, 0.5, 1.0, KNOWN, "between the families below"),
        ("ampere", 0.0, 0.35, 0.8, FA2_PARTS, "A100 178-181 TFLOP/s with 1,024 tokens, 186 with 4,096"),
        ("ampere-graphics", 0.0, 0.1, 0.5, FA2_GAMES, "A5000 84 TFLOP/s with 512 tokens, 82 with 8,192"),
        ("ada", 0.0, 0.1, 0.5, KNOWN, "as ampere-graphics"),
        ("hopper", 0.7, 1.0, 1.25, FA3_TABLES, "H100 FlashAttention-3 430 TFLOP/s with 512 tokens, 621 with 16,384"),
        ("blackwell", 0.6, 0.9, 1.2, FA4_TABLES, "B200 1,540 TFLOP/s with 1,024 tokens, 1,882 with 16,384"),
    )
    attention_stream: float = _by_family(
        "share of attained bandwidth at which attention of a few queries reads keys and values",
        ("", 0.75, 0.95, 1.04, MLA, "H800 up to 3,000 of 3,350 GB/s"),
    )
    bandwidth_share: float = _by_family(
        "share of the datasheet's bandwidth that pointwise kernels attain",
        ("", 0.76, 0.84, 0.92, STREAM, "0.76-0.93"),
        ("pascal", 0.68, 0.75, 0.8, STREAM, "P100 0.74"),
        ("volta", 0.84, 0.9, 0.93, STREAM, "V100 0.93"),
        ("turing", 0.72, 0.78, 0.84, STREAM, "T4 0.75-0.84 (Jia et al. 2019)"),
        ("ampere", 0.77, 0.84, 0.91, LLMC, "A100 GELU 0.79; mli/transformers-benchmarks issue 4: A800 0.89"),
        ("ampere-graphics", 0.84, 0.9, 0.94, STREAM, "RTX 3090 0.93"),
        (
            "ada",
            0.84,
            0.9,
            1.0,
            P2P,
            "copies on RTX 4090 0.91-0.92, whose cache of 72 MB keeps part of what was written",
        ),
        ("hopper", 0.8, 0.88, 0.93, STREAM, "H100 0.90-0.92"),
        ("blackwell", 0.82, 0.87, 0.93, CCCL, "B200 0.87-0.88 as PyTorch's kernels go, 0.92-0.94 by bulk copies"),
        ("blackwell-graphics", 0.81, 0.86, 0.89, CCCL, "RTX 5090 0.83-0.88"),
        ("cdna1", 0.7, 0.78, 0.84, STREAM, "MI100 0.78-0.82"),
        ("cdna2", 0.7, 0.78, 0.84, STREAM, "MI250X 0.80-0.84"),
        ("cdna3", 0.65, 0.75, 0.82, STREAM, "MI300X 0.76-0.81"),
        ("tpu", 0.75, 0.88, 0.95, KNOWN, "JAX scaling book"),
        ("cpu", 0.6, 0.75, 0.88, KNOWN, "STREAM triad"),
        ("cdna4", 0.65, 0.75, 0.82, KNOWN, "as cdna3"),
    )
    reduction_stream: float = _by_family(
        "share of attained bandwidth that norms, pooling and sums reach",
        ("", 0.65, 0.9, 1.08, LLMC, "A100 layer norm 0.88-0.91; allenai/OLMo issue 258: 0.61"),
    )
    softmax_stream: float = _by_family(
        "share of attained bandwidth that softmax and cross-entropy reach",
        ("", 0.55, 0.7, 1.0, LLMC, "A100 softmax 0.47-0.63; rows above 1,024 are read three times"),
    )
    gather_stream: float = _by_family(
        "share of attained bandwidth that embeddings and indexing reach",
        ("", 0.4, 0.72, 0.95, KNOWN, "rows of an embedding, 0.4-0.8 of the datasheet's"),
    )
    cache_speedup: float = _by_family(
        "bandwidth of the last cache over that of memory, where the machine does not give it",
        ("", 1.8, 2.5, 4.0, KNOWN, "Chips and Cheese: last caches of A100, H100, AD102, 2-5 x memory"),
    )
    pointwise_rate: float = _by_family(
        "share of vector peak that arithmetic outside products reaches",
        ("", 0.15, 0.35, 0.7, KNOWN, "special functions at 1/8 to 1/4 of the rate of products"),
    )
    overlap: float = _by_family(
        "exponent p of (compute^p + memory^p)^(1/p); infinite: perfect overlap",
        ("", 2.5, 5.0, 12.0, LLMC, "A100 at 128 rows, where compute and memory take as long"),
    )
    kernel_seconds: float = _by_family(
        "from the start of one kernel to that of the next at least [s]",
        ("", 1.5e-06, 2.5e-06, 4e-06, GRAPHS, "3.8 us a kernel of 2.9 us in a stream, 3.4 us in a graph"),
        ("cdna1", 3e-06, 5e-06, 9e-06, KNOWN, "rocprof, empty kernels"),
        ("cdna2", 3e-06, 5e-06, 9e-06, KNOWN, "rocprof, empty kernels"),
        ("cdna3", 2.5e-06, 4e-06, 8e-06, KNOWN, "rocprof, empty kernels"),
        ("tpu", 2e-07, 1e-06, 3e-06, KNOWN, "one program, no launch a kernel"),
        ("apple", 3e-06, 6e-06, 1.5e-05, KNOWN, "Metal command encoders"),
        ("cpu", 5e-07, 3e-06, 1e-05, KNOWN, "dispatch, and fork and join of threads"),
        ("cdna4", 2.5e-06, 4e-06, 8e-06, KNOWN, "as cdna3"),
    )
    product_seconds: float = _by_family(
        "what a product takes more: filling its pipeline [s]",
        ("", 5e-07, 2e-06, 4e-06, VOLTA, "latencies of memory and pipeline"),
    )
    eager_seconds: float = _by_family(
        "time of the host for one kernel of an eager framework [s]",
        ("", 4e-06, 8e-06, 1.6e-05, KNOWN, "PyTorch modules, dispatcher and launch: 5-10 us, 20 on slow hosts"),
        ("cpu", 0.0, 0.0, 0.0, KNOWN, "the thread that calls is the one that works: kernel_seconds holds both"),
    )
    megatron_seconds: float = _by_family(
        "time of the host for one kernel of Megatron's layers in an eager stack [s]",
        (
            "",
            1.2e-05,
            3.6e-05,
            1e-04,
            TE_HOST,
            "te.Linear 91-100 us on Grace, 2.7 of nn.Linear, of DGX H100 13.5",
        ),
        ("volta", 2e-05, 5e-05, 1e-04, TE_HOST, "as ampere"),
        ("ampere", 2e-05, 5e-05, 1e-04, TE_HOST, "as DGX H100; a thread of EPYC 7742 does 0.7 of one of Xeon 8480C"),
        ("cpu", 0.0, 0.0, 0.0, KNOWN, "the thread that calls is the one that works: kernel_seconds holds both"),
    )
    compiled_seconds: float = _by_family(
        "time of the host for one kernel of compiled code [s]",
        ("", 2e-06, 3.5e-06, 7e-06, KNOWN, "cudaLaunchKernel 2-4 us from generated code"),
        ("cpu", 0.0, 0.0, 0.0, KNOWN, "the thread that calls is the one that works: kernel_seconds holds both"),
    )
    graph_seconds: float = _by_family(
        "time of the host for one kernel replayed from a recorded graph [s]",
        ("", 1e-07, 4e-07, 1e-06, GRAPHS, "3.8 us a kernel of 2.9 us in a stream, 3.4 us in a graph"),
        ("cpu", 0.0, 0.0, 0.0, KNOWN, "the thread that calls is the one that works: kernel_seconds holds both"),
    )
    link_share: float = _by_family(
        "share of a link's bandwidth that a ring of large messages reaches",
        ("", 0.55, 0.8, 0.9, NCCL, "between the families below"),
        ("volta", 0.7, 0.87, 0.9, NCCL, "V100 130-133 of 150 GB/s"),
        (
            "ampere",
            0.45,
            0.8,
            0.88,
            NCCL,
            "A100 232 of 300 GB/s by switches, of which own parts take 4 %; less in part of a mesh",
        ),
        ("hopper", 0.62, 0.83, 0.9, TESTS, "H200 317-337 of 450 GB/s, own parts among it; H100 369, H20 358 in sums"),
        ("blackwell", 0.6, 0.78, 0.88, TESTS, "B200 617 of 900 GB/s, own parts among it; sums 660-722"),
        ("cdna3", 0.55, 0.72, 0.78, XGMI, "MI300X 48 of 64 GB/s a link, 310-340 of 448 in all"),
        ("cdna2", 0.4, 0.65, 0.8, KNOWN, "as cdna3"),
        ("tpu", 0.8, 0.9, 0.97, KNOWN, "JAX scaling book: collectives at 0.9 of the ICI bandwidth and more"),
    )
    host_share: float = _by_family(
        "share of the bandwidth of PCIe that a ring of large messages reaches",
        ("", 0.4, 0.65, 0.8, KNOWN, "from board to board 20-25 of 31.5 GB/s, through the host 9-14"),
        ("ampere-games", 0.3, 0.45, 0.7, KNOWN, "boards for games exchange data through the host's memory"),
        ("ada-games", 0.28, 0.4, 0.7, KNOWN, "boards for games exchange data through the host's memory"),
        ("blackwell-games", 0.28, 0.4, 0.7, KNOWN, "boards for games exchange data through the host's memory"),
    )
    host_crossing: float = _by_family(
        "bandwidth of PCIe among more boards than share a root, over that between two",
        ("", 0.06, 0.7, 1.0, TESTS, "RTX PRO 6000 23 of 32 GB/s; a server of 8 L40S 7 of 20 on 4, 1.6 on 8"),
    )
    network_share: float = _by_family(
        "share of the bandwidth of network adapters that large messages reach",
        ("", 0.7, 0.9, 0.97, NCCL, "InfiniBand 46-48 of 50 GB/s an adapter; EFA 0.75-0.9"),
    )
    line_share: float = _by_family(
        "bandwidth of a ring in lines of 128 bytes (LL128) over that in large pieces",
        ("", 0.25, 0.45, 0.94, TESTS, "H200 100-110 of 337 GB/s with 2-4 MiB, B200 245 of 617; 8 x H20 300 of 358"),
        ("ampere", 0.35, 0.75, 0.92, NCCL, "8 x A100 138-156 of 232 GB/s with 16-32 MiB"),
    )
    own_part: float = _by_family(
        "time of a device's own part of a ring, which it also writes where the result is to be, over that of others",
        (
            "",
            1.0,
            1.5,
            1.65,
            TESTS,
            "H200 258, 317 and 337 GB/s on 2, 4 and 8; B200 438, 567 and 617; 1 where in place",
        ),
        ("tpu", 1.0, 1.0, 1.1, KNOWN, "transfers are of units of their own"),
    )
    kept_part: float = _by_family(
        "time of the part of an exchange that a device keeps, and copies, over that of one it sends",
        ("", 0.0, 0.45, 1.0, TESTS, "H200 298, 319 and 311 GB/s on 2, 4 and 8"),
        ("blackwell", 0.0, 1.1, 1.3, TESTS, "B200 331, 488 and 563 GB/s on 2, 4 and 8 of up to 1 GiB"),
        ("tpu", 0.0, 0.0, 0.1, KNOWN, "transfers are of units of their own"),
    )
    switch_share: float = _by_family(
        "share of a link's bandwidth that large sums in its switches reach",
        (
            "blackwell",
            0.35,
            0.57,
            0.62,
            NCCL,
            "8 x B200 474 GB/s of 900 by 9/8 bytes each way; 72 x GB200 425-429 by 73/72",
        ),
        ("", 0.4, 0.69, 0.74, NCCL, "8 x H100 269-275 GB/s of 450 by 9/8 bytes each way; not set up everywhere: rings"),
    )
    collective_conditions: float = _by_family(
        "time of collectives over that in tests of them alone",
        (
            "",
            0.95,
            1.0,
            1.25,
            KNOWN,
            "ranks arrive at different times, and memory is read beside; hosts differ by 10-30 %",
        ),
    )
    collective_seconds: float = _by_family(
        "start of a collective of the protocol of least latency [s]",
        (
            "",
            4e-06,
            7.5e-06,
            2e-05,
            TESTS,
            "between the families; baseLat 6.6 us; hosts that launch one by one 18-32 us",
        ),
        ("hopper", 3.5e-06, 5e-06, 1.5e-05, TESTS, "H200 5.1, 7.1 and 10.3 us of 1 KiB on 2, 4 and 8"),
        ("blackwell", 5.5e-06, 8e-06, 2e-05, TESTS, "B200 8.8, 11.1 and 16.2 us of 1 KiB on 2, 4 and 8"),
        ("cdna1", 8e-06, 1.2e-05, 2.2e-05, RCCL, "baseLat of ring, LL"),
        ("cdna2", 8e-06, 1.2e-05, 2.2e-05, RCCL, "baseLat of ring, LL"),
        ("cdna3", 8e-06, 1.2e-05, 2.2e-05, RCCL, "baseLat of ring, LL"),
        ("cdna4", 8e-06, 1.2e-05, 2.2e-05, RCCL, "baseLat of ring, LL"),
        ("tpu", 5e-07, 1e-06, 4e-06, KNOWN, "one program, no launch a collective"),
    )
    direct_seconds: float = _by_family(
        "start of a small sum that each device takes of all others by itself [s]",
        ("", 4.5e-06, 7e-06, 1.2e-05, KNOWN, "all-reduce kernels of serving engines, 6-10 us on 8 devices of a switch"),
    )
    hop_seconds: float = _by_family(
        "from device to device of a node, of that protocol [s]",
        ("", 6e-07, 1.1e-06, 1.5e-06, TESTS, "between the families; hwLat of NVLink 0.6 us"),
        ("hopper", 6e-07, 8.5e-07, 1.2e-06, TESTS, "H200: 0.87 us a step of a gather, 0.83 of a sum"),
        ("blackwell", 8e-07, 1.25e-06, 1.5e-06, TESTS, "B200: 1.23 us a step of a gather, 1.25 of a sum"),
        ("tpu", 1.5e-07, 2.9e-07, 6e-07, KNOWN, "JAX scaling book: about 1 us a hop of ICI"),
    )
    host_hop_seconds: float = _by_family(
        "from device to device of a node through the host, of that protocol [s]",
        ("", 9e-07, 1.5e-06, 3e-06, TESTS, "RTX PRO 6000: 1.45 us a step of a gather, 1.5 of a sum; hwLat of PCI 1 us"),
    )
    network_hop_seconds: float = _by_family(
        "from node to node, of that protocol [s]",
        ("", 2e-06, 2.7e-06, 9e-06, NCCL, "hwLat of the network, ring, LL; 5 of trees"),
    )
    network_fill: float = _by_family(
        "what a device could send over the network while pieces of large messages fill it [bytes]",
        ("", 1e6, 4.5e6, 9e6, NCCL, "two nodes of 8 A100 with EFA 0.8 ms, of 4 GH200 with Slingshot 0.2 ms"),
    )
    collective_processors: float = _by_family(
        "processors that a collective of large messages takes",
        ("", 8.0, 16.0, 32.0, KNOWN, "a channel each; NCCL takes at most 32"),
        ("ampere", 16.0, 24.0, 32.0, NCCL, "24 channels on 8 x A100"),
        ("hopper", 16.0, 24.0, 32.0, NCCL, "16 to 32 channels on 8 x H100; 16 of sums in switches"),
        ("tpu", 0.01, 0.02, 0.05, KNOWN, "transfers are of units of their own"),
    )
    interference: float = _by_family(
        "time of kernels beside a collective over that on the processors it leaves, as both share memory and caches",
        (
            "",
            1.0,
            1.12,
            1.45,
            BESIDE,
            "H100: products beside FSDP's collectives 1.3-1.4 times as long, processors 1.22 of it; A100 1.76 of 1.29",
        ),
        ("tpu", 1.0, 1.02, 1.1, KNOWN, "transfers are of units of their own, memory is shared"),
    )
    slowest_device: float = _by_family(
        "time of kernels on the slowest of many devices over that on a typical one",
        (
            "",
            1.0,
            1.04,
            1.11,
            VARIED,
            "8 % between boards of one kind (at most 22 %), half of it above",
        ),
        ("tpu", 1.0, 1.01, 1.04, KNOWN, "at one clock"),
    )
    conditions: float = _by_family(
        "time over that of a cool, idle machine with the libraries of the other constants",
        ("", 0.95, 1.0, 1.12, KNOWN, "published recipes: 6 % between quarterly containers of one system"),
    )
    compiled_conditions: float = _by_family(
        "the same of steps whose kernels a compiler writes, on top",
        (
            "",
            0.87,
            1.0,
            1.08,
            RELEASES,
            "30 models an image, but for MobileNets: 2.9 takes 0.97 to 1.08 times as long as 2.4",
        ),
    )

    def changed(self, **values: float) -> Constants:
        """The same with some of them replaced, as by a calibration. Raises SettingError for what is no constant."""
        for name in values:
            if name not in TABLE:
                raise unknown("constant", name, TABLE)
        return replace(self, **values)

    def with_ends(self, ranges: Mapping[str, ConstantRange]) -> Constants:
        """Arrays: of each range in turn one constant at its low and at its high end [2 · ranges], at last none."""
        names = list(TABLE)
        values = np.tile(np.array([[getattr(self, name)] for name in names]), 2 * len(ranges) + 1)
        for number, (name, of) in enumerate(ranges.items()):
            values[names.index(name), 2 * number : 2 * number + 2] = of.low, of.high
        return Constants(*values)


TABLE: dict[str, dict[str, ConstantRange]] = {of.name: of.metadata["families"] for of in fields(Constants)}
"""Each constant by family; see `family`."""
UNITS: dict[str, str] = {of.name: of.metadata["meaning"] for of in fields(Constants)}
"""What each constant is, with its unit."""

ATTENTION_SHARES: dict[AttentionKernel, str] = {
    "flash-1": "flash1_share",
    "flash-2": "flash2_share",
    "flash-3": "flash3_share",
    "cudnn": "cudnn_share",
    "efficient": "efficient_share",
    "fused": "attention_share",
}
"""The share of each kernel of fused attention."""

BETWEEN_DEVICES = tuple(TABLE)[tuple(TABLE).index("link_share") : tuple(TABLE).index("slowest_device") + 1]
"""Those of links and of devices that wait for each other, which no step of one device has."""


def family(machine: Machine) -> Iterator[str]:
    """The families of a machine, the most exact first: of TABLE's keys.

    NVIDIA's dies for graphics have another balance than those for data centres of the same name, whose numbers are
    round: GA100 and GB110 are for data centres, GA102 and GB202 for graphics. Boards for games add up products of 16
    bits in fp32 at half the speed of sums in fp16, and are let exchange nothing over PCIe by themselves; those of the
    same dies for workstations and data centres have neither limit.
    """
    if name := machine.architecture.lower():
        rates = machine.peak.rates
        if rates.get("fp16_acc16", 0.0) > rates.get("fp16", 0.0):
            yield f"{name}-games"
        number = int("".join(filter(str.isdigit, machine.chip)) or 100)
        if number % 10 or number < 100:
            yield f"{name}-graphics"
        yield name
    if machine.vendor:
        yield machine.vendor.lower()
    yield machine.category
    yield ""


def constant(name: str, machine: Machine) -> ConstantRange:
    """The constant of a machine: by the most exact family that the table has, or what the machine says itself."""
    if name not in TABLE:
        raise unknown("constant", name, TABLE)
    return _constant(name, machine, tuple(family(machine)))


def constants_of(machine: Machine) -> dict[str, ConstantRange]:
    """All constants of a machine."""
    families = tuple(family(machine))
    return {name: _constant(name, machine, families) for name in TABLE}


def _constant(name: str, machine: Machine, families: Sequence[str]) -> ConstantRange:
    if machine.measured and name in ATTAINED:
        return ConstantRange(0.92, 1.0, 1.04, HERE, "its figures were attained, not published as peaks")
    if machine.call_overhead and name == "kernel_seconds":
        overhead = machine.call_overhead
        return ConstantRange(0.8 * overhead, overhead, 1.25 * overhead, HERE, "its call overhead")
    values = TABLE[name]
    return next(values[key] for key in families if key in values)


def typical(machine: Machine) -> Constants:
    """The typical value of each constant for a machine."""
    return Constants(**{name: of.typical for name, of in constants_of(machine).items()})
