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
# All times below are of the machine that ran this notebook last. Run it, and they are of yours.

# %%
# %matplotlib inline
import pandas as pd

import costmodel as cm
from costmodel.display.units import show_bytes
from costmodel.roofline.accuracy import Errors
from costmodel.roofline.hosttime import LEVELS

calibration = cm.roofline.calibrate(keep=False, budget=30)
print(f"the machine that ran this: {calibration.machine}")
print(f"calibrated in {calibration.took_seconds:.1f} s, {calibration.unresolved:.0%} of the probes unresolved")
print(*calibration.warnings, sep="\n")

# %% [markdown]
# Calibration times small calls, none of them of a shape that is predicted later: matrix products of many shapes, each
# elementwise function, copies, and streams through working sets of growing size. These are the two ceilings:

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
        "compulsory": [show_bytes(size) for size in extra.compulsory_bytes],
        "NumPy's": [show_bytes(size) for size in extra.numpy_bytes],
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

# %%
warm = cm.roofline.check(cm.GPT2Small, batch=1, seq=128, reuse="warm", classes=False, calibration=calibration)
measured = {layer.name: layer.timing.seconds for layer in warm.layers}
calls = {call.name: call for call in check.prediction.run.root.calls() if call.name in measured}
programs = {name: cm.roofline.forward_program(call) for name, call in calls.items()}
rows = {}
for level, what in LEVELS.items():
    hosts = [cm.roofline.predict_seconds(program, calibration, level=level) for program in programs.values()]
    errors = Errors(tuple(host.seconds for host in hosts), tuple(measured[name] for name in programs))
    rows[f"{level} {what}"] = [f"{errors.median:.1%}", f"{errors.quantile(0.9):.1%}", f"{errors.r_squared:.4f}"]
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
# Two lessons. Intensity against the ridge is a poor guide to what bounds a NumPy layer: it takes all arithmetic to be
# as fast as a matrix product, and all bytes to come from memory. And the time is no mystery: counted call by call,
# with the speed of each function and the place where its data are, it is known before the clock runs.
