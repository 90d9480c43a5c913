"""What is public refuses what is not of its type in one line, and answers whatever a setting was given as."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.documents.document import dump
from costmodel.importers.files import build
from costmodel.training.optimizers import OPTIMIZERS
from costmodel.training.precision import PRECISIONS
from costmodel.training.setting import plain
from costmodel.training.settings import SETTINGS
from costmodel.training.stacks import STACKS
from tests.command import is_brief
from tests.hostile.laws import cases, of_type

pytest.importorskip("matplotlib")
pytest.importorskip("xarray")

EVERY = 97
"""Every so manieth call is in the sample."""
UNBOUNDED = ("Machine(bandwidth=inf)", "reserve=None)")
"""A machine of one's own may have what no machine has; nothing is left free for None."""


def fault(call: Any, annotation: str, value: Any) -> str:
    """What is wrong with what a call did; "" if nothing."""
    try:
        with redirect_stdout(io.StringIO()):
            call()
    except cm.CostModelError as error:
        brief = is_brief(str(error)) and str(error).replace("\n", "").isprintable()
        return "" if brief else f"an error that is not brief: {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.100}"
    return "" if of_type(annotation, value) else f"taken for {annotation[:80]}"


def faults_of(every: int) -> dict[str, str]:
    asked = ((number, case) for number, case in enumerate(cases()) if number % every == 0)
    found = {label: fault(call, annotation, value) for _, (label, annotation, value, call) in asked}
    assert len(found) > 15_000 / every
    return {label: wrong for label, wrong in found.items() if wrong and not label.endswith(UNBOUNDED)}


def test_what_is_not_of_its_type_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults_of(EVERY) == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_none_of_all_wrong_values_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults_of(1) == {}


def forms(declaration: Any, folder: Path) -> dict[str, Any]:
    """A declaration in every way that it can be given."""
    fields = json.loads(json.dumps(plain(declaration)))
    path = folder / f"{type(declaration).__name__}-{declaration.name}.yaml"
    path.write_text(dump({**fields, "name": "mine"}))
    own = type(declaration).named({**fields, "name": "mine"})
    return {"its name": declaration.name, "itself": declaration, "fields": fields, "text": str(path), "path": path,
            "own": own}  # fmt: skip


def whole(answer: Any) -> dict[str, Any]:
    """The data that the JSON of an answer holds, which is JSON to the letter."""

    def refused(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(answer.to_json(), parse_constant=refused)


def machine_forms(folder: Path) -> dict[str, Any]:
    device = cm.load_machine("h100-sxm")
    path = folder / "machine.yaml"
    path.write_text(dump({**device.to_dict(), "name": "mine"}))
    own = cm.Machine(**{**device.to_dict(), "name": "mine"})
    return {"its name": "h100-sxm", "itself": device, "fields": device.to_dict(), "text": str(path), "path": path,
            "own": own}  # fmt: skip


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_json_of_a_prediction_reads_back_equal_however_its_settings_are_given(few: bool, tmp_path: Path) -> None:
    device = {"on": "h100-sxm"}
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "optimizer": (dict(OPTIMIZERS), {}), "precision": (dict(PRECISIONS), {"lora": {"rank": 2, "targets": ["qkv"]}}),
        "stack": (dict(STACKS), device),
    }  # fmt: skip
    model = cm.Transformer(vocab=11, context=16, layers=2, width=6, heads=3)
    several = [
        ({**more, setting: form}, f"{setting} {name} by {how}")
        for setting, (ready, more) in kinds.items()
        for name, declaration in [*ready.items()][:: max(1, len(ready) - 1) if few else 1]
        for how, form in forms(declaration, tmp_path).items()
    ]
    several += [({"on": form}, f"on by {how}") for how, form in machine_forms(tmp_path).items()]
    for settings, label in several:
        p = cm.predict(model, batch=2, seq=16, **settings)
        again = cm.Prediction.from_json(p.to_json())
        assert (again.settings, again.to_json()) == (p.settings, p.to_json()), label
        whole(p)


def test_json_of_a_prediction_reads_back_equal_with_every_setting() -> None:
    needs: dict[str, dict[str, Any]] = {
        "cache": {"mode": "decode", "past": 16}, "attention": {}, "training": {}, "modules": {}, "": {},
    }  # fmt: skip
    fitting: dict[str, Any] = {"past": 16, "checkpoint": ("mlp", "attention"), "target_seq": 8}
    stages: dict[str, Any] = {"pp": 2, "accumulate": 4, "batch": 4}
    beside: dict[str, dict[str, Any]] = {  # what a setting asks for
        "page_size": {"cache": "paged"}, "stack": {"on": "h100-sxm"}, "sp": {"tp": 2}, "loss_parallel": {"tp": 2},
        "devices": {"fsdp": 8}, "reshard": {"fsdp": 8}, "wrap": {"fsdp": 8}, "dp": {"runtime": "megatron"}, "bucket_view": {"dp": 8},
        "zero": {"dp": 8, "runtime": "deepspeed"}, "offload": {"zero": 3, "dp": 8, "runtime": "deepspeed"},
        "cp": {"fsdp": 2, "attention": "flash"}, "cp_kind": {"cp": 4, "fsdp": 2}, "ep": {"fsdp": 8, "batch": 1},
        "etp": {"runtime": "megatron", "dp": 4, "ep": 2, "batch": 1},
        "cp_balanced": {"cp": 4, "fsdp": 2, "attention": "flash"}, "pp": {"accumulate": 4, "batch": 4},
        "vpp": {**stages, "schedule": "interleaved-1f1b"}, "schedule": {**stages, "vpp": 2}, "return_outputs": stages, "pp_split": {**stages, "pp": 3},
    }  # fmt: skip
    for name, setting in SETTINGS.items():
        read = build({"model_type": "llama", "num_hidden_layers": 2}, "config")
        models = {
            "image": "resnet18",
            "target_seq": "t5-small",
            "implementation": read,
            "ep": "mixtral-8x7b",
            "etp": "mixtral-8x7b",
        }
        model = models.get(name, "gpt2-small")
        given = {**needs[setting.needs], **beside.get(name, {}), name: fitting.get(name, setting.example)}
        try:
            p = cm.predict(model, **given)
        except cm.CostModelError as error:
            assert "is not worked out" in str(error) or name == "plan"  # noqa: PT017 - with its default it is tried by the others
            continue
        assert getattr(p.settings, name) != setting.default or name == "seq", name
        assert cm.Prediction.from_json(p.to_json()).to_json() == p.to_json(), name


@pytest.mark.parametrize(
    "how",
    ["fields", "path", *(pytest.param(how, marks=pytest.mark.slow) for how in ("its name", "itself", "text", "own"))],
)
def test_every_answer_has_json_however_its_settings_are_given(how: str, tmp_path: Path) -> None:
    ready = OPTIMIZERS["adamw"], PRECISIONS["bf16-autocast"], STACKS["compiled"], cm.Engine(name="own")
    optimizer, precision, stack, engine = (forms(each, tmp_path)[how] for each in ready)
    engine = "vllm" if how == "its name" else engine
    device = machine_forms(tmp_path)[how]
    run: dict[str, Any] = {"seq": 16, "optimizer": optimizer, "precision": precision}
    timed = cm.predict("gpt2-small", on=device, stack=stack, **run)
    for answer in (
        timed, timed.time, timed.timeline, timed.explain("memory.peak"), timed.time.run(steps=3),
        timed.time.money(price=2.0), timed.time.carbon(pue=1.1, intensity=100), timed.on(device, stack=stack),
        cm.compare("gpt2-small", "gpt2-medium", quantities="params", **run), cm.time_on(timed, device, stack=stack),
        cm.max_batch("gpt2-small", memory="24 GiB", **run), cm.sensitivity("gpt2-small", "params", **run),
        cm.match("gpt2-small", "params", "200M", **run), cm.break_even("gpt2-small", "attention", "mlp", for_="seq",
            optimizer=optimizer, precision=precision),
        cm.cheapest_checkpoint("gpt2-small", memory="4 GiB", **run), cm.recommend("gpt2-small", "24 GiB", **run),
        cm.recommend("gpt2-small", "24 GiB", seq=16, optimizer=[optimizer], precision=[precision], on=device),
        cm.serve("llama-3.2-1b", on=device, engine=engine, input=64, output=8, concurrency=[1], precision=precision,
                 drafts={"model": "llama-3.2-1b"} if how == "fields" else cm.Drafts("llama-3.2-1b")),
    ):  # fmt: skip
        assert whole(answer)
    if how != "own":  # a calibration names its machine
        assert whole(cm.fit_machine(device, ["gpt2-small batch=2 seq=16: 0.02 s"]))
