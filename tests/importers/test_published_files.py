"""Every ready model whose configuration is published is what that file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import costmodel as cm
from costmodel.importers.files import build

FILE = Path(__file__).parent / "published.yaml"
PUBLISHED: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
PUBLISHED.pop("shared")

NAMES = [entry.name for entry in cm.models()]

UNPUBLISHED = {
    *("chinchilla-70b", "gopher-280b", "opt-175b"),
    *(name for name in NAMES if name.startswith(("gpt-3-", "megatron-", "palm-"))),
    *("phi-3-small",),  # by code of its own
    *("vit-h-14", "vit-s-16", "vit-s-32", "vit-ti-16"),  # as weights of other libraries
}
"""Ready transformers of which there is no such file."""


def transformers() -> set[str]:
    """Ready models that are transformers of any kind, and not the part of one that another name has whole."""
    kinds = {name: type(cm.load(name)).__name__ for name in NAMES}
    return {name for name, kind in kinds.items() if kind not in ("CNN", "MLP") and not name.endswith("-encoder")}


def test_every_ready_model_has_its_file() -> None:
    assert transformers() - UNPUBLISHED == set(PUBLISHED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_the_ready_model(name: str) -> None:
    read, ready = build(PUBLISHED[name], name), cm.load(name)
    assert read.notes.startswith("Read from a published configuration of model_type ")
    costs = [(p.params, p.flops.forward, p.flops.total) for p in map(cm.predict, (read, ready))]
    assert costs[0] == costs[1]
