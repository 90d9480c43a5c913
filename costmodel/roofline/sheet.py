"""A check as people read it: layers, totals, how far predictions are off, and what a faster kind would buy."""

from __future__ import annotations

from html import escape
from textwrap import fill
from typing import TYPE_CHECKING

from costmodel.cost.report import headline as question
from costmodel.display.table import WIDTH, Cells, Table, printable
from costmodel.display.units import show_bytes, show_count, show_rate, show_seconds, show_share
from costmodel.roofline.hosttime import LEVELS

if TYPE_CHECKING:
    from costmodel.roofline.findings import Check, Finding

MOST_ROWS = 60
"""Of more layers than this only those that take longest have a line; `Check.layers` always has each."""
TOP = 5

NOTES = (
    "layers: each alone, a row all its repeats; bytes are compulsory (inputs, weights and outputs moved once)"
    " and NumPy's own passes; FLOP/B is operations of both sorts a compulsory byte",
    "times: CPU time of one thread, the fastest of all samples; ± is half its 95 % interval;"
    " off is predicted over measured, less one",
    "rates: what was achieved, of the fastest product; GB/s of NumPy's passes, which caches serve faster than memory",
    "bound by: the model's terms; measured, by changing one thing at a time; textbook, intensity against the ridge;"
    " ? is too close to call",
)


def headline(check: Check) -> str:
    """What was asked, in one line."""
    state = f"cold ({show_bytes(check.reuse_bytes)} between two runs)" if check.reuse_bytes else "warm"
    return f"{question(check.prediction)}, {state}, held against the clock"


def text(check: Check) -> str:
    """All of it as aligned plain text, without a final newline."""
    head = "\n".join([headline(check), str(check.calibration.machine), *(f"warning: {w}" for w in check.warnings)])
    said = "\n".join(fill(note, WIDTH, subsequent_indent="  ") for note in [*_left_out(check), *NOTES])
    return "\n\n".join([head, *(table.text() for table in tables(check)), said])


def html(check: Check) -> str:
    """The same for a notebook or a page; everything is escaped, colours are the page's own."""
    head = f"<p><b>{escape(headline(check))}</b><br>{escape(str(check.calibration.machine))}</p>"
    warned = "".join(f"<p><b>warning:</b> {escape(warning)}</p>" for warning in check.warnings)
    shown = "".join(table.html() for table in tables(check))
    notes = "".join(f"<li>{escape(note)}</li>" for note in [*_left_out(check), *NOTES])
    return f'<div style="overflow-x:auto">{head}{warned}{shown}<ul>{notes}</ul></div>'


def tables(check: Check) -> list[Table]:
    """Layers, how far predictions are off, what takes longest, and what bounds layers if that was measured."""
    found = [_layers(check), _errors(check), _gains(check)]
    return [*found, _agreement(check)] if check.agreement.pairs else found


def _layers(check: Check) -> Table:
    header = ("layer", "kind", "FLOPs", "bytes", "NumPy's", "FLOP/B", "predicted", "measured", "±", "off")
    header += ("FLOP/s", "of peak", "GB/s", "bound by model", "measured", "textbook", "share")
    shown = _shown(check)
    rows: list[Cells] = [_row(check, layer) for layer in shown]
    if others := [layer for layer in check.layers if layer not in shown]:
        rows.append(_sum(check, others, f"{len(others)} others"))
    rows.append(_sum(check, list(check.layers), "total"))
    return Table(header, rows, words=frozenset({0, 1, 13, 14, 15}), total=True)


def _shown(check: Check) -> list[Finding]:
    """In the order of the model."""
    longest = {id(layer) for layer in check.top(MOST_ROWS)}
    return [layer for layer in check.layers if id(layer) in longest]


def _row(check: Check, layer: Finding) -> Cells:
    low, high = layer.measured_interval
    name = printable(layer.name) + (" (backward)" if layer.phase == "backward" else "")
    measured = layer.measured_class
    return (
        name,
        f"{layer.kind} ×{layer.repeat}" if layer.repeat > 1 else layer.kind,
        show_count(layer.arithmetic) if layer.arithmetic else "-",
        show_bytes(layer.compulsory_bytes),
        show_bytes(layer.numpy_bytes),
        f"{layer.intensity:.2f}" if layer.arithmetic else "-",
        show_seconds(layer.predicted_seconds),
        show_seconds(layer.measured_seconds),
        f"{(high - low) / 2 / layer.measured_seconds:.1%}",
        f"{layer.error:+.1%}",
        show_rate(layer.flops_per_second) if layer.arithmetic else "-",
        f"{layer.flops_per_second / check.peak:.1%}" if layer.arithmetic else "-",
        f"{layer.bytes_per_second / 1e9:.1f}",
        str(layer.predicted_class),
        "-" if measured is None else str(measured),
        str(layer.textbook_class),
        f"{check.share(layer):.1%}",
    )


def _sum(check: Check, layers: list[Finding], name: str) -> Cells:
    arithmetic, compulsory, numpy = (
        sum(getattr(layer, field) for layer in layers) for field in ("arithmetic", "compulsory_bytes", "numpy_bytes")
    )
    predicted, measured = (sum(getattr(f, name) for f in layers) for name in ("predicted_seconds", "measured_seconds"))
    return (
        name,
        f"{sum(layer.repeat for layer in layers):,} runs",
        show_count(arithmetic),
        show_bytes(compulsory),
        show_bytes(numpy),
        f"{arithmetic / compulsory:.2f}" if compulsory else "-",
        show_seconds(predicted),
        show_seconds(measured),
        "",
        f"{predicted / measured - 1:+.1%}",
        show_rate(arithmetic / measured),
        f"{arithmetic / measured / check.peak:.1%}",
        f"{numpy / measured / 1e9:.1f}",
        "",
        "",
        "",
        f"{measured / check.measured_seconds:.1%}" if len(layers) < len(check.layers) else "100%",
    )


def _errors(check: Check) -> Table:
    header = (f"Error by level {check.level}: {LEVELS[check.level]}", "median", "p90", "worst", "R² log")
    counted = len({layer.program for layer in check.layers})
    return Table(header, [(f"{len(check.layers)} layers, {counted} measured", *check.errors.cells())])


def _gains(check: Check) -> Table:
    whole = int(1e12 * check.measured_seconds)
    rows = [
        (
            gain.kind,
            show_seconds(gain.seconds),
            show_share(int(1e12 * gain.seconds), whole),
            f"{gain.twice:.2f}×",
            "∞" if gain.share == 1 else f"{gain.limit:.2f}×",
        )
        for gain in check.gains[:TOP]
    ]
    return Table(("If one kind were faster", "time", "share", "twice as fast: all", "at most"), rows)


def _agreement(check: Check) -> Table:
    asked = {"the model": check.agreement, "intensity against the ridge": check.textbook_agreement}
    rows = [(name, str(len(found.pairs)), f"{found.share:.0%}", f"{found.kappa:.2f}") for name, found in asked.items()]
    return Table(("What bounds a layer, by", "layers", "agree", "kappa"), rows)


def _left_out(check: Check) -> list[str]:
    return [f"without a call, and so without a line: {len(check.idle)} views and the like"] if check.idle else []
