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
# # Seconds on a machine you do not have
#
# **You learn** what a datasheet promises, what a kernel reaches, and when the batch decides. **You need** 20 minutes
# and notebook 1. Before each cell that says *predict*, write your own number down first.

# %%
import costmodel as cm
from costmodel.layers import Linear, Relu

# %% [markdown]
# ## Arithmetic: *predict* how long 154 GFLOP take
#
# The backward pass of a linear layer from 768 to 3,072 features, on 32 sequences of 512 tokens, is 154 GFLOP. An A100
# does 312 TFLOP/s in 16 bits. `tier="ceiling"` takes the datasheet at its word: a lower bound.

# %%
layer = cm.predict(Linear(3072, bias=False), input=(32, 512, 768), precision="bf16")
a100 = layer.on("a100-sxm-40gb", tier="ceiling")
print(f"{layer.flops.backward / 1e9:.0f} GFLOP: {a100.backward_seconds * 1e3:.2f} ms at least")

# %% [markdown]
# ## Bytes: *predict* how long a ReLU takes
#
# It does one comparison a number, and reads and writes it: 10⁹ numbers of 4 bytes at 900 GB/s.

# %%
relu = cm.predict(Relu(), input=(10**9,), mode="inference").on("v100-sxm2-16gb", tier="ceiling")
print(f"{relu.seconds * 1e3:.1f} ms; bound by {relu.bound}")

# %% [markdown]
# ## What is really reached
#
# `tier="typical"` has the constants of the machine's family: how much of a peak products reach, how much of the
# bandwidth streams reach, what a launch takes. It always comes with a range.

# %%
for batch in (1, 8, 32, 64):
    t = cm.predict("resnet50", batch=batch, mode="inference", precision="fp16").on("a100-sxm-40gb")
    print(f"batch {batch:2}: {t.samples_per_second:7,.0f} images/s, bound by {t.bound}, MFU {t.mfu:.0%}")

# %% [markdown]
# A small batch waits for the host to start kernels; a large one for memory and arithmetic.
#
# **Exercise.** At which batch does a compiled stack (`stack="cuda-graphs"`) stop paying? Check:

# %%
for batch in (1, 8, 64):
    p = cm.predict("resnet50", batch=batch, mode="inference", precision="fp16")
    eager, graphs = (p.on("a100-sxm-40gb", stack=stack).seconds for stack in ("eager", "cuda-graphs"))
    print(f"batch {batch:2}: {eager / graphs:.1f} times as fast without the host")

# %% [markdown]
# ## Does it fit, and how long does a run take?

# %%
p = cm.predict(
    "llama-3.1-8b", batch=1, seq=8192, precision="bf16", attention="flash", checkpoint="block", optimizer="adam-8bit"
)
t = p.on("h100-sxm", stack="compiled")
print(p.fits("80 GiB"))
print(f"{t.tokens_per_second:,.0f} tokens/s ({t.seconds:.2f} s a step, {t.low:.2f} to {t.high:.2f}), MFU {t.mfu:.0%}")
