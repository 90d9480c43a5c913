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
# # Inference and the KV cache
#
# **The point:** a language model reads a prompt at the speed of arithmetic and writes its answer at the speed of
# memory. What it has read is kept as keys and values. Their size, not that of the weights, decides how many users fit
# on a machine, and most of what has changed in attention since 2019 makes them smaller.
#
# **You learn** why prefill and decode are two problems; to size a cache by heads, latents, windows and types; and to
# read a curve of throughput against latency.
#
# **Time:** 40 minutes. **Before it:** notebooks 1 and 5.
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

plt.style.use("pictures.mplstyle")
pd.set_option("display.max_colwidth", None)
GB, GIB = 1e9, 2**30
model, machine = "llama-3.1-8b", "h100-sxm"
how = {"precision": "bf16", "attention": "flash", "cache": "static"}

# %% [markdown]
# ## Two phases
#
# `mode="prefill"` reads a prompt at once, keeps its keys and values, and takes the logits of the last token only.
# `mode="decode"` makes one token, with `past` tokens in the cache.
#
# **Predict:** by what factor do the FLOPs of a prompt of 1,024 tokens and of one more token differ? And the bytes that
# are moved?

# %%
prefill = cm.predict(model, mode="prefill", seq=1024, **how)
decode = cm.predict(model, mode="decode", past=1024, **how)
phases = {"prefill, 1,024 tokens": prefill, "decode, one token": decode}
rows = []
for phase in phases.values():
    time = phase.on(machine, stack="cuda-graphs")
    moved = phase.traffic.weights + phase.traffic.kv_read + phase.traffic.kv_written
    rows.append((f"{phase.flops.forward / 1e9:,.0f}", f"{moved / GB:.2f}", f"{phase.flops.forward / moved:,.1f}",
                 f"{1e3 * time.seconds:.1f}", time.bound))  # fmt: skip
pd.DataFrame(
    rows, index=list(phases), columns=["GFLOP", "weights and cache [GB]", "FLOP/B", "ms on an H100", "bound by"]
)

# %% [markdown]
# About a thousand times the FLOPs for the same bytes: both read every weight once. An H100 does some 300 FLOPs in the
# time of a byte, so one phase is bound by arithmetic and the other by memory.

# %%
ratio = prefill.flops.forward / decode.flops.forward
ridge = 989e12 / 3.35e12
print(f"FLOPs: {ratio:,.0f} times as many; ridge of an H100 {ridge:.0f} FLOP/B")
assert 900 < ratio < 1100
assert [row[-1] for row in rows] == ["compute", "memory"]

# %% [markdown]
# ## What the cache saves
#
# Without it, every new token would read the whole text again. **Predict:** how many times the FLOPs, for 256 tokens
# after a prompt of 1,024?

# %%
again = cm.predict(model, mode="inference", seq=1024, precision="bf16").formula("flops.forward")
onward = decode.formula("flops.forward")
values = {letter.symbol: letter.value for letter in decode.explain("flops.forward").letters}


def summed(formula, letter, first, last):
    """A formula's sum while one of its letters goes from first to last."""
    open_letter = next(symbol for symbol in formula.free_symbols if symbol.name == letter)
    put_in = formula.subs({s: values[s.name] for s in formula.free_symbols if s.name != letter})
    return int(sp.summation(put_in, (open_letter, first, last)))


without = summed(again, "T", 1024, 1279)
with_cache = prefill.flops.forward + summed(onward, "P", 1024, 1278)
print(f"{without / 1e12:,.0f} TFLOP without, {with_cache / 1e12:,.1f} with: {without / with_cache:.0f} times")

# %% [markdown]
# ## How large is it?
#
# A key and a value for each layer and token: $2 \cdot L \cdot h_{kv} \cdot d_h$ numbers.

# %%
decode.explain("kv_bytes_per_token")

# %% [markdown]
# **Predict:** Llama 2 7B has as many key heads as query heads, 32. What would Llama 3.1 8B have saved over it, for a
# token? What if all queries shared one?

# %%
sizes = {"vocab": 128_256, "context": 131_072, "layers": 32, "width": 4096, "heads": 32, "mlp_width": 14336}
form = {"positions": "rotary", "norm": "rmsnorm", "mlp": "gated", "activation": "silu", "tied": False,
        "qkv_bias": False, "attention_bias": False, "mlp_bias": False}  # fmt: skip
rows = {}
for heads, name in ((32, "multi-head"), (8, "grouped, as Llama 3.1 8B"), (1, "multi-query")):
    asked = cm.predict(cm.Transformer(**sizes, **form, kv_heads=heads), mode="decode", past=8191, **how)
    rows[f"{heads} ({name})"] = (f"{asked.kv_bytes_per_token:,}", f"{asked.memory.cache / GIB:.2f}",
                                 f"{asked.params / 1e9:.2f}")  # fmt: skip
columns = ["bytes a token", "8,192 tokens [GiB]", "parameters [10⁹]"]
pd.DataFrame(rows, index=columns).T.rename_axis("key heads")

# %% [markdown]
# Four other ways to keep less: **windows** (most layers see only the last tokens), **latents** (one narrow vector from
# which keys and values of all heads are made), both of a published model here, **narrower types**, and **pages**
# (memory in small pieces, so that none is reserved for tokens that never come).
#
# **Predict:** which of these keeps least at 1,024 tokens, and which at 131,072?

# %%
published = {
    "llama-2-7b": "all heads",
    "llama-3.1-8b": "8 of 32 heads",
    "gemma-3-12b-text": "5 of 6 layers see 1,024 tokens",
    "mistral-7b-v0.1": "all layers see 4,096 tokens",
    "deepseek-v3": "a latent of 512 and 64",
}
lengths = [1024, 4096, 32_768, 131_072]
kept = {}
for name, what in published.items():
    longest = cm.load(name).context
    kept[f"{name}: {what}"] = [
        f"{cm.predict(name, mode='decode', past=tokens - 1, precision='bf16').memory.cache / GB:.2f}"
        if tokens <= longest
        else "beyond its context"
        for tokens in lengths
    ]
pd.DataFrame(kept, index=[f"{tokens:,} tokens" for tokens in lengths]).T.rename_axis("cache of one text [GB]")

# %%
figure, axes = plt.subplots()
for name in published:
    longest = cm.load(name).context
    tokens = [2**k for k in range(8, 18) if 2**k <= longest]
    grid = cm.sweep(
        name, mode="decode", past=[t - 1 for t in tokens], precision="bf16", quantities=["memory.cache"]
    )  # fmt: skip
    axes.plot(tokens, grid["memory.cache"] / GB, "o--" if name.startswith("mistral") else "o-", label=name)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.yaxis.set_major_formatter("{x:g}")
axes.set(xlabel="tokens in the cache", ylabel="cache of one text [GB]", title="Keys and values in bf16")
axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
plt.show()

# %% [markdown]
# A window makes the line flat (all layers) or less steep (some): as far as its window reaches, Mistral keeps what Llama
# 3.1 does. Heads, latents and types move it down. The formulas say the same: with windows a minimum stands in it, with
# a latent no number of heads does.

# %%
for name in ("gemma-3-12b-text", "deepseek-v3"):
    print(name, cm.predict(name, mode="decode", past=4095, precision="bf16").formula("memory.cache"))

# %% [markdown]
# ## What fits, and what it costs to read
#
# **Predict:** weights are 16 GB. How many texts of 8,192 tokens fit in 80 GiB beside them? And with keys and values in
# 8 bits?

# %%
for kind in ("same", "fp8"):
    print(cm.max_batch(model, memory="80 GiB", mode="decode", past=8191, cache_precision=kind, **how), end="\n\n")

# %% [markdown]
# Each token that is made reads all that is kept. At first that is little beside the weights. Where do they cross, for
# one text?

# %%
print(cm.break_even(model, "traffic.weights", "traffic.kv_read", for_="past", mode="decode", **how))

# %% [markdown]
# Several texts share the weights that are read, and not the cache: that is why batches help, and why they stop helping.
# Move the sliders. The page shows them where they stand first, and the table after them other places.


# %%
def decoding_of(batch, past, weights, cache):
    """A decode step of so many texts."""
    given = {"precision": weights, "cache_precision": cache, "attention": "flash", "cache": "static"}
    return cm.predict(model, mode="decode", past=past, batch=batch, **given)


@interact(
    batch=(1, 256),
    past=(1024, 65_536, 1024),
    weights=["bf16", "int8", "int4"],
    cache=["same", "fp8"],
)
def decoding(batch=32, past=8192, weights="bf16", cache="same"):
    """Memory and time of one step."""
    asked = decoding_of(batch, past, weights, cache)
    time = asked.on(machine, stack="cuda-graphs")
    _, axes = plt.subplots(figsize=(9, 2))
    parts = {"weights": asked.memory.weights, "cache": asked.memory.cache}
    left = 0
    for name, size in parts.items():
        axes.barh(["memory"], [size / GIB], left=left, label=f"{name} {size / GIB:.1f} GiB")
        left += size / GIB
    axes.axvline(80, color="#222222", linestyle="--", linewidth=1, label="80 GiB")
    axes.set(xlabel="GiB", xlim=(0, max(90, 1.05 * left)))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    axes.set_title(
        f"{model}, {batch} texts of {past:,} tokens, weights {weights}, cache {cache}: "
        f"{1e3 * time.seconds:.1f} ms a step, {batch / time.seconds:,.0f} tokens/s",
        fontsize=9,
    )
    plt.show()


# %%
places = [(1, 1024), (32, 1024), (256, 1024), (1, 32_768), (32, 32_768)]
rows, rates = [], {}
for batch, past in places:
    for weights, cache in (("bf16", "same"), ("int8", "same"), ("bf16", "fp8")):
        asked = decoding_of(batch, past, weights, cache)
        seconds = asked.on(machine, stack="cuda-graphs").seconds
        rates[batch, past, weights, cache] = batch / seconds
        fits = f"{batch / seconds:,.0f}" if asked.fits("80 GiB") else "does not fit"
        rows.append((batch, f"{past:,}", f"weights {weights}, cache {cache}", fits))
assert rates[1, 1024, "int8", "same"] > rates[1, 1024, "bf16", "fp8"]
assert rates[256, 1024, "int8", "same"] < rates[256, 1024, "bf16", "fp8"]
pd.DataFrame(rows, columns=["texts", "tokens each", "types", "tokens/s"]).pivot(
    index=["texts", "tokens each"], columns="types", values="tokens/s"
)

# %% [markdown]
# With few tokens in all, 8-bit weights are what helps; with many it is the cache, for the time and for what fits.
#
# ## Serving
#
# Users arrive together, an engine batches them, and each step takes longer the more there are. `cm.serve` puts prefill
# and decode together, and adds what an engine takes for itself.

# %%
served = cm.serve(model, on=machine, input=1024, output=256, engine="vllm", price=2.5)
print(served)

# %%
served.plot()

# %% [markdown]
# More at a time is more tokens a second for all, and fewer for each. From the knee on, a little more throughput costs
# much latency. **Predict:** what would drafts of a small model do, with one user and with 128?

# %%
drafts = {"model": "llama-3.2-1b", "count": 4, "acceptance": 0.8}
drafted = cm.serve(model, on=machine, input=1024, output=256, engine="vllm", drafts=drafts)
gain = {n: served.at(n).time_per_token / drafted.at(n).time_per_token for n in (1, 16, 128)}
for n, times in gain.items():
    print(
        f"{n:>3} at a time: {1e3 * served.at(n).time_per_token:.1f} ms a token, {times:.2f} times as fast with drafts"
    )
assert gain[1] > gain[128]

# %% [markdown]
# Verifying five tokens reads the weights once: nearly free while memory is what binds, and no longer with many users.
#
# ## Exercises
#
# Put your answer in place of `None`, then run the solutions.
#
# **1.** How many bytes a token does a cache take in 16 bits with 80 layers, 8 key heads and heads of 128 (Llama 3 70B)?

# %%
answer_1 = None

# %% [markdown]
# **2.** How many tokens can one text of Llama 3.1 8B have on a card of 24 GiB, in bf16, with a paged cache?

# %%
answer_2 = None

# %% [markdown]
# **3.** How many key heads with heads of 128 would take as much for a token and layer as DeepSeek-V3's latent? A
# decimal number: its latent has 512 numbers and 64 rotated ones, and is kept once.

# %%
answer_3 = None

# %% [markdown]
# **4.** What is the least time that one token of Llama 3.1 8B can take on an H100, in ms, if only its weights are read
# (bf16, 3.35 TB/s, one text, the embedding's table not read)? To one decimal.

# %%
answer_4 = None

# %% [markdown]
# **5. Derive it.** A decode step reads weights of $W$ bytes, and for each of $B$ texts of $T$ tokens a cache of $c$
# bytes a token. At which B does it read as much of caches as of weights? A function of W, T and c.

# %%
answer_5 = None

# %% [markdown]
# **6. Code it.** Write a function of the tokens of a prompt, the tokens to decode and a bandwidth that adds up, token
# by token, how long reading weights and cache takes for one text (weights and bytes a token as `decode` has them).

# %%
answer_6 = None

# %% [markdown]
# ## Solutions

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = 2 * 80 * 8 * 128 * 2
assert solution == cm.predict("llama-3-70b", mode="decode", past=1, precision="bf16").kv_bytes_per_token
assert answer_1 in (None, solution), "1: two of them, layers, key heads, features of a head, two bytes"
print(f"1: {solution:,} bytes")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
paged = {"mode": "decode", "precision": "bf16", "attention": "flash", "cache": "paged"}
found = cm.solve(model, "memory.peak", "24 GiB", for_="past", **paged)
solution = int(found)
by_hand = (24 * GIB - decode.memory.weights) / decode.kv_bytes_per_token
assert 0.9 < solution / by_hand < 1
assert answer_2 is None or abs(answer_2 / solution - 1) < 0.1, "2: what the weights leave, over the bytes of a token"
print(f"2: {solution:,}; by hand, without what a step itself needs, {by_hand:,.0f}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
latent = cm.predict("deepseek-v3", mode="decode", past=1, precision="bf16")
solution = (512 + 64) / (2 * 128)
assert latent.kv_bytes_per_token == solution * 2 * 128 * latent.model.layers * 2
assert answer_3 in (None, solution), "3: 512 + 64 numbers once, against a key and a value of 128"
print(f"3: {solution}")

# %% tags=["hide-cell"] jupyter={"source_hidden": true}
solution = round(decode.traffic.weights / 3.35e12 * 1e3, 1)
floor = decode.on(machine, tier="ceiling").seconds
assert abs(floor * 1e3 - solution) < 0.1
assert answer_4 in (None, solution), "4: all weights but the embedding's, two bytes each, over the bandwidth"
print(f"4: {solution} ms; typical {1e3 * decode.on(machine, stack='cuda-graphs').seconds:.1f} ms")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(weights, tokens, per_token):
    return weights / (tokens * per_token)


crossing = solution(decode.traffic.weights, 1024, decode.kv_bytes_per_token)
many = cm.predict(model, mode="decode", past=1024, batch=round(crossing), **how)
assert abs(many.traffic.kv_read / many.traffic.weights - 1) < 0.01
assert answer_5 is None or abs(answer_5(16e9, 4096, 131072) / solution(16e9, 4096, 131072) - 1) < 0.01, "5: W = B T c"
print(f"5: W / (T c), {crossing:.0f} texts of 1,024 tokens here")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def solution(prompt, tokens, bandwidth):
    weights, per_token = decode.traffic.weights, decode.kv_bytes_per_token
    return sum((weights + (prompt + n) * per_token) / bandwidth for n in range(tokens))


steps = [cm.predict(model, mode="decode", past=1024 + n, **how).traffic for n in range(3)]
assert abs(solution(1024, 3, 1.0) / sum(step.weights + step.kv_read for step in steps) - 1) < 0.001
assert answer_6 is None or abs(answer_6(1024, 256, 3.35e12) / solution(1024, 256, 3.35e12) - 1) < 0.01, (
    "6: each token adds one"
)
print(f"6: {solution(1024, 256, 3.35e12):.2f} s for 256 tokens on an H100, at least")
