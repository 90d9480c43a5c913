"""Software stacks: how kernels are started, and which become one. Each is a small declaration, as optimizers are."""

from __future__ import annotations

from typing import Any, Literal

from costmodel.errors import SettingError, shown
from costmodel.training.declaration import Declaration, ready
from costmodel.training.frozen import frozen

StackName = Literal["eager", "compiled", "cuda-graphs"]
"""Names of the ready-made stacks, for a type checker and an editor."""

AttentionKernel = Literal["flash-1", "flash-2", "flash-3", "cudnn", "efficient", "fused"]
"""Kernels of fused attention: FlashAttention 1 to 3, cuDNN's, the memory-efficient one of xFormers and PyTorch, and
"fused" for what other vendors have."""


@frozen()
class Stack(Declaration):
    """A stack.

    launch: what starting a kernel takes of the host: a constant by name, or seconds. fuses: whether chains of pointwise
    kernels become one. channels_last: whether convolutions run in that order of memory whatever the model's. attention:
    the kernel of fused attention, where the machine has it (default: PyTorch's choice). norms: whether RMSNorm is one
    kernel, as PyTorch's is from 2.9 on, or composed of operators in fp32, as before and where a module is written so
    (Hugging Face's LlamaRMSNorm). loss: whether cross-entropy is composed of operators, as PyTorch's is and Megatron's
    without ``cross_entropy_loss_fusion``, or one kernel each way (xentropy of Apex and FlashAttention, Transformer
    Engine's); not told, PyTorch's is composed and Megatron's as in its recipes. logged: how many times
    cross-entropy is worked out again for the log, without gradient and in fp32, as autocast has it: Composer's
    LanguageCrossEntropy and LanguagePerplexity are 2. blocking: whether the host waits for each kernel before it starts
    the next, as with CUDA_LAUNCH_BLOCKING=1. unaligned: which units products in batches run on whose rows do not start
    at multiples of 16 bytes, as those of heads of 108 in attention: of vectors up to CUDA 11.6 (pytorch/pytorch issue
    83272: in bf16 an A100 does 12 TFLOP/s with heads of 140, and 132 with those of 128). recorded: layers whose kernels
    alone are replayed from recorded graphs, by parts of their names, such as ("attention", "router"), as partial CUDA
    graphs have them. experts_beside: whether tokens are sent to experts and back beside another micro-batch's kernels,
    as with Megatron-Core's overlap_moe_expert_parallel_comm. sums_beside: whether Megatron and DeepSpeed sum gradients
    over copies beside backward, as their recipes do, or after it, as Megatron-LM did before ``overlap_grad_reduce``
    (NVIDIA/Megatron-LM issue 391, September 2023). linears: whether Megatron's linear layers are "joined", so that
    products add to weights' gradients and run beside sums of inputs' gradients over ranks of tp, or "plain", with a
    kernel that adds, and sums beside nothing: as before 2022, and in Megatron-DeepSpeed (``megatron/mpu/layers.py``).
    scatter_gather: whether each of Megatron's ranks of tp hands its own part of a tensor to the next stage, which
    gathers it, as Megatron-LM did before Megatron-Core (``scatter_gather_tensors_in_pipeline``; Narayanan et al. 2021,
    §4.1), and DeepSpeed does anyway; with sp no rank has more than its part. source: where its figures are from.

    Example:
        >>> import costmodel as cm
        >>> own = cm.Stack(name="own", launch=2e-6, fuses=True)
        >>> step = cm.predict("gpt2-small", batch=8, seq=512, on="h100-sxm", stack=own).time
        >>> step.seconds < cm.predict("gpt2-small", batch=8, seq=512, on="h100-sxm").time.seconds
        True

    """

    name: str
    launch: Literal["eager_seconds", "compiled_seconds", "graph_seconds"] | float
    fuses: bool = False
    channels_last: bool = False
    attention: AttentionKernel | None = None
    norms: Literal["fused", "composed"] = "fused"
    loss: Literal["fused", "composed"] | None = None
    logged: int = 0
    blocking: bool = False
    unaligned: Literal["matrices", "vectors"] = "matrices"
    recorded: tuple[str, ...] = ()
    experts_beside: bool = False
    sums_beside: bool = True
    linears: Literal["joined", "plain"] = "joined"
    scatter_gather: bool = False
    source: str = "as declared"

    def __post_init__(self) -> None:
        self.check()

    @property
    def input_sums_beside(self) -> bool:
        """Whether sums of inputs' gradients over ranks of tp run beside products."""
        return not self.blocking and self.linears == "joined"

    def check_agreement(self, where: str) -> None:
        """Raise SettingError for a time below 0, or as long as a second."""
        if not isinstance(self.launch, str) and not 0 <= self.launch < 1:
            raise SettingError(f"{where}.launch: {shown(self.launch)} is no time: give seconds, such as 5e-6")

    def launch_seconds(self, constants: Any, megatron: bool = False) -> float:
        """Time of the host for one launch, by the constants of a machine where it is one of these [s].

        megatron: whether layers are Megatron's, which are autograd functions in Python of their own, over which
        operators are thinly spread.
        """
        if megatron and self.launch == "eager_seconds":
            return constants.megatron_seconds
        return getattr(constants, self.launch) if isinstance(self.launch, str) else self.launch


STACKS = ready(
    Stack("eager", "eager_seconds", source="PyTorch, an operator at a time from Python"),
    Stack(
        "compiled",
        "compiled_seconds",
        fuses=True,
        channels_last=True,
        source="torch.compile (Ansel et al. 2024, PyTorch 2, §4.4; inductor's layout optimization of convolutions)",
    ),
    Stack(
        "cuda-graphs",
        "graph_seconds",
        source="kernels of the eager stack, recorded once and replayed (CUDA Programming Guide, CUDA graphs)",
    ),
)
"""The ready-made stacks, by name."""
