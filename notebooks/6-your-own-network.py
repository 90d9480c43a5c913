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
# # Your own network
#
# **The point:** a cost is a property of a description. Whether that is a file, a Python object, a layer that nobody
# else has or a PyTorch module, the same questions can be asked of it, and the answers are formulas in its own sizes.
#
# **You learn** to describe a network in YAML and in Python; to state what a layer of your own costs; to read a PyTorch
# module; and to turn the questions around: how wide, how deep, how large an image.
#
# **Time:** 40 minutes. **Before it:** notebook 1. PyTorch for one section, which says so and is skipped without it.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.

# %%
# %matplotlib inline
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import pandas as pd
from ipywidgets import interact

import costmodel as cm
from costmodel.layers.activation import Activation
from costmodel.layers.base import Function, layer

try:
    import torch
except ImportError:
    torch = None

plt.style.use("pictures.mplstyle")
folder = Path(mkdtemp())

# %% [markdown]
# ## A file
#
# A convolutional network is a list of blocks. What comes more than once is a template under `define`, which takes
# values and is used like a layer.

# %%
text = """
architecture: cnn
input: [3, 64, 64]
define:
  unit:
    takes: [channels]
    blocks:
      - residual:
          body:
            - conv: {channels: $channels, kernel: 3, padding: 1, bias: false}
            - batchnorm
            - relu
          projection:
            - conv: {channels: $channels, kernel: 1, bias: false}
blocks:
  - unit: {channels: 32}
  - max_pool: {kernel: 2}
  - repeat: {times: 4, blocks: [unit: {channels: 64}]}
  - adaptive_avg_pool: {size: 1}
  - flatten
  - linear: {features: 10}
"""
(folder / "network.yaml").write_text(text)
network = cm.load(folder / "network.yaml")

# %% [markdown]
# **Predict:** which layers have the most parameters, and which keep the most activations?

# %%
p = cm.predict(network, batch=32)
rows = [row for row in p.layers if row.params or row.activation_bytes]
pd.DataFrame(
    [(row.name, row.repeat, f"{row.params:,}", f"{row.activation_bytes / 2**20:.1f}") for row in rows],
    columns=["layer", "times", "parameters", "activations [MiB]"],
).set_index("layer")

# %% [markdown]
# Parameters are where channels are many, activations where pixels are. Formulas keep the letters of the file's sizes
# that are open:

# %%
print(p.formula("params"))
print(p.formula("flops.forward"))
p.explain("memory.activations")

# %% [markdown]
# What is wrong is said in one line: what, where, which value, and what would be right.

# %%
for wrong in ({"conv": {"channels": 0, "kernel": 3}}, "relu7", {"linear": {"feature": 10}}):
    try:
        cm.CNN(input=[3, 64, 64], blocks=[wrong])
    except cm.CostModelError as error:
        print(error)

# %% [markdown]
# ## A Python object
#
# The same in Python, and so with arguments of your own: depth, channels, size of the image.


# %%
def stack(channels=32, depth=4, image=64):
    """A stem, `depth` residual convolutions, scores."""
    body = [{"conv": {"channels": channels, "kernel": 3, "padding": 1}}, "relu"]
    stem = {"conv": {"channels": channels, "kernel": 3, "padding": 1}}
    repeated = {"repeat": {"times": depth, "blocks": [{"residual": {"body": body}}]}}
    return cm.CNN(
        input=[3, image, image],
        blocks=[stem, repeated, {"adaptive_avg_pool": {"size": 1}}, "flatten", {"linear": {"features": 10}}],
    )


# %% [markdown]
# **Predict:** by what does each of these grow if the channels double? If the depth doubles? If the image's side does?

# %%
base = cm.predict(stack(), batch=32)
changes = {"channels": {"channels": 64}, "depth": {"depth": 8}, "side of the image": {"image": 128}}
grown = {}
for what, change in changes.items():
    other = cm.predict(stack(**change), batch=32)
    pairs = {
        "parameters": (other.params, base.params),
        "FLOPs": (other.flops.total, base.flops.total),
        "activations": (other.memory.activations, base.memory.activations),
    }
    grown[f"{what} doubled"] = {name: f"{now / before:.2f} ×" for name, (now, before) in pairs.items()}
assert 3.9 < other.flops.total / base.flops.total <= 4
pd.DataFrame(grown).T

# %% [markdown]
# Move the sliders; the page shows where they stand first, the table above what each does alone.


# %%
@interact(channels=(8, 256, 8), depth=(1, 32), image=(32, 512, 32), batch=(1, 256))
def costs(channels=32, depth=4, image=64, batch=32):
    """The timeline of one training step."""
    asked = cm.predict(stack(channels, depth, image), batch=batch)
    print(
        f"{depth} × {channels} channels, {image} × {image} pixels, batch {batch}: {asked.params:,} parameters, "
        f"{asked.flops.total / 1e9:,.1f} GFLOP a step, peak {asked.memory.peak / 2**20:,.0f} MiB"
    )
    return asked.timeline.plot()


# %% [markdown]
# ## The question turned around
#
# **Predict:** how wide may it be, if a step of 32 images is to fit 8 GiB?

# %%
print(cm.max_width(stack(), memory="8 GiB", batch=32))

# %%
print(cm.sensitivity(stack(), "memory.peak", batch=32))

# %% [markdown]
# ## A layer of your own
#
# A kind of layer is a class that states what one costs. An activation states least: how many operations an element
# takes each way, and whether its derivative needs the input or the outcome. The Snake activation, $x + \sin^2 x$ (Ziyin
# et al. 2020), written as one kernel: a sine, a square and a sum; its derivative is $1 + \sin 2x$, of the input.


# %%
@layer
class Snake(Activation):
    """y = x + sin² x; dx = g·(1 + sin 2x), in one kernel each way."""

    source = "x + sin² x (Ziyin et al. 2020, eq. 3, a = 1); the derivative needs the input"
    costs = Function(forward=3, backward=4, keeps="input")


# %% [markdown]
# From here on it is a kind like any other, by its name in lists of blocks, in files and in Python. **Predict:** `relu`
# keeps its outcome, which the next layer keeps as well. What does a perceptron with two hidden layers of 512 keep with
# each of the two, for 64 images of 28 × 28?


# %%
def perceptron(activation):
    """Two hidden layers of 512."""
    hidden = [{"linear": {"features": 512}}, activation]
    return cm.CNN(input=[1, 28, 28], blocks=["flatten", *hidden, *hidden, {"linear": {"features": 10}}])


kept = {name: cm.predict(perceptron(name), batch=64) for name in ("relu", "snake")}
for name, asked in kept.items():
    print(f"{name:<5} {asked.memory.activations:>7,} bytes = {asked.formula('memory.activations')}")

# %% [markdown]
# A layer with weights, buffers or a shape of its own states those as well: "Add a layer of your own" in the
# documentation has a complete one. Nothing is zero by default, and a class that leaves something out is refused.
#
# ## A PyTorch module
#
# `cm.from_torch` reads any module from a copy without data (extra `torch`): nothing is computed, and the module is not
# touched. A gate that no file describes:

# %%
if torch is None:
    print("PyTorch is not installed (pip install torch): this section is left out")
else:

    class Gate(torch.nn.Module):
        """Each token gates the mean of its sequence."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.value = torch.nn.Linear(width, width)
            self.gate = torch.nn.Linear(width, width)
            self.scores = torch.nn.Linear(width, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed = torch.sigmoid(self.gate(x)) * self.value(x.mean(1, keepdim=True))
            return self.scores(mixed)

    module = Gate(256)
    imported = cm.from_torch(module, torch.zeros(2, 16, 256))
    q = cm.predict(imported, batch=32, seq=128)
    print("parameters        ", q.formula("params"), "=", q.params)
    print("forward FLOPs     ", q.formula("flops.forward"), "=", q.flops.forward)
    print("kept for backward ", q.formula("memory.activations"), "=", q.memory.activations)

# %% [markdown]
# Is that so? PyTorch counts its own parameters and FLOPs:

# %%
if torch is not None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        Gate(256)(torch.zeros(32, 128, 256))
    assert q.params == sum(weight.numel() for weight in module.parameters())
    assert q.flops.forward == counter.get_total_flops()
    print("equal to PyTorch's:", q.params, "parameters,", q.flops.forward, "FLOPs")

# %% [markdown]
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** How many parameters has a convolution of 3 × 3 from 64 to 128 channels, with its bias?

# %%
answer_1 = None

# %% [markdown]
# **2.** Write, as text in YAML, a perceptron from 784 to 10 with two equal hidden layers and about a million parameters
# (within 1 %).

# %%
answer_2 = None

# %% [markdown]
# **3.** `stack()` in batches of 32: which side must a square image have for the FLOPs of 128 images of 64 × 64?

# %%
answer_3 = None

# %% [markdown]
# **4.** How many bytes less would the perceptron keep if the derivative of `snake` were a function of its outcome?

# %%
answer_4 = None

# %% [markdown]
# **5. Derive it.** A convolution of 3 × 3 from $c$ to $d$ channels without bias is replaced by one of 3 × 3 for each
# channel and one of 1 × 1 after it (Howard et al. 2017, §3.1). What share of the parameters is left? A function of c
# and d.

# %%
answer_5 = None

# %% [markdown]
# **6. Code it.** Write a function of a list of sizes that counts the parameters of a perceptron with biases, and hold
# it against `cm.MLP`.

# %%
answer_6 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 9 * 64 * 128 + 128
one = cm.CNN(input=[64, 8, 8], blocks=[{"conv": {"channels": 128, "kernel": 3}}])
assert solution == cm.predict(one, loss=None).params
assert answer_1 in (None, solution), "1: nine weights for each pair of channels, and a bias for each that comes out"
print(f"1: {solution:,}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
found = cm.solve(cm.MLP(sizes=[784, 512, 512, 10]), "params", 1_000_000, for_="width")
solution = f"architecture: mlp\nsizes: [784, {int(found)}, {int(found)}, 10]\n"
for yaml in (solution, answer_2 or solution):
    (folder / "answer.yaml").write_text(yaml)
    model = cm.load(folder / "answer.yaml")
    assert abs(cm.predict(model).params / 1e6 - 1) < 0.01, "2: n² + 795 n + 10 is a million at the root"
    assert len(set(model.sizes[1:-1])) == 1, "2: two equal hidden layers"
print(solution)

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 2 * 64
ratio = cm.predict(stack(image=solution), batch=32).flops.total / cm.predict(stack(), batch=128).flops.total
assert abs(ratio - 1) < 1e-4
assert answer_3 in (None, solution), "3: four times the pixels"
print(f"3: {solution}, but for the last layer, which does not see pixels")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 64 * (512 + 512) * 4
assert solution == kept["snake"].memory.activations - kept["relu"].memory.activations
assert answer_4 in (None, solution), "4: the outcome is the next layer's input, which is kept in any case"
print(f"4: {solution:,}")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(c, d):
    return (9 * c + c * d) / (9 * c * d)


def parameters(c, *items):
    return cm.predict(cm.CNN(input=[c, 8, 8], blocks=[{"conv": {"bias": False, **item}} for item in items])).params


for c, d in ((32, 64), (256, 256)):
    apart = parameters(c, {"channels": c, "kernel": 3, "groups": c}, {"channels": d, "kernel": 1})
    assert abs(apart / parameters(c, {"channels": d, "kernel": 3}) - solution(c, d)) < 1e-12
    assert answer_5 is None or abs(answer_5(c, d) - solution(c, d)) < 1e-9, "5: 9 c and c d, of 9 c d"
print("5: 1/d + 1/9")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(sizes):
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(sizes))


for sizes in ([784, 10], [784, 512, 512, 10], [3, 1, 2]):
    assert solution(sizes) == cm.predict(cm.MLP(sizes=sizes)).params
    assert answer_6 is None or answer_6(sizes) == solution(sizes), "6: a matrix and a bias for each pair of neighbours"
print("6: equal for three of them")
