"""``costmodel serve``, ``deployments`` and ``disaggregated``."""

from __future__ import annotations

import re
from copy import copy
from typing import Any

import click

from costmodel.cli.commands import MODEL, NETWORK, SettingOption, option, public, verb
from costmodel.cli.options import CHANGED, SINGLE, read_several
from costmodel.errors import SettingError, shown
from costmodel.training.setting import from_text
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS


def _drafts(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    model, *rest = text.split(":")
    try:
        count, acceptance = rest
        return {"model": model, "count": int(count), "acceptance": float(acceptance)}
    except ValueError:
        raise SettingError(
            f"--drafts {shown(text)} is not a model, drafts a step and the chance that one is kept: use text such as "
            "llama-3.2-1b:4:0.8"
        ) from None


DEFAULTS = {
    "precision": "bf16; fp8 here is fp8-w8a8",
    "attention": "flash, or efficient where keys and values are of two sizes",
    "latent_attention": "absorbed in decoding, expanded in prefill",
}
"""What serving takes where a setting is left out, and `predict` something else."""


def _as_served(option: SettingOption) -> SettingOption:
    """An option of `predict` whose help has the default of serving."""
    if option.name not in DEFAULTS:
        return option
    served = copy(option)
    served.help = re.sub(r"\(default [^)]*\)", f"(default: {DEFAULTS[option.name]})", option.help or "")
    return served


_SERVING = (
    option("--on", metavar="MACHINE", required=True, help="A ready machine's or cluster's name, or a file."),
    option("--input", type=int, metavar="N", required=True, help="Tokens of a prompt."),
    option("--output", type=int, metavar="N", required=True, help="Tokens that a request asks for."),
    NETWORK,
    option(
        "--engine", metavar="NAME", help="Such as vllm, tensorrt-llm, sglang or llama.cpp (default: kernels alone)."
    ),
)
DRAFTS = option("--drafts", metavar="MODEL:N:CHANCE", callback=_drafts, help="Speculative: llama-3.2-1b:4:0.8.")
_SERVED = (
    option("--price", type=float, metavar="MONEY", help="Of an hour of one device."),
    *map(_as_served, (option for option in SINGLE if SETTINGS[str(option.name)].served)),
    CHANGED,
)


def _arrivals(default: str) -> click.Option:
    """When requests come."""
    text = "A batch at once, or a new request whenever one is done."
    return option("--arrivals", metavar="together|steady", default=default, help=text)


serve = public(
    "serve",
    "How a machine serves a decoder: time to first token, time a token, tokens a second, by concurrency.",
    MODEL,
    *_SERVING,
    option("--concurrency", metavar="VALUES", callback=read_several, help="Requests at a time (default: up to most)."),
    _arrivals("together"),
    DRAFTS,
    *_SERVED,
    examples=(
        "serve llama-3.1-8b --on h100-sxm --input 1024 --output 256 --engine vllm",
        "serve llama-3.1-70b --on h100-sxm --tp 8 --input 1024 --output 256 --engine vllm",
        "serve llama-2-7b --on rtx-4090 --input 1 --output 128 --engine llama.cpp --precision int4 --concurrency 1",
        "serve llama-3.1-8b --on h100-sxm --input 1024 --output 256 --price 2.5 --out serving.png",
    ),
    drawn=True,
)

TPOT = option("--tpot", metavar="TIME", help="Most for each other token, such as 50ms.")

deployments = public(
    "deployments",
    "Which tp, ep, pp and dp over --devices serve most tokens a second within targets of latency.",
    MODEL,
    *_SERVING,
    option("--ttft", metavar="TIME", help="Most until the first token, such as 2s."),
    TPOT,
    _arrivals("steady"),
    option("--every", is_flag=True, help="Work out all that serve, not those near the best alone."),
    *_SERVED,
    examples=(
        "deployments llama-3.1-70b --devices 8 --on h100-sxm --input 1024 --output 256 --engine vllm --tpot 40ms",
        "deployments deepseek-v3 --devices 16 --on h200-sxm --input 4096 --output 512 --precision fp8-w8a8 --ttft 5s",
    ),
    judged=True,
    counts=True,
)

OF_POOLS = ("tp", "ep", "pp", "dp", "on", "engine", "precision")
"""What one pool may have of its own."""


def _pool(_: click.Context, parameter: click.Parameter, text: str) -> dict[str, Any]:
    """Of one pool: degrees and others of `OF_POOLS`, from text such as ``tp=4,dp=2``. Raises SettingError."""
    pairs = [each.split("=") for each in text.split(",")]
    if not all(len(pair) == 2 and pair[0].strip() in OF_POOLS for pair in pairs):
        raise SettingError(
            f"--{parameter.name} {shown(text)} is not how a group of devices is laid out: use text such as tp=4,dp=2, "
            f"of {', '.join(OF_POOLS)}"
        )
    own = {name.strip(): from_text(value.strip()) for name, value in pairs}
    if len(own) < len(pairs):
        raise SettingError(f"--{parameter.name} {shown(text)} says the same twice: leave one of them out")
    return own


@verb(
    MODEL,
    *_SERVING,
    option(
        "--prefill", metavar="DEGREES", required=True, callback=_pool, help="Of a group that reads prompts: tp=4,dp=2."
    ),
    option("--decode", metavar="DEGREES", required=True, callback=_pool, help="Of a group that makes tokens."),
    option("--devices", type=int, metavar="N", help="In all, shared out between both."),
    option("--concurrency", type=int, metavar="N", help="Requests that a group decodes at a time (default: most)."),
    TPOT,
    DRAFTS,
    *(each for each in _SERVED if each.name not in (*LAYOUT_NAMES, "price")),
    examples=(
        "disaggregated llama-3.1-8b --on h100-sxm --prefill tp=1 --decode tp=2 --input 4096 --output 256",
        "disaggregated llama-3.1-70b --on h100-sxm --prefill tp=4 --decode tp=8 --devices 32 --input 4096 "
        "--output 256 --engine vllm --tpot 25ms",
        "disaggregated deepseek-v3 --on h100-sxm --prefill dp=32,ep=32 --decode dp=64,ep=64 --devices 96 --input 2048 "
        "--output 512 --precision fp8",
    ),
)
def disaggregated(
    model: Any, prefill: dict[str, Any], decode: dict[str, Any], settings: dict[str, Any], **options: Any
) -> Any:
    """Prompts read by other devices than those that decode: what is sent, and how many groups of each keep pace.

    Of one pool alone can be: tp, ep, pp, dp, on, engine and precision, as in tp=4,on=l40s.
    """
    import costmodel

    pools = {name: options.pop(name) for name in ("concurrency", "tpot", "devices", "network")}
    given = {name: value for name, value in {**options, **settings}.items() if value is not None}
    served = []
    for own in (prefill, decode):
        several = any(own.get(name, 1) != 1 for name in ("tp", "pp", "dp"))
        network = {"network": pools["network"]} if several else {}
        served.append(costmodel.serve(model, **{**given, **network, **own}))
    return costmodel.disaggregated(*served, **pools)
