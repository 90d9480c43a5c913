"""What a tensor is made of as data: shapes, the roles that a precision policy gives data types, and their sizes."""

from __future__ import annotations

from typing import Literal

from costmodel.symbolic.sizes import ceil_div

Shape = tuple[int, ...]
Role = Literal["weight", "activation", "logits", "statistic", "mask", "index", "random"]
"""What a tensor holds; the precision policy turns it into bytes an element."""

RealType = Literal["fp32", "bf16", "fp16", "fp8", "fp4", "bool", "int4", "int8", "int16", "int32", "int64"]
Dtype = Literal[RealType, "complex-fp32", "complex-bf16", "complex-fp16", "complex-fp8"]
BITS: dict[Dtype, int] = {
    "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp4": 4, "bool": 8, "int4": 4, "int8": 8, "int16": 16, "int32": 32,
    "int64": 64, "complex-fp32": 64, "complex-bf16": 32, "complex-fp16": 32, "complex-fp8": 16,
}  # fmt: skip
FLOATS: frozenset[Dtype] = frozenset({"fp32", "bf16", "fp16", "fp8", "fp4"})
COMPLEX: dict[Dtype, Dtype] = {
    "fp32": "complex-fp32",
    "bf16": "complex-bf16",
    "fp16": "complex-fp16",
    "fp8": "complex-fp8",
}
"""The type of complex numbers whose two parts are of a floating type."""
REAL: dict[Dtype, Dtype] = {pair: part for part, pair in COMPLEX.items()}
"""The type of their parts."""


def size_bytes(elements: int, dtype: Dtype) -> int:
    """Bytes of so many elements; two 4-bit ones share a byte."""
    bits = BITS[dtype]
    return elements * (bits // 8) if bits >= 8 else ceil_div(elements * bits, 8)


def wider(a: Dtype, b: Dtype) -> Dtype:
    """The type that arithmetic on both gives (PyTorch's type promotion: bf16 with fp16 is fp32)."""
    if a == b:
        return a
    if a in REAL or b in REAL:
        return COMPLEX[wider(REAL.get(a, a), REAL.get(b, b))]
    return max(a, b, key=lambda dtype: BITS[dtype]) if BITS[a] != BITS[b] else "fp32"
