# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A cluster in seconds
#
# **The point:** what a cluster reaches follows from its ranks' kernels, from what they send, and from who waits for
# whom. Published runs of GPT-3, Llama 3 and DeepSeek-V3 are one call each.
#
# **You learn** what a collective takes by its size, where the time of a published run goes, why one layout is faster
# than another, and which one serves a model within a target of latency.
#
# **Time:** 50 minutes. **Before it:** notebooks 5, 7 and 10.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.

# %%
# %matplotlib inline
import costmodel as cm

GIB = 2**30

# %% [markdown]
# ## A sum over eight devices
#
# NVLink of an H100 moves 450 GB/s each way. Around a ring each of 8 devices sends 7/4 of what is summed.
#
# **Predict:** which share of 450 GB/s does a sum of 64 KiB reach, and which one of 1 GiB?

# %%
for size in ("64 KiB", "4 MiB", "1 GiB"):
    reduction = cm.collective_seconds("all-reduce", size, devices=8, on="dgx-h100")
    share = reduction.bus_bandwidth / 450e9
    print(f"{size:8}{1e6 * reduction.seconds:9,.1f} us  {share:4.0%}  {reduction.algorithm} {reduction.protocol}")

# %% [markdown]
# Above 100 % since the switches add up: each device sends once what it sends nearly twice around a ring. Small sums are
# their latency. That is why engines that serve sum them with a kernel of their own (`direct=True`), and
# why tensor parallelism stays within a node: over a network each hop takes longer, and an adapter moves a ninth.
#
# ## GPT-3 on 1,024 A100
#
# Narayanan et al. 2021 (§5.1, eq. 4) train 175 billion weights on 1,024 A100 at 140 TFLOP/s each, what is run again
# among them: 300 billion tokens take 34 days. Ranks are tp 8 within a node and pp 8; 1,536 samples of 2,048 tokens
# make a step.
#
# **Predict:** which share of a step does a rank of this pipeline wait for others? It has 96 micro-batches.

# %%
OLDER = {"runtime": "megatron", "precision": "fp16-master", "attention": "eager", "seq": 2048}
gpt3 = cm.predict("gpt-3-175b", **OLDER, tp=8, pp=8, devices=1024, batch=1, global_batch=1536, checkpoint="block")
step = gpt3.on("dgx-a100", network="200 Gb/s")
days = step.run(tokens=300e9).seconds / 86400
print(f"a step: {step.seconds:.1f} s ({step.low:.1f} to {step.high:.1f}), waiting for stages {step.bubble:.1f} s")
print(f"{312 * step.hfu:.0f} TFLOP/s a device, {days:.0f} days; published 140 and 34")
print(f"memory of the heaviest rank: {gpt3.memory.peak / GIB:.0f} GiB of 80")

# %% [markdown]
# The paper's 34 days have what the prediction has not: loading, checkpoints, devices that fail.
#
# ## What a layer keeps
#
# Korthikanti et al. 2022 (table 2) count what a layer keeps for backward of each token and feature, in bytes:
# 10 + 24/t + 5·a·s/(h·t), and with sequence parallelism 34/t + 5·a·s/(h·t).
#
# **Predict:** of their 22B model (a = 64, s = 2,048, h = 6,144) on t = 8, which of the two terms is larger?

# %%
SIZES = {"22B": (48, 6144, 64), "175B": (96, 12288, 96)}
for name, (layers, width, heads) in SIZES.items():
    dropout = {"attention_dropout": 0.1, "residual_dropout": 0.1}
    model = cm.Transformer(vocab=51200, context=2048, layers=layers, width=width, heads=heads, **dropout)
    scores = 5 * heads * 2048 / (8 * width)
    for sp, paper in ((False, 10 + 24 / 8 + scores), (True, 34 / 8 + scores)):
        kept = cm.predict(model, **OLDER, tp=8, sp=sp).memory.activations
        print(f"{name:5} sp={sp!s:6} {kept / (layers * 2048 * width):5.1f} bytes, by the paper {paper:.1f}")

# %% [markdown]
# What is above the paper's is of the whole model: the embedding's dropout and the logits.
#
# ## Llama 3 405B and DeepSeek-V3
#
# The Llama team (2024, table 4) has 405 billion weights on 8,192 H100 at 430 TFLOP/s each (43 % of the peak): tp 8,
# pp 16 with interleaved stages, 64 copies, 32 sequences of 8,192 tokens each.

# %%
NEWER = {"runtime": "megatron", "precision": "bf16-master-fp32-gradients", "zero": 1, "attention": "flash"}
llama = cm.predict(
    "llama-3.1-405b", **NEWER, seq=8192, tp=8, sp=True, pp=16, dp=64, global_batch=2048,
    schedule="interleaved-1f1b", vpp=4,
)  # fmt: skip
step = llama.on("dgx-h100")
print(f"a step: {step.seconds:.1f} s ({step.low:.1f} to {step.high:.1f}), MFU {step.mfu:.0%}; published about 43 %")
print(f"waiting for stages {step.bubble / step.seconds:.0%}, for collectives {step.exposed / step.seconds:.0%}")
print(f"memory of the heaviest rank: {llama.memory.peak / GIB:.0f} GiB of 80")

# %% [markdown]
# Megatron's order of passes, as here, holds more than 80 GiB: the team shards weights too, and frees tensors that
# nothing reads early.
#
# DeepSeek-V3 (2024, §3.2) trains on 2,048 H800 with pp 16, 64 ranks that share the experts, and ZeRO-1.

# %%
deepseek = cm.predict(
    "deepseek-v3", **NEWER | {"attention": "efficient"}, seq=4096, ep=64, pp=16, dp=128, global_batch=15360,
    checkpoint="block",
)  # fmt: skip
for line in ("weights", "gradients", "masters", "optimizer", "activations", "peak"):
    print(f"{line:12}{getattr(deepseek.memory, line) / GIB:6.1f} GiB")

# %% [markdown]
# ## What hides
#
# Sharded weights (`fsdp`) are gathered block by block, while the block before is computed.
#
# **Predict:** how much of the time that eight H100 send do their kernels wait for, with 4,096 tokens each? Where in the
# step?

# %%
MIXED = {"precision": "bf16-master-fp32-gradients", "attention": "flash"}
step = cm.predict("llama-3.1-8b", **MIXED, seq=4096, fsdp=8).on("dgx-h100")
sent = sum(part.seconds for part in step.collectives)
print(f"a step {1e3 * step.seconds:.0f} ms, sent {1e3 * sent:.0f} ms, waited for {1e3 * step.exposed:.0f} ms")
step.plot_events()

# %% [markdown]
# Almost only the first gather, before which there is nothing to compute, and the last sum of gradients, after which
# nothing is left: nearly all others are beside kernels.
#
# ## Which layout?
#
# Every way of splitting pays: `tp` waits for collectives in every layer, `pp` for other stages, recomputation with
# arithmetic. `cm.layouts` goes through all that fit. Llama 3 70B on 64 H100, 128 sequences of 8,192 tokens in a step:
#
# **Predict:** tp 8 within nodes and few stages, or tp 4 and more of them? And what does the loser wait for?

# %%
layouts = cm.layouts(
    "llama-3.1-70b", devices=64, global_batch=128, on="dgx-h100", seq=8192, runtime="megatron", batch=1, cp=1,
    precision="bf16-master-fp32-gradients", checkpoint=["selective", "block"], reserve="2 GiB",
)  # fmt: skip
best = {}
for layout in layouts:
    best.setdefault(layout.text("dp", "tp", "pp"), layout)
for layout in best.values():
    name, step = layout.text("dp", "tp", "pp", "vpp"), layout.step
    waits = f"collectives {step.exposed / step.seconds:3.0%}, stages {step.bubble / step.seconds:2.0%}"
    print(f"{name:22} {step.seconds:5.2f} s, {layout.peak / GIB:2.0f} GiB, waits: {waits}")
layouts.plot()

# %% [markdown]
# With tp 8 products are smaller and more is sent: its ranks wait for collectives twice as long. With tp 4 more stages
# are needed for memory, and parts of stages (`vpp`) make the bubble small that they would cost.
#
# ## Serving over devices
#
# A decode step reads every weight and each request's keys and values once. Llama 3 70B in 16 bits takes 141 GB, so two
# H100 at least.
#
# **Predict:** how much faster is a token of one request on eight H100 than on two?

# %%
REQUESTS = {"on": "dgx-h100", "input": 1024, "output": 256, "engine": "vllm", "concurrency": [1, 64]}
for tp in (2, 4, 8):
    for load in cm.serve("llama-3-70b", tp=tp, **REQUESTS).loads:
        waits = load.exposed / load.time_per_token
        print(
            f"tp {tp}, {load.concurrency:2} at a time: {1e3 * load.time_per_token:5.1f} ms a token, waits {waits:.0%}"
        )

# %% [markdown]
# Not four times: what an engine adds and what ranks wait for each other stays. DeepSeek-V3 in 8 bits takes 671 GB, so
# nine H100 at least; over 16 of them, two nodes:

# %%
EIGHT_BITS = REQUESTS | {"precision": "fp8-w8a8", "concurrency": 64}
for degrees in ({"tp": 16}, {"tp": 8, "pp": 2}, {"dp": 16, "ep": 16}):
    served = cm.serve("deepseek-v3", **EIGHT_BITS, **degrees)
    (load,) = served.loads
    name = " ".join(f"{axis} {n}" for axis, n in degrees.items())
    print(f"{name:12} {1e3 * load.time_per_token:5.1f} ms a token, at most {served.largest:,} requests at a time")

# %% [markdown]
# Ranks of tp each keep the whole latent cache; ranks of dp keep that of their own requests, and send tokens to the
# experts of others. `cm.deployments` goes through all of them.
#
# ## Exercises
#
# **1.** What share of a step do ranks of a pipeline of 8 wait at least, with 64 micro-batches and one stage each
# (1F1B; in units of a whole micro-batch, of all that a step then takes)?

# %%
answer_1 = None

# %% [markdown]
# **2.** How many GiB of keys and values has each of 8 ranks of tp, of 32 requests of 4,096 tokens to Llama 3 70B, in 16
# bits? It has 80 layers and 8 key heads of 128 features.

# %%
answer_2 = None

# %% [markdown]
# **3.** The same of 16 ranks, where engines copy key heads?

# %%
answer_3 = None

# %% [markdown]
# **4.** The fastest layouts with tp 4 have pp 8. Why not pp 4, with dp 4? How many GiB of a rank do its weights (bf16),
# gradients (fp32) and states (fp32 masters and two moments, split over dp) take, of 70.6 billion weights? To one
# decimal.

# %%
answer_4 = None

# %% [markdown]
# **5. Derive it.** A sum of $S$ bytes around a ring of $n$ takes 2 (n − 1) hops of $a$ seconds, and 2 (n − 1)/n · S/W
# for its bytes. At which S do hops take as long as bytes? A function of n, a and W.

# %%
answer_5 = None

# %% [markdown]
# **6. Code it.** Play GPipe: write a function of p stages, m micro-batches and the seconds f and b of a forward and a
# backward pass of a stage that says when the step ends. Each stage does one pass at a time: all forward, then all
# backward.

# %%
answer_6 = None

# %% [markdown]
# ## Solutions

# %% jupyter={"source_hidden": true} tags=["hide-cell"]
solution = round(7 / (64 + 7), 3)
one = cm.predict("gpt-3-175b", **OLDER, tp=8, pp=8, accumulate=64, checkpoint="block").on("dgx-a100")
assert one.bubble / one.seconds > 0.9 * solution
assert answer_1 in (None, solution), "1: seven of each kind of pass before the last rank starts or after it ends"
print(f"1: {solution}")

# %% jupyter={"source_hidden": true} tags=["hide-cell"]
solution = 32 * 4096 * 80 * 2 * 128 * 2 / 2**30
served = cm.predict("llama-3-70b", mode="decode", past=4095, batch=32, precision="bf16", tp=8)
assert served.memory.cache / 2**30 == solution
assert answer_2 in (None, solution), "2: a key and a value of one head of each layer, 2 bytes a number"
print(f"2: {solution}")

# %% jupyter={"source_hidden": true} tags=["hide-cell"]
same = {tp: cm.serve("llama-3-70b", on="dgx-h100", input=4000, output=96, tp=tp).request_bytes for tp in (8, 16)}
assert same[8] == same[16] == solution * 2**30 / 32
assert answer_3 in (None, solution), "3: each rank has one head, as with 8"
print(f"3: {solution}")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
own = 70.6e9 / (4 * 4)
solution = round(own * (2 + 4 + 12 / 4) / 2**30, 1)
memory = cm.predict(
    "llama-3.1-70b", runtime="megatron", **MIXED, seq=8192, tp=4, pp=4, dp=4, zero=1, sp=True, accumulate=32,
).memory  # fmt: skip
held = memory.weights + memory.gradients + memory.masters + memory.optimizer
assert 1 < held / 2**30 / solution < 1.1, "stages are not equal: embedding and head"
assert answer_4 is None or abs(answer_4 - solution) < 0.2, "4: a sixteenth of the weights, 6 bytes each, and 12 over dp"
print(
    f"4: {solution} GiB, of the heaviest rank {held / 2**30:.1f}, and {memory.activations / 2**30:.1f} that passes keep"
)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(n, hop, bandwidth):
    return n * hop * bandwidth


for n, hop, bandwidth in ((8, 2e-6, 450e9), (64, 5e-6, 50e9)):
    size = solution(n, hop, bandwidth)
    assert abs(2 * (n - 1) * hop / (2 * (n - 1) / n * size / bandwidth) - 1) < 1e-9
    assert answer_5 is None or abs(answer_5(n, hop, bandwidth) / size - 1) < 0.01, "5: 2 (n - 1) is on both sides"
print(f"5: n a W: {solution(8, 2e-6, 450e9) / 2**20:.1f} MiB over 8 devices with hops of 2 µs at 450 GB/s")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(stages, micro_batches, forward, backward):
    free = [0.0] * stages
    for order, seconds in ((range(stages), forward), (reversed(range(stages)), backward)):
        order = list(order)
        for _ in range(micro_batches):
            arrives = 0.0
            for stage in order:
                free[stage] = arrives = max(free[stage], arrives) + seconds
    return max(free)


for p, m in ((1, 4), (4, 8), (8, 64)):
    assert solution(p, m, 1.0, 2.0) == (m + p - 1) * 3.0
    assert answer_6 is None or answer_6(p, m, 1.0, 2.0) == solution(p, m, 1.0, 2.0), (
        "6: a pass waits for the stage before it"
    )
print("6: (m + p - 1) (f + b): the bubble is (p - 1) / (m + p - 1) of it")
