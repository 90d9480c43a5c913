"""Precision policies: what data type each role of tensor has, and which layers autocast runs in which.

A layer never knows: it names roles, and the policy in force turns them into data types.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

from costmodel.errors import SettingError
from costmodel.symbolic.sizes import ceil_div, product
from costmodel.training.declaration import Declaration, ready
from costmodel.training.dtypes import FLOATS, Dtype, RealType, Role, Shape, size_bytes, wider
from costmodel.training.frozen import frozen

LOWERED = frozenset(
    {
        *("linear", "expert_linear", "matmul", "conv", "conv_transpose", "lstm", "gru", "elman"),
        *("absorb_key", "expand_value"),
        *("fused_attention", "ring_attention", "fused_linear_cross_entropy", "convolve"),
    }
)
"""Kinds that autocast runs in its low precision (torch.amp, ops that autocast to float16)."""

_RAISED_FUNCTIONS = (
    *(
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "exponential",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "reciprocal",
    ),
    *("rsqrt", "sinh", "softplus", "square", "tan"),
)
_RAISED_LOSSES = (
    *("cross_entropy", "split_cross_entropy", "mean_squared_error"),
    *("compared.binary_cross_entropy_with_logits", "compared.huber_loss"),
    *("compared.kl_div", "compared.mse_loss", "compared.smooth_l1_loss"),
)
RAISED = {
    "gpu": frozenset(
        {
            *("softmax", "layernorm", "rmsnorm", "groupnorm", *_RAISED_LOSSES),
            *(f"pointwise.{function}" for function in _RAISED_FUNCTIONS),
        }
    ),
    "cpu": frozenset(_RAISED_LOSSES),
}
"""Kinds, and functions of a kind, that autocast runs in fp32 (torch.amp, ops that autocast to float32), by device."""

FOLLOWING = frozenset({"batchnorm", "layernorm", "rmsnorm", "groupnorm"})
"""Kinds whose result has the input's type, whatever their weights have."""

ROUTING = frozenset({"router", "shared_gate"})
"""Linear layers of blocks that Transformer Engine does not cast, as routers of experts are none of its modules."""

QUANTISED = frozenset({"linear", "expert_linear", "conv", "absorb_key"})
"""Kinds whose weights a quantised policy stores in few bits."""


@frozen()
class Precision(Declaration):
    """A policy.

    weight: data type of stored weights and, outside autocast, of everything computed.
    autocast: data type of matrix products and convolutions under autocast, whose inputs are cast.
    master: data type of the optimizer's own copy of each weight. gradient: of gradients (default: the weight's).
    states: of optimizer states (default: the master's, else the weight's).
    quantised: stored type of weights of two or more axes in linear layers and convolutions, with a scale of type
    `scale` for every `group` of their inputs (None: one an output), for inference alone.
    multiplied: type that products of these weights run in, to which the kernels before cast what comes in, as serving
    engines do with 8-bit floats; None: the type of what comes in, for which products unpack weights.
    apart: whether linear layers of more than one row first write these weights in the type that they are multiplied in,
    by a kernel of its own, as bitsandbytes does; else products unpack weights as they read them.
    scaled: each copy cast to `autocast` carries an fp32 scale, as 8-bit floats need, and products of such copies come
    out in the weights' type.
    linear_alone: whether linear layers of repeated blocks are all that is cast, but for routers, each operand and each
    gradient that comes back by kernels that write it by rows and by columns, as Transformer Engine does; weights once a
    step.
    block: elements of such a copy that share a scale of type `scale`; None: all of it. Of a scale of all, which 4-bit
    floats have beside those of blocks, another kernel reads the tensor before for its largest number.
    """

    name: str
    weight: RealType = "fp32"
    autocast: RealType | None = None
    master: RealType | None = None
    gradient: RealType | None = None
    states: RealType | None = None
    quantised: RealType | None = None
    group: int | None = None
    scale: RealType = "fp16"
    multiplied: RealType | None = None
    apart: bool = False
    scaled: bool = False
    linear_alone: bool = False
    block: int | None = None
    source: str = ""

    def check_agreement(self, where: str) -> None:
        """Raise SettingError if its types and their scales do not go together."""
        for field in ("weight", "autocast", "master", "gradient", "states", "scale", "multiplied"):
            dtype = getattr(self, field)
            if dtype is not None and dtype not in FLOATS:
                raise SettingError(f"{where}.{field}: {dtype!r} is no floating type: use {', '.join(sorted(FLOATS))}")
        needs = {"group": "quantised", "multiplied": "quantised", "apart": "quantised", "scaled": "autocast"}
        needs |= {"linear_alone": "scaled", "block": "scaled"}
        for field, of in needs.items():
            if getattr(self, field) and not getattr(self, of):
                raise SettingError(f"{where}.{field} is of what {of} makes: give {of}, or leave {field} out")

    @property
    def operands(self) -> RealType:
        """The type that products of linear layers run in."""
        return self.multiplied or self.autocast or self.weight

    def dtype_of(self, role: Role, compute: Dtype) -> Dtype:
        """Data type of a new tensor made by a layer that computes in `compute`."""
        if role == "weight":
            return self.weight
        if role in ("activation", "logits"):
            return compute
        return _FIXED[role]

    def cast_to(self, kind: str, device: str, *, repeated: bool = False) -> RealType | None:
        """What autocast casts the inputs and weights of this kind to; None if it leaves them as they are.

        repeated: whether the layer is one of a block that is repeated.
        """
        if self.autocast is None:
            return None
        if self.linear_alone:
            return self.autocast if repeated and kind in ("linear", "gathered_linear", "expert_linear") else None
        if kind in LOWERED:
            return self.autocast
        return "fp32" if kind in RAISED[device] else None

    def made_in(self, target: Dtype) -> Dtype:
        """What a layer computes in whose operands autocast has cast to `target`."""
        return self.weight if self.scaled and target == self.autocast else target

    def scales(self, target: Dtype, elements: int) -> int:
        """What comes with so many elements cast to `target`, as fp32 scales of as many bytes."""
        if not self.scaled or target != self.autocast:
            return 0
        if self.block is None:
            return 1
        return ceil_div(size_bytes(ceil_div(elements, self.block), self.scale), 4) + self.scaled_whole

    @property
    def scaled_whole(self) -> bool:
        """Whether copies have a scale of the whole tensor, see `block`."""
        return self.scaled and (self.block is None or self.autocast == "fp4")

    def result(self, kind: str, inputs: Sequence[Dtype], weights: Sequence[Dtype]) -> Dtype:
        """What a layer computes in that nothing is cast for, given the types of its floating operands."""
        if inputs and kind in FOLLOWING:
            return inputs[0]
        types: set[Dtype] = {*inputs, *weights} or {self.weight}
        return reduce(wider, types)

    def stored(self, kind: str, shape: Shape) -> Dtype:
        """Data type that a weight of a layer of this kind is stored in."""
        return self.quantised if self.quantised and kind in QUANTISED and len(shape) > 1 else self.weight

    @property
    def gradient_dtype(self) -> Dtype:
        """Data type of weight gradients."""
        return self.gradient or self.weight

    @property
    def state_dtype(self) -> Dtype:
        """Data type of optimizer states."""
        return self.states or self.master or self.weight

    def scale_elements(self, shape: Shape) -> int:
        """How many scales a quantised weight has: (outputs, inputs...), or (experts, outputs, inputs)."""
        of_experts = len(shape) == 3
        outputs, inputs = (shape[0] * shape[1], shape[2]) if of_experts else (shape[0], product(shape[1:]))
        return outputs * (1 if self.group is None else ceil_div(inputs, self.group))

    def scale_bytes(self, shape: Shape) -> int:
        """Bytes of the scales of a quantised weight."""
        return size_bytes(self.scale_elements(shape), self.scale)


_FIXED: dict[Role, Dtype] = {"statistic": "fp32", "mask": "bool", "index": "int64", "random": "int64"}

_ENGINE: dict[str, Any] = {
    "weight": "bf16",
    "autocast": "fp8",
    "master": "fp32",
    "scaled": True,
    "linear_alone": True,
}
"""What the recipes of Transformer Engine have alike."""
_MICIKEVICIUS = "Micikevicius et al. 2018, §3.1"
PrecisionName = Literal[
    "fp32",
    "bf16-autocast",
    "fp16-autocast",
    "bf16",
    "fp16",
    "fp16-master",
    "bf16-master",
    "bf16-master-fp32-gradients",
    "fp8",
    "fp8-blockwise",
    "mxfp8",
    "nvfp4",
    "fp8-w8a8",
    "int8",
    "int4",
    "nf4",
    "q8_0",
    "q4_0",
    "q4_k_m",
]
"""Names of the ready-made policies, for a type checker and an editor."""
PRECISIONS = ready(
    Precision("fp32", source="IEEE single precision throughout"),
    Precision("bf16-autocast", autocast="bf16", source=f"torch.autocast, bfloat16 ({_MICIKEVICIUS})"),
    Precision("fp16-autocast", autocast="fp16", source=f"torch.autocast, float16 ({_MICIKEVICIUS})"),
    Precision("bf16", weight="bf16", source="model.to(torch.bfloat16): weights, activations and states"),
    Precision("fp16", weight="fp16", source="model.to(torch.float16): weights, activations and states"),
    Precision("fp16-master", weight="fp16", master="fp32", source="16 bytes a weight (Rajbhandari et al. 2020, §3.1)"),
    Precision("bf16-master", weight="bf16", master="fp32", source="16 bytes a weight (Rajbhandari et al. 2020, §3.1)"),
    Precision(
        "bf16-master-fp32-gradients",
        weight="bf16",
        master="fp32",
        gradient="fp32",
        source="18 bytes a weight (Narayanan et al. 2021; Megatron-LM's distributed optimizer)",
    ),
    Precision(
        "fp8", weight="bf16", autocast="fp8", master="fp32", scaled=True, source="Micikevicius et al. 2022, §4.1"
    ),
    Precision(
        "fp8-blockwise",
        **_ENGINE,
        block=128,
        scale="fp32",
        source="scales of 128 elements, of weights of 128 by 128 (DeepSeek-AI 2024, V3, §3.3; Transformer Engine, "
        "Float8BlockScaling): linear layers alone",
    ),
    Precision(
        "mxfp8",
        **_ENGINE,
        block=32,
        scale="fp8",
        source="scales of 32 elements, a byte each (OCP Microscaling Formats 1.0; "
        "Transformer Engine, MXFP8BlockScaling)",
    ),
    Precision(
        "nvfp4",
        **{**_ENGINE, "autocast": "fp4"},
        block=16,
        scale="fp8",
        source="scales of 16 elements, a byte each, and one of all (NVIDIA 2025, Pretraining with NVFP4; Transformer "
        "Engine, NVFP4BlockScaling): all linear layers of blocks",
    ),
    Precision(
        "fp8-w8a8",
        weight="bf16",
        quantised="fp8",
        scale="fp32",
        multiplied="fp8",
        source="weights and inputs of products in 8-bit floats, as serving engines have them (vLLM, quantization fp8; "
        "TensorRT Model Optimizer, FP8)",
    ),
    Precision("int8", weight="fp16", quantised="int8", source="one scale an output (Dettmers et al. 2022, §2.1)"),
    Precision(
        "int4", weight="fp16", quantised="int4", group=128, source="a scale a group of 128 (Frantar et al. 2023)"
    ),
    Precision(
        "nf4",
        weight="bf16",
        quantised="int4",
        group=64,
        scale="fp32",
        apart=True,
        source="4-bit normal floats in blocks of 64 (Dettmers et al. 2023, QLoRA, §3; bitsandbytes, matmul_4bit)",
    ),
    Precision(
        "q8_0", weight="fp16", quantised="int8", group=32, source="GGUF Q8_0: 8.5 bits a weight (ggml, block_q8_0)"
    ),
    Precision(
        "q4_0", weight="fp16", quantised="int4", group=32, source="GGUF Q4_0: 4.5 bits a weight (ggml, block_q4_0)"
    ),
    Precision(
        "q4_k_m",
        weight="fp16",
        quantised="int4",
        group=19,
        source="GGUF Q4_K_M, by its bytes: 4.84 bits a weight on average of Q4_K and Q6_K (llama.cpp, quantize)",
    ),
)
"""The ready-made policies, by name."""

TRANSFORMER_ENGINE = Precision(
    "fp8",
    **_ENGINE,
    source="NVIDIA Transformer Engine, Float8CurrentScaling: linear layers alone, attention and the head in 16 bits",
)
"""What "fp8" stands for under Megatron-Core."""

FP32 = PRECISIONS["fp32"]
