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
# The step in question: GPT-2 small, 32 sequences of 1,024 tokens, on a GPU with 24 GiB.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd

import costmodel as cm
from costmodel.display.units import show_bytes, show_flops

plt.style.use("pictures.mplstyle")
GIB = 2**30
budget = "24 GiB"
asked = {"batch": 32, "seq": 1024}
plain = cm.predict(cm.GPT2Small, **asked)
print(plain.fits(budget, reserve="1 GiB"))

# %% [markdown]
# ## One knob at a time

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
        "weights, gradients, optimizer": show_bytes(standing),
        "activations": show_bytes(m.activations + m.casts),
        "peak": show_bytes(m.peak),
        "of the peak as asked": f"{m.peak / plain.memory.peak:.0%}",
        "FLOPs": show_flops(p.flops.hardware),
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
    print(f"{name:<34} one more sequence {show_bytes(int(peak[-1] - peak[-2])):>9}, largest batch {most:>2}")
axes.axhline(24, color="#222222", linestyle="--", linewidth=1)
axes.text(64, 24.4, "24 GiB", ha="right")
axes.set(xlabel="batch [sequences of 1,024 tokens]", ylabel="peak memory [GiB]", xlim=(0, 64), ylim=(0, 60))
axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
plt.show()

# %% [markdown]
# ## The cheapest recomputation that fits
#
# Checkpointing pays with FLOPs: what is not kept is computed again in backward. `cheapest_checkpoint` tries every way
# that the model has, and chooses the one that fits and recomputes least.

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
print(f"peak  {show_bytes(plain.memory.peak)} -> {show_bytes(recomputed.memory.peak)}")
print(f"FLOPs {show_flops(plain.flops.hardware)} -> {show_flops(recomputed.flops.hardware)}", end=", ")
print(f"{recomputed.flops.hardware / plain.flops.hardware - 1:.0%} more")
step = recomputed.timeline.peak_step
alive = step.alive
print(f"peak now in {step.phase} of {step.layer}: activations {show_bytes(alive.activations)}", end=", ")
print(f"temporaries {show_bytes(alive.temporaries)}")

# %% [markdown]
# Another term binds now, so another knob is next. The spike between forward and backward is the loss: gradients of
# the logits over the whole vocabulary. Computed in chunks of rows, the logits never exist all at once:

# %%
for chunks in (1, 2, 4, 8):
    p = cm.predict(cm.GPT2Small, **asked, checkpoint="block", loss_chunks=chunks)
    step = p.timeline.peak_step
    print(f"{chunks:>2} chunks: peak {show_bytes(p.memory.peak)} in {step.phase} of {step.layer}")

# %% [markdown]
# From four chunks on, the highest step is within a block, and more chunks change nothing: that knob is turned all the
# way.
