"""The table of settings: ``python -m tests.training.settings_page > docs/reference/settings.md``."""

from __future__ import annotations

from typing import Any

from costmodel.training.setting import Need, Setting
from costmodel.training.settings import FORMS, SETTINGS

HEAD = """# Settings

What `predict` and every other question take by keyword, and a shell as `--name` (`loss_chunks` as `--loss-chunks`). A
list is several values: what `sweep`, `recommend` and `layouts` go through. Declarations (`Optimizer`, `Precision`,
`Stack`, `Machine`) may be given by name, as objects, as mappings of their fields, or as YAML or JSON files of them:
[optimizers and precisions](optimizers-and-precisions.md), [machines](../how-to/own-machine.md). Fields of the model are
no settings: `over` [changes them](../how-to/change-a-model.md).

Parts are named as rows of the table of layers are, or by the end of such a name (`mlp`, `mlp.up`); without a number,
all of them are meant (`conv`, `hidden`), and without the number of a round all rounds. Modules of an imported model go
by their paths too (`layers.2.mlp`). What a rank holds and sends under each `runtime`:
[PyTorch](../explanation/runtime-torch.md), [Megatron-Core](../explanation/runtime-megatron.md),
[DeepSpeed](../explanation/runtime-deepspeed.md).

Written by `python -m tests.training.settings_page`.

:::{container} settings

| setting | values | default | what it is |
|---|---|---|---|
"""
NEEDS: dict[Need, str] = {
    "": "",
    "attention": "Of models with attention.",
    "cache": "Of `prefill` and `decode`.",
    "training": "Of training.",
    "modules": "Of models of `from_torch`.",
}


def values(setting: Setting) -> str:
    """What a setting takes: the names that it may be, and else the kinds of values."""
    kinds = [FORMS[each].words for each in setting.options if each in FORMS]
    if setting.declaration is not None:
        kinds.append(f"a declaration (`{setting.declaration.__name__}`)")
    example = "" if setting.choices or bool in setting.options else f", such as {code(setting.example)}"
    return ", ".join([*map(code, setting.choices), *kinds]) + example


def code(value: Any) -> str:
    """A value as it is typed: a name bare, all else as Python has it."""
    return f"`{value}`" if isinstance(value, str) else f"`{value!r}`"


def default(setting: Setting) -> str:
    """The default where it is a value; what stands for one is said by the text."""
    return "" if setting.default in (None, "default", ()) else code(setting.default)


def row(setting: Setting) -> str:
    """A line of the table."""
    meaning = " ".join(part for part in (setting.text, setting.detail, NEEDS[setting.needs]) if part)
    return f"| `{setting.name}` | {values(setting)} | {default(setting)} | {meaning} |\n"


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(row, SETTINGS.values())) + "\n:::\n"


if __name__ == "__main__":
    print(page(), end="")
