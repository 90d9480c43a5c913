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
# # What if: batch, optimizer, precision, recomputation
#
# **The point:** memory in training is a sum of a few terms, and each knob turns only some of them. To make a step fit,
# find the term that binds and turn the knob that moves it.
#
# **You learn** which term each knob turns: batch, optimizer, precision, attention, recomputation, chunks of the loss;
# and to find the term that binds from a timeline.
#
# **Time:** 40 minutes. **Before it:** notebook 1.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.
#
# The step in question: GPT-2 small, 32 sequences of 1,024 tokens, on a GPU with 24 GiB.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
from ipywidgets import interact

import costmodel as cm

plt.style.use("pictures.mplstyle")
MIB, GIB, TFLOP = 2**20, 2**30, 1e12
budget = "24 GiB"
asked = {"batch": 32, "seq": 1024}
plain = cm.predict(cm.GPT2Small, **asked)
print(plain.fits(budget, reserve="1 GiB"))

# %% [markdown]
# ## One knob at a time
#
# **Predict:** sort these eight by how much they lower the peak, before you look.

# %%
varied_sizes = {
    "as asked": {},
    "batch halved": {"batch": asked["batch"] // 2},
    "SGD instead of AdamW": {"optimizer": "sgd"},
    "autocast to bfloat16": {"precision": "bf16-autocast"},
    "all in bfloat16": {"precision": "bf16"},
    "fused attention": {"attention": "flash"},
    "recompute each block": {"checkpoint": "block"},
    "recompute attention's core": {"checkpoint": "selective"},
    "half as many, twice": {"batch": asked["batch"] // 2, "accumulate": 2},
}


def terms(settings):
    """One row of the table: where the memory is, and what the step computes."""
    p = cm.predict(cm.GPT2Small, **{**asked, **settings})
    m = p.memory
    standing = m.weights + m.masters + m.gradients + m.optimizer
    return {
        "weights, gradients, optimizer": f"{standing / GIB:.2f} GiB",
        "activations": f"{(m.activations + m.casts) / GIB:.1f} GiB",
        "peak": f"{m.peak / GIB:.1f} GiB",
        "of the peak as asked": f"{m.peak / plain.memory.peak:.0%}",
        "TFLOP": f"{p.flops.hardware / TFLOP:.1f}",
        "fits": "yes" if p.fits(budget, reserve="1 GiB") else "no",
    }


pd.DataFrame([terms(settings) for settings in varied_sizes.values()], index=list(varied_sizes))

# %% [markdown]
# The optimizer, which is what most people try first, hardly matters here: it turns a term that is small. The
# activations bind, and what moves them is the batch, how attention is computed, and recomputation. Accumulating two
# half batches keeps the FLOPs of the whole and the memory of the half.
#
# ## Bytes for each parameter
#
# For a model too large for its batch to matter, it is the other way around. "16 bytes a parameter" is one cell of this
# table: weights, gradients, optimizer state and, where the policy has them, master copies.
#
# **Predict:** which cell is 16? Which is least, and which most?

# %%
grid = cm.sweep(
    cm.GPT2Small,
    optimizer=["sgd", "momentum", "lion", "adafactor", "adamw", "adam-8bit"],
    precision=["fp32", "bf16-autocast", "bf16", "bf16-master", "bf16-master-fp32-gradients"],
    quantities=["params", "memory.weights", "memory.masters", "memory.gradients", "memory.optimizer"],
)
lasting = sum(grid[f"memory.{term}"] for term in ("weights", "masters", "gradients", "optimizer"))
(lasting / grid["params"]).round(2).to_pandas()

# %% [markdown]
# ## Along the batch
#
# A sweep asks the same question at every point of a grid, and each answer is exactly what `predict` gives. Here the
# slope is the memory that one more sequence takes, and the dot is the largest batch that leaves 1 GiB of the 24 GiB.

# %%
batches = range(1, 65)
ways = {
    "plain": {},
    "fused attention": {"attention": "flash"},
    "fused, autocast to bfloat16": {"attention": "flash", "precision": "bf16-autocast"},
    "fused, autocast, block recomputed": {"attention": "flash", "precision": "bf16-autocast", "checkpoint": "block"},
}
figure, axes = plt.subplots()
for name, settings in ways.items():
    peak = cm.sweep(cm.GPT2Small, batch=batches, seq=asked["seq"], quantities="memory.peak", **settings)["memory.peak"]
    axes.plot(peak.batch, peak / GIB, label=name)
    most = int(peak.batch[peak <= 23 * GIB][-1])
    axes.plot(most, peak.sel(batch=most) / GIB, "o", color=axes.lines[-1].get_color())
    more = int(peak[-1] - peak[-2]) / MIB
    print(f"{name:<34} one more sequence {more:>5,.0f} MiB, largest batch {most:>2}")
axes.axhline(24, color="#222222", linestyle="--", linewidth=1)
axes.text(64, 24.4, "24 GiB", ha="right")
axes.set(xlabel="batch [sequences of 1,024 tokens]", ylabel="peak memory [GiB]", xlim=(0, 64), ylim=(0, 60))
axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
plt.show()

# %% [markdown]
# Now all knobs together. Move the sliders; the page shows them where they stand first, the table above other places.


# %%
@interact(
    batch=(1, 64),
    seq=(128, 1024, 128),
    optimizer=["adamw", "sgd", "lion", "adafactor", "adam-8bit"],
    precision=["fp32", "bf16-autocast", "bf16", "bf16-master"],
    attention=["eager", "flash"],
    checkpoint=["none", "selective", "block"],
    loss_chunks=[1, 2, 4, 8],
)
def what_if(batch=32, seq=1024, **knobs):
    """The timeline of one step, and whether it fits."""
    p = cm.predict(cm.GPT2Small, batch=batch, seq=seq, **knobs)
    print(f"batch {batch}, seq {seq:,},", ", ".join(f"{name} {value}" for name, value in knobs.items()))
    print(f"{p.flops.hardware / TFLOP:.1f} TFLOP a step;", p.fits(budget, reserve="1 GiB"))
    return p.timeline.plot()


# %% [markdown]
# ## The cheapest recomputation that fits
#
# Checkpointing pays with FLOPs: what is not kept is computed again in backward. `cheapest_checkpoint` tries every way
# that the model has, and chooses the one that fits and recomputes least. **Predict:** with fused attention, which part
# is worth computing again?

# %%
choice = cm.cheapest_checkpoint(cm.GPT2Small, budget, reserve="1 GiB", **asked, attention="flash")
print(choice)

# %% [markdown]
# Why it works is best seen over time. Without recomputation activations pile up through all of forward and are let go
# through backward; with it, only each block's input stays, and backward brings one block at a time back.

# %%
plain.timeline.plot()

# %%
recomputed = cm.predict(cm.GPT2Small, **asked, checkpoint="block")
recomputed.timeline.plot()

# %%
flops = (plain.flops.hardware, recomputed.flops.hardware)
print(f"peak  {plain.memory.peak / GIB:.1f} GiB -> {recomputed.memory.peak / GIB:.1f} GiB")
print(f"TFLOP {flops[0] / TFLOP:.1f} -> {flops[1] / TFLOP:.1f}, {flops[1] / flops[0] - 1:.0%} more")
step = recomputed.timeline.peak_step
alive = step.alive
print(f"peak now in {step.phase} of {step.layer}: activations {alive.activations / GIB:.1f} GiB", end=", ")
print(f"temporaries {alive.temporaries / GIB:.1f} GiB")

# %% [markdown]
# Another term binds now, so another knob is next. The spike between forward and backward is the loss: gradients of
# the logits over the whole vocabulary. Computed in chunks of rows, the logits never exist all at once:

# %%
for chunks in (1, 2, 4, 8):
    p = cm.predict(cm.GPT2Small, **asked, checkpoint="block", loss_chunks=chunks)
    step = p.timeline.peak_step
    print(f"{chunks:>2} chunks: peak {p.memory.peak / GIB:.2f} GiB in {step.phase} of {step.layer}")

# %% [markdown]
# From four chunks on, the highest step is within a block, and more chunks change nothing: that knob is turned all the
# way.
#
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** The largest batch of 1,024 tokens that leaves 1 GiB of 24 GiB with fused attention, everything in bf16, each
# block recomputed and the loss in 8 chunks?

# %%
answer_1 = None

# %% [markdown]
# **2.** Bytes a parameter of weights, masters, gradients and state with Lion (one moment) and `bf16-master`?

# %%
answer_2 = None

# %% [markdown]
# **3.** Recomputing each block runs its forward again. By how many percent do the FLOPs of the step grow, to the
# nearest whole number, and why is it less than 33?

# %%
answer_3 = None

# %% [markdown]
# **4. Derive it.** Of $L$ blocks groups of $g$ are recomputed: kept are the inputs of $L/g$ groups, and while one is
# recomputed the insides of its $g$ blocks, each of $r$ times an input. Which $g$ keeps least, as a function of L and
# r?

# %%
answer_4 = None

# %% [markdown]
# **5. Code it.** Write a function of memory (such as "16 GiB") that finds by bisection the largest batch of 1,024
# tokens with fused attention that fits, with `predict(...).fits` alone. `cm.max_batch` knows it too.

# %%
answer_5 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
best = {"attention": "flash", "precision": "bf16", "checkpoint": "block", "loss_chunks": 8}
solution = int(cm.max_batch(cm.GPT2Small, seq=1024, memory=budget, reserve="1 GiB", **best))
assert cm.predict(cm.GPT2Small, batch=solution, seq=1024, **best).fits(budget, reserve="1 GiB")
assert not cm.predict(cm.GPT2Small, batch=solution + 1, seq=1024, **best).fits(budget, reserve="1 GiB")
assert answer_1 in (None, solution), "1: cm.max_batch answers this in one call"
print(f"1: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 2 + 4 + 2 + 4
assert solution == round(float((lasting / grid["params"]).sel(optimizer="lion", precision="bf16-master")), 2)
assert answer_2 in (None, solution), "2: weights and gradients in 16 bits, masters and one moment in 32"
print(f"2: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
blocks = next(part.forward_flops for part in plain.by_part() if part.name == "block")
solution = round(100 * blocks / plain.flops.total)
assert solution == round(100 * (flops[1] / flops[0] - 1))
assert answer_3 in (None, solution), "3: a third of the blocks' share of the FLOPs"
print(f"3: {solution} %: the head is not recomputed, and has {1 - 3 * blocks / plain.flops.total:.0%} of the FLOPs")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(layers, r):
    return (layers / r) ** 0.5


for layers, r in ((12, 3), (96, 1.5)):
    kept = {g / 100: layers / (g / 100) + g / 100 * r for g in range(10, 5000)}
    assert abs(min(kept, key=kept.get) - solution(layers, r)) < 0.01
    assert answer_4 is None or abs(answer_4(layers, r) - solution(layers, r)) < 0.01, "4: where the derivative is zero"
print("4: the square root of L / r: Chen et al. 2016, §4.1")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(memory):
    fits, too_large = 0, 1024
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if cm.predict(cm.GPT2Small, batch=middle, seq=1024, attention="flash").fits(memory):
            fits = middle
        else:
            too_large = middle
    return fits


largest = {m: int(cm.max_batch(cm.GPT2Small, seq=1024, attention="flash", memory=m)) for m in ("16 GiB", "40 GiB")}
assert {m: solution(m) for m in largest} == largest
assert answer_5 is None or {m: answer_5(m) for m in largest} == largest, "5: the peak grows with the batch, so halve"
print(f"5: {largest}")
