"""Serving engines as data: what each adds to its kernels, how it keeps tokens, and where the figures are from.

Times are of the host where the device waits for it: an engine that works ahead while kernels run adds less. They are
single figures of one version on one host; `Serving.fitted` sets one from a measured run.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.errors import SettingError, shown
from costmodel.training.declaration import Declaration, ready
from costmodel.training.frozen import frozen
from costmodel.training.settings import CacheName
from costmodel.training.stacks import AttentionKernel, Stack, StackName


@frozen()
class Engine(Declaration):
    """A serving engine.

    name: what reports call it. step, sequence: seconds that the device waits in every step, and for each sequence in
    it. layer: seconds of the host for each block of the model, beside starting its kernels, and hidden where the device
    takes longer. cache, page_size: as settings of `predict`. utilisation: share of the device's memory that it takes at
    most. chunk: tokens of a prefill step at most. sequences: at once, at most. stack: how kernels are started. fuses:
    whether chains of pointwise kernels become one. merged: whether query, key and value are made by one product.
    attention: the kernel of fused attention, where the machine has it. unpack: share of bandwidth left where weights of
    few bits are unpacked; unpacked: such weights that a processor takes in a clock (default: as laws have both).
    direct: whether devices of a node exchange small sums directly (default), not by collectives of the library. speed:
    times of kernels over those predicted, 1 unless measured. source: where its figures are from.

    Example:
        >>> import costmodel as cm
        >>> own = cm.Engine(name="own", stack="cuda-graphs", utilisation=0.9)
        >>> cm.serve("llama-3.2-1b", on="h100-sxm", input=128, output=64, engine=own, concurrency=[1]).engine.name
        'own'

    """

    name: str
    step: float = 0.0
    sequence: float = 0.0
    layer: float = 0.0
    cache: CacheName = "paged"
    page_size: int = 16
    utilisation: float = 1.0
    chunk: int = 8192
    sequences: int = 1024
    stack: StackName | Stack = "cuda-graphs"
    fuses: bool = True
    merged: bool = False
    attention: AttentionKernel | None = None
    unpack: float | None = None
    unpacked: float | None = None
    direct: bool = True
    speed: float = 1.0
    source: str = "as declared"

    def __post_init__(self) -> None:
        self.check()

    def check_agreement(self, where: str) -> None:
        """Raise SettingError for what is no time, or no share."""
        for name in ("step", "sequence", "layer"):
            if not 0 <= getattr(self, name) < 60:
                raise SettingError(f"{where} {name}={shown(getattr(self, name))} is no time in seconds, such as 0.0005")
        for name in ("utilisation", "unpack"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise SettingError(f"{where} {name}={shown(share)} is not a share above 0, at most 1")
        if self.unpacked is not None and not 0 < self.unpacked < 1e4:
            raise SettingError(f"{where} unpacked={shown(self.unpacked)} is no number of weights a clock, such as 16")
        if not 0 < self.speed < 1000:
            raise SettingError(f"{where} speed={shown(self.speed)} is not positive: 1 is as predicted")

    @property
    def starts(self) -> Stack:
        """The stack, with or without fusion, and with the engine's kernel of attention."""
        stack = Stack.named(self.stack)
        attention = self.attention or stack.attention
        if (stack.fuses, stack.attention) == (self.fuses, attention):
            return stack
        return replace(stack, name=self.name, fuses=self.fuses, attention=attention, channels_last=False)

    def kernel_seconds(self, device: float, exposed: float, host: float, layers: float) -> float:
        """Kernels of so many blocks that take so long on the device, waiting for others, and on the host [s]."""
        return max(self.speed * device + exposed, host + self.layer * layers)

    def added_seconds(self, sequences: int) -> float:
        """What it adds to a step of so many sequences [s]."""
        return self.step + self.sequence * sequences


KERNELS = Engine("kernels", attention="flash-3", source="no engine: kernels replayed from a recorded graph, all memory")
"""What engine=None stands for."""

ENGINES = ready(
    Engine(
        "vllm",
        merged=True,
        attention="flash-3",
        step=0.5e-3,
        sequence=13e-6,
        utilisation=0.9,
        sequences=1024,
        chunk=8192,
        source="vLLM V1 (0.8 and later): 541 us a step over a workload, 12.7 us a running sequence (profile of "
        "its loop on CPU, openfabric-systems/simllm pull request 204); gpu_memory_utilization 0.9, blocks of 16, "
        "max_num_batched_tokens 8192 on large cards, FlashAttention-3 on Hopper (its defaults)",
    ),
    Engine(
        "vllm-0.5",
        merged=True,
        attention="flash-2",
        step=4e-3,
        sequence=100e-6,
        utilisation=0.9,
        sequences=256,
        chunk=8192,
        fuses=False,
        source="vLLM V0, mid-2024: about 4 ms without kernels in every step (vllm issue 6854), 3.4 ms for outputs "
        "of 32 sequences (vllm issue 6913); its defaults",
    ),
    Engine(
        "tensorrt-llm",
        merged=True,
        attention="flash-3",
        step=0.2e-3,
        sequence=5e-6,
        utilisation=0.9,
        page_size=32,
        sequences=2048,
        chunk=8192,
        source="TensorRT-LLM: defaults of its batch manager (kv_cache_free_gpu_mem_fraction 0.9, 32 tokens a block, "
        "max_batch_size 2048, max_num_tokens 8192) and kernels of its own for attention; a runtime in C++, whose "
        "0.2 ms a step and 5 us a sequence are general knowledge",
    ),
    Engine(
        "sglang",
        merged=True,
        attention="flash-3",
        step=0.4e-3,
        sequence=8e-6,
        utilisation=0.88,
        page_size=1,
        sequences=1024,
        chunk=8192,
        source="SGLang 0.4 and later: mem_fraction_static 0.88, page_size 1, chunked_prefill_size 8192, "
        "FlashAttention-3 on Hopper (its defaults; docs, attention backend); a scheduler that works ahead while "
        "kernels run, whose 0.4 ms a step and 8 us a sequence are general knowledge",
    ),
    Engine(
        "gpt-fast",
        direct=False,
        merged=True,
        step=0.1e-3,
        cache="static",
        sequences=1,
        source="gpt-fast (PyTorch blog, Accelerating Generative AI II, 2023): torch.compile with recorded graphs, "
        "a static cache, batch 1; 0.1 ms for a graph's launch and the loop in Python: general knowledge",
    ),
    Engine(
        "llama.cpp",
        direct=False,
        step=0.3e-3,
        cache="static",
        sequences=256,
        chunk=512,
        unpack=0.95,
        unpacked=8.0,
        source="llama.cpp: graphs on CUDA, a cache allocated at once, n_ubatch 512 (its defaults); products of a "
        "vector on packed integers, whose unpacking hides behind memory but for its loads: 8 weights a clock and "
        "processor, set from rates of whole models on A100 and H100, where no kernel's is published; 0.3 ms a step for "
        "the graph's update, logits copied to the host and sampling: general knowledge",
    ),
    Engine(
        "transformers",
        direct=False,
        step=1e-3,
        layer=0.5e-3,
        cache="dynamic",
        stack="eager",
        fuses=False,
        source="generate() of transformers: layers of Python modules, an operator at a time, about 25 ms a token "
        "for 32 layers of a 7B model whatever the card: general knowledge",
    ),
    Engine(
        "litgpt",
        direct=False,
        merged=True,
        step=0.5e-3,
        layer=0.76e-3,
        cache="static",
        stack="eager",
        fuses=False,
        sequences=1,
        source="litgpt, generate in eager PyTorch: set from one row of its resource tables, Llama 2 7B in bf16 on "
        "A100-SXM4-40GB, 30.97 tokens/s",
    ),
    Engine(
        "litgpt-bnb",
        direct=False,
        merged=True,
        step=0.5e-3,
        layer=1.37e-3,
        cache="static",
        stack="eager",
        fuses=False,
        sequences=1,
        source="litgpt with bitsandbytes' layers of 4 bits, whose Python takes longer than their kernels: set from "
        "one row of its resource tables, Llama 2 7B in nf4 on A100-SXM4-40GB, 19.98 tokens/s",
    ),
)
"""The ready-made engines, by name."""
