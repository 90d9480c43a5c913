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
#   measured: true
# ---

# %% [markdown]
# # The roofline of this host, layer by layer
#
# **The point:** the textbook's roofline draws two ceilings, arithmetic and memory, and says that a layer is bound by
# the one that it meets first. Real kernels stay below both, for reasons that can be counted: NumPy moves the same
# bytes several times, each function has a speed of its own, and every call costs something before it computes
# anything. Count all that, and the time of a layer follows from its description.
#
# **You learn** to read a roofline; why a layer is slower than both of its ceilings; and which of six models of host
# time is worth its trouble.
#
# **Time:** 40 minutes, of which the clock takes two. **Before it:** notebook 1.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.
#
# All times below are of the machine that ran this notebook last. Run it, and they are of yours.

# %%
# %matplotlib inline
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import costmodel as cm
from costmodel.layers import Layernorm, Linear

plt.style.use("pictures.mplstyle")
MIB = 2**20
calibration = cm.roofline.calibrate(keep=False, budget=30)
print(f"the machine that ran this: {calibration.machine}")
print(f"calibrated in {calibration.took_seconds:.1f} s, {calibration.unresolved:.0%} of the probes unresolved")
print(*calibration.warnings, sep="\n")

# %% [markdown]
# Calibration times small calls, none of them of a shape that is predicted later: matrix products of many shapes, each
# elementwise function, copies, and streams through working sets of growing size. These are the two ceilings.
#
# **Predict:** how many FLOPs can one thread of this machine do in the time in which memory delivers a byte?

# %%
rates = calibration.rates
ridge = rates.peak("float32") / rates.memory_bandwidth
print(f"arithmetic  {rates.peak('float32') / 1e9:7.1f} GFLOP/s, the fastest matrix product, one thread, fp32")
print(f"memory      {rates.memory_bandwidth / 1e9:7.1f} GB/s, out of the largest working set")
print(f"ridge       {ridge:7.1f} FLOP/B: with fewer a layer would be bound by memory, with more by arithmetic")

# %% [markdown]
# ## GPT-2 small, one sequence of 128 tokens
#
# `check` predicts the forward pass of every layer from its description and the calibration, then runs the whole model
# and times each NumPy call where it stands. To say what binds a layer it does not ask the model again: it intervenes,
# and runs the same calls on data so small that only overhead is left, on data that stay in the cache, and copies the
# data instead of computing with them. The verdict comes first; what has too few undisturbed moments is marked by a ~.
#
# **Predict:** which three kinds of layers take the most time, and is any of them bound by memory?

# %%
check = cm.roofline.check(cm.GPT2Small, batch=1, seq=128, calibration=calibration)
check

# %% [markdown]
# Each layer is a dot: hollow as predicted, filled as measured, its area the share of time. A dot on the sloping line
# would move only what must be moved, as fast as memory can; a dot on the flat line would multiply as fast as the
# fastest product. Functions have ceilings of their own: as many elements a second as the cache lets them compute.

# %%
check.plot()

# %% [markdown]
# ## Why the dots are below the roof
#
# The roofline counts compulsory traffic: each input, weight and output once. NumPy computes layer norm, softmax and
# GELU call by call, and each call reads and writes whole arrays. Where they fit a cache that costs little, and what is
# left is the speed of the functions themselves: an exponential or a division takes many times as long as a
# multiply-add, and binds the layer, far below the roof of matrix products.

# %%
layers = check.to_dataframe().set_index("name")
extra = layers[layers.numpy_bytes > 1.4 * layers.compulsory_bytes].drop_duplicates("kind")
pd.DataFrame(
    {
        "calls": extra.calls,
        "compulsory [MiB]": (extra.compulsory_bytes / MIB).round(1),
        "NumPy's [MiB]": (extra.numpy_bytes / MIB).round(1),
        "times": [f"{ratio:.1f}" for ratio in extra.numpy_bytes / extra.compulsory_bytes],
        "GFLOP/s": [f"{rate / 1e9:.1f}" for rate in extra.flops_per_second],
        "bound by": extra.measured_class,
        "textbook": extra.textbook_class,
    }
)

# %% [markdown]
# ## What each refinement buys
#
# Six models of host time, each adding to the one before, against layers that are measured alone, each right after
# itself. The first is the roofline of the textbook. Not every step helps by itself: the third knows that caches are
# fast, but not yet that an exponential is slow.
#
# **Predict:** by how much is the textbook's roofline off, for half of the layers?

# %%
LEVELS = {
    1: "two ceilings, compulsory bytes",
    2: "NumPy's own passes",
    3: "bandwidth by reuse distance",
    4: "throughput of each function",
    5: "matrix products by shape",
    6: "overheads of calls and rows",
}
warm = cm.roofline.check(cm.GPT2Small, batch=1, seq=128, reuse="warm", classes=False, calibration=calibration)
measured = {layer.name: layer.timing.seconds for layer in warm.layers}
calls = {call.name: call for call in check.prediction.tape.root.calls() if call.name in measured}
programs = {name: cm.roofline.forward_program(call) for name, call in calls.items()}
clock = np.array([measured[name] for name in programs])
rows = {}
for level, what in LEVELS.items():
    hosts = [cm.roofline.predict_seconds(program, calibration, level=level) for program in programs.values()]
    ratio = np.array([host.seconds for host in hosts]) / clock
    off = np.abs(ratio - 1)
    explained = 1 - (np.log(ratio) ** 2).sum() / ((np.log(clock) - np.log(clock).mean()) ** 2).sum()
    rows[f"{level} {what}"] = [f"{np.median(off):.1%}", f"{np.quantile(off, 0.9):.1%}", f"{explained:.4f}"]
pd.DataFrame(rows, index=["median error", "90th percentile", "R² of log time"]).T

# %%
check.plot(kind="scatter")

# %% [markdown]
# ## Where the classes change
#
# One sample is a matrix times a vector: each weight is used once, and where it comes from is all that counts. With 64
# samples each weight is used 64 times, and the multiply-add units bind. Cold means that 64 MiB are touched between two
# runs of a layer, as they are in a model that is larger than the caches.

# %%
cases = {"batch 1, warm": (1, "warm"), "batch 1, cold": (1, "64 MiB")}
cases |= {"batch 64, warm": (64, "warm"), "batch 64, cold": (64, "64 MiB")}
table = {}
for name, (batch, reuse) in cases.items():
    found = cm.roofline.check("mlp-mnist", batch=batch, reuse=reuse, classes=False, budget=4, calibration=calibration)
    table[name] = {
        layer.name: f"{1e6 * layer.timing.seconds:,.0f} µs, {layer.predicted_class}" for layer in found.layers
    }
pd.DataFrame(table)

# %% [markdown]
# ## Where the time goes
#
# The sum over all layers is what one would speed up. The table of `check` has Amdahl's answer for each kind: what the
# whole gains if it took half its time, and at most.

# %%
check.plot(kind="bars")

# %% [markdown]
# ## Three hosts, one model
#
# A model that was fitted to one machine's shape would say so on the next. `hosts.json` holds what
# `costmodel roofline validate` found on three hosts: the same fourteen programs in place, each predicted from that
# host's own calibration. The second has twice as much of a second cache to a core as the first, and a quarter more of
# the speed; the third has ten times as much of a last cache, which many others use.
#
# **Predict:** on which of the three are predictions furthest off, and for programs of which kind?

# %%
hosts = json.loads(Path("hosts.json").read_text(encoding="utf-8"))
figure, axes = plt.subplots()
for (host, programs), mark in zip(hosts.items(), ("o", "s", "^"), strict=True):
    measured, predicted = np.array([program[1:] for program in programs]).T
    off = np.abs(predicted / measured - 1)
    axes.loglog(measured, predicted / measured, mark, label=host)
    print(f"{host}: median error {np.median(off):.1%}, worst {off.max():.1%}, {programs[off.argmax()][0]}")
axes.axhspan(0.92, 1.08, alpha=0.15, label="within 8 %")
axes.set_yscale("linear")
axes.set(xlabel="measured [ms]", ylabel="predicted / measured", ylim=(0.8, 1.2), title="Whole programs on three hosts")
axes.legend()
plt.show()

# %% [markdown]
# Two lessons. Intensity against the ridge is a poor guide to what bounds a NumPy layer: it takes all arithmetic to be
# as fast as a matrix product, and all bytes to come from memory. And the time is no mystery: counted call by call,
# with the speed of each function and the place where its data are, it is known before the clock runs.
#
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions. These are of the paper, and the same on every machine.
#
# **1.** A product of two square matrices of $n$ does $2n^3$ FLOPs and moves $3n^2$ numbers of 4 bytes. From which $n$
# on is it at or right of a ridge of 10 FLOP/B?

# %%
answer_1 = None

# %% [markdown]
# **2.** How many bytes must a layer norm of 128 rows of 768 move, in fp32, with its weight and bias?

# %%
answer_2 = None

# %% [markdown]
# **3.** The layers of one kind take 60 % of the time. By which factor is the whole faster if they take half as long? To
# two decimals.

# %%
answer_3 = None

# %% [markdown]
# **4. Derive it.** Which rate can a layer of $I$ FLOPs a byte reach on a machine of peak $P$ and bandwidth $W$? A
# function of I, P, W.

# %%
answer_4 = None

# %% [markdown]
# **5. Code it.** Write a function of a mapping from kinds of layers to seconds, of a kind and of a factor: by what is
# the whole faster if this kind is so many times as fast?

# %%
answer_5 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
intensity = {n: cm.predict(Linear(n, bias=False), input=(n, n), mode="inference").layers[0].intensity for n in (59, 60)}
solution = 60
assert intensity[59] < 10 <= intensity[60]
assert answer_1 in (None, solution), "1: 2n³ over 12n² is n / 6"
print(f"1: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 4 * (2 * 128 * 768 + 2 * 768)
assert solution == cm.predict(Layernorm(), input=(128, 768), mode="inference").layers[0].forward_bytes
assert answer_2 in (None, solution), "2: read once, written once, and two vectors"
print(f"2: {solution:,} bytes")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = round(1 / (0.4 + 0.6 / 2), 2)
assert answer_3 in (None, solution), "3: what is left is 40 % and half of 60 % (Amdahl 1967)"
print(f"3: {solution}")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(intensity, peak, bandwidth):
    return min(peak, intensity * bandwidth)


cases = [(1, 100, 10), (10, 100, 10), (50, 100, 10)]
assert [solution(*case) for case in cases] == [10, 100, 100]
assert answer_4 is None or [answer_4(*case) for case in cases] == [10, 100, 100], (
    "4: two ceilings, and the lower one holds"
)
print("4: the lower of P and I · W (Williams et al. 2009)")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(seconds, kind, factor):
    before = sum(seconds.values())
    return before / (before - seconds[kind] + seconds[kind] / factor)


parts = {"linear": 6.0, "gelu": 3.0, "layernorm": 1.0}
assert round(solution(parts, "linear", 2), 2) == 1.43
assert max(solution(parts, "gelu", factor) for factor in (2, 10, 1e9)) < 10 / 7 + 1e-6
assert answer_5 is None or abs(answer_5(parts, "gelu", 3) - solution(parts, "gelu", 3)) < 1e-6, (
    "5: only its share shrinks"
)
print("5: Amdahl's law: never more than one over what the others take")
