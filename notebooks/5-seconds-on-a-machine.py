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
# **The point:** a step takes as long as its arithmetic, its bytes, or the host that starts its kernels, whichever is
# longest, kernel by kernel. A datasheet gives a bound, what kernels attain gives an estimate with a range, and one
# measured step closes most of that range.
#
# **You learn** what a datasheet promises and what a kernel reaches; when the batch decides; what a compiler saves; and
# to say how long a run takes, and what it costs, with an honest interval.
#
# **Time:** 35 minutes. **Before it:** notebook 1.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
from ipywidgets import interact

import costmodel as cm
from costmodel.layers import Gelu, Linear

plt.style.use("pictures.mplstyle")

# %% [markdown]
# ## Arithmetic
#
# The gate of a block of Llama 3.1 8B is a linear layer from 4,096 to 14,336 features. An H100 does 989 TFLOP/s in 16
# bits. `tier="ceiling"` takes the datasheet at its word: a lower bound. `tier="typical"` has the constants of the
# machine's family: how much of a peak products reach, how much of the bandwidth streams reach, what a launch takes.
#
# **Predict:** how long does its forward pass take for 8,192 tokens? And for one?

# %%
rows = {}
for tokens in (8192, 512, 64, 1):
    layer = cm.predict(Linear(14336, bias=False), input=(tokens, 4096), precision="bf16", mode="inference")
    tiers = {tier: layer.on("h100-sxm", tier=tier) for tier in ("ceiling", "typical")}
    by_hand = max(layer.flops.forward / 989e12, layer.traffic.forward / 3.35e12)
    assert abs(tiers["ceiling"].seconds / by_hand - 1) < 0.01
    assert tiers["ceiling"].seconds < tiers["typical"].seconds
    rows[f"{tokens:,}"] = (
        f"{layer.flops.forward / 1e9:,.1f}",
        *(f"{1e6 * time.seconds:,.0f}" for time in tiers.values()),
        tiers["ceiling"].bound,
    )
pd.DataFrame(rows, index=["GFLOP", "ceiling [µs]", "typical [µs]", "bound by"]).T.rename_axis("tokens")

# %% [markdown]
# One token takes as long as 64: the weights are read once in either case. The ceiling is the larger of FLOPs over peak
# and bytes over bandwidth.
#
# ## Bytes
#
# **Predict:** how long does a GELU of 8,192 × 14,336 numbers in 16 bits take, at 3.35 TB/s? And in which share of that
# could the arithmetic be done?

# %%
gelu = cm.predict(Gelu(), input=(8192, 14336), precision="bf16", mode="inference")
lower, usual = (gelu.on("h100-sxm", tier=tier) for tier in ("ceiling", "typical"))
assert lower.bound == "memory"
print(f"bytes over bandwidth {1e6 * 2 * 2 * 8192 * 14336 / 3.35e12:.0f} µs")
print(f"ceiling {1e6 * lower.seconds:.0f} µs, typical {1e6 * usual.seconds:.0f} µs")

# %% [markdown]
# ## A whole step, with its range
#
# **Predict:** what share of the peak does a training step of GPT-2 small reach on an H100, with fused attention and
# bf16 autocast?

# %%
p = cm.predict("gpt2-small", batch=32, seq=512, precision="bf16-autocast", attention="flash")
eager = p.on("h100-sxm")
print(eager)

# %%
eager.plot()

# %% [markdown]
# Each dot is a kernel. Those far left are moved by memory: norms, dropout, GELU, the update. A compiler joins chains of
# them into one, which reads and writes once. **Predict:** how much shorter does the step get?

# %%
compiled = p.on("h100-sxm", stack="compiled")
assert compiled.seconds < eager.seconds
print(f"eager {1e3 * eager.seconds:.0f} ms, compiled {1e3 * compiled.seconds:.0f} ms", end=": ")
print(f"{eager.seconds / compiled.seconds:.2f} times as fast, MFU {eager.mfu:.0%} -> {compiled.mfu:.0%}")
for fusion in compiled.fusions[:3]:
    print("joined:", ", ".join(fusion.layers))

# %% [markdown]
# ## Small batches wait for the host
#
# **Predict:** a forward pass of ResNet-50 is some 170 kernels, and a host takes some microseconds to start one. What is
# the shortest forward pass, and from which batch on is it the device that is waited for?

# %%
rows = {}
for batch in (1, 2, 4, 8, 16, 64, 256):
    q = cm.predict("resnet50", batch=batch, mode="inference", precision="fp16")
    times = {stack: q.on("a100-sxm-40gb", stack=stack) for stack in ("eager", "cuda-graphs")}
    rows[batch] = (
        *(f"{1e3 * time.seconds:.2f}" for time in times.values()),
        f"{times['eager'].seconds / times['cuda-graphs'].seconds:.1f} ×",
        times["eager"].bound,
        f"{times['eager'].samples_per_second:,.0f}",
    )
columns = ["eager [ms]", "graphs [ms]", "graphs save", "eager is bound by", "images/s"]
pd.DataFrame(rows, index=columns).T.rename_axis("batch")

# %% [markdown]
# CUDA graphs start all kernels at once. Where memory or arithmetic binds, they save next to nothing.
#
# Move the sliders; the page shows them where they stand first, and the table above what the batch alone does.


# %%
@interact(
    machine=["t4", "v100-sxm2-16gb", "a100-sxm-40gb", "h100-sxm", "h200-sxm", "mi300x", "rtx-4090", "epyc-9654"],
    batch=(1, 256),
    precision=["fp32", "fp16", "bf16"],
    stack=["eager", "compiled", "cuda-graphs"],
    train=False,
)
def step_on(machine="a100-sxm-40gb", batch=32, precision="fp16", stack="eager", train=False):
    """ResNet-50: the time of each phase, with what binds."""
    q = cm.predict("resnet50", batch=batch, precision=precision, mode="train" if train else "inference")
    try:
        t = q.on(machine, stack=stack)
    except cm.CostModelError as error:
        print(error)
        return
    print(f"{machine}, batch {batch}, {precision}, {stack}: {1e3 * t.seconds:.2f} ms ", end="")
    print(f"({1e3 * t.low:.2f} to {1e3 * t.high:.2f}), {t.samples_per_second:,.0f} images/s, MFU {t.mfu:.0%}")
    for phase in t.phases:
        if phase.launches:
            device, host = 1e3 * phase.device_seconds, 1e3 * phase.host_seconds
            print(f"  {phase.phase:<9}device {device:7.2f} ms, host {host:6.2f} ms, {phase.launches:,} launches")
    print(f"  bound by {t.bound}")


# %% [markdown]
# ## A run: days, energy, money
#
# **Predict:** fine-tuning Llama 3.1 8B on a billion tokens of text with one H100: hours, days or weeks?

# %%
llama = cm.predict(
    "llama-3.1-8b", batch=1, seq=8192, precision="bf16", attention="flash", checkpoint="block", optimizer="adam-8bit"
)
t = llama.on("h100-sxm", stack="compiled")
print(llama.fits("80 GiB"))
print(f"{t.tokens_per_second:,.0f} tokens/s ({t.seconds:.2f} s a step, {t.low:.2f} to {t.high:.2f}), MFU {t.mfu:.0%}")
print(t.run(tokens=1e9))

# %% [markdown]
# Power, the data centre's overhead, carbon intensity and price have no defaults: they are asked for, and printed.

# %%
print(t.energy(power="tdp", pue=1.1, tokens=1e9), end="\n\n")
print(t.money(price=2.5, tokens=1e9))

# %% [markdown]
# ## One measured step narrows the range
#
# Suppose that somebody ran the step above of GPT-2 small, and it took 10 % longer than predicted. What does that say
# about another model on the same machine? **Predict:** is the range of that one halved?

# %%
fitted = cm.fit_machine(
    "h100-sxm",
    [f"gpt2-small batch=32 seq=512 precision=bf16-autocast attention=flash: {1100 * eager.seconds:.1f} ms"],
)
medium = cm.predict("gpt2-medium", batch=16, seq=512, precision="bf16-autocast", attention="flash")
before, after = medium.on("h100-sxm"), medium.on(fitted.calibration)
for what, time in (("before", before), ("after", after)):
    width = time.high / time.low - 1
    print(f"{what:<7}{1e3 * time.seconds:.0f} ms, {1e3 * time.low:.0f} to {1e3 * time.high:.0f}: {width:.0%} wide")
assert after.high / after.low < before.high / before.low
assert after.seconds > before.seconds

# %% [markdown]
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** From how many tokens on is the linear layer above bound by arithmetic, by the datasheet? Within 5 %: solve
# $2nkm/P = 2(nk + km + nm)/W$ for $n$, with $k$ = 4,096, $m$ = 14,336, $P$ = 989 TFLOP/s, $W$ = 3.35 TB/s.

# %%
answer_1 = None

# %% [markdown]
# **2.** How many days would 100 billion tokens take at 10,000 tokens a second on each of 8 devices, if they did not
# wait for one another? To one decimal.

# %%
answer_2 = None

# %% [markdown]
# **3.** AdamW in fp32 moves 28 bytes a parameter. How many ms does the update of GPT-2 small take at least on an H100?
# To two decimals.

# %%
answer_3 = None

# %% [markdown]
# **4. Derive it.** From how many rows $n$ on is a product of $n × k$ by $k × m$ in 16 bits bound by arithmetic, on a
# machine of peak $P$ and bandwidth $W$? A function of k, m, P and W.

# %%
answer_4 = None

# %% [markdown]
# **5. Code it.** Write a function of predictions' layers (`p.layers`), a peak and a bandwidth that adds up the least
# time of a forward pass: each layer's contractions or its bytes (`forward_bytes`), whichever takes longer.

# %%
answer_5 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
k, m, peak, bandwidth = 4096, 14336, 989e12, 3.35e12
solution = round(2 * k * m / bandwidth / (2 * k * m / peak - 2 * (k + m) / bandwidth))
ends = {}
for tokens in (int(0.97 * solution), int(1.03 * solution)):
    layer = cm.predict(Linear(m, bias=False), input=(tokens, k), precision="bf16", mode="inference")
    ends[tokens] = layer.on("h100-sxm", tier="ceiling").bound
assert list(ends.values()) == ["memory", "compute"]
assert answer_1 is None or abs(answer_1 / solution - 1) < 0.05, "1: the layer's ridge, a little above P/W = 295"
print(f"1: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = round(100e9 / (8 * 10_000) / 86_400, 1)
run = t.run(tokens=100e9, devices=8)
assert abs(run.seconds / (100e9 / (8 * t.tokens_per_second)) - 1) < 1e-6
assert answer_2 in (None, solution), "2: tokens over tokens a second of all, over the seconds of a day"
print(f"2: {solution} days; t.run(tokens=100e9, devices=8) is that for the rate predicted: {run.seconds / 86_400:.1f}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = round(28 * 124_439_808 / 3.35e12 * 1e3, 2)
fused = cm.predict("gpt2-small", seq=512, update="fused").on("h100-sxm", tier="ceiling")
assert solution == round(1e3 * fused.update_seconds, 2)
assert answer_3 in (None, solution), "3: 28 bytes, 124.4 million parameters, 3.35 TB/s"
print(f"3: {solution} ms; as PyTorch runs it by itself {1e3 * eager.update_seconds:.2f} ms")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(k, m, peak, bandwidth):
    return k * m / (k * m * bandwidth / peak - k - m)


for k, m, P, W in ((4096, 14336, 989e12, 3.35e12), (1024, 1024, 312e12, 2.0e12)):
    rows = solution(k, m, P, W)
    assert abs(2 * rows * k * m / P / (2 * (rows * k + k * m + rows * m) / W) - 1) < 1e-9
    assert answer_4 is None or abs(answer_4(k, m, P, W) / rows - 1) < 0.01, "4: solve the equation of exercise 1"
print("4: km / (km W/P - k - m); a machine of too high a ridge is never bound by arithmetic")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(layers, peak, bandwidth):
    return sum(max(row.forward_flops / peak, row.forward_bytes / bandwidth) for row in layers)


forward = cm.predict("gpt2-small", batch=32, seq=512, precision="bf16", mode="inference")
least = solution(forward.layers, 989.4e12, 3.35e12)
assert forward.flops.forward / 989.4e12 < least < forward.on("h100-sxm").seconds
assert answer_5 is None or abs(answer_5(forward.layers, 989.4e12, 3.35e12) / least - 1) < 1e-6, (
    "5: the longer of two, summed"
)
print(f"5: {1e3 * least:.1f} ms at least; kernels reach {least / forward.on('h100-sxm').seconds:.0%} of that rate")
