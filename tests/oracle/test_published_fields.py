"""Which fields of a published configuration the package's own class of a family reads, and what they change.

A field that the class does not know is idle, so every one that it knows is declared: with what it is, with the values
at which it changes nothing, or as one that no cost depends on.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import SpecError
from costmodel.importers.huggingface.families import FAMILIES
from costmodel.importers.huggingface.fields import FIXED, IDLE, PRECISION
from tests.profiles import examples

from .settings import DRAWN
from .test_published_configs import IN_PACKAGE, LOOPING, counted, on_paper, small_configurations

transformers = pytest.importorskip("transformers")
from huggingface_hub.errors import StrictDataclassError  # noqa: E402
from transformers import CONFIG_MAPPING, cache_utils, masking_utils, modeling_layers  # noqa: E402

pytestmark = pytest.mark.oracle

FOR_ALL = (cache_utils, masking_utils, modeling_layers.GenericForTokenClassification)
"""What of the package serves every family, and reads configurations too."""


def is_config(node: ast.expr) -> bool:
    """Whether an expression is a configuration, by its name."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.endswith("config")


def first_name(call: ast.Call, place: int) -> set[str]:
    """The text at a place of a call's arguments, if it is one."""
    given = call.args[place : place + 1]
    return {node.value for node in given if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@cache
def asked_for(of: Any) -> frozenset[str]:
    """Fields that code asks a configuration for, where it may have none, by `getattr` and `hasattr`.

    Of the configuration's own code also those that it takes out of `kwargs`, as it calls what is given and not its own.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(of)))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and is_config(node.args[0]):
            names |= first_name(node, 1)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "get", "setdefault"):
            from_kwargs = isinstance(node.func.value, ast.Name) and node.func.value.id == "kwargs"
            names |= first_name(node, 0) if from_kwargs and inspect.isclass(of) else set()
    return frozenset(names)


def known(family: str) -> set[str]:
    """Names of fields that the published class of a family knows, in its configuration or in the model made of it."""
    of = CONFIG_MAPPING[family]
    names = {field.name for field in dataclasses.fields(of)} | set(of.attribute_map)
    ancestors = [kind for kind in of.__mro__ if kind.__module__.startswith("transformers.models")]
    model = import_module(getattr(transformers, next(iter(FAMILIES[family].ends))).__module__)
    for reader in (*ancestors, model, *FOR_ALL):
        names |= asked_for(reader)
    return names


UNTOLD = {"model_type", "architectures", "id2label", "num_labels", "_is_quantized", *PRECISION}
"""What is read of every family, and what the package sets itself."""


@pytest.mark.parametrize("family", IN_PACKAGE)
def test_every_field_that_the_published_class_knows_is_declared(family: str) -> None:
    kind = FAMILIES[family]
    declared = {*kind.fields, *kind.fixed, *kind.idle.split(), *kind.other_names, *FIXED, *IDLE, *UNTOLD}
    assert known(family) - declared - {name.split(".")[0] for name in declared} == set()


def test_other_fields_are_refused_where_the_class_comes_with_the_files() -> None:
    assert [name for name, kind in FAMILIES.items() if kind.remote] == [n for n in FAMILIES if n not in IN_PACKAGE]


LEFT_TO_SETTINGS = {"gradient_checkpointing", "dtype", "attn_implementation", "experts_implementation"}
"""Fields that a question's settings say instead."""
BOOKKEEPING = {"architectures", "problem_type", "label2id", "id2label", "return_dict", "transformers_version"}


def others_than(name: str, value: Any) -> list[Any]:
    """Values that a field might have instead, by the type of the one that it has."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value or 2, 0]
    if isinstance(value, float):
        return [0.25, 2.0]
    if isinstance(value, str):
        return ["relu", "silu"] if "act" in name else []
    return [True, 2, 8] if value is None else []


def changed(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A small configuration with another value of one field that the class knows, and perhaps without its lists."""
    config = draw(small_configurations(family))
    if draw(st.booleans()):
        config = {name: value for name, value in config.items() if not isinstance(value, list)}
    made = CONFIG_MAPPING[family](**config)
    values = {name: config.get(name, vars(made).get(name)) for name in known(family)}
    told = LEFT_TO_SETTINGS | BOOKKEEPING
    choices = [
        (name, other)
        for name, value in sorted(values.items(), key=lambda item: item[0])
        if name not in told and not name.startswith("mtp_") and not name.endswith("token_id")
        for other in others_than(name, value)
    ]
    name, other = draw(st.sampled_from(choices))
    return config | {name: other}


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in IN_PACKAGE if name not in LOOPING])
def test_a_field_that_is_changed_is_followed_or_refused(family: str) -> None:
    @examples(max(1, DRAWN // 3))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        try:
            config = data.draw(st.composite(changed)(family))
            said = on_paper(config, 2, 5)
        except (SpecError, StrictDataclassError):
            return
        try:
            cost = counted(config, 2, 5)
        except Exception:
            return
        assert said == cost

    holds()


def test_every_nth_layer_that_attends_is_followed() -> None:
    config = {"model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 16, "num_attention_heads": 2}
    config |= {"num_key_value_heads": 1, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 1, "vocab_size": 20}
    config |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "full_attention_interval": 2}
    made = [on_paper(config | {"full_attention_interval": every}, 1, 3) for every in (2, 4)]
    assert made[0] != made[1]
    assert made[0] == counted(config, 1, 3)
