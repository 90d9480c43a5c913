"""Settings as an editor, a notebook and a type checker see them."""

import doctest
import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from click import Context

import costmodel as cm
from costmodel.analysis.gpus import OfferOrder
from costmodel.cli.commands import costmodel
from costmodel.errors import ALIASES
from costmodel.importers.files import settings_of
from costmodel.training.optimizers import OPTIMIZERS, OptimizerName
from costmodel.training.precision import PRECISIONS, PrecisionName
from costmodel.training.settings import SETTING_NAMES, SETTINGS, Settings
from tests.command import error_of

SCRIPTS = Path(__file__).parents[1] / "typing"
WITHOUT = {"max_batch": "batch", "max_seq": "seq", "cheapest_checkpoint": "checkpoint", "execute": "update"}
"""The setting that a verb finds or has a parameter of its own for."""
VERBS = [
    *(cm.predict, cm.compare, cm.solve, cm.max_batch, cm.max_seq, cm.max_layers, cm.max_width, cm.break_even),
    *(cm.sensitivity, cm.recommend, cm.match, cm.cheapest_checkpoint, cm.sweep),
    *(cm.roofline.check, cm.roofline.profile, cm.roofline.compare, cm.roofline.execute, cm.roofline.passes),
]


def test_a_type_checker_knows_the_names_of_all_optimizers_and_precisions() -> None:
    assert get_args(OptimizerName) == tuple(OPTIMIZERS)
    assert get_args(PrecisionName) == tuple(PRECISIONS)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb.__module__}.{verb.__name__}")
def test_every_verb_shows_its_settings(verb) -> None:
    shown = inspect.signature(verb).parameters
    expected = [name for name in SETTING_NAMES if name != WITHOUT.get(verb.__name__)]
    assert [n for n, p in shown.items() if n in SETTINGS and not isinstance(p.annotation, str)] == expected
    described = (inspect.getdoc(verb) or "").partition("\nSettings:\n")[2].splitlines()
    assert [line.split(":")[0].strip() for line in described if line] == [*expected, "over"]
    for name in (*expected, "over"):
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].annotation is not inspect.Parameter.empty


def test_the_defaults_that_are_shown_are_those_in_force() -> None:
    shown = inspect.signature(cm.predict).parameters
    assert Settings(**{field.name: shown[field.name].default for field in fields(Settings)}) == Settings()
    assert inspect.signature(cm.roofline.execute).parameters["mode"].default == "inference"


AMONG: dict[str, dict[str, object]] = {
    "sp": {"tp": 2},
    "loss_parallel": {"tp": 2},
    "zero": {"dp": 2},
    "bucket_view": {"dp": 2},
    "reshard": {"fsdp": 2},
    "wrap": {"fsdp": 2},
    "pp": {"accumulate": 4},
    "vpp": {"pp": 2, "accumulate": 2, "schedule": "looped-bfs"},
    "pp_split": {"pp": 3, "accumulate": 4},
    "schedule": {"pp": 2, "accumulate": 2},
    "return_outputs": {"pp": 2, "accumulate": 2},
    "cp": {"fsdp": 2, "attention": "flash"},
    "ep": {"fsdp": 2},
    "etp": {"runtime": "megatron", "dp": 2, "precision": "bf16-master"},
    "cp_kind": {"fsdp": 2, "cp": 2},
    "cp_balanced": {"fsdp": 2, "cp": 2, "attention": "flash"},
    "offload": {"runtime": "deepspeed", "zero": 2, "dp": 2, "precision": "bf16-master"},
}
"""What a setting needs beside it."""


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_the_example_of_a_setting_is_a_value_that_is_not_its_default(name: str) -> None:
    asked = settings_of({name: SETTINGS[name].example, **AMONG.get(name, {})})
    assert getattr(asked, name) != getattr(Settings(), name)


def test_the_help_of_predict_says_what_each_setting_is_and_its_example_runs() -> None:
    for meaning in SETTINGS.values():
        assert meaning.text.removesuffix(".") in (cm.predict.__doc__ or "")
    [examples] = doctest.DocTestFinder(recurse=False).find(cm.predict, "predict", globs={})
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.slow
def test_a_type_checker_takes_what_is_right_and_refuses_what_is_wrong() -> None:
    pytest.importorskip("pyright", reason="needs the extra lint")
    user, refused = SCRIPTS / "user.py", SCRIPTS / "refused.py"
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(user), str(refused)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPTS.parents[1])
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {path: [e for e in found if Path(e["file"]).samefile(path)] for path in (user, refused)}
    assert errors[user] == []
    lines = refused.read_text(encoding="utf-8").splitlines()
    wrong = [number for number, line in enumerate(lines) if line.startswith("cm.")]
    assert sorted(error["range"]["start"]["line"] for error in errors[refused]) == wrong
    assert all(error["severity"] == "error" for error in errors[refused])


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({"attention": "sdpa"}, "flash"),
        ({"attention": "flash_attention_2"}, "flash"),
        ({"checkpoint": "full"}, "block"),
        ({"precision": "bfloat16"}, "bf16"),
        ({"precision": "amp"}, "fp16-autocast"),
        ({"optimizer": "adam8bit"}, "adam-8bit"),
        ({"mode": "training"}, "train"),
        ({"optimizer": "AdamW"}, "adamw"),
        ({"precision": "BF16"}, "bf16"),
        ({"dtype": "bf16"}, "precision"),
        ({"batch_size": 4}, "batch"),
        ({"gpus": 4}, "devices"),
    ],
)
def test_words_of_others_lead_to_ours(settings: dict[str, Any], ours: str) -> None:
    assert f"did you mean {ours!r}?" in error_of(lambda: cm.predict("gpt2-small", **settings))


def test_every_other_word_leads_to_a_choice() -> None:
    known = {name for setting in SETTINGS.values() for name in setting.choices}
    words = {word for words in ALIASES.values() for word in words.split()}
    answers = {"params", "memory", "seconds", "tokens_per_second", *get_args(OfferOrder)}
    verbs = set(costmodel.list_commands(Context(costmodel)))
    options = {
        option.opts[0][2:] for verb in verbs for option in costmodel.get_command(Context(costmodel), verb).params
    }
    assert words <= known | SETTINGS.keys() | answers | set(cm.Transformer.field_names()) | verbs | options
    assert not (set(ALIASES) - {"full", "fused", "cuda", "gpu"}) & (
        known | SETTINGS.keys()
    )  # choices of other settings


@pytest.mark.parametrize("memory", [1, 24, 80.0, 1023])
def test_a_few_bytes_are_no_budget(memory: float) -> None:
    assert f"'{int(memory)} GiB'" in error_of(lambda: cm.predict("gpt2-small").fits(memory))  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "targets"), [("llama-3.1-8b", ["query", "key", "value"]), ("gpt2-small", ["qkv"])])
def test_qkv_is_all_three_projections(model: str, targets: list[str]) -> None:
    for named in (["qkv"], ["q_proj", "k_proj", "v_proj"]) if len(targets) == 3 else (["qkv"],):
        found = cm.predict(model, seq=8, lora={"rank": 8, "targets": named})
        assert (
            found.trainable_params
            == cm.predict(model, seq=8, lora={"rank": 8, "targets": targets}).trainable_params
            > 0
        )


def test_a_part_without_its_number_is_every_one_of_them() -> None:
    """Equal hidden layers, which run as rounds of one, are hidden layers too."""
    model = cm.MLP(sizes=[8, 16, 16, 16, 4])
    output = 16 * 4 + 4
    assert cm.predict(model, freeze=["hidden"]).trainable_params == output
    forward = cm.predict(model, mode="inference").flops.total
    again = cm.predict(model, checkpoint="hidden").flops.hardware - cm.predict(model).flops.hardware
    assert again == forward - cm.predict(cm.MLP(sizes=[16, 4]), mode="inference").flops.total


def test_a_model_without_attention_has_nothing_selective_to_recompute() -> None:
    message = error_of(lambda: cm.predict("resnet18", checkpoint="selective"))
    assert message.startswith('checkpoint="selective" recomputes attention')
    assert "'core'" not in message


@pytest.mark.parametrize(
    ("settings", "dp", "fsdp", "micro_batches"),
    [
        ({"devices": 8}, 8, 1, 1),
        ({"devices": 8, "fsdp": 4}, 2, 4, 1),
        ({"devices": 8, "dp": 4, "tp": 2}, 4, 1, 1),
        ({"dp": 4, "zero": 3}, 1, 4, 1),
        ({"devices": 4, "zero": 2}, 1, 4, 1),
        ({"global_batch": 64, "batch": 2, "dp": 4, "tp": 2}, 4, 1, 8),
        ({"global_batch": 64, "batch": 2, "dp": 8, "accumulate": 4}, 8, 1, 4),
    ],
)
def test_devices_and_samples_imply_what_is_left_out(
    settings: dict[str, Any], dp: int, fsdp: int, micro_batches: int
) -> None:
    asked = Settings(**settings)
    assert (asked.layout.dp, asked.layout.fsdp, asked.micro_batches) == (dp, fsdp, micro_batches)


@pytest.mark.parametrize(
    ("settings", "right"),
    [
        ({"devices": 6, "tp": 4}, "use 4 or 8"),
        ({"devices": 2, "fsdp": 4}, "use 4"),
        ({"devices": 8, "dp": 2, "fsdp": 2}, "use devices=4, or dp=4"),
        ({"global_batch": 30, "batch": 2, "dp": 4}, "use 24 or 32"),
        ({"global_batch": 8, "batch": 2, "accumulate": 3}, "the 4 micro-batches"),
        ({"zero": 4, "dp": 2}, "use 0, 1, 2 or 3"),
        ({"zero": 1}, "give dp"),
        ({"zero": 3, "dp": 2, "fsdp": 2}, "leave one of them out"),
        ({"reshard": False}, "give fsdp"),
    ],
)
def test_devices_and_samples_that_do_not_come_out_are_refused(settings: dict[str, Any], right: str) -> None:
    message = error_of(lambda: Settings(**settings))
    assert right in message
    assert len(message) < 200
