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
# # What GPT-2 small costs, formula by formula
#
# **The point:** four short formulas say what training a transformer costs. They follow from the model's description
# alone, so nobody has to remember them, and several numbers that everybody remembers are wrong.
#
# **You learn** to read a formula of a cost term by term; to say what the rules of thumb "$6N$ FLOPs a token" and
# "16 bytes a parameter" leave out; and why the peak of memory is not a sum.
#
# **Time:** 45 minutes. **Before it:** the layers of a transformer, by name.
#
# **How:** where it says *Predict*, write a number down before you run the next cell. Exercises are at the end, with
# solutions that check yours.
#
# The question is one training step of GPT-2 small with 32 sequences of 512 tokens, in single precision with AdamW. Not
# a weight is allocated: the model runs once over tensors that have a shape and no data.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
import sympy as sp

import costmodel as cm

plt.style.use("pictures.mplstyle")
MIB, GIB, TFLOP = 2**20, 2**30, 1e12
batch, seq = 32, 512
p = cm.predict(cm.GPT2Small, batch=batch, seq=seq)

# %% [markdown]
# ## Parameters
#
# `explain` gives the formula in the model's own letters, what each letter is, and the numbers put in.
#
# **Predict:** how many parameters has a block of width $d$, to the leading term? And what share of all is in blocks?

# %%
p.explain("params")

# %% [markdown]
# A block has $12d^2$ weights in its matrices: $3d^2$ make query, key and value, $d^2$ is attention's output, and
# $2 \cdot 4d^2$ are the two matrices of the MLP. Biases and norms add the $13d$. Around the blocks stand the
# embedding $Vd$, which also serves as the head and is counted once, the positions, and a last norm.

# %%
known = p.explain("memory.peak").letters + p.explain("params").letters
symbols = {s.name: s for quantity in ("memory.peak", "params") for s in p.formula(quantity).free_symbols}
values = {symbols[letter.symbol]: letter.value for letter in known}
B, T, V, n, L, d, h = (symbols[name] for name in ("B", "T", "V", "n_ctx", "L", "d", "h"))

parts = {"matrices of the blocks": 12 * L * d**2, "embedding and head": V * d, "positions": n * d}
parts["biases and norms"] = sp.expand(p.formula("params")) - sum(parts.values())
sizes = [int(part.subs(values)) for part in parts.values()]
pd.DataFrame(
    {
        "formula": [str(part) for part in parts.values()],
        "parameters": [f"{size:,}" for size in sizes],
        "share": [f"{size / p.params:.1%}" for size in sizes],
    },
    index=list(parts),
)

# %% [markdown]
# The paper calls this model "117M". The weights that were released with it are another matter; a rounder name would
# have been 124M, and that is what it is called today.

# %%
claimed = 117_000_000
print(f"counted  {p.params:>12,}")
print(f"claimed  {claimed:>12,}, short by {p.params - claimed:,} ({1 - claimed / p.params:.1%})")
print(f"with a head of its own instead of a tied one it would be {p.params + values[V] * values[d]:,}")

# %% [markdown]
# ## FLOPs
#
# A multiply-add is two FLOPs. What is counted are matrix products; all other arithmetic stands apart, because it is
# hardly any of the work (though often much of the time).
#
# **Predict:** how many FLOPs is a forward pass of these $32 \cdot 512$ tokens, from the parameters alone?

# %%
p.explain("flops.forward")

# %% [markdown]
# Two things can be read off. The first is the rule of thumb "$2N$ FLOPs a token forward, $6N$ for training": every
# weight of a matrix takes part in one multiply-add for each token, and backward does twice as much. The rule leaves out
# $4LTd$, the products of attention, which have no weights.

# %%
tokens = batch * seq
rule = 6 * p.params * tokens
print(f"forward   {p.flops.forward / TFLOP:.3f} TFLOP, pointwise beside it {p.pointwise_flops.forward / TFLOP:.3f}")
print(f"backward  {p.flops.backward / TFLOP:.3f} TFLOP, {p.flops.backward / p.flops.forward:.3f} times forward")
print(f"6 N a token gives {rule / TFLOP:.2f} TFLOP, the count is {p.flops.total / TFLOP:.2f}")
print(f"so the rule is {1 - rule / p.flops.total:.1%} too low at {seq} tokens")

# %% [markdown]
# The second is where attention overtakes the matrices. Only attention's term grows with $T$, so solve for it.
# **Predict:** at how many tokens?

# %%
per_token = p.formula("flops.forward")
per_token = sp.expand(per_token / (B * T))
attention = per_token.coeff(T, 1) * T
(even,) = sp.solve(sp.Eq(attention, 24 * L * d**2), T)
print(f"attention costs as much as the blocks' matrices at T = {even}, here {int(even.subs(values)):,} tokens")
for length in (seq, 2 * seq, int(even.subs(values))):
    share = (attention / per_token).subs({**values, T: length})
    print(f"  {length:>5,} tokens: {float(share):6.1%} of all FLOPs are attention's products")

# %% [markdown]
# ## Activations
#
# Forward keeps what backward will read: the inputs of the matrices, the outcomes of softmax, a mask for each dropout.
#
# **Predict:** weights are half a gigabyte. How many gigabytes are kept, for 32 sequences of 512 tokens?

# %%
p.explain("memory.activations")

# %% [markdown]
# Here is the number that surprises most people. "200 MB" can be read as what GPT-2's activations take in training:

# %%
rumour = 200 * 10**6
rows = []
for length in (64, 128, 256, 512, 1024):
    size = cm.predict(cm.GPT2Small, batch=1, seq=length).memory.activations
    rows.append((length, f"{size / MIB:,.0f} MiB", f"{size / rumour:.1f} ×", f"{size / p.memory.weights:.2f} ×"))
times = p.memory.activations / rumour
assert p.memory.weights < 0.5e9
print(f"batch {batch}, {seq} tokens: {p.memory.activations / GIB:.1f} GiB, {times:.0f} times the rumour")
print("one single sequence:")
pd.DataFrame(rows, columns=["tokens", "activations", "of 200 MB", "of the weights"]).set_index("tokens")

# %% [markdown]
# Is that count right? There is an authority. Korthikanti et al. (2022, eq. 1 and 2) derive by hand that a layer in half
# precision keeps $sbh\,(34 + 5\,as/h)$ bytes, in their letters $s$ tokens, $b$ sequences, $h$ width and $a$ heads. The
# same model asked in bfloat16 answers:

# %%
half = cm.predict(cm.GPT2Small, batch=batch, seq=seq, precision="bf16").formula("memory.activations")
of_layers = sp.expand(half).coeff(L, 1)
theirs = T * B * d * (34 + 5 * h * T / d)
print("here   ", sp.collect(sp.expand(of_layers / (B * T)), d), " bytes for each token of a layer")
print("theirs ", sp.expand(theirs / (B * T)))
print("differ ", sp.expand((of_layers - theirs) / (B * T)), " bytes: four statistics of two norms, which they neglect")

# %% [markdown]
# ## The peak
#
# Weights, gradients, optimizer state and activations are never all there at their largest. The timeline follows every
# tensor through the step, and the peak is its highest point.
#
# **Predict:** in which phase of the step, and in which layer, is it?

# %%
p.timeline.plot()

# %%
memory = p.memory
added = memory.weights + memory.gradients + memory.optimizer + memory.buffers + memory.inputs + memory.activations
step = p.timeline.peak_step
print(f"adding the lines up  {added / GIB:.1f} GiB")
print(f"the peak             {p.memory.peak / GIB:.1f} GiB, in {step.phase} of {step.layer}")
print(
    f"in gradients there   {step.alive.gradients / GIB:.1f} GiB, in temporaries {step.alive.temporaries / GIB:.1f} GiB"
)
assert step.alive.gradients == 0

# %% [markdown]
# The summit is at the loss, where no weight has a gradient yet. The logits are $BT$ rows of $V$ numbers, as large as
# many layers together, and around the loss there are three such arrays at once: the $12BTV$ in the formula.

# %%
p.explain("memory.peak")

# %% [markdown]
# ## One formula, many models
#
# A formula has letters, so it answers for other models of the family too. "LLaMA-7B needs 52 GB in fp32" is often
# repeated. The formula of the 7B model, with the sizes of the 13B model put in, says where that number comes from:

# %%
seven = cm.predict("llama-2-7b", batch=1, seq=1, mode="inference")
weights = seven.explain("memory.weights")
small = {d.symbol: d.value for d in weights.letters}
sizes = {"7B": small, "13B": {**small, "L": 40, "d": 5120, "d_ff": 13824, "h": 40, "h_kv": 40, "d_h": 128}}
weights

# %%
for name, chosen in sizes.items():
    size = int(weights.formula.subs({symbol: chosen[symbol.name] for symbol in weights.formula.free_symbols}))
    print(f"{name:>3}: {size / 4e9:.2f} billion parameters, {size / 1e9:.1f} GB = {size / GIB:.1f} GiB in fp32")

# %% [markdown]
# Nothing above was typed in: change a setting in the first cell, run all, and formulas and numbers follow together.
#
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** How many parameters would GPT-2 small have with 24 blocks? Use the formula, not the model.

# %%
answer_1 = None

# %% [markdown]
# **2.** "16 bytes a parameter" are weights, gradients and two moments in fp32. How many bytes is that here?

# %%
answer_2 = None

# %% [markdown]
# **3.** The formula of the activations has a term in $T^2$. How many bytes is it for one sequence of 1,024 tokens?

# %%
answer_3 = None

# %% [markdown]
# **4.** By what does FLOPs a step grow if batch and sequence both double? To two decimals, from 32 sequences of 512.

# %%
answer_4 = None

# %% [markdown]
# **5. Derive it.** How many parameters does one block of GPT-2 have, as a function of its width $d$? Count four
# matrices of attention, two of an MLP four times as wide, a bias for each output, and two norms. Give a function of
# d.

# %%
answer_5 = None

# %% [markdown]
# **6. Code it.** Write a function of batch, seq, layers, width and vocab that gives the FLOPs of a forward pass, from
# the shapes of its products alone, and hold it against `predict`.

# %%
answer_6 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = p.params + 12 * (12 * 768**2 + 13 * 768)
assert solution == int(p.formula("params").subs({**values, L: 24}))
assert answer_1 in (None, solution), "1: twelve more times 12d² + 13d"
print(f"1: {solution:,}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 16 * p.params
assert solution == memory.weights + memory.gradients + memory.optimizer
assert answer_2 in (None, solution), "2: four, four and eight bytes"
print(f"2: {solution:,} bytes, {solution / memory.peak:.0%} of the peak")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 9 * 12 * 12 * 1024**2
kept = sp.expand(p.formula("memory.activations"))
assert solution == int((kept.coeff(T, 2) * T**2).subs({**values, B: 1, T: 1024}))
assert answer_3 in (None, solution), "3: 9·L·h·T²: softmax, dropout's outcome, and its mask of one byte"
print(f"3: {solution:,} bytes")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = round(cm.predict(cm.GPT2Small, batch=64, seq=1024).flops.total / p.flops.total, 2)
by_hand = 4 * (12 * (4 * 1024 * 768 + 24 * 768**2) + 2 * 50257 * 768)
assert solution == round(by_hand / (12 * (4 * 512 * 768 + 24 * 768**2) + 2 * 50257 * 768), 2)
assert answer_4 in (None, solution), "4: four times the tokens, and attention's products twice for each"
print(f"4: {solution} times")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(d):
    return 12 * d**2 + 13 * d


longer = cm.predict(cm.GPT2Small.with_values({"layers": 13}), batch=batch, seq=seq)
assert longer.params - p.params == solution(768)
assert answer_5 is None or [answer_5(d) for d in (64, 768)] == [solution(d) for d in (64, 768)], (
    "5: 4 d², 8 d², 9 d, 4 d"
)
print("5: 12 d² + 13 d")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(batch, seq, layers, width, vocab):
    products = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    block = sum(2 * seq * rows * columns for rows, columns in products) + 2 * 2 * seq * seq * width
    return batch * (layers * block + 2 * seq * width * vocab)


asked = [(1, 256, 12, 768, 50257), (4, 1024, 24, 1024, 50257)]
told = [
    cm.predict(m, batch=b, seq=t).flops.forward
    for m, (b, t, *_) in zip((cm.GPT2Small, cm.GPT2Medium), asked, strict=True)
]
assert [solution(*sizes) for sizes in asked] == told
assert answer_6 is None or [answer_6(*sizes) for sizes in asked] == told, (
    "6: 2 · rows · columns for each token, and T · d twice"
)
print("6: equal, for GPT-2 small and medium")
