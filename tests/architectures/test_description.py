"""Parts of a description: dotted names, short spellings, and names that fields had once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import costmodel as cm
from costmodel.architectures.base import Architecture
from costmodel.architectures.parts import Experts, Head, Window
from costmodel.importers.files import describe, read, to_yaml
from tests.command import error_of
from tests.strategies import transformers

SMALL: dict[str, Any] = {"vocab": 9, "context": 8, "layers": 2, "width": 8, "heads": 2}
SPARSE = cm.Transformer(**SMALL, name="sparse", experts={"count": 8, "per_token": 3, "width": 5})
KINDS = (cm.Transformer, cm.VisionTransformer, cm.EncoderDecoder)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_part_says_what_it_is(kind: type[Architecture]) -> None:
    assert kind.parts()
    assert all(kind.field_named(name).description for name in kind.field_names())


@pytest.mark.parametrize("kind", KINDS)
def test_letters_are_of_fields_and_old_names_are_of_none(kind: type[Architecture]) -> None:
    names = set(kind.field_names())
    assert kind.LETTERS.keys() <= names
    assert set(kind.RENAMED.values()) <= names
    assert not kind.RENAMED.keys() & names


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"experts": 4}, {"experts": Experts(count=4)}),
        ({"experts": {"count": 4}}, {"experts": Experts(count=4, per_token=2)}),
        ({"window": 3}, {"window": Window(size=3)}),
        ({"head": True}, {}),
        ({"head": False}, {"head": None}),
        ({"head": {}}, {"head": Head()}),
        ({"positions": "rotary", "rotary": 2}, {"positions": "rotary", "rotary": {"size": 2}}),
        ({"head": False, "pooler": "tanh"}, {"head": False, "pooler": {"activation": "tanh"}}),
    ],
    ids=str,
)
def test_a_part_has_a_short_spelling(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert cm.Transformer(**SMALL, **short) == cm.Transformer(**SMALL, **long)


@pytest.mark.parametrize(
    "fields",
    [
        {"experts": {"count": 4, "pattern": (True, False)}, "window": 3},
        {"head": False},
        {"head": {"bias": True, "logit_cap": 30.0}, "classes": {"count": 3, "dropout": 0.1}, "pooler": "tanh"},
        {"positions": "rotary", "rotary": {"pattern": (True, False)}},
    ],
    ids=str,
)
def test_a_file_gives_back_the_parts(fields: dict[str, Any], tmp_path: Path) -> None:
    model = cm.Transformer(**SMALL, **fields)
    path = tmp_path / "model.yaml"
    path.write_text(to_yaml(model), encoding="utf-8")
    assert read(path) == model
    assert describe(read(path)) == describe(model)


def test_another_value_of_a_part_leaves_the_others() -> None:
    wider = SPARSE.with_fields({"experts.width": 7})
    assert wider.experts == Experts(count=8, per_token=3, width=7)
    assert SPARSE.with_fields({"experts": 16}).experts == Experts(count=16, per_token=3, width=5)
    assert SPARSE.with_fields({"experts": {"count": 16}}).experts == Experts(count=16)
    assert SPARSE.with_fields({"experts": None}).experts is None
    assert cm.Transformer(**SMALL).with_fields({"experts.count": 4}).experts == Experts(count=4)


def small(**fields: Any) -> cm.Transformer:
    return cm.Transformer(**SMALL, **fields)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SPARSE.with_fields({"experts.per_token": 9}), "experts.per_token 9 is more than experts.count 8"),
        (lambda: small(experts={"per_token": 2}), "field experts.count is missing"),
        (lambda: small().with_fields({"experts.width": 2}), "field experts.count is missing"),
        (lambda: small().with_fields({"experts.per_token": 2}), "field experts.count is missing"),
        (lambda: small(experts={"count": 2, "shaers": True}), "experts: unknown field 'shaers': did you mean 'shares'"),
        (lambda: small(experts=0), "experts.count: input should be greater than or equal to 1, not 0"),
        (lambda: small(experts=True), "experts: True is not a value of count or a mapping of count, per_token"),
        (lambda: Experts(count=0), "Experts: count: input should be greater than or equal to 1, not 0"),
        (lambda: small(window={"size": 3, "pattern": 5}), "window.pattern: 5 is not a list: give which blocks"),
        (lambda: small(head=3), "head: 3 is not true, false or a mapping of bias,"),
        (lambda: small(head=False, classes=2).with_fields({"head.bias": True}), "head.bias needs head: true"),
        (lambda: small(rotary=2), "rotary needs positions 'rotary', not 'learned'"),
        (lambda: cm.EncoderDecoder(positions="learned", sound={"mel_bins": 3}), "field sound.places is missing"),
    ],
)
def test_what_is_wrong_in_a_part_is_said_by_its_dotted_name(made: Callable[[], Any], said: str) -> None:
    assert said in error_of(made)


STREAMS: dict[str, Any] = {"altup": 2, "norm_placement": "both", "mlp": "gated"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"altup": 2}, "altup needs norm_placement: 'both'"),
        ({**STREAMS, "residual_dropout": 0.1}, "altup needs residual_dropout: 0.0"),
        ({**STREAMS, "experts": 4}, "altup needs experts: null"),
        ({**STREAMS, "mlp_pattern": (True,)}, "altup needs mlp_pattern: []"),
        ({"shared_kv_layers": 1}, "shared_kv_layers needs fused_qkv: false"),
        ({"disentangled": 3}, "disentangled needs causal: false"),
        ({**STREAMS, "mlp": "plain", "altup": {"sparse_pattern": (True,)}}, "it needs mlp 'gated', not 'plain'"),
        ({"mlp_widths": (3, 4), "mlp_width": 5}, "leave out mlp_width"),
    ],
)
def test_what_a_part_needs_beside_it_is_said_as_a_file_says_it(fields: dict[str, Any], said: str) -> None:
    assert said in error_of(lambda: small(**fields))


@pytest.mark.parametrize("tokens", [-1, 9, 10**9, True, 1.0])
def test_tokens_before_the_patches_are_few(tokens: Any) -> None:
    assert "VisionTransformer: tokens: input should be" in error_of(lambda: cm.VisionTransformer(tokens=tokens))
    assert cm.VisionTransformer(tokens=8).tokens == 8
    assert cm.VisionTransformer(tokens=0, classes=None).tokens == 0


def test_a_part_of_which_nothing_is_said_is_absent() -> None:
    dense = {**SMALL, "experts.shares": False, "experts.width": None, "window.pattern": (), "head.bias": False}
    assert cm.Transformer.of(dense) == small()
    assert cm.Transformer.of({**dense, "head": False}) == small(head=False)
    assert cm.Transformer.of({**dense, "experts": 4}) == small(experts=4)
    assert "field experts.count is missing" in error_of(lambda: cm.Transformer.of({**dense, "experts.width": 3}))


def test_what_is_wrong_in_a_part_is_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(to_yaml(SPARSE).replace("width: 5", "width: 0"), encoding="utf-8")
    line = next(n for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if "width: 0" in text)
    assert f"line {line}: Transformer: experts.width" in error_of(lambda: read(path))


@pytest.mark.parametrize(
    "asked",
    [
        lambda: cm.Transformer(**SMALL, experts=8, experts_per_token=2),
        lambda: cm.Transformer(**SMALL, experts=1, experts_per_token=1),
        lambda: SPARSE.with_fields({"experts_per_token": 2}),
        lambda: cm.sweep(SPARSE, experts_per_token=[1, 2]),
        lambda: cm.compare(SPARSE, experts_per_token=[1, 2]),
        lambda: cm.solve(SPARSE, "params", 10**6, for_="experts_per_token"),
    ],
)
def test_a_name_that_a_field_had_once_leads_to_the_one_it_has(asked: Callable[[], Any]) -> None:
    assert "experts_per_token is now experts.per_token" in error_of(asked)


def test_a_file_with_old_names_is_told_the_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    text = "architecture: encoder_decoder\npositions: learned\nmel_bins: 80\n"
    path.write_text(text, encoding="utf-8")
    assert "line 3: EncoderDecoder: mel_bins is now sound.mel_bins" in error_of(lambda: read(path))


def test_a_sweep_over_a_part_is_many_predictions() -> None:
    counts, chosen, widths = [4, 8, 16], [1, 3], [3, 4]
    axes: dict[str, Any] = {"experts.count": counts, "experts.per_token": chosen, "experts.width": widths}
    found = cm.sweep(SPARSE, quantities=["params", "flops.total"], batch=2, **axes)
    for count in counts:
        for k in chosen:
            for width in widths:
                model = cm.Transformer(**SMALL, experts={"count": count, "per_token": k, "width": width})
                cell = found.sel({"experts.count": count, "experts.per_token": k, "experts.width": width})
                p = cm.predict(model, batch=2)
                assert (int(cell["params"]), int(cell["flops.total"])) == (p.params, p.flops.total)


def test_a_part_is_varied_by_its_own_name() -> None:
    names = ("experts", "experts.count")
    by_part, by_field = (cm.sweep(SPARSE, quantities=["params"], **{name: [4, 8]}) for name in names)
    assert by_part.params.values.tolist() == by_field.params.values.tolist()
    with_and_without = cm.sweep(SPARSE, quantities=["params"], experts=[None, 8])
    dense = cm.Transformer(**SMALL)
    assert with_and_without.params.values.tolist() == [cm.predict(m).params for m in (dense, SPARSE)]


def test_a_size_of_a_part_is_solved_for() -> None:
    found = cm.solve(SPARSE, "params", 10_000, for_="experts.count")
    fits, beyond = (SPARSE.with_fields({"experts.count": found.answer + n}) for n in (0, 1))
    assert cm.predict(fits).params <= 10_000 < cm.predict(beyond).params


def test_explanations_name_the_field_of_a_letter() -> None:
    letters = {d.symbol: d.meaning for d in cm.predict(SPARSE).explain("params").letters}
    assert letters["E"] == "experts.count: experts"
    assert letters["V"] == "vocabulary size"


def varies(model: cm.Transformer, name: str, value: int) -> bool:
    try:
        model.vary(name, value)
    except cm.CostModelError:
        return False
    return True


@pytest.mark.slow
@given(transformers())
def test_the_values_that_are_allowed_are_those_of_which_there_is_a_model(model: cm.Transformer) -> None:
    shape = model.batch_shape(1, 1, None)
    present = [name for name in model.LETTERS if model.value(name) is not None]
    for name in present:
        values = model.allowed(name, shape).values
        assert [n for n in values[:40] if n <= 20] == [n for n in range(1, 21) if varies(model, name, n)], name
        assert model.vary(name, model.size(name)) == model


def test_experts_in_groups_are_solved_for_in_steps() -> None:
    found = cm.solve("deepseek-v3", "params", 700e9, for_="experts.count")
    assert found.answer == 264  # 671.0 G at 256, and 2.55 G for each more
    assert found.value <= 700e9
    assert found.past_value is not None
    assert found.past_value > 700e9


def test_fields_of_a_model_from_a_file_make_another(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(to_yaml(cm.load("mlp-mnist")), encoding="utf-8")
    model = cm.load(path)
    assert model.file == str(path)
    assert type(model)(**dict(model)) == model
