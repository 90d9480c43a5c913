"""What can be wrong with a question, said in one clear line each."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence
from itertools import accumulate


class CostModelError(ValueError):
    """Base of every error that is the asker's to mend: a bad model, setting, file or name.

    Example:
        >>> import costmodel as cm
        >>> try:
        ...     cm.predict("gpt2-smal")
        ... except cm.CostModelError as error:
        ...     print(error)
        unknown model 'gpt2-smal': did you mean 'gpt2-small'?

    """


class SpecError(CostModelError):
    """A model description that cannot be built: wrong field, type, value or nesting.

    path: where in the description the value to blame is, if that is known.
    """

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class ShapeError(CostModelError):
    """Shapes that do not fit the layer they meet."""


class SettingError(CostModelError):
    """A wrong argument to a verb, such as ``batch=0`` or ``seq`` for a CNN."""


class UnknownNameError(CostModelError):
    """A name that is not known; the message lists the nearest ones that are."""


DISTRIBUTION = "nn-costmodel"
"""What pip knows the package by."""


def not_installed(needs: str, extra: str) -> CostModelError:
    """Error of what needs a package that is not installed, with the extra of this one that brings it."""
    return CostModelError(f"{needs}: pip install '{DISTRIBUTION}[{extra}]'")


MOST_LISTED = 120
"""Characters of known names that an error lists; the others are counted."""


ALIASES = {
    "mse": "mean_squared_error",
    "l2": "mean_squared_error",
    "ce": "cross_entropy",
    "xent": "cross_entropy",
    "nll": "cross_entropy",
    "bce": "binary_cross_entropy",
    "kl": "kl_divergence",
    "kl_div": "kl_divergence",
    "training": "train",
    "eval": "inference",
    "infer": "inference",
    "cuda": "gpu on",
    "sdpa": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "fused": "flash",
    "math": "eager",
    "standard": "eager",
    "mem_efficient": "efficient",
    "xformers": "efficient",
    "full": "block",
    "every": "block",
    "layer": "block",
    "op": "operators",
    "selective_op": "operators",
    "float32": "fp32",
    "float": "fp32",
    "tf32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "amp": "fp16-autocast",
    "mixed": "bf16-autocast",
    "mixed_precision": "bf16-autocast",
    "adam8bit": "adam-8bit",
    "adamw_8bit": "adam-8bit",
    "adamw8bit": "adam-8bit",
    "adamw_torch": "adamw",
    "sgd_momentum": "momentum",
    "float8": "fp8",
    "8bit": "adam-8bit int8",
    "4bit": "int4",
    "dtype": "precision",
    "gpu": "on",
    "machine": "on",
    "gpus": "devices",
    "num_gpus": "devices",
    "world_size": "devices",
    "batch_size": "batch",
    "micro_batch_size": "batch",
    "global_batch_size": "global_batch",
    "seq_len": "seq",
    "seq_length": "seq",
    "sequence_length": "seq",
    "gradient_accumulation_steps": "accumulate",
    "gradient_checkpointing": "checkpoint",
    "recompute": "checkpoint",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "expert_parallel_size": "ep",
    "context_parallel_size": "cp",
    "dim": "width",
    "d_model": "width",
    "embed_dim": "width",
    "n_embd": "width",
    "hidden_size": "width",
    "hidden": "width",
    "depth": "layers",
    "num_layers": "layers",
    "num_hidden_layers": "layers",
    "n_layer": "layers",
    "num_attention_heads": "heads",
    "n_head": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "mlp_width",
    "vocab_size": "vocab",
    "max_position_embeddings": "context",
    "n_layers": "layers",
    "num_heads": "heads",
    "n_heads": "heads",
    "n_kv_heads": "kv_heads",
    "d_ff": "mlp_width",
    "ffn": "mlp_width",
    "ffn_dim": "mlp_width",
    "rope": "rotary",
    "rope.base": "rotary",
    "rope_theta": "rotary",
    "rope.theta": "rotary",
    "latency": "seconds",
    "throughput": "tokens_per_second",
    "ram": "memory",
    "vram": "memory",
    "total_params": "params",
    "num_parameters": "params",
    "parameters": "params",
}
"""Other names that people give settings and their values, fields and answers, as `_folded` writes them, by the name or
names that these are called here; for errors."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names that `name` may stand for, the likeliest first."""
    from difflib import get_close_matches  # only errors need it

    folded = {_folded(each): each for each in sorted(known, reverse=True)}
    key = _folded(name)
    for same in (key, *map(_folded, ALIASES.get(key, "").split())):
        if same in folded:
            return [folded[same]]
    longer = sorted((each for each in folded if len(key) > 2 and _begins(each, key)), key=len)
    longer = longer or sorted((each for each in folded if len(key) > 2 and each.startswith(key)), key=len)
    return [folded[each] for each in (longer or get_close_matches(key, folded, n=3, cutoff=0.5))[:3]]


def _begins(name: str, key: str) -> bool:
    """Whether the first parts of a name are a key, whatever stands between them ("llama_3_8b" begins with "llama3"), or
    the name is its plural."""
    starts = accumulate(re.findall(r"[^_.]+", name))
    return name == f"{key}s" or re.sub(r"[_.]", "", key) in starts


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def unknown(what: str, name: object, known: Iterable[str], short: Iterable[str] = ()) -> UnknownNameError:
    """Error for an unknown `name`, with the nearest known ones (all, as far as they fit a line, when none is near).

    short: those to list, where what is known are many names for the same.
    """
    names = sorted(known)
    near = nearest(name, names) if isinstance(name, str) else []
    if near:
        return UnknownNameError(f"unknown {what} {shown(name)}: did you mean {' or '.join(map(repr, near))}?")
    head = f"unknown {what} {shown(name)}: known are "
    return UnknownNameError(head + listed(sorted(short) or names, MOST_LISTED + 60 - len(head)))


def no_attribute(of: object, name: str, known: Iterable[str] = ()) -> AttributeError:
    """Error for an attribute that there is not, with the nearest that there are; known: names below it with dots.

    Where the class has one, which failed, its own error.
    """
    kind = type(of)
    if name.startswith("_"):
        return AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    if hasattr(kind, name):
        try:
            object.__getattribute__(of, name)
        except AttributeError as error:
            return error
    fields = {*dir(kind), *getattr(kind, "__dataclass_fields__", ()), *getattr(kind, "model_fields", ())}
    return AttributeError(f"{kind.__name__} has no {name!r}" + _nearest_of(name, fields, known))


def no_member(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Error for a name that a module has not, with the nearest that it has."""
    return AttributeError(f"module {module!r} has no attribute {name!r}" + _nearest_of(name, known))


def _nearest_of(name: str, names: Iterable[str], dotted: Iterable[str] = ()) -> str:
    below = [each for each in dotted if each.rpartition(".")[2] == name]
    near = below or nearest(
        name, {*(each for each in names if not each.startswith("_") and not each.isupper()), *dotted}
    )
    return f": did you mean {' or '.join(near[:3])}?" if near else ""


def a(noun: str) -> str:
    """A noun with its article: ``a machine``, ``an optimizer``."""
    return f"a{'n' * (noun[:1].lower() in 'aeiou')} {noun}"


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Names in one line: the first of them, up to so many characters, and how many more there are."""
    ends = list(accumulate(len(name) + 2 for name in names))
    fit = max(1, sum(end <= min(most, MOST_LISTED) for end in ends))
    return ", ".join(names[:fit]) + (f" and {len(names) - fit:,} more" if len(names) > fit else "")


def shown(value: object) -> str:
    """A value as errors show it: in one short line, whatever it is."""
    return " ".join(_SHORT.repr(value).splitlines())


class _Short(reprlib.Repr):
    """Bounded in length and depth; a number of more digits than Python prints has a text too."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring, self.maxother = 60, 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"a number of more than {x.bit_length() * 3 // 10} digits"


_SHORT = _Short()
