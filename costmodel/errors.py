"""What can be wrong with a question, said in one clear line each."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence
from itertools import accumulate

LONGEST_ERROR = 200
"""Characters that an error stays below; details are on lines of their own."""


def in_lines(text: str) -> str:
    """An error of which every line is below `LONGEST_ERROR`: what is wrong, then on lines below it the details."""
    lines: list[str] = []
    rest = " ".join(text.split()) if len(text) >= LONGEST_ERROR else text
    while len(rest) >= LONGEST_ERROR:
        ends = [[at + len(mark) for at in _places(rest, mark)] for mark in ("; ", ": ", ", ", " ")]
        end = next((places[-1] for places in ends if places), LONGEST_ERROR - 1)
        lines.append(rest[:end].rstrip())
        rest = f"  {rest[end:]}"
    return "\n".join([*lines, rest])


def _places(text: str, mark: str) -> list[int]:
    """Where a mark stands in what a line has room for, not near its start."""
    return [each.start() for each in re.finditer(mark, text[: LONGEST_ERROR - 1]) if each.start() >= LONGEST_ERROR // 3]


class CostModelError(ValueError):
    """Base of every error that is the asker's to mend: a bad model, setting, file or name.

    One line says what is wrong; what is longer goes on below it.

    Example:
        >>> import costmodel as cm
        >>> try:
        ...     cm.predict("gpt2-smal")
        ... except cm.CostModelError as error:
        ...     print(error)
        unknown model 'gpt2-smal': did you mean 'gpt2-small'?

    """

    def __str__(self) -> str:
        return in_lines(super().__str__())


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
    other: names
    for others, names in (
        ("mse l2", "mean_squared_error"),
        ("ce xent nll", "cross_entropy"),
        ("bce", "binary_cross_entropy"),
        ("kl kl_div", "kl_divergence"),
        ("training finetune finetuning fine_tune sft pretrain", "train"),
        ("eval infer forward fwd", "inference"),
        ("generate generation serve serving deploy autoregressive", "decode serve"),
        ("cuda", "gpu on"),
        ("sdpa flash_attention flash_attention_2 flash_attention_3 flash_attn flash_attn_2 flash2 fa2 fused", "flash"),
        ("math standard naive vanilla", "eager"),
        ("mem_efficient memory_efficient xformers", "efficient"),
        ("full every layer true yes", "block"),
        ("op selective_op", "operators"),
        ("float32 float tf32", "fp32"),
        ("bfloat16", "bf16"),
        ("float16 half", "fp16"),
        ("amp", "fp16-autocast"),
        ("mixed mixed_precision", "bf16-autocast"),
        ("adam8bit adamw_8bit adamw8bit", "adam-8bit"),
        ("adamw_torch", "adamw"),
        ("sgd_momentum", "momentum"),
        ("float8", "fp8"),
        ("8bit", "adam-8bit int8"),
        ("4bit", "int4"),
        ("compile torch_compile inductor jit", "compiled"),
        ("dtype torch_dtype compute_dtype weight_dtype bits quant quantize quantization", "precision"),
        ("load_in_4bit load_in_8bit", "precision"),
        ("optim", "optimizer"),
        ("gpu machine hardware accelerator gpu_type device_name", "on machines"),
        ("gpus num_gpus n_gpus gpu_count world_size nproc_per_node", "counts devices"),
        ("b bs batchsize batch_size micro_batch micro_batch_size per_device_train_batch_size", "batch"),
        ("global_batch_size train_batch_size", "global_batch"),
        ("seqlen seq_len seq_length sequence sequence_length ctx ctx_len context_length max_length max_seq_len", "seq"),
        ("resolution image_size img_size input_size", "image"),
        ("gradient_accumulation gradient_accumulation_steps grad_accum accumulation_steps", "accumulate"),
        ("gradient_checkpointing activation_checkpointing recompute recomputation remat", "checkpoint"),
        ("attn attn_implementation attention_implementation", "attention"),
        ("kv_cache kv_dtype kv_cache_dtype cache_dtype", "cache_precision"),
        ("tensor_parallel tensor_parallelism tensor_parallel_size tp_size", "tp"),
        ("pipeline_parallel pipeline_parallelism pipeline_parallel_size pp_size", "pp"),
        ("expert_parallel expert_parallel_size ep_size", "ep"),
        ("context_parallel context_parallel_size cp_size", "cp"),
        ("data_parallel data_parallel_size dp_size ddp replicas", "dp"),
        ("sequence_parallel", "sp"),
        ("zero1 zero2 zero3 zero_1 zero_2 zero_3 zero_stage", "zero"),
        ("prompt prompt_len input_len input_tokens isl", "input"),
        ("output_len output_tokens max_tokens max_new_tokens osl", "output"),
        ("dim d_model embed_dim n_embd hidden_size hidden", "width"),
        ("depth num_layers num_hidden_layers n_layer n_layers", "layers"),
        ("num_attention_heads n_head num_heads n_heads", "heads"),
        ("num_key_value_heads n_kv_heads", "kv_heads"),
        ("intermediate_size d_ff ffn ffn_dim", "mlp_width"),
        ("vocab_size", "vocab"),
        ("max_position_embeddings n_positions", "context"),
        ("rope rope.base rope_theta rope.theta", "rotary"),
        ("latency runtime_seconds step_time", "seconds"),
        ("throughput", "rate tokens_per_second"),
        ("speed", "seconds rate"),
        ("cost price", "price money gpus"),
        ("ram vram", "memory"),
        ("total_params num_parameters parameters", "params"),
        ("format", "json"),
        ("o save file filename", "out"),
        ("memory flops params estimate calc count summary run time", "predict"),
        ("rent buy which_gpu", "gpus"),
        ("fit oom", "fits"),
        ("parallel shard parallelism", "layouts"),
        ("optimize tune advise", "recommend"),
        ("max largest", "solve"),
        ("diff vs", "compare"),
        ("grid scan", "sweep"),
        ("bench benchmark profile measure", "roofline"),
        ("info describe", "show"),
    )
    for other in others.split()
}
"""Other names that people give settings and their values, fields, answers, options and verbs, as `_folded` writes them,
and the name or names that these are called here; for errors."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """At most so many of the known names that `name` may stand for, the likeliest first."""
    from difflib import get_close_matches  # only errors need it

    folded = {_folded(each): each for each in sorted(known, reverse=True)}
    key = _folded(name)
    for same in (key, *map(_folded, ALIASES.get(key, "").split())):
        if same in folded:
            return [folded[same]]
    long = len(key) > 2
    longer = [each for each in folded if (long and _begins(each, key)) or key in re.split("[_.]", each)[:1]]
    longer = longer or [each for each in folded if long and each.startswith(key)]
    longer.sort(key=lambda each: (not each.endswith("_base"), len(each)))
    return [folded[each] for each in (longer or get_close_matches(key, folded, n=3, cutoff=0.5))[:most]]


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
