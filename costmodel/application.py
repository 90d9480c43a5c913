"""What all commands of ``costmodel`` share: how their help shows examples, how they print JSON, and their arguments."""

import json
import sys
from typing import Annotated, Any

import typer


def examples(*lines: str) -> str:
    """The end of a command's help; \\b keeps click from filling the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  costmodel {line}" for line in lines)


def json_text(data: Any) -> str:
    """Plain data as JSON, in letters that stdout has."""
    ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
    return json.dumps(data, indent=2, ensure_ascii=ascii_only)


def group() -> typer.Typer:
    """An application of commands that are a part of ``costmodel``."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


Quantity = Annotated[
    str, typer.Argument(metavar="QUANTITY", help="params, flops.forward, memory.activations, memory.peak, ...")
]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Also draw it, as FILE.png, .svg or .pdf.")]
Reserve = Annotated[str, typer.Option(metavar="SIZE", help="Memory to leave for what is not modelled.")]
