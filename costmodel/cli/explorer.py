"""``costmodel explore``."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread
from typing import Any

import click

from costmodel.cli.commands import Reply, counted, option, verb
from costmodel.cli.options import AXES, OVER
from costmodel.errors import SettingError, shown


def end_with_parent() -> None:
    """Let a worker end when the process that started it does, however that is."""
    parent = parent_process()
    assert parent is not None

    def wait_for_end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait_for_end, daemon=True).start()


OBJECTS = 1_000_000
"""More than there were that garbage in cycles is searched for at: few of a page's many objects are."""


@contextmanager
def _workers() -> Iterator[ProcessPoolExecutor | None]:
    """A worker for each core; None where the system lets there be none, as without shared memory."""
    thresholds = gc.get_threshold()
    gc.set_threshold(OBJECTS, *thresholds[1:])  # which workers start with
    try:
        try:
            workers = ProcessPoolExecutor(os.cpu_count(), initializer=end_with_parent)
        except (OSError, ImportError):
            yield None
            return
        with workers:
            yield workers
    finally:
        gc.set_threshold(*thresholds)


@verb(
    click.Argument(
        ["models"],
        nargs=-1,
        required=False,
        metavar="[MODEL...]",
        help="Ready models' names, or paths of YAML or JSON files.",
    ),
    option("--out", metavar="FILE", default="explorer.html", help="The page to write; with --all-ready a folder."),
    option("--all-ready", is_flag=True, help="A site: a page for every ready model, and one that leads to them."),
    OVER,
    *AXES,
    examples=(
        "explore gpt2-small --out gpt2.html",
        "explore gpt2-small llama-3.1-8b --out page.html --precision bf16,bf16-autocast --batch 1:256",
        "explore llama-3.1-8b --devices 64 --out layouts.html",
        "explore --all-ready --out site --on h100-sxm",
        "explore my-model.yaml --over width=256:4096 --optimizer adamw,muon --checkpoint none,block",
    ),
)
def explore(models: tuple[str, ...], out: str, all_ready: bool, settings: dict[str, Any]) -> Reply:
    """A page for a browser: sliders for every size, and at once parameters, FLOPs, memory, layers and their formulas.

    It is one file, works without a server or a network, and gives the numbers of predict. Several values of a setting
    are a slider or a choice of the page, one value holds for all of it; --devices has sliders for the degrees of a
    layout over at most so many, with memory of every rank, what is sent and a pipeline's bubble.
    """
    from costmodel.explorer.page import explore as explored

    if all_ready:
        from costmodel.explorer.site import explore_ready

        if models:
            raise SettingError(f"--all-ready is of all ready models: leave {shown(models[0])} out, or the flag")
        folder = "explorer" if out == "explorer.html" else out
        with _workers() as executor, counted("models") as progress:
            site = explore_ready(folder, executor=executor, progress=progress, **settings)
        return Reply(site.to_dict(), str(site))
    with _workers() as executor, counted("combinations of choices") as progress:
        page = explored(*models, out=out, executor=executor, progress=progress, **settings)
    return Reply({"path": out, **page.to_dict()}, f"{out}: {page}")
