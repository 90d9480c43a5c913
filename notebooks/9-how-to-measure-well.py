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
# # How to measure well
#
# **The point:** on a machine that serves others too, the same work takes one time when the core is one's own, and
# another, 1.3 to 1.8 times as long, when a neighbour computes on its other half. No clock of the program sees that. A
# median then is the neighbour's time, and the fastest of few samples is luck. What helps is to know which samples
# are undisturbed.

# %%
# %matplotlib inline
import time

import matplotlib.pyplot as plt
import numpy as np

from costmodel.roofline.sentinels import CORE_LIMIT, Sentinels

sentinels = Sentinels()

# %% [markdown]
# ## Two states
#
# The same exponentials of 2,048 numbers, over and over for two seconds, as a multiple of their best. Look for two
# humps: one near 1, and one where the neighbour is. What is far to the right is the operating system, which gave the
# core to another process meanwhile. On a host of one's own there is only the first.

# %%
readings, moments = [], []
end = time.perf_counter() + 2
while time.perf_counter() < end:
    moments.append(time.perf_counter())
    readings.append(sentinels.core.read())
slower = np.array(readings) / sentinels.core.best
rests = slower <= CORE_LIMIT
print(f"{len(slower):,} readings: {rests.mean():.0%} at rest, the median {np.median(slower):.2f} × the best")
figure, axes = plt.subplots(figsize=(7, 3))
axes.hist(np.clip(slower, 0.9, 3), bins=84)
axes.axvline(CORE_LIMIT, color="grey", linestyle="--")
axes.set(xlabel="time, as a multiple of the best (3 and more at the right end)", ylabel="readings")
figure.tight_layout()

# %% [markdown]
# ## Minimum against median
#
# A neighbour that can be switched on and off is better for learning. Here it is made up: it computes in nine moments
# of ten, each of 10 to 60 ms, and all takes 1.7 times as long then. The work takes 1 ms when undisturbed, and 0 to 2 %
# more. How far are two measurements of it apart?

# %%
rng = np.random.default_rng(0)


def measured(samples, apart):
    """Samples [ms] taken so far apart [ms], and whether each was undisturbed."""
    moment, until, busy, found, known = 0.0, 0.0, True, [], []
    for _ in range(samples):
        moment += apart
        while moment >= until:
            busy, until = rng.random() < 0.9, max(until, 0.0) + rng.uniform(10, 60)
        found.append((1.7 if busy else 1.0) * (1 + 0.02 * rng.random()))
        known.append(not busy)
        moment += found[-1]
    return np.array(found), np.array(known)


def chosen(samples):
    """The fastest of the undisturbed ones; where there are none it is unresolved."""
    found, known = samples
    return found[known].min() if known.any() else np.nan


ways = {
    "median": lambda samples: np.median(samples[0]),
    "minimum": lambda samples: samples[0].min(),
    "minimum of the undisturbed": chosen,
}
print(f"{'':28}{'samples':>8}{'apart':>8}{'differ by (median, p90)':>26}{'bias':>8}{'resolved':>10}")
for count, apart in ((24, 0), (24, 50), (120, 50)):
    pairs = [(measured(count, apart), measured(count, apart)) for _ in range(300)]
    for name, way in ways.items():
        both = np.array([(way(a), way(b)) for a, b in pairs])
        resolved = ~np.isnan(both).any(axis=1)
        both = both[resolved] if resolved.any() else np.full((1, 2), np.nan)
        apart_by = np.abs(both[:, 0] / both[:, 1] - 1)
        differ = f"{np.quantile(apart_by, 0.5):.1%}, {np.quantile(apart_by, 0.9):.1%}"
        bias = f"{both.mean() - 1:+.0%}"
        print(f"{name:28}{count:8}{apart:6} ms{differ:>26}{bias:>8}{resolved.mean():10.0%}")

# %% [markdown]
# Three lessons. Samples in one go see one moment: 24 of them are worth one. The median agrees with itself nicely, and
# is 70 % off: **agreement is no accuracy**. And the minimum is right once it has seen an undisturbed moment, which it
# does not tell; a sentinel tells it, so that what was not resolved is left out rather than believed.
#
# ## How many samples
#
# With a share *p* of undisturbed moments, *n* samples at independent moments hold none with probability (1 - p)^n.

# %%
for p in (0.5, 0.2, 0.1, 0.05):
    needed = [int(np.ceil(np.log(miss) / np.log(1 - p))) for miss in (0.1, 0.01)]
    print(f"{p:4.0%} undisturbed: {needed[0]:3} samples miss it one time in ten, {needed[1]:3} one time in a hundred")

# %% [markdown]
# ## The same on this host
#
# A matrix product, by the protocol of `costmodel.roofline.timing`: one sample a turn, sentinels before and after, two
# clocks that agree.

# %%
from costmodel.roofline.timing import Protocol, time_calls  # noqa: E402

a, b, out = (np.ones((192, 192), np.float32) for _ in range(3))
for _ in range(2):
    (timing,) = time_calls([lambda: np.matmul(a, b, out=out)], Protocol(budget=4.0), sentinels=sentinels)
    known = f"{len(timing.undisturbed)} of {timing.count} samples undisturbed"
    state = "resolved" if timing.resolved else "unresolved"
    print(f"{1e6 * timing.seconds:7.1f} µs undisturbed, {1e6 * timing.as_it_came:7.1f} µs as it came: {known}, {state}")

# %% [markdown]
# ## Exercises
#
# 1. Measure `np.exp` of a million numbers by `timeit` (its default is the best of 5 repeats) ten times. How far apart
#    are the ten? How many moments did each see?
# 2. In the made-up neighbour let it be busy half of the time. Which of the three ways is best now, and what does the
#    median of 24 samples look like from run to run?
# 3. Make the work 20 ms long, and the moments as they are. Why is nothing resolved, and what could be done? (Hint: what
#    does `check` do with a whole model?)
# 4. A benchmark reports "median of 10 runs, ± 1 %". Which question would you ask first?
