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
# # MLP, CNN and transformer at equal parameters: why attention is different
#
# **The point:** parameters do not say what a network costs. A weight costs two FLOPs each time it is used, and how
# often depends on the input. In an MLP that is once, in a CNN once for each pixel. A transformer uses each weight once
# for each token too, but its attention also compares all tokens with all others, and that part has no weights at all.
#
# **You learn** to say how a cost grows with the input from its formula; to match networks by a quantity; and what a
# fused kernel changes about attention, and what not.
#
# **Time:** 30 minutes. **Before it:** notebook 1.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.
#
# Three networks of eight layers, as equal in parameters as whole widths allow.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
from ipywidgets import interact

import costmodel as cm

plt.style.use("pictures.mplstyle")
LAYERS, SYMBOLS = 8, 256
transformer = cm.Transformer(
    vocab=SYMBOLS, context=2**16, layers=LAYERS, width=512, heads=8, positions="rotary", mlp="plain"
)


def mlp(width):
    """From a row of features to scores."""
    return cm.MLP(sizes=[SYMBOLS, *[width] * LAYERS, SYMBOLS])


def cnn(channels):
    """Eight convolutions that keep the image's size, then scores."""
    body = LAYERS * [{"conv": {"channels": channels, "kernel": 3, "padding": 1}}, "relu"]
    scores = [{"adaptive_avg_pool": {"size": 1}}, "flatten", {"linear": {"features": SYMBOLS}}]
    return cm.CNN(input=[3, 32, 32], blocks=[*body, *scores])


# %% [markdown]
# The width that gives a number of parameters is the root of a formula, so nobody has to try.
#
# **Predict:** at equal parameters, by which factors do the FLOPs of a forward pass differ: of one row of features, an
# image of 32 × 32 pixels, a text of 1,024 tokens?

# %%
wanted = cm.predict(transformer, batch=1, seq=32).params
formula = cm.predict(mlp(1024)).formula("params")
n = sp.Symbol("n", positive=True)
known = {"n_0": SYMBOLS, "n_1": n, "n_2": SYMBOLS}
in_width = sp.expand(formula.subs({letter: known[letter.name] for letter in formula.free_symbols}))
(root,) = sp.solve(sp.Eq(in_width, wanted), n)
width = round(float(root))
print(f"MLP: {in_width} = {wanted:,} at n = {float(root):.2f}")

# The convolutions' formula is 9 C² in each layer but the first: a square root is near enough to start from.
start = round((wanted / (9 * LAYERS)) ** 0.5)
channels = min(range(start, start + 60), key=lambda c: abs(cm.predict(cnn(c)).params - wanted))

predictions = {
    "MLP": cm.predict(mlp(width), loss=None),
    "CNN": cm.predict(cnn(channels), image=32, loss=None),
    "transformer": cm.predict(transformer, seq=32 * 32, loss=None),
}
pd.DataFrame(
    [
        (
            f"{p.params / 1e6:.2f} M",
            f"{p.flops.forward / 1e9:,.3f} G",
            f"{p.flops.forward / p.params:,.0f}",
            f"{p.memory.activations / 2**20:,.2f} MiB",
        )
        for p in predictions.values()
    ],
    index=[f"MLP, width {width}", f"CNN, {channels} channels, 32 × 32 pixels", "transformer, width 512, 1,024 tokens"],
    columns=["parameters", "FLOPs forward", "FLOPs a parameter", "activations"],
)

# %% [markdown]
# Equal parameters, and a thousand times the FLOPs or more: both images and texts have 1,024 positions here, and each
# position uses the weights again. But the transformer needs more than the CNN, and keeps far more. The formulas say
# why.

# %%
for name, p in predictions.items():
    print(name)
    print("  forward FLOPs    ", p.formula("flops.forward"))
    print("  activation bytes ", p.formula("memory.activations"))

# %% [markdown]
# MLP: no size of the input but the features. CNN: everything is proportional to $HW$, the number of positions.
# Transformer: there is a $T$ inside the bracket as well, so that both grow with $T^2$. **Predict:** how do the three
# look, divided by positions?

# %%
sides = 2 ** np.arange(2, 9)
positions = sides**2
images = cm.sweep(cnn(channels), image=[int(side) for side in sides], loss=None)
texts = {
    kind: cm.sweep(transformer, seq=[int(length) for length in positions], loss=None, attention=kind)
    for kind in ("eager", "flash")
}
figure, axes = plt.subplots()
params = predictions["transformer"].params
axes.plot(positions, texts["eager"]["flops.forward"] / positions / params, "o-", label="transformer")
axes.plot(positions, images["flops.forward"] / positions / images["params"], "s-", label="CNN")
axes.plot(1, predictions["MLP"].flops.forward / predictions["MLP"].params, "D", label="MLP (one position)")
axes.axhline(2, color="#222222", linestyle=":", linewidth=1)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.yaxis.set_major_formatter("{x:g}")
axes.set(xlabel="positions [pixels or tokens]", ylabel="forward FLOPs a parameter and position")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# A multiply-add for each weight and position: that is the dotted line at two, and CNN and MLP stay on it. Attention's
# products come on top, and beyond a few thousand tokens they are most of the work.
#
# What is kept for backward tells the same story, with one difference.

# %%
figure, axes = plt.subplots()
KIB = 2**10
for kind, look, label in (("eager", "o-", "scores stored"), ("flash", "^--", "fused attention")):
    kept = texts[kind]["memory.activations"] / positions / KIB
    axes.plot(positions, kept, look, color="C0", label=f"transformer, {label}")
axes.plot(positions, images["memory.activations"] / positions / KIB, "s-", color="C1", label="CNN")
axes.plot(1, predictions["MLP"].memory.activations / KIB, "D", color="C2", label="MLP (one position)")
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.yaxis.set_major_formatter("{x:,g}")
axes.set(xlabel="positions [pixels or tokens]", ylabel="activations a position [KiB]")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# Fused attention never stores the scores, so its memory is proportional to the tokens again, like a CNN's. It still
# computes them. **Predict:** by what does doubling the positions multiply each?

# %%
doubled = [2**10, 2**11, 2**12, 2**13, 2**14, 2**15, 2**16]
rows = {}
for kind, label in {"eager": "scores stored", "flash": "fused attention"}.items():
    grid = cm.sweep(transformer, seq=doubled, loss=None, attention=kind)
    for quantity, what in {"flops.total": "FLOPs", "memory.activations": "activations"}.items():
        values = grid[quantity].values
        rows[f"transformer, {label}: {what}"] = [f"{ratio:.2f}" for ratio in values[1:] / values[:-1]]
ends = cm.sweep(cnn(channels), image=[(32, side) for side in (32, 64, 128, 256, 512, 1024, 2048)], loss=None)
for quantity, what in {"flops.total": "FLOPs", "memory.activations": "activations"}.items():
    values = ends[quantity].values
    rows[f"CNN: {what}"] = [f"{ratio:.2f}" for ratio in values[1:] / values[:-1]]
pd.DataFrame(rows, index=[f"to {positions:,}" for positions in doubled[1:]]).T

# %% [markdown]
# Two is linear, four is quadratic. One column separates the three: a CNN stays at two, a transformer goes to four, and
# a better kernel takes the four away from memory but not from the arithmetic. **That is what is different about
# attention: its cost is in pairs of positions, and no count of parameters shows it.**
#
# Move the sliders; the page shows them where they stand first, and the curves above many other places.


# %%
@interact(tokens=(256, 65_536, 256), width=(128, 2048, 128), attention=["eager", "flash"])
def of_a_text(tokens=1024, width=512, attention="eager"):
    """What a transformer of eight layers and this width computes and keeps for one text."""
    sizes = {"vocab": SYMBOLS, "context": 2**16, "layers": LAYERS, "width": width, "heads": width // 64}
    asked = cm.predict(
        cm.Transformer(**sizes, positions="rotary", mlp="plain"), seq=tokens, loss=None, attention=attention
    )
    pairs = 4 * LAYERS * tokens**2 * width / asked.flops.forward
    print(f"{tokens:,} tokens, width {width:,}, {attention}: {asked.flops.forward / 1e9:,.1f} GFLOP forward,")
    print(f"{pairs:.0%} of it in pairs of tokens; {asked.memory.activations / 2**20:,.0f} MiB kept for backward")


# %% [markdown]
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** At how many tokens do attention's products take as many FLOPs as the matrices of a block, in the transformer
# above of width 512?

# %%
answer_1 = None

# %% [markdown]
# **2.** How many FLOPs a parameter does the CNN do for an image of 64 × 64, nearly? Use the dotted line, and be right
# within 2 %.

# %%
answer_2 = None

# %% [markdown]
# **3.** Scores that are stored take how many bytes for a text of 16,384 tokens, in all eight layers with eight heads,
# in fp32? (The softmax's outcome is what is kept, once.)

# %%
answer_3 = None

# %% [markdown]
# **4. Derive it.** The MLP of a transformer is $m$ times as wide as the model, $d$. At how many tokens do attention's
# products take as many FLOPs as the matrices of a block? A function of d and m.

# %%
answer_4 = None

# %% [markdown]
# **5. Code it.** Write a function of a cost (a function of n) and of n that gives the exponent with which the cost
# grows there, by doubling n. Try it on FLOPs and on memory of a text.

# %%
answer_5 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 6 * 512
rows = cm.predict(transformer, seq=solution, mode="inference").layers
products = sum(row.forward_flops for row in rows if row.kind == "matmul")
matrices = sum(row.forward_flops for row in rows if row.kind == "linear" and row.name.startswith("block"))
assert products == matrices
assert answer_1 in (None, solution), "1: 4Td = 24d²"
print(f"1: {solution:,}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 2 * 64 * 64
larger = cm.predict(cnn(channels), image=64, loss=None)
assert abs(larger.flops.forward / larger.params / solution - 1) < 0.02
assert answer_2 is None or abs(answer_2 / solution - 1) < 0.02, "2: two for each weight and pixel"
print(f"2: {solution:,}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = LAYERS * 8 * 16_384**2 * 4
kept = {kind: cm.predict(transformer, seq=16_384, loss=None, attention=kind) for kind in ("eager", "flash")}
saved = kept["eager"].memory.activations - kept["flash"].memory.activations
assert abs(saved / solution - 1) < 0.02
assert answer_3 in (None, solution), "3: layers, heads, tokens squared, four bytes"
print(f"3: {solution:,} bytes")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(width, times):
    return (2 + times) * width


for d, m in ((128, 4), (256, 2)):
    sizes = {"vocab": 256, "context": 4096, "layers": 2, "width": d, "heads": 4, "mlp_width": m * d}
    rows = cm.predict(cm.Transformer(**sizes), seq=solution(d, m), mode="inference").layers
    blocks = {
        k: sum(r.forward_flops for r in rows if r.kind == k and r.name.startswith("block"))
        for k in ("matmul", "linear")
    }
    assert blocks["matmul"] == blocks["linear"]
    assert answer_4 is None or answer_4(d, m) == solution(d, m), "4: 4 T d against 2 (4 + 2 m) d²"
print("4: (2 + m) d, which is 6 d for an MLP of four times the width")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(cost, n):
    return float(np.log2(cost(2 * n) / cost(n)))


def flops_of_text(tokens):
    return cm.predict(transformer, seq=tokens, mode="inference").flops.forward


assert solution(lambda n: 7 * n**3, 10) == 3
assert 1 < solution(flops_of_text, 256) < solution(flops_of_text, 65_536) < 2
assert answer_5 is None or abs(answer_5(flops_of_text, 4096) - solution(flops_of_text, 4096)) < 1e-6, (
    "5: log2 of the ratio"
)
print(f"5: {solution(flops_of_text, 256):.2f} at 256 tokens, {solution(flops_of_text, 65_536):.2f} at 65,536")
