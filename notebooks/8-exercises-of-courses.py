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
# # Exercises of well-known courses, each one call and one formula
#
# **The point:** what courses on language models and on hardware ask for by hand is one call each, and the call gives
# the formula too. Work them out on paper first: where the two differ, the difference is what there is to learn.
#
# **You learn** to write a transformer's parameters, FLOPs and memory in batch, context, layers, width, heads and
# vocabulary; to say what fits 80 GB and how many days a run takes; and to tell which machine, type or layout helps.
#
# **Time:** 60 minutes. **Before it:** notebooks 1 and 5.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
import sympy as sp
from ipywidgets import interact

import costmodel as cm
from costmodel.layers import Gelu, Linear, Relu

plt.style.use("pictures.mplstyle")
pd.set_option("display.max_colwidth", None)
GB, TFLOP, DAY = 1e9, 1e12, 24 * 3600


def network(context=1024, layers=48, width=1600, heads=25, vocab=50257, mlp_width=6400):
    """GPT-2 XL's sizes in today's form: RMSNorm, rotary positions, a gated MLP, no biases, a head of its own."""
    return cm.Transformer(
        vocab=vocab, context=context, layers=layers, width=width, heads=heads, mlp_width=mlp_width,
        positions="rotary", norm="rmsnorm", mlp="gated", activation="silu", tied=False,
        qkv_bias=False, attention_bias=False, mlp_bias=False,
    )  # fmt: skip


xl = network()
p = cm.predict(xl, batch=1, seq=1024)

# %% [markdown]
# ## Part one: the accounts of a transformer
#
# ### Parameters
#
# **Predict:** how many does it have, and how many gigabytes are they in single precision?

# %%
print(f"{p.params:,} parameters, {p.memory.weights / GB:.2f} GB")
p.explain("params")

# %% [markdown]
# Four square matrices for attention, three of $d \times d_{ff}$ for the gated MLP, two norms; an embedding and a head.
#
# ### FLOPs of a forward pass
#
# **Predict:** which of attention's projections, attention's products, the MLP and the head takes the most, at 1,024
# tokens? And at 16,384?

# %%
PARTS = {
    "projections": ("block.attention.qkv", "block.attention.output"),
    "attention": ("block.attention.scores", "block.attention.mix"),
    "MLP": ("block.mlp.gate", "block.mlp.up", "block.mlp.down"),
    "head": ("head",),
}


def shares(model, seq):
    """Share of each part in the FLOPs of a forward pass, and their sum."""
    rows = cm.predict(model, seq=seq, mode="inference").layers
    sums = {part: sum(row.forward_flops for row in rows if row.name in names) for part, names in PARTS.items()}
    total = sum(sums.values())
    return {**{part: f"{flops / total:.1%}" for part, flops in sums.items()}, "TFLOP": f"{total / TFLOP:.3g}"}


asked = {
    "small: 12 layers of 768": (network(layers=12, width=768, heads=12, mlp_width=3072), 1024),
    "medium: 24 layers of 1,024": (network(layers=24, width=1024, heads=16, mlp_width=4096), 1024),
    "large: 36 layers of 1,280": (network(layers=36, width=1280, heads=20, mlp_width=5120), 1024),
    "XL: 48 layers of 1,600": (xl, 1024),
    "XL, 16,384 tokens": (network(context=16384), 16384),
}
pd.DataFrame([shares(*which) for which in asked.values()], index=list(asked))

# %% [markdown]
# The larger the model, the more the MLP and the projections, which grow with $d^2$ where the head grows with $d$; the
# longer the context, the more attention's products. All of it is in one formula:

# %%
p.explain("flops.forward")

# %%
longer = cm.predict(network(context=16384), seq=16384, mode="inference").flops.forward
print(f"16 times the tokens: {longer / p.flops.forward:.1f} times the FLOPs")

# %% [markdown]
# ### Which share is attention, as the context grows?
#
# **Predict:** at how many tokens do attention's products take half of all FLOPs? Each of them is $2Td$ a token and
# layer, and everything else does not depend on $T$.

# %%
T, B = (next(s for s in p.formula("flops.forward").free_symbols if s.name == name) for name in "TB")
values = {letter.symbol: letter.value for letter in p.explain("flops.forward").letters}
a_token = sp.expand(p.formula("flops.forward") / (B * T))
share = a_token.coeff(T, 1) * T / a_token
half = sp.solve(sp.Eq(share, sp.Rational(1, 2)), T)[0]
half_here = int(half.subs({s: values[s.name] for s in half.free_symbols}))
print(f"half of all FLOPs at T = {half} = {half_here:,}")
print(cm.break_even(xl, "attention", "mlp", for_="seq"))

# %%
tokens = [2**k for k in range(8, 18)]
models = {name: model for name, (model, _) in asked.items() if "16,384" not in name}
figure, axes = plt.subplots()
for name, model in models.items():
    grid = cm.sweep(model, seq=tokens, quantities=["flops.forward"], mode="inference")["flops.forward"]
    of_attention = [4 * model.layers * model.width * t * t for t in tokens]
    axes.plot(tokens, [100 * a / f for a, f in zip(of_attention, grid.values, strict=True)], "o-", label=name)
axes.set_xscale("log", base=2)
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.set(xlabel="context [tokens]", ylabel="attention's products [% of forward FLOPs]", ylim=(0, 100))
axes.set_title("Share of attention's products, batch 1, full square of positions")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# `break_even` compares whole parts by name: all of the attention, its projections too, with all of the MLP.
#
# ### Memory of a training step with AdamW
#
# **Predict:** in single precision, for one sequence of 1,024 tokens: parameters, gradients, optimizer, activations, in
# gigabytes.

# %%
terms = ("memory.weights", "memory.gradients", "memory.optimizer", "memory.activations")
pd.DataFrame(
    [(str(p.formula(term)), f"{p.value(term) / GB:.2f}") for term in terms], index=terms, columns=["bytes", "GB"]
)

# %% [markdown]
# A count by hand usually adds what every operation gives: norms $2d$; query, key and value $3d$; scores and softmax
# $hT$ each; the values' sum and the output $2d$; gate, up, SiLU and product $4d_{ff}$; down $d$. What is really kept is
# what backward reads:

# %%
h, d, L, d_ff = sp.symbols("h d L d_ff", positive=True, integer=True)
by_hand = 2 * d + 3 * d + 2 * h * T + 2 * d + 4 * d_ff + d
kept = sp.expand(p.formula("memory.activations") / (4 * B * T))
kept = kept.subs({s: sp.Symbol(s.name, positive=True, integer=True) for s in kept.free_symbols if s != T}).coeff(L, 1)
print("by hand, a token and layer ", sp.expand(by_hand), " numbers")
print("kept                       ", kept, " numbers")
print("kept, less by hand         ", sp.expand(kept - by_hand))

# %% [markdown]
# Scores are not kept: softmax's derivative is a function of its outcome. The rotated query and key are ($2d$), and what
# they were made of stays too, since the value is a part of that tensor; each norm keeps one statistic a token. In place
# of the two outputs there are the two sums of the residual stream, which the norms read.
#
# And the peak is not the sum of the four: at the loss the gradients are not there yet, and in the update the
# activations are gone. The formula is the larger of the two, and with one sequence that is the update:

# %%
p.explain("memory.peak")

# %% [markdown]
# ### How large a batch fits 80 GB?
#
# **Predict:** from two sequences on the peak is at the loss, and is $a \cdot B + b$. What is $a$, what is $b$, which is
# the largest $B$?

# %%
answer = cm.max_batch(xl, seq=1024, memory="80 GB")
print(answer)

# %%
peaks = {batch: cm.predict(xl, batch=batch, seq=1024).memory.peak for batch in (2, 3, 4, 5)}
slope = peaks[3] - peaks[2]
start = peaks[2] - 2 * slope
assert all(peak == batch * slope + start for batch, peak in peaks.items())
assert peaks[4] <= 80e9 < peaks[5]
print(f"peak = {slope / GB:.2f} GB · B + {start / GB:.2f} GB: {(80e9 - start) / slope:.2f} sequences fit")

# %% [markdown]
# What would make more fit? Move the sliders: each bar is one part of the peak. The page shows them where they stand
# first, and the table after them a few other places.

# %%
STANDING = ("weights", "masters", "gradients", "optimizer", "activations", "casts", "temporaries")


@interact(
    batch=(1, 16),
    context=(256, 4096, 256),
    layers=(12, 96, 12),
    width=(640, 3200, 320),
    vocab=[32_000, 50_257, 128_256],
    precision=["fp32", "bf16-autocast", "bf16"],
    attention=["eager", "flash"],
    checkpoint=["none", "selective", "block"],
)
def memory(batch=4, context=1024, layers=48, width=1600, vocab=50_257, precision="fp32", attention="eager",
           checkpoint="none"):  # fmt: skip
    """Where the peak is, for a model of these sizes with heads of 64."""
    given = {"precision": precision, "attention": attention, "checkpoint": checkpoint}
    sizes = {"layers": layers, "width": width, "heads": width // 64, "vocab": vocab, "mlp_width": 4 * width}
    asked = cm.predict(network(context=context, **sizes), batch=batch, seq=context, **given)
    step = asked.timeline.peak_step
    alive = {part: getattr(step.alive, part, 0) / GB for part in STANDING}
    figure, axes = plt.subplots(figsize=(9, 2.8))
    axes.barh(list(alive), list(alive.values()))
    axes.invert_yaxis()
    axes.set(xlabel=f"alive at the peak, in {step.phase} of {step.layer} [GB]")
    fits = "fits 80 GB" if asked.fits("80 GB") else "does not fit 80 GB"
    figure.suptitle(
        f"batch {batch}, {context:,} tokens, {layers} layers of {width:,}, {asked.params / 1e9:.2f} B parameters, "
        f"{precision}, {attention}, checkpoint {checkpoint}: {asked.memory.peak / GB:.1f} GB, {fits}",
        fontsize=9,
    )
    plt.show()


# %%
ways = [
    {},
    {"attention": "flash"},
    {"attention": "flash", "precision": "bf16-autocast"},
    {"attention": "flash", "precision": "bf16-autocast", "checkpoint": "block"},
    {"attention": "flash", "precision": "bf16-autocast", "checkpoint": "block", "loss_chunks": 8},
]
pd.DataFrame(
    [int(cm.max_batch(xl, seq=1024, memory="80 GB", **way)) for way in ways],
    index=[", ".join(f"{name} {value}" for name, value in way.items()) or "as asked" for way in ways],
    columns=["largest batch in 80 GB"],
)

# %% [markdown]
# ### FLOPs of a step of AdamW
#
# **Predict:** how many FLOPs does the update take for a parameter, and is that more or less than the gradient took?
#
# `p.flops` counts matrix products, of which the update has none. Its work is among the kernels of the step on a
# machine: in one fused kernel the two moments, a root, a division and a few products and sums.

# %%
fused = cm.predict(xl, batch=1, seq=1024, update="fused").on("a100-sxm-80gb")
(update,) = [kernel for kernel in fused.kernels if kernel.phase == "update"]
print(f"{update.flops / p.params:.0f} FLOPs a parameter: {update.flops / p.flops.total:.2%} of one sequence's")
print(f"{update.bytes / p.params:.0f} bytes a parameter: {update.seconds / fused.seconds:.1%} of the step's time")
assert update.bytes == 28 * p.params

# %% [markdown]
# How many exactly depends on what counts as one operation, and does not matter: forward and backward take $6$ for a
# parameter and *token*. The bytes matter: weight, gradient and two moments are read, and three of them written,
# $7 \cdot 4$ bytes.
#
# ### Days on one A100
#
# **Predict:** 400,000 steps of 1,024 sequences of 1,024 tokens, in single precision (19.5 TFLOP/s), at half of the
# peak.

# %%
at_half = 3 * p.flops.forward * 1024 * 400_000 / (0.5 * 19.5e12) / DAY
step = cm.predict(xl, batch=4, seq=1024, accumulate=256).on("a100-sxm-80gb")
run = step.run(steps=400_000)
print(f"at an MFU of 50%: {at_half:,.0f} days")
print(f"as the kernels would run: {run.seconds / DAY:,.0f} days, MFU {step.mfu:.0%}")

# %%
better = {"precision": "bf16-autocast", "attention": "flash"}
fast = cm.predict(xl, batch=4, seq=1024, accumulate=256, **better).on("a100-sxm-80gb", stack="compiled")
print(f"16 bits, fused attention, compiled: {fast.run(steps=400_000).seconds / DAY:,.0f} days, MFU {fast.mfu:.0%}")
assert fast.peak == 16 * step.peak
assert fast.mfu < step.mfu
assert fast.seconds < step.seconds / 5

# %% [markdown]
# A higher MFU is no aim by itself: in 16 bits the peak is sixteen times as high, the share of it that is reached is
# lower, and the run is still several times shorter.
#
# ## Part two: figures of courses on hardware
#
# ### 154 GFLOP on an A100
#
# **Predict:** the backward pass of a linear layer from 768 to 3,072 features, on 32 sequences of 512 tokens, in 16
# bits at 312 TFLOP/s.

# %%
layer = cm.predict(Linear(3072, bias=False), input=(32, 512, 768), precision="bf16")
t = layer.on("a100-sxm-40gb", tier="ceiling")
assert layer.flops.backward == 4 * 32 * 512 * 768 * 3072
print(f"{layer.flops.backward / 1e9:.1f} GFLOP / 312 TFLOP/s = {layer.flops.backward / 312e12 * 1e3:.2f} ms")
print(f"by the datasheet {t.backward_seconds * 1e3:.2f} ms")
print(f"as it would run  {layer.on('a100-sxm-40gb').backward_seconds * 1e3:.2f} ms")

# %% [markdown]
# ### A ReLU of 10⁹ numbers
#
# **Predict:** in single precision, at 900 GB/s.

# %%
relu = cm.predict(Relu(), input=(10**9,), mode="inference").on("v100-sxm2-16gb", tier="ceiling")
assert relu.bound == "memory"
print(f"2 · 4 · 10⁹ B / 900 GB/s = {8e9 / 900e9 * 1e3:.1f} ms; by the datasheet {relu.seconds * 1e3:.1f} ms")

# %% [markdown]
# One FLOP for eight bytes: arithmetic would be done in a fraction of that.
#
# ### Samples a second at batch 1, 8, 32, 64
#
# **Predict:** ResNet-50 on an A100 in 16 bits. Eight times the batch, eight times the samples a second?

# %%
grid = cm.sweep(
    "resnet50", batch=[1, 8, 32, 64], mode="inference", precision="fp16", on="a100-sxm-40gb",
    quantities=["samples_per_second"],
)  # fmt: skip
rate = grid["samples_per_second"].to_pandas()
assert rate[8] > 5 * rate[1]
assert rate[64] < 1.1 * rate[32]
rate.round(-1)

# %% [markdown]
# Nearly so from 1 to 8, where the device waits for the host to start kernels; hardly any from 32 on, where its memory
# is busy.
#
# ### Where a GPU overtakes a CPU
#
# **Predict:** a perceptron of two layers of 128, and one of two layers of 1,024. From which batch on is an A100 faster
# than a server's CPU?

# %%
batches = [2**k for k in range(14)]
figure, axes = plt.subplots()
crossing = {}
for width, look in ((128, "o-"), (1024, "s--")):
    small = cm.MLP(sizes=[width, width, width, 10])
    machines = ["epyc-9654", "a100-sxm-40gb"]
    seconds = cm.sweep(small, batch=batches, mode="inference", on=machines, quantities=["seconds"])["seconds"]
    for colour, machine in enumerate(machines):
        axes.plot(batches, 1e6 * seconds.sel(on=machine), look, color=f"C{colour}", label=f"{machine}, width {width:,}")
    cpu, gpu = (seconds.sel(on=machine).values for machine in machines)
    crossing[width] = next(batch for batch, there, here in zip(batches, cpu, gpu, strict=True) if here < there)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.yaxis.set_major_formatter("{x:,.0f}")
axes.set(xlabel="batch", ylabel="forward pass [µs]", title="Flat where starting kernels is all there is")
axes.legend(loc="upper left")
plt.show()
assert crossing[1024] == 1 < crossing[128]
print(*(f"width {width:,}: the GPU is faster from batch {batch:,} on" for width, batch in crossing.items()), sep="\n")

# %% [markdown]
# Launches decide: a GPU's cost more than a CPU's call. These are times of kernels with all data in place; moving a
# batch over PCIe to the GPU is not in them, and shifts the crossing to larger batches. The range is wide as well:

# %%
for machine in machines:
    one = cm.predict(cm.MLP(sizes=[128, 128, 128, 10]), batch=128, mode="inference").on(machine)
    print(f"{machine:<14} {1e6 * one.seconds:.0f} µs, four of five runs {1e6 * one.low:.0f} to {1e6 * one.high:.0f} µs")

# %% [markdown]
# ### What would int8 buy?
#
# **Predict:** generating with Llama 3.1 8B, one user, on an A100. Weights of half the bytes: how much faster?

# %%
rows = {}
for precision in ("bf16", "int8", "int4"):
    token = cm.predict("llama-3.1-8b", mode="decode", past=1024, precision=precision, attention="flash")
    time = token.on("a100-sxm-80gb", stack="cuda-graphs")
    rows[precision] = (f"{token.memory.weights / GB:.1f}", f"{1e3 * time.seconds:.1f}", time.bound)
pd.DataFrame(rows, index=["weights [GB]", "a token [ms]", "bound by"]).T

# %% [markdown]
# Less than twice: the embedding, the scales and the cache keep their types, and kernels that unpack weights reach less
# of the bandwidth. These are int8 *weights*. Products are still done in 16 bits, so a prompt gains nothing:

# %%
many = {
    precision: cm.predict("llama-3.1-8b", mode="prefill", seq=4096, precision=precision, attention="flash")
    for precision in ("bf16", "int8")
}
print(*(f"{name}: {1e3 * q.on('a100-sxm-80gb').seconds:.0f} ms for a prompt of 4,096" for name, q in many.items()),
      sep="\n")  # fmt: skip

# %% [markdown]
# ### What would a sharded optimizer buy?
#
# The library predicts one device: **it has no layouts over several yet**, so neither the memory nor the time of one can
# be asked for. What can be asked for is what there is to share out. The division below is by hand (Rajbhandari et al.
# 2020, ZeRO stage 1), and leaves out what the devices must exchange.

# %%
q = cm.predict("llama-3.1-8b", batch=1, seq=4096, precision="bf16-master", attention="flash", checkpoint="block")
shared = q.memory.optimizer + q.memory.masters
print(f"peak {q.memory.peak / GB:.1f} GB, of which optimizer and masters {shared / GB:.1f} GB")
assert shared == 12 * q.params
for devices in (2, 4, 8):
    print(f"over {devices} devices, by hand: {shared / devices / GB:5.1f} GB each of those")

# %% [markdown]
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** How many parameters has `network()` with 24 layers of width 1,024, 16 heads and an MLP of 2,816?

# %%
answer_1 = None

# %% [markdown]
# **2.** With the head tied to the embedding and a vocabulary of 128,256, what share of `network()`'s parameters is the
# embedding, in percent, to the nearest whole number?

# %%
answer_2 = None

# %% [markdown]
# **3.** SGD without momentum keeps no state. How many more sequences of 1,024 tokens fit 80 GB with it than with AdamW?

# %%
answer_3 = None

# %% [markdown]
# **4.** At how many tokens do attention's products take as many FLOPs as everything else in `network()` with 96 layers?
# The formula has $L$ in two places.

# %%
answer_4 = None

# %% [markdown]
# **5.** How many milliseconds does a GELU of 10⁹ numbers take at least in bf16, on an H100 (3.35 TB/s)? One decimal.

# %%
answer_5 = None

# %% [markdown]
# **6. Derive it.** A budget of $C$ FLOPs trains $N$ parameters on $D$ tokens for 6 N D. With 20 tokens a parameter
# (Hoffmann et al. 2022), how large is the model? A function of C.

# %%
answer_6 = None

# %% [markdown]
# **7. Code it.** Write a function of a number of parameters that gives the most layers with which `network()` stays
# within it. `cm.max_layers` knows it too.

# %%
answer_7 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 24 * (4 * 1024**2 + 3 * 1024 * 2816 + 2 * 1024) + 2 * 50257 * 1024 + 1024
assert solution == cm.predict(network(layers=24, width=1024, heads=16, mlp_width=2816)).params
assert answer_1 in (None, solution), "1: count L(4d² + 3 d d_ff + 2d) + 2Vd + d"
print(f"1: {solution:,}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
tied = cm.Transformer(**{**dict(xl), "vocab": 128_256, "tied": True})
embedding = next(part.params for part in cm.predict(tied).by_part() if part.name == "embedding")
assert embedding == 128_256 * 1600
solution = round(100 * embedding / cm.predict(tied).params)
assert answer_2 in (None, solution), "2: Vd over Vd + L(4d² + 3 d d_ff + 2d) + d"
print(f"2: {solution} %")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
plain = cm.max_batch(xl, seq=1024, memory="80 GB", optimizer="sgd")
solution = int(plain) - int(answer)
assert answer_3 in (None, solution), "3: the states are 8 bytes a parameter, the slope stays"
print(f"3: {solution} more, {int(plain)} in all")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = int(half.subs({s: {**values, "L": 96}[s.name] for s in half.free_symbols}))
deep = cm.predict(network(layers=96, context=solution), seq=solution, mode="inference")
of_attention = sum(row.forward_flops for row in deep.layers if row.name in PARTS["attention"])
assert abs(of_attention / deep.flops.forward - 0.5) < 1e-4
assert answer_4 is None or abs(answer_4 - solution) <= 1, "4: solve 4LTd = L(8d² + 6 d d_ff) + 2Vd for T"
print(f"4: {solution:,}; with more layers the head weighs less")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
bf16 = {"precision": "bf16", "mode": "inference"}
gelu = cm.predict(Gelu(), input=(10**9,), **bf16).on("h100-sxm", tier="ceiling")
solution = round(2 * 2 * 1e9 / 3.35e12 * 1e3, 1)
assert solution == round(gelu.seconds * 1e3, 1)
assert answer_5 in (None, solution), "5: two bytes read and two written a number"
print(f"5: {solution} ms")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(budget):
    return (budget / 120) ** 0.5


for budget in (1e21, 5.76e23):  # the second is Chinchilla's
    assert abs(6 * solution(budget) * 20 * solution(budget) / budget - 1) < 1e-9
    assert answer_6 is None or abs(answer_6(budget) / solution(budget) - 1) < 0.01, "6: C = 6 N · 20 N"
assert abs(solution(5.76e23) / 70e9 - 1) < 0.02
print(f"6: the square root of C / 120; Chinchilla's {solution(5.76e23) / 1e9:.0f} billion")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(params):
    layers = 1
    while cm.predict(network(layers=layers + 1), seq=1).params <= params:
        layers += 1
    return layers


for params in (5e8, 1e9):
    assert solution(params) == int(cm.solve(network(), "params", int(params), for_="layers", seq=1))
    assert answer_7 is None or answer_7(params) == solution(params), "7: as long as one more fits"
print(f"7: {solution(1e9)} layers within a billion")
