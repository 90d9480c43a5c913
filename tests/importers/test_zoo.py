"""The ready models are what the literature says they are."""

import json
import re
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.documents.files import SPECS
from costmodel.errors import UnknownNameError
from costmodel.importers import zoo
from costmodel.importers.files import build, describe
from costmodel.importers.zoo import load
from tests.command import error_of
from tests.importers.published import PARAMS

NAMES = [entry.name for entry in cm.models()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params"), PARAMS.items())
def test_parameters_are_the_published_ones(name: str, params: int) -> None:
    assert cm.predict(name).params == params


@pytest.mark.slow
@pytest.mark.parametrize("entry", cm.models(), ids=lambda entry: entry.name)
def test_every_ready_model_predicts_describes_itself_and_names_its_source(entry) -> None:
    assert entry.params > 0
    assert build(describe(entry.model), "test") == entry.model
    assert entry.model.name
    assert re.search(r"\b(19|20)\d\d\b", entry.notes), "no year of publication"
    for stated in re.findall(r"([\d,]+) parameters", entry.notes):
        assert f"{entry.params:,}" == stated


ROUNDED_PARAMS = {
    "gpt-3-125m": (1e6, 125),
    "gpt-3-175b": (1e9, 175),
    "opt-66b": (1e9, 66),
    "megatron-22b": (1e9, 22),
    "megatron-175b": (1e9, 175),
    "megatron-530b": (1e9, 530),
    "megatron-1t": (1e9, 1008),
    "palm-8b": (1e7, 863),
    "palm-62b": (1e7, 6250),
}
"""Parameters as papers round them: the unit, and how many."""


@pytest.mark.parametrize(("name", "rounded"), ROUNDED_PARAMS.items())
def test_parameters_round_to_the_published_ones(name: str, rounded: tuple[float, int]) -> None:
    unit, number = rounded
    assert round(cm.predict(name, seq=8).params / unit) == number


ACTIVE_PARAMS = {
    "mixtral-8x22b": (1e9, 39),
    "mixtral-8x7b": (1e8, 129),
    "phi-3.5-moe": (1e8, 66),
    "qwen1.5-moe-a2.7b": (1e8, 27),
    "qwen2-57b-a14b": (1e9, 14),
    "qwen3-235b-a22b": (1e9, 22),
}
"""Weights that a token meets, as published: the unit, and how many."""


@pytest.mark.parametrize(("name", "rounded"), ACTIVE_PARAMS.items())
def test_a_token_meets_the_published_part_of_a_mixture(name: str, rounded: tuple[float, int]) -> None:
    unit, number = rounded
    p = cm.predict(name, seq=8)
    assert round(p.active_params / unit) == number
    assert p.active_params < p.params


WITHOUT_EMBEDDING = {
    "deepseek-v2": (1e9, 21),
    "deepseek-v2-lite": (1e8, 25),  # 2.45 billion, which the paper cuts off
    "deepseek-v3": (1e9, 37),
    "gpt-oss-120b": (1e7, 513),
    "gpt-oss-20b": (1e7, 361),
}
"""As above, of cards that leave the token embedding out."""


@pytest.mark.parametrize(("name", "rounded"), WITHOUT_EMBEDDING.items())
def test_a_token_meets_the_published_part_beside_its_embedding(name: str, rounded: tuple[float, int]) -> None:
    unit, number = rounded
    p = cm.predict(name, seq=8)
    assert round((p.active_params - p.layers[0].params) / unit) == number


@pytest.mark.parametrize(
    ("fields", "rows", "said"),
    [
        ({}, 2 * 40, "rows are spread evenly over all experts"),
        ({"experts.imbalance": 3.0}, 2 * 40, "3 experts share all rows, 3 times an even share"),
        ({"experts.capacity_factor": 1.25}, 8 * 13, "computes 13 rows, 1.25 times"),
        ({"experts.capacity_factor": 1.0, "experts.imbalance": 2.0}, 8 * 10, "50.0% of choices are dropped"),
        ({"experts.capacity_factor": 2.0, "experts.imbalance": 2.0}, 8 * 20, "0.0% of choices are dropped"),
    ],
    ids=str,
)
def test_what_is_assumed_of_experts_is_priced_and_said(fields: dict[str, float], rows: int, said: str) -> None:
    p = cm.predict(cm.load("mixtral-8x7b").with_fields(fields), batch=4, seq=10)
    made = {row.name.rpartition(".")[2]: row for row in p.layers if row.kind == "expert_linear"}
    assert made["down"].forward_flops == 32 * 2 * rows * 14336 * 4096
    assert said in " ".join(str(p).split())
    assert said in " ".join(str(p.explain("flops.forward")).split())
    assert said not in str(p.explain("params"))


def test_rows_that_few_experts_share_read_their_weights_alone() -> None:
    model = cm.load("mixtral-8x7b")
    even, uneven = (cm.predict(model.with_fields({"experts.imbalance": n}), batch=4, seq=10) for n in (1.0, 4.0))
    read = [next(row.forward_bytes for row in p.layers if row.name.endswith("experts.up")) for p in (even, uneven)]
    assert read[0] - read[1] == 32 * 4 * 6 * 14336 * 4096
    assert even.flops == uneven.flops
    assert even.memory == uneven.memory


CACHE_OF_A_TOKEN = {"deepseek-v3": 70_272, "qwen2.5-72b": 327_680, "llama-3.1-405b": 516_096}
"""Bytes in bf16 (DeepSeek-AI 2025, Insights into DeepSeek-V3, table 1)."""


@pytest.mark.parametrize(("name", "size"), CACHE_OF_A_TOKEN.items())
def test_decoding_keeps_the_published_bytes_of_each_token(name: str, size: int) -> None:
    p = cm.predict(name, batch=3, seq=7, mode="inference", precision="bf16")
    assert p.memory.cache == 3 * 7 * size
    assert cm.predict(name, batch=3, seq=7, precision="bf16").memory.cache == 0


def test_decoding_keeps_no_more_tokens_than_a_window_has() -> None:
    cached = [cm.predict("gemma-3-1b", seq=seq, mode="inference").memory.cache for seq in (512, 1024)]
    each = 2 * 4 * 256  # key and value of one head, fp32
    assert cached == [26 * 512 * each, (22 * 512 + 4 * 1024) * each]


def test_a_token_meets_every_weight_of_a_dense_model() -> None:
    p = cm.predict("gpt2-small", seq=8)
    assert p.active_params == p.params


@pytest.mark.slow
def test_models_are_found_by_family_and_size() -> None:
    found = cm.models(family="Llama", max_params=8e9)
    assert [entry.name for entry in found] == ["llama-2-7b", "llama-3.2-1b", "llama-3.2-3b", "llama-7b"]
    assert {entry.name for entry in cm.models(family="resnet")} >= {"resnet18", "resnet50"}
    assert all(entry.params >= 10**11 for entry in cm.models(min_params="100B"))
    assert cm.models(family="gpt2", max_params="1.5B", min_params="700M")[0].name == "gpt2-large"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"family": "lama"}, "unknown family 'lama': did you mean 'llama'"),
        ({"max_params": "many"}, "max_params='many' is not a number of parameters"),
        ({"max_params": -1}, "max_params=-1 is not"),
        ({"min_params": float("nan")}, "min_params=nan is not"),
    ],
)
def test_a_wrong_search_is_refused(asked: dict[str, object], said: str) -> None:
    assert said in error_of(lambda: cm.models(**asked))


def test_models_lists_every_spec_once() -> None:
    assert sorted(NAMES) == NAMES
    assert set(NAMES) == {path.stem for path in Path(SPECS).glob("*.yaml")}


def test_what_is_read_of_ready_models_is_what_their_specs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `python -m costmodel.importers.zoo` writes it anew."""
    committed = Path(zoo.READY).read_text(encoding="utf-8")
    monkeypatch.setattr(zoo, "READY", str(tmp_path / "ready.json"))
    zoo.write_ready()
    assert Path(zoo.READY).read_text(encoding="utf-8") == committed
    assert list(json.loads(committed)) == sorted(path.stem for path in Path(SPECS).glob("*.yaml"))


def test_a_ready_model_is_as_if_its_fields_were_checked() -> None:
    for name, fields in json.loads(Path(zoo.READY).read_text(encoding="utf-8")).items():
        del fields["params"]  # of the model, and not of its description
        ready, built = cm.load(name), build(fields, name)
        assert ready == built
        assert repr(ready) == repr(built)  # 0 and 0.0 are equal
        assert ready.model_fields_set == built.model_fields_set


@pytest.mark.parametrize("name", ["gpt2-small", "GPT2-Small", "gpt2_small", "GPT2 small", "gpt2small"])
def test_names_are_read_whatever_their_case_and_hyphens(name: str) -> None:
    assert cm.load(name) is cm.GPT2Small


def test_load_gives_a_model_back_as_it_is() -> None:
    assert cm.load(cm.GPT2Small) is cm.GPT2Small


def test_attributes_are_the_ready_models() -> None:
    ready = [cm.GPT2Small, cm.GPT2Medium, cm.GPT2Large, cm.GPT2XL]
    assert [model.name for model in ready] == ["gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"]


@pytest.mark.parametrize(
    ("name", "near"), [("gpt2-smal", "'gpt2-small'"), ("resnet-51", "'resnet50'"), ("lama-2-7b", "'llama-2-7b'")]
)
def test_an_unknown_model_lists_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        cm.load(name)


def test_a_missing_file_lists_the_nearest_ready_models() -> None:
    with pytest.raises(cm.CostModelError, match=r"no such file: gpt2-smal\.yaml: .*'gpt2-small'"):
        cm.load("gpt2-smal.yaml")


@pytest.mark.parametrize("name", ["stem.txt", "noext"])
def test_a_file_without_a_directory_is_pointed_to(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("architecture: mlp\nsizes: [3, 2]\n")
    assert error_of(lambda: load(name)) == f"{name!r} is no ready model, but a file: use ./{name}"
    assert load(f"./{name}") == cm.MLP(sizes=[3, 2])
    Path("gpt2-small").write_text("a ready model's name is its own")
    assert load("gpt2-small") is cm.load("gpt2-small")


def test_a_directory_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets").mkdir()
    for name in (".", "nets"):
        assert error_of(lambda name=name: load(name)) == f"{name} is a directory: name a model file in it"


QUESTIONS = {
    "predict": lambda over: cm.predict("gpt2", over=over).model,
    "max_batch": lambda over: cm.max_batch("gpt2", "8 GiB", seq=8, over=over).prediction.model,
    "recommend": lambda over: cm.recommend("gpt2", "8 GiB", seq=8, checkpoint="none", over=over).best.prediction.model,
    "checkpoint": lambda over: cm.cheapest_checkpoint("gpt2", "8 GiB", seq=8, over=over) and cm.load("gpt2", over=over),
    "compare": lambda over: cm.compare("gpt2", batch=[1, 2], over=over).predictions[1].model,
    "serve": lambda over: cm.serve("gpt2", on="h100-sxm", input=8, output=8, over=over).model,
    "layouts": lambda over: (
        cm.layouts("gpt2", devices=2, global_batch=2, seq=8, tp=2, runtime="torch", over=over)[0].prediction.model
    ),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_every_question_takes_other_values_for_fields_and_its_title_says_so(ask) -> None:
    model = ask({"layers": 3, "width": 384})
    assert (model.layers, model.width, model.heads) == (3, 384, 12)
    assert model.title == "gpt2-small with layers 3, width 384"
    with pytest.raises(cm.CostModelError, match="unknown field of gpt2-small 'layer': did you mean 'layers'"):
        ask({"layer": 3})


def test_a_model_with_other_fields_costs_what_one_made_so_does() -> None:
    changed = cm.load("mixtral-8x7b", over={"layers": 2, "experts.count": 4})
    made = cm.load("mixtral-8x7b").with_fields({"layers": 2, "experts.count": 4})
    assert cm.predict(changed, seq=8).to_dict()["memory"] == cm.predict(made, seq=8).to_dict()["memory"]
    grid = cm.sweep("gpt2", batch=[1, 2], seq=8, over={"layers": 2}, quantities=["params"])
    assert set(grid["params"].values.tolist()) == {cm.predict("gpt2", over={"layers": 2}).params}
    assert cm.predict("mlp-mnist", over={"sizes": [784, 32, 10]}).params == 784 * 32 + 32 + 32 * 10 + 10


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: cm.predict("gpt2", layers=24), "no setting: use over={'layers': 24} (--over layers=24)"),
        (lambda: cm.predict("gpt2", over={"seq": 8}), "seq is a setting, no field of gpt2-small"),
        (lambda: cm.predict("gpt2", over={"heads": 7}), "heads 7 does not divide width 768"),
        (lambda: cm.predict("mixtral-8x7b", over={"experts.cout": 7}), "did you mean 'experts.count'"),
        (lambda: cm.predict("gpt2", over=3), "over=3 is not a mapping"),
        (lambda: cm.predict("gpt2", over={3: 3}), "unknown field of gpt2-small"),
        (lambda: cm.predict("resnet50", over={"layers": 3}), "unknown field of ResNet-50 'layers'"),
    ],
)
def test_a_field_that_cannot_be_changed_so_is_refused_in_a_line(ask, said: str) -> None:
    assert said in error_of(ask)
