"""A prediction as a report: its tables of numbers, and the conventions behind them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from costmodel.cost.costs import OWN_STRETCHES, Costs
from costmodel.cost.question import question
from costmodel.cost.ranks import WIRE, beside_model, label, whose
from costmodel.cost.remedies import in_words, lighter, remedies, scores_lead
from costmodel.cost.rows import Row, miscount
from costmodel.display.table import Marked, Table, TextRow, narrowed, printable, styled, wrapped
from costmodel.display.units import show_bytes, show_count, show_exact, show_flops, show_share
from costmodel.documents.arguments import fits
from costmodel.errors import SettingError, shown
from costmodel.graph.tensor import show_shape
from costmodel.layers.attention import FusedAttention

if TYPE_CHECKING:
    from costmodel.training.optimizers import Optimizer
    from costmodel.training.precision import Precision
    from costmodel.training.settings import CacheName, Settings


def conventions(p: Costs) -> list[tuple[str, str]]:
    """The conventions in force, as (topic, sentence)."""
    settings = p.settings
    rule = "as PyTorch's FlopCounterMode counts them" if settings.flop_rule == "pytorch" else "by plain arithmetic"
    sentences = [
        (
            "FLOPs",
            f"a multiply-add is 2; contractions (matrix products, convolutions, attention) {rule}; all other "
            "arithmetic is pointwise, on its own line",
        ),
    ]
    if p.rank is not p:
        sentences += [("collectives", WIRE)] if p.collectives.calls else []
        sentences += [("note", sentence) for sentence in remedies(p)]
        sentences += [("beside", str(p.driver))] if settings.device == "gpu" else []
    if settings.training:
        sentences += _training(p)
    if p.model.HAS_ATTENTION:
        sentences.append(("attention", _ATTENTION[settings.attention] + _PAIRS[settings.attention_pairs]))
        if settings.attention == "flash" and any(
            isinstance(call.layer, FusedAttention) and call.x.dtype == "fp32" for call in p.tape.root.calls()
        ):
            sentences.append(("note", _FLASH_IN_FP32))
    sentences += [("note", sentence) for sentence in forced(settings)]
    if settings.implementation != "plain":
        sentences.append(("implementation", _implementation(p)))
    if settings.keeps:
        pages = f" of {settings.page_size} tokens" if settings.cache == "paged" else ""
        kept = "" if settings.cache_dtype is None else f"; kept in {settings.cache_dtype}"
        latent = f"; latent attention: {settings.latent_attention}" if p.model.size("latent.width") else ""
        sentences.append(("cache", _CACHES[settings.cache] + pages + kept + latent))
    sentences += p.model.assumptions(p.batch_shape)
    if settings.layout.ep > 1:
        sentences.append(("ep", _EVEN if p.model.value("experts.imbalance") == 1 else _UNEVEN))
    sentences.append(("precision", _sourced(settings.policy)))
    if settings.allocator == "cuda":
        sentences.append(("allocator", _CUDA))
    return [
        *p.model.caveats,
        *sentences,
        (
            "layers",
            f"{'' if p.rank is p else 'of the whole model, as one device has them; '}a row counts all its repeats, and "
            "rows add up to the totals; weights and activations are counted once, where they first occur; forward and "
            "backward are FLOPs; FLOP/B is forward FLOPs a byte of inputs, weights and outputs, each moved once",
        ),
        ("units", "bytes binary (1 GiB = 2^30 B), FLOPs and counts decimal (1 T = 10^12)"),
    ]


def forced(settings: Settings) -> list[str]:
    """What a runtime takes in one way alone, whatever was asked for, in words."""
    return [_FORCED[name].format(getattr(settings, name)) for name in settings.forced]


def _implementation(p: Costs) -> str:
    """Who writes the model so, and in training how much more is kept than of the same model plainly written."""
    rule = (
        f"norms, activations, masks, positions and the loss's type as the package {p.settings.implementation} has them"
    )
    if not p.settings.training:
        return rule
    own = p.memory.activations
    plain = Costs(p.model, replace(p.settings, implementation="plain")).memory.activations
    return f"{rule}: it keeps {own / plain:.3g} times the {show_bytes(plain)} of activations of the plain composition"


def _training(p: Costs) -> list[tuple[str, str]]:
    settings = p.settings
    loss = p.model.default_loss if settings.loss == "default" else settings.loss
    saved = f"with what the loss ({loss}) keeps" if loss else "loss left out"
    return [
        ("backward", "weight gradients and input gradients, as autograd runs them: none for an input that needs none"),
        (
            "activations",
            f"what PyTorch's eager autograd keeps for backward on a {settings.device.upper()}, {saved}; "
            "each memory once, without weights, buffers and inputs",
        ),
        ("optimizer", _sourced(settings.states) + _UPDATES[settings.update]),
        *([("checkpointing", _checkpointing(p.recomputed))] if p.recomputed != "none" else []),
    ]


def _checkpointing(checkpoint: str | int | tuple[str, ...]) -> str:
    if isinstance(checkpoint, tuple):
        which = ", ".join(checkpoint)
    else:
        which = f"every {checkpoint} blocks" if isinstance(checkpoint, int) else checkpoint
    rerun = "what backward needs of it" if checkpoint in (OWN_STRETCHES, "operators") else "the whole of it"
    results = "its inputs and results of some operators" if checkpoint == "operators" else "its inputs"
    return (
        f"{which}: of each recomputed stretch {results} are kept, and {rerun} is run again in backward "
        "(torch.utils.checkpoint); hardware FLOPs are model FLOPs and recomputed ones"
    )


def _sourced(declared: Precision | Optimizer) -> str:
    return f"{declared.name}: {declared.source}" if declared.source else declared.name


_UPDATES = {"loop": "", "foreach": "; all weights at once (foreach)", "fused": "; all weights in one kernel (fused)"}
_CUDA = (
    "PyTorch's CUDA caching allocator: the peak counts blocks, multiples of 512 B; reserved is what its segments take "
    "(2 MiB for tensors up to 1 MiB, 20 MiB up to 10 MiB, else their own) when one step is replayed; all other lines "
    "are exact"
)
_ATTENTION = {
    "eager": "eager, the scores are stored",
    "flash": "flash, the scores are never stored",
    "efficient": "memory-efficient kernel, the scores are never stored",
}
_EVEN = (
    "loads are taken as equal: each rank gets as many rows as it sends; experts.imbalance of the model asks for the "
    "rank with the busiest experts"
)
_UNEVEN = "the rank is the one with the busiest experts (experts.imbalance); each sends as many rows"
_FLASH_IN_FP32 = (
    "PyTorch has FlashAttention kernels for fp16 and bf16 only; in fp32 scaled_dot_product_attention runs the "
    "memory-efficient one: attention='efficient'"
)
_FORCED = {
    "sp": "runtime='megatron' takes tp beside ep with sp=True alone (ModelParallelConfig), so sp is {}",
    "attention": "runtime='megatron' takes cp with fused attention alone (TEDotProductAttention): it is {!r} here, and "
    "'flash' where 'eager' is asked for",
}
_CACHES: dict[CacheName, str] = {
    "dynamic": "dynamic, as DynamicCache of transformers: each layer's is copied to grow it, the old one freed after "
    "that; with a window what the last pass saw stays in memory",
    "static": "static: memory for all tokens up to those of this pass, written in place",
    "paged": "paged (Kwon et al. 2023): written in place, in whole pages",
}
_PAIRS = {"full": "; FLOPs of the full square of positions", "visible": "; FLOPs of visible positions only"}


MOST_ROWS = 60
"""More layers than this are shown by scope; `Prediction.layers` always has each."""


def text(p: Costs, depth: int | None = None, shapes: bool = False, seconds: str = "") -> str:
    """The whole report as aligned plain text, without a final newline; `depth` and `shapes` as `Prediction.report`.

    seconds: what a step takes on a machine, in words.
    """
    first, *others = filter(None, [headline(p), verdict(p), seconds, plainness(p)])
    head = [styled(narrowed(first), "strong"), *map(narrowed, others)]
    parts = ["\n".join(head), *(table.text() for table in tables(p, depth, shapes))]
    parts[-1] += "".join("\n" + wrapped(note) for note in footnotes(p))
    sentences = [wrapped(printable(f"{topic}: {sentence}"), "  ") for topic, sentence in conventions(p)]
    return "\n\n".join([*parts, "\n".join(sentences)])


def html(p: Costs) -> str:
    """The same for a notebook. Everything is escaped; colours are the page's own, so that it reads in dark mode."""
    from html import escape

    drawn = "".join(table.html() for table in tables(p))
    notes = "".join(f"<p>{escape(note)}</p>" for note in footnotes(p))
    items = "".join(f"<li><b>{escape(topic)}</b>: {escape(sentence)}</li>" for topic, sentence in conventions(p))
    details = f"<details><summary>Conventions</summary><ul>{items}</ul></details>"
    others = "".join(f"<br>{escape(line)}" for line in filter(None, [verdict(p), plainness(p)]))
    head = f"<p><b>{escape(headline(p))}</b>{others}</p>"
    return f'<div style="overflow-x:auto">{head}{drawn}{notes}{details}</div>'


def headline(p: Costs) -> str:
    """The question in one line: the model and how it is run."""
    return question(p.model, p.settings)


def verdict(p: Costs) -> str:
    """What most people ask first, in one line."""
    flops = f"{show_flops(p.flops.hardware)} a step" if p.settings.training else show_flops(p.flops.forward)
    layout = p.settings.layout
    samples = f" for each of {layout.samplers:,} batches" if layout.samplers > 1 else ""
    where = f" on {whose(p.rank)}" if layout.devices > 1 else ""
    return f"{show_count(p.params)} parameters, {flops}{samples}, peak {show_bytes(p.memory.peak)}{where}"


def plainness(p: Costs) -> str:
    """What a step needs without stored scores, where these lead its peak; "" elsewhere."""
    less = [(words, peak) for words, peak in lighter(p) if "mode" not in words] if scores_lead(p) else []
    return in_words(less) if less else ""


def tables(p: Costs, depth: int | None = None, shapes: bool = False) -> list[Table]:
    """Totals, memory and layers."""
    return [_arithmetic(p), *_of_rank(p), _memory(p), *_sent(p), _layers(p, depth, shapes)]


def _of_rank(p: Costs) -> list[Table]:
    """On many devices the ranks that differ, and what the heaviest has and does beside the whole model."""
    if p.rank is p:
        return []
    differing = [p.ranks.table()] if len(p.ranks) > 1 else []
    return [beside_model(p), *differing]


def _sent(p: Costs) -> list[Table]:
    return [p.collectives.summary()] if p.collectives.calls else []


def _arithmetic(p: Costs) -> Table:
    rows: list[TextRow] = [("params", show_count(p.params), show_exact(p.params), "")]
    if p.settings.training and p.trainable_params != p.params:
        rows.append(("trained", show_count(p.trainable_params), show_exact(p.trainable_params), ""))
    if p.active_params != p.params:
        rows.append(("active", show_count(p.active_params), show_exact(p.active_params), ""))
    passes = ["forward", "backward", "total"] if p.settings.training else ["forward"]
    passes += ["recomputed", "hardware"] if p.flops.recomputed or p.pointwise_flops.recomputed else []
    for name in passes:
        flops, pointwise = getattr(p.flops, name), getattr(p.pointwise_flops, name)
        rows.append((f"FLOPs {name}", show_flops(flops), show_exact(flops), show_flops(pointwise)))
    if p.settings.keeps:
        moved = {"weights": "weights read", "kv_read": "cache read", "kv_written": "cache written"}
        sizes = {label: getattr(p.traffic, name) for name, label in moved.items()} | {
            "cache a token": p.kv_bytes_per_token
        }
        rows += [(label, show_bytes(size), show_exact(size), "") for label, size in sizes.items()]
    return Table(("Totals", "", "exact", "pointwise, apart"), rows)


def _memory(p: Costs) -> Table:
    remarks = {
        "masters": "the optimizer's copies of the weights",
        "optimizer": printable(p.settings.states.describe()) if p.settings.training else "",
        "counters": "its scalars, on the host",
        "host": "offloaded, not on the device",
        "casts": "weights kept in the precision of the products",
        "inputs": "inputs and targets",
        "activations": "kept for backward",
        "temporaries": "the most at any moment",
        "peak": "the most alive at once, not the sum",
        "reserved": "segments that hold it, replayed",
        "cache": "what decoding keeps of tokens" + ("" if p.settings.keeps else ", beside the peak"),
    }
    lines = {name: getattr(p.memory, name) for name in type(p.memory).__dataclass_fields__}
    unused = () if p.settings.training else ("gradients", "optimizer", "counters", "activations")
    for name in ("masters", "casts", "cache", "host", *unused):  # a precision or mode that has none says so by its name
        if not lines[name]:
            del lines[name]
    if p.settings.allocator == "cuda":
        remarks["peak"] = "the most given out at once, in blocks of 512 B"
        lines["reserved"] = p.reserved
    used = (
        sum(kept.used_bytes * kept.storage.times for kept in p.rank.tape.cached) if p.settings.keeps else p.memory.cache
    )
    if used != p.memory.cache:
        remarks["cache"] = "what storages hold of tokens"
        remarks["cache used"] = "of it, what the next token attends to"
        lines["cache used"] = used
    rows = [(name, show_bytes(size), show_exact(size), remarks.get(name, "")) for name, size in lines.items()]
    rows = [tuple(Marked(cell, "strong") for cell in row) if row[0] == "peak" else row for row in rows]
    whole = p.settings.layout.devices == 1
    title = "Memory" if whole else f"Memory, {label(p.rank)}"
    return Table((title, "", "exact bytes", ""), rows, words=frozenset({0, 3}), worth=("", "exact bytes"))


def _layers(p: Costs, depth: int | None, shapes: bool) -> Table:
    columns = [column for column in COLUMNS if p.settings.training or not column.of_training]
    if all(row.repeat == 1 for row in p.layers):
        columns = [column for column in columns if column.header != "×"]
    if shapes:
        shapes_by_name = {call.name: show_shape(call.y.shape) for call in p.tape.root.calls()}
        columns.insert(2, Column("output", lambda row, _: shapes_by_name.get(row.name, "")))
    total = merged("total", p.layers)
    costly = [row for row in p.layers if not is_free(row)]
    rows = [*(by_scope(costly) if depth is None else parts_of(costly, depth)), total]
    header = [column.header for column in columns]
    cells = [[column.cell(row, total) for column in columns] for row in rows]
    return Table(header, cells, words=frozenset({0, 1}), total=True, worth=WORTH)


class Column(NamedTuple):
    """A column of the table of layers: its heading, and its cell for a row beside the total."""

    header: str
    cell: Callable[[Row, Row], str]
    of_training: bool = False


COLUMNS = (
    Column("layer", lambda row, _: printable(row.name)),
    Column("kind", lambda row, _: row.kind),
    Column("×", lambda row, _: f"{row.repeat:,}"),
    Column("params", lambda row, _: _or_dash(show_count, row.params)),
    Column("forward", lambda row, _: _or_dash(show_count, row.forward_flops)),
    Column("share", lambda row, total: show_share(row.forward_flops, total.forward_flops)),
    Column("backward", lambda row, _: _or_dash(show_count, row.backward_flops), True),
    Column("activations", lambda row, _: _or_dash(show_bytes, row.activation_bytes), True),
    Column("share", lambda row, total: show_share(row.activation_bytes, total.activation_bytes), True),
    Column("FLOP/B", lambda row, _: f"{row.intensity:.1f}" if row.forward_flops else "-"),
)
WORTH = ("params", "forward", "activations", "×", "output", "backward")
"""Of columns on a narrow page: the rest says again what others do."""


def _or_dash(show: Callable[[int], str], value: int) -> str:
    return show(value) if value else "-"


def is_free(row: Row) -> bool:
    """Whether a layer computes, stores, keeps and moves nothing; what computes forward moves what it computes."""
    return not (row.params or row.backward_pointwise_flops or row.activation_bytes or row.forward_bytes)


def by_scope(rows: list[Row]) -> list[Row]:
    """`rows`, or where there are more than `MOST_ROWS` their sums over the deepest scopes that are few enough."""
    groups: list[list[Row]] = [[row] for row in rows]
    depth = max((row.name.count(".") for row in rows), default=0)
    while len(groups) > MOST_ROWS and depth > 0:
        scopes: dict[str, list[Row]] = {}
        for row in rows:
            scopes.setdefault(_scope(row, depth), []).append(row)
        groups = list(scopes.values())
        depth -= 1
    return [group[0] if len(group) == 1 else merged(_scope(group[0], depth + 1), group) for group in groups]


def parts_of(rows: list[Row], depth: int) -> list[Row]:
    """Sums of `rows` over scopes `depth` levels down. Raises SettingError unless that is a whole number from 1."""
    if not fits(depth, int):
        raise SettingError(f"depth={shown(depth)} is not a whole number of levels: use 1 for the parts of the model")
    scopes: dict[str, list[Row]] = {}
    for row in rows:
        scopes.setdefault(_scope(row, depth), []).append(row)
    return [group[0]._replace(name=name) if len(group) == 1 else merged(name, group) for name, group in scopes.items()]


def _scope(row: Row, depth: int) -> str:
    return ".".join(row.name.split(".")[:depth])


def merged(name: str, rows: list[Row]) -> Row:
    """Several rows as one that is their sum, with a multiplicity if they all have the same."""
    repeats = {row.repeat for row in rows}
    repeat = repeats.pop() if len(repeats) == 1 else 1
    layers = sum(row.repeat for row in rows) // repeat
    figures = {f: sum(getattr(row, f) for row in rows) for f in _FIGURES}
    return Row(name=name, kind=_layer_count(layers), repeat=repeat, **figures)


def _layer_count(layers: int) -> str:
    return f"{layers:,} layer{'s' * (layers != 1)}"


_FIGURES = [name for name in Row._fields if name not in ("name", "kind", "repeat")]


def footnotes(p: Costs) -> list[str]:
    """What the table of layers leaves out, and where counted FLOPs are not what arithmetic says."""
    notes: list[str] = []
    free: Counter[str] = Counter()
    for row in filter(is_free, p.layers):
        free[row.kind] += row.repeat
    if free:
        listed = ", ".join(f"{kind} ×{times}" for kind, times in free.items())
        notes.append(f"without cost, and so without a line: {_layer_count(free.total())} ({listed})")
    if more := p.settings.micro_batches * miscount(p.tape):
        plain = p.flops.total - (more if p.settings.flop_rule == "pytorch" else 0)
        notes.append(
            "FlopCounterMode takes the weight gradient of a grouped convolution for that of a dense one: it counts "
            f"{show_flops(plain + more)} in all; by arithmetic it is {show_flops(plain)} ({show_exact(plain)})"
        )
    return notes
