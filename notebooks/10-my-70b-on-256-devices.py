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
# # My 70B on 256 devices
#
# **The point:** a cluster runs many ranks that are almost all alike. What one of them has, keeps and sends is worked
# out as for one device, at its own sizes; whether a model fits is asked of the heaviest.
#
# **You learn** what each way of splitting a model divides and what it leaves whole; to read what a rank sends; and why
# the ranks of a pipeline are not alike.
#
# **Time:** 30 minutes. **Before it:** notebook 2.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.

# %%
# %matplotlib inline
import costmodel as cm

GIB = 2**30
RUN = {"seq": 4096, "attention": "flash"}
model = "llama-3.1-70b"
alone = cm.predict(model, **RUN)
print(f"{alone.params:,} parameters; weights, gradients and states take {16 * alone.params / GIB:,.0f} GiB in fp32")

# %% [markdown]
# ## Sharing weights
#
# AdamW in fp32 holds 16 bytes a parameter: weight, gradient and two moments (Rajbhandari et al. 2020 count 16 Ψ too).
# Sharded (`fsdp`, ZeRO-3), each of n ranks has a share of all four.
#
# **Predict:** what does one of 256 ranks hold between steps? And what will *not* be divided by 256?

# %%
sharded = cm.predict(model, **RUN, fsdp=256)
for line in ("weights", "gradients", "optimizer", "activations"):
    whole, own = getattr(alone.memory, line), getattr(sharded.memory, line)
    print(f"{line:12} {whole / GIB:8.1f} GiB alone, {own / GIB:6.2f} GiB of 256: 1/{whole / own:.0f}")

# %% [markdown]
# What is kept for backward is of a rank's own samples, which nobody shares. Each rank gathers all weights of a block
# when it needs them, and drops them again.
#
# **Predict:** how many bytes does a rank gather in a step, in units of all weights?

# %%
for row in sharded.collectives.sums():
    print(row["operation"], row["times"], f"{row['bytes'] / alone.memory.weights:.2f} times the weights")

# %% [markdown]
# Once forward, once more backward but for what is in no block, and gradients go back once.
#
# ## Splitting layers
#
# With `tp` each layer's weights are split, and the tokens are the same on all ranks: heads, hidden features and rows of
# the vocabulary are divided. `sp` splits by tokens what lies between (Korthikanti et al. 2022).
#
# **Predict:** which share of the activations is left with `tp=8`, and which with `sp` too?

# %%
tensor, both = (cm.predict(model, **RUN, tp=8, sp=sp, loss_parallel=True) for sp in (False, True))
for name, p in (("tp", tensor), ("tp and sp", both)):
    print(f"{name:10} {p.memory.activations / alone.memory.activations:.3f} of the activations")

# %% [markdown]
# What a rank sends does not fall: all tokens pass between layers.

# %%
print(both.collectives.summary().text())

# %% [markdown]
# ## A pipeline
#
# With `pp` each rank has a part of the blocks, and micro-batches pass through. The first starts before the last has
# anything to do, and holds what it will need when they come back.

# %%
pipeline = cm.predict(model, **RUN, tp=8, sp=True, loss_parallel=True, pp=4, accumulate=8)
print(pipeline.ranks)

# %% [markdown]
# The heaviest is the first, whose micro-batches in flight are as many as there are ranks after it, and itself. The
# picture has a lane for each rank, and each pass with the number of its micro-batch.
#
# **Predict:** which share of the step is each lane empty?

# %%
pipeline.ranks.plot()

# %% [markdown]
# Three micro-batches' time of eleven: a rank waits for its first one, and again at the end.
#
# ## Does it hold?
#
# ZeRO's paper (Rajbhandari et al. 2020, figure 1) counts what 64 ranks hold of 7.5 billion weights in 16 bits, Adam's
# states in fp32: 31.4, 16.6 and 1.9 GB in stages 1, 2 and 3. DeepSpeed keeps small weights whole in stage 3.

# %%
zero = cm.Transformer(vocab=50304, context=1024, layers=38, width=4032, heads=32, tied=True)
STATES = ("weights", "gradients", "masters", "optimizer")
for stage in (1, 2, 3):
    run = {"runtime": "deepspeed", "zero": stage, "dp": 64, "precision": "fp16-master"}
    memory = cm.predict(zero, **run).memory
    print(f"stage {stage}: {sum(getattr(memory, line) for line in STATES) / 1e9:5.1f} GB")

# %% [markdown]
# And measurements: the most that PyTorch had allocated on eight B200, Megatron-LM, in the table of
# [SimuMax](https://github.com/MooreThreads/SimuMax/blob/main/docs/b200/b200_release_v1.2_summary.md). Models are cut to
# a few of their blocks; nothing is fitted.
#
# **Predict:** which of these is hardest to tell, and why?

# %%
MIXED = {"runtime": "megatron", "precision": "bf16-master-fp32-gradients", "accumulate": 4, "zero": 1}
DENSE = {"attention": "flash", "seq": 4096}
LATENT = {"attention": "efficient", "seq": 4096}
LONG = {"attention": "flash", "seq": 32768, "cp_kind": "ulysses"}
PUBLISHED = [
    ("llama-3.1-70b", {"layers": 12}, {**DENSE, "tp": 2, "sp": True, "dp": 4}, 60.68),
    ("llama-3.1-405b", {"layers": 4}, {**DENSE, "pp": 2, "dp": 4}, 87.08),
    ("llama-3.1-405b", {"layers": 4}, {**LONG, "tp": 2, "sp": True, "cp": 4}, 87.03),
    ("llama-3.1-70b", {"layers": 12}, {**LONG, "cp": 8}, 104.51),
    ("deepseek-v2", {"layers": 4}, {**LATENT, "ep": 8, "dp": 8}, 45.63),
    ("deepseek-v3", {"layers": 4, "experts.dense_layers": 1}, {**LATENT, "ep": 8, "dp": 8}, 104.30),
]
for name, fewer, layout, measured in PUBLISHED:
    peak = cm.predict(cm.load(name).with_values(fewer), **MIXED, **layout).memory.peak / GIB
    degrees = " ".join(f"{axis} {layout[axis]}" for axis in ("tp", "cp", "ep", "pp", "dp") if axis in layout)
    print(f"{name:15} {degrees:10} measured {measured:6.2f} GiB, predicted {peak:6.2f}: {peak / measured - 1:+.1%}")

# %% [markdown]
# The context of CUDA and the buffers of NCCL come beside, a few GiB that are no tensors.
#
# ## Exercises
#
# **1.** How many bytes a parameter does one of 64 sharded ranks hold between steps, in fp32 with AdamW? Count weights,
# gradients and both moments, to two decimals.

# %%
answer_1 = None

# %% [markdown]
# **2.** How many micro-batches does rank 2 of 4 hold at once, in a step of 8 (1F1B; the first is rank 0)?

# %%
answer_2 = None

# %% [markdown]
# **3.** By what is the share that a rank sends of an all-reduce of 1 GiB, around a ring of 8, larger than of a
# gather?

# %%
answer_3 = None

# %% [markdown]
# **4. Derive it.** How many bytes does a rank send to all-reduce $S$ bytes around a ring of $n$? A function of S and
# n.

# %%
answer_4 = None

# %% [markdown]
# **5. Code it.** Write a function of a rank, of the number of ranks and of micro-batches that gives how many of these
# the rank holds at most (1F1B).

# %%
answer_5 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = round(16 / 64, 2)
memory = cm.predict(model, **RUN, fsdp=64).memory
assert abs((memory.weights + memory.gradients + memory.optimizer) / alone.params - solution) < 0.01
assert answer_1 in (None, solution), "1: sixteen bytes, over 64 ranks"
print(f"1: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 4 - 2
assert {rank.in_flight for rank in pipeline.ranks} == {1, 2, 3, 4}
assert answer_2 in (None, solution), "2: those ranks that are not before it"
print(f"2: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 2
sums = {row["operation"]: row["wire_bytes"] / row["bytes"] for row in tensor.collectives.sums()}
assert sums["all_reduce"] == solution * 7 / 8
assert answer_3 in (None, solution), "3: a reduce-scatter and an all-gather"
print(f"3: {solution} times")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(size, n):
    return 2 * (n - 1) / n * size


for n in (2, 4, 8):
    summed = [row for row in cm.predict(model, **RUN, tp=n).collectives.sums() if row["operation"] == "all_reduce"]
    assert all(abs(row["wire_bytes"] - solution(row["bytes"], n)) <= row["times"] * n for row in summed)
    assert answer_4 is None or abs(answer_4(2**30, n) - solution(2**30, n)) < 1, (
        "4: n - 1 parts scattered, n - 1 gathered"
    )
print("4: 2 (n - 1) / n · S")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(rank, ranks, micro_batches):
    held = most = 0
    ahead = min(ranks - rank, micro_batches)  # forward passes before the first backward one
    for _ in range(ahead):
        held += 1
        most = max(most, held)
    for n in range(micro_batches):
        held -= 1
        if ahead + n < micro_batches:
            held += 1
        most = max(most, held)
    return most


for m in (4, 8):
    told = sorted(r.in_flight for r in cm.predict(model, **RUN, pp=4, accumulate=m, checkpoint="block").ranks)
    assert set(told) == {solution(rank, 4, m) for rank in range(4)}
    assert answer_5 is None or {answer_5(rank, 4, m) for rank in range(4)} == set(told), (
        "5: a step of 1F1B, pass by pass"
    )
print("5: as many as ranks from it to the end, or all there are")
