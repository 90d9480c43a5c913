"""What a tensor is made of as data: shapes, the roles that a precision policy gives data types, and their sizes."""

from __future__ import annotations

from typing import Literal

from costmodel.symbolic.sizes import ceil_div

Shape = tuple[int, ...]
Role = Literal["weight", "activation", "logits", "statistic", "mask", "index", "random"]
"""What a tensor holds; the precision policy turns it into bytes an element."""

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "bool", "int4", "int8", "int16", "int32", "int64"]
BITS: dict[Dtype, int] = {
    "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "bool": 8, "int4": 4, "int8": 8, "int16": 16, "int32": 32, "int64": 64
}  # fmt: skip
FLOATS: frozenset[Dtype] = frozenset({"fp32", "bf16", "fp16", "fp8"})


def size_bytes(elements: int, dtype: Dtype) -> int:
    """Bytes of so many elements; two 4-bit ones share a byte."""
    bits = BITS[dtype]
    return elements * (bits // 8) if bits >= 8 else ceil_div(elements * bits, 8)


def wider(a: Dtype, b: Dtype) -> Dtype:
    """The type that arithmetic on both gives (PyTorch's type promotion: bf16 with fp16 is fp32)."""
    if a == b:
        return a
    return max(a, b, key=lambda dtype: BITS[dtype]) if BITS[a] != BITS[b] else "fp32"
