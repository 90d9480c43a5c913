"""The command line answers as Python does, and ends as a command should."""

import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

import pytest
from click import Context

import costmodel as cm
from costmodel import cli
from costmodel.cli.commands import costmodel
from costmodel.cost.quantities import QUANTITIES
from costmodel.importers.files import build, describe
from costmodel.layers import load_all
from costmodel.training.optimizers import OPTIMIZERS
from costmodel.training.precision import PRECISIONS
from costmodel.training.settings import SETTING_NAMES
from tests.command import apart, here, refused

COMMANDS = [
    "predict",
    "explain",
    "fits",
    "solve",
    "break-even",
    "sensitivity",
    "recommend",
    "compare",
    "timeline",
    "models",
    "show",
    "sweep",
    "pareto",
]


def test_predict_prints_the_report(capsys) -> None:
    outcome = here(capsys, "predict", "gpt2-small", "--batch", "32", "--seq", "512")
    assert outcome == (0, str(cm.predict(cm.GPT2Small, batch=32, seq=512)) + "\n", "")


def test_predict_json_is_the_prediction(capsys) -> None:
    outcome = here(capsys, "predict", "resnet18", "--batch", "2", "--image", "64x96", "--json")
    assert cm.Prediction.from_json(outcome.out) == cm.predict("resnet18", batch=2, image=(64, 96))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("--batch 3", {"batch": 3}),
        ("--seq 5", {"seq": 5}),
        ("--mode inference", {"mode": "inference"}),
        ("--attention flash", {"attention": "flash"}),
        ("--loss none", {"loss": None}),
        ("--loss mean_squared_error", {"loss": "mean_squared_error"}),
        ("--device cpu", {"device": "cpu"}),
        ("--flop-rule arithmetic --attention efficient", {"flop_rule": "arithmetic", "attention": "efficient"}),
        ("--attention-pairs visible", {"attention_pairs": "visible"}),
        ("--optimizer adamw --precision fp32", {}),
    ],
)
def test_every_option_is_the_setting_of_its_name(capsys, options: str, settings: dict) -> None:
    outcome = here(capsys, "predict", "gpt2-small", *options.split(), "--json")
    assert json.loads(outcome.out) == json.loads(cm.predict("gpt2-small", **settings).to_json())


@pytest.mark.parametrize(("option", "image"), [("48", (48, 48)), ("48x64", (48, 64))])
def test_image_is_a_side_or_height_by_width(capsys, option: str, image: tuple[int, int]) -> None:
    outcome = here(capsys, "predict", "resnet18", "--image", option, "--json")
    assert json.loads(outcome.out)["settings"]["image"] == list(image)


def test_every_setting_is_an_option(capsys) -> None:
    from costmodel.training.settings import SETTING_NAMES

    for command in ("predict", "explain"):
        text = here(capsys, command, "--help").out
        assert [name for name in SETTING_NAMES if f"--{name.replace('_', '-')}" not in text] == []


def test_explain_prints_the_explanation(capsys) -> None:
    explanation = cm.predict("mlp-mnist", batch=7).explain("flops.forward")
    assert here(capsys, "explain", "mlp-mnist", "flops.forward", "--batch", "7").out == f"{explanation}\n"
    as_json = here(capsys, "explain", "mlp-mnist", "flops.forward", "--batch", "7", "--json").out
    assert json.loads(as_json) == explanation.to_dict()


@pytest.mark.slow
def test_models_lists_every_ready_model(capsys) -> None:
    lines = here(capsys, "models").out.splitlines()[1:]
    entries = json.loads(here(capsys, "models", "--json").out)
    assert [line.split()[0] for line in lines] == [e["name"] for e in entries] == [e.name for e in cm.models()]
    assert {e["name"]: e["params"] for e in entries}["gpt2-small"] == 124_439_808
    assert all(f"{e['params']:,}" in line for line, e in zip(lines, entries, strict=True))


@pytest.mark.parametrize("name", ["gpt2-small", "resnet18", "mlp-mnist"])
def test_what_show_prints_is_a_file_of_the_same_model(capsys, tmp_path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(here(capsys, "show", name).out, encoding="utf-8")
    assert cm.load(path) == cm.load(name)
    data = json.loads(here(capsys, "show", name, "--json").out)
    assert data == describe(cm.load(name))
    assert build(data, "test") == cm.load(name)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_run(capsys, tmp_path, monkeypatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model.yaml").write_text("architecture: mlp\nsizes: [3, 2]\n")
    text = here(capsys, command, "--help").out
    examples = [line.split()[1:] for line in text.splitlines() if line.startswith("    costmodel ")]
    assert examples
    assert all(here(capsys, *" ".join(words).split(" > ")[0].split()).code == 0 for words in examples)
    assert "--json" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", [*COMMANDS, "roofline", "roofline check"])
def test_help_fits_80_columns_and_lists_settings_apart(capsys, monkeypatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = here(capsys, *command.split(), "--help").out.partition("\n  Examples:\n")[0]
    assert [line for line in text.splitlines() if len(line) > 80] == []
    options, _, settings = text.partition("\nSettings:\n")
    assert "--batch" not in options
    assert ("--batch" in settings) == (command not in ("models", "show", "roofline"))


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    asked = {"_COSTMODEL_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    assert apart(COMP_WORDS="costmodel pred", **asked) == (0, "plain,predict\n", "")
    assert apart(COMP_WORDS="costmodel predict --opt", **asked | {"COMP_CWORD": "2"}).out == "plain,--optimizer\n"


@pytest.mark.parametrize("asked", [[], ["-h"], ["--help"]])
def test_help_lists_the_commands(capsys, asked: list[str]) -> None:
    outcome = here(capsys, *asked)
    assert outcome.code == 0
    assert [command for command in COMMANDS if f"\n  {command}  " not in outcome.out] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predct"], ["'predct'", "'predict'"]),
        (["predict"], ["MODEL", "costmodel predict --help"]),
        (["predict", "gpt2-small", "extra"], ["extra"]),
        (["predict", "gpt2-small", "--btach", "3"], ["--btach", "--batch"]),
        (["predict", "gpt2-small", "--batch"], ["--batch", "argument"]),
        (["explain", "gpt2-small"], ["QUANTITY"]),
        (["models", "--yaml"], ["--yaml"]),
        (["--version=1"], ["--version"]),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(capsys, arguments: list[str], said: list[str]) -> None:
    refused(here(capsys, *arguments), *said)


RUN = ["predict", "mlp-mnist", "--on", "h100-sxm", "--steps", "1000"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "gpt2-small", "--tp", "2", "--sp", "-1"], "sp=-1 is neither True nor False"),
        (["sweep", "gpt2-small", "--tp", "2", "--sp=-1"], "sp=-1 is neither True nor False"),
        (["sweep", "gpt2-small", "--tp", "-1", "-1"], "tp=-1 is not between 1 and"),
        (["predict", "gpt2-small", "-1"], "-1 follows no option that takes one"),
        ([*RUN, "--pue", "1e30"], "pue=1e+30 is not a ratio from 1 to below 10"),
        (
            [*RUN, "--mtbf", "1h", "--restart-time", "1s", "--checkpoint-time", "often"],
            "checkpoint_time='often' is not",
        ),
        ([*RUN, "--mtbf", "1h", "--checkpoint-time", "1s", "--restart-time", "-3"], "restart_time=-3.0 is not a time"),
        (["fits", "mlp-mnist", "99999999999999999PiB"], "is more memory than there is"),
        (["layouts", "gpt2-small", "--devices", "2", "--within", "nan"], "'nan' is not a share"),
    ],
)
def test_a_wrong_number_is_refused_for_what_is_wrong_with_it(capsys, arguments: list[str], said: str) -> None:
    refused(here(capsys, *arguments), said)


def test_a_count_is_read_with_all_its_digits(capsys) -> None:
    run = json.loads(here(capsys, *RUN[:-1], "99999999999999999999", "--json").out)["run"]
    assert run["steps"] == pytest.approx(1e20)


@pytest.mark.slow
def test_the_process_ends_with_the_code_and_one_line() -> None:
    refused(apart("predict", "gpt2-smal"), "'gpt2-smal'", "'gpt2-small'")
    assert apart("predict", "mlp-mnist").code == 0


@pytest.mark.slow
def test_output_that_its_encoding_lacks_is_replaced() -> None:
    report = apart("predict", "gpt2-small", PYTHONIOENCODING="ascii")
    assert (report.code, report.err) == (0, "")
    assert "?12" in report.out
    shown = apart("show", "mlp-lenet-300-100", "--json", PYTHONIOENCODING="ascii")
    assert json.loads(shown.out) == describe(cm.load("mlp-lenet-300-100"))


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "costmodel", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full device")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "costmodel", "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "closed", "code", "error"),
    [
        ("predict mlp-mnist", ">&-", 1, "error: cannot write the output: Bad file descriptor\n"),
        ("--version", ">&-", 1, "error: cannot write the output: Bad file descriptor\n"),
        ("predict no-such", ">&-", 2, "error: unknown model 'no-such'"),
        ("predict no-such", ">&- 2>&-", 2, ""),
        ("predict mlp-mnist --out written.json", "<&- 2>&-", 0, ""),
        ("sweep mlp-mnist --batch 1,2 --out written.csv", "2>&-", 0, ""),
        ("sweep mlp-mnist --batch 1,2 --out written.csv", "<&- >&- 2>&-", 1, ""),
        ("explore mlp-mnist --out written.html", "2>&-", 0, ""),
    ],
)
def test_closed_streams_lose_what_is_written_to_them_and_no_more(
    command: str, closed: str, code: int, error: str, tmp_path: Path
) -> None:
    home = {"PYTHONPATH": os.pathsep.join(filter(None, (str(Path(cli.__file__).parents[2]), os.getenv("PYTHONPATH"))))}
    shell = f'"{sys.executable}" -m costmodel {command} {closed}'
    done = subprocess.run(
        shell, shell=True, capture_output=True, text=True, cwd=tmp_path, env=os.environ | home, check=False
    )
    assert done.returncode == code
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == bool(error)
    files = list(tmp_path.iterdir())
    assert len(files) == ("written" in command)
    assert all(file.stat().st_size > 100 for file in files)


def test_an_interrupt_is_no_traceback(capsys, monkeypatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("costmodel.importers.zoo._names", interrupted)
    assert here(capsys, "show", "gpt2-small") == (130, "", "")


def test_main_exits_with_the_code(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["costmodel", "show", "nothing-like-it"])
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "")
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    monkeypatch.setattr("gc.disable", lambda: None)  # for the rest of a process that ends; this one goes on
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "gpt2-small"],
        ["predict", "resnet50", "--json"],
        ["models"],
        ["explain", "gpt2-small", "memory.peak"],
    ],
)
def test_predict_loads_nothing_it_does_not_need(arguments: list[str]) -> None:
    heavy = {"sympy", "numpy", "humanize", "pandas", "rich", "torch", "costmodel.cli.sweep", "costmodel.cli.analysis"}
    code = "import sys; from costmodel.cli import run; run(sys.argv[1:]); print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert heavy & set(loaded) == set()


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    declared = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    assert here(capsys, "--version") == (0, f"costmodel {declared}\n", "")


@pytest.mark.parametrize(
    ("what", "among"),
    [
        ("quantities", QUANTITIES),
        ("optimizers", OPTIMIZERS),
        ("precisions", PRECISIONS),
        ("settings", SETTING_NAMES),
        ("layers", load_all()),
    ],
)
def test_names_are_listed_with_what_they_are(capsys, what: str, among: Collection[str]) -> None:
    outcome = here(capsys, "list", what, "--json")
    listed = json.loads(outcome.out)
    assert set(listed) == set(among)
    assert all(listed.values())
    assert all(f"{name} " in here(capsys, "list", what).out for name in list(among)[:3])


def test_a_column_wide_enough_is_asked_for(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = here(capsys, "predict", "gpt2-small").out
    assert max(map(len, narrow.splitlines())) <= 80
    wide = here(capsys, "predict", "gpt2-small", "--wide").out
    assert "FLOP/B\n" in wide
    assert "FLOP/B\n" not in narrow


ASKED_FOR = {
    "predict gpt2-small": ("×", "params", "forward", "activations", "pointwise, apart"),
    "predict resnet50 --mode inference --shapes": ("output", "params", "forward"),
    "predict mlp-mnist --on rtx-4090": ("time", "share", "bound"),
    "predict gpt2-small --on h100-sxm --dp 8 --batch 8": ("waited for", "time", "share"),
    "explain resnet50 memory.activations": (),
    "fits gpt2-small 24GiB": (),
    "timeline gpt2-small --batch 32": ("activations", "temporaries", "gradients", "optimizer", "layer", "total"),
    "timeline mlp-mnist": ("activations", "gradients", "optimizer", "layer", "total"),
    "ranks gpt2-small --tp 2 --pp 4 --accumulate 8": ("in flight", "params", "FLOPs", "gradients", "optimizer", "peak"),
    "collectives gpt2-small --dp 2 --on h100-sxm": ("layer", "time", "exposed"),
    "collectives resnet50 --fsdp 8": ("layer", "bytes", "times", "phase"),
    "models": ("params",),
    "show resnet50": (),
    "list optimizers": (),
    "machines": ("memory", "bandwidth", "16 bit"),
    "clusters": ("node", "link", "network"),
    "energy --hours 24 --watts 700 --devices 8 --pue 1.2": (),
    "serve gpt2-small --on h100-sxm --input 512 --output 64 --price 2.5": ("tokens/s, one", "bound", "price of 1M"),
    "deployments gpt2-small --on h100-sxm --devices 2 --input 64 --output 8": ("dp", "per token", "waiting"),
    "disaggregated gpt2-small --on h100-sxm --prefill tp=1 --decode tp=2 --input 64 --output 8": (),
    "gpus mlp-mnist --batch 64 --machines h100-sxm,l4,t4 --counts 1,2": ("spare", "samples/s", "range", "J"),
    "solve resnet50 memory.peak 24GiB --for batch": (),
    "break-even gpt2-small attention mlp": (),
    "sensitivity mlp-mnist params": (),
    "recommend gpt2-small --on rtx-4090": (
        "checkpoint", "attention", "precision", "optimizer", "batch", "peak", "recomputed", "useful", "samples/s"
    ),
    "layouts mlp-mnist --devices 4 --on h100-sxm --global-batch 8": ("layout", "samples/s", "exposed", "bubble"),
    "compare gpt2-small gpt2-medium gpt2-large gpt2-xl bert-base": ("gpt2-large", "gpt2-xl", "bert-base"),
    "sweep gpt2-small --batch 1,2 --seq 8 --quantities memory.peak,flops.total,params": ("memory.peak", "params"),
    "pareto gpt2-small memory.peak flops.hardware --batch 1,2 --checkpoint none,block": ("batch", "flops.hardware"),
}  # fmt: skip
"""Headings that the answer to a question has on a page of any width."""


def test_every_verb_that_answers_with_a_table_is_asked_on_narrow_pages() -> None:
    verbs = {command.split()[0] for command in ASKED_FOR}
    assert verbs | {"explore", "roofline"} == set(costmodel.list_commands(Context(costmodel)))


def words(text: str) -> set[str]:
    """Words of a text, of which names may have several."""
    return set(re.split(r"[\s/_+=.,:;()'-]+", text))


@pytest.mark.parametrize(("command", "headings"), ASKED_FOR.items(), ids=ASKED_FOR)
def test_a_narrow_table_keeps_what_was_asked_for(capsys, monkeypatch, command: str, headings: tuple[str, ...]) -> None:
    wide = here(capsys, *command.split()).out
    assert all(re.search(rf"(^|  ){re.escape(heading)}($|  )", wide, re.MULTILINE) for heading in headings)
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        printed = here(capsys, *command.split()).out
        assert [line for line in printed.splitlines() if len(line) > columns] == []
        left_out = re.findall(r"no room for: (.*?) \(--wide", " ".join(printed.split()))
        assert not set(", ".join(left_out).split(", ")) & set(headings)
        assert words(printed) - words("no room for: remarks --wide shows all") <= words(wide)


def test_parts_and_shapes_on_request(capsys) -> None:
    outcome = here(capsys, "predict", "gpt2-small", "--depth", "1", "--shapes")
    assert "1 × 1024 × 768" in outcome.out
    assert "block.mlp" not in outcome.out
    data = json.loads(here(capsys, "predict", "gpt2-small", "--depth", "1", "--json").out)
    assert sum(part["params"] for part in data["parts"]) == data["params"]
    refused(here(capsys, "predict", "gpt2-small", "--depth", "0"), "depth=0", "whole number")


@pytest.mark.parametrize(
    "command",
    [
        "predict gpt2",
        "explain gpt2 params",
        "fits gpt2 40GiB",
        "timeline gpt2",
        "ranks gpt2 --tp 2",
        "solve gpt2 memory.peak 8GiB --for batch",
        "sensitivity gpt2 params",
        "serve gpt2 --on t4 --input 8 --output 8",
        "show gpt2",
    ],
)
def test_every_verb_takes_other_values_for_fields(capsys, command: str) -> None:
    printed = here(capsys, *command.split(), "--over", "layers=2", "--over", "positions=rotary").out
    assert "gpt2-small with layers 2, positions rotary" in " ".join(printed.split())


def test_a_field_is_no_option(capsys) -> None:
    refused(here(capsys, "predict", "gpt2", "--layers", "24"), "--layers is a field of the model: use --over layers=")
    refused(here(capsys, "predict", "gpt2", "--over", "layers"), "names no field and value")
    refused(here(capsys, "predict", "gpt2", "--over", "layers=2", "--over", "layers=3"), "given twice")


def test_what_a_sweep_prints_of_a_machine_has_its_seconds(capsys) -> None:
    question = ("sweep", "gpt2-small", "--seq", "64,128", "--on", "h100-sxm", "--json")
    for row, seq in zip(json.loads(here(capsys, *question).out), (64, 128), strict=True):
        asked = cm.predict("gpt2-small", seq=seq).on("h100-sxm")
        assert (row["seconds"], row["params"]) == (asked.seconds, asked.prediction.params)
    assert "seconds" not in json.loads(here(capsys, *question[:4], "--json").out)[0]


def test_nodes_of_a_sweep_are_joined_by_the_network_that_is_given(capsys) -> None:
    question = ("sweep", "gpt2-small", "--seq", "64", "--tp", "1,2", "--fsdp", "8", "--on", "h100-sxm,p4d")
    network = ("--network", "10 Gb/s")
    rows, wide = (
        json.loads(here(capsys, *question, *between, "--quantities", "seconds", "--json").out)
        for between in (network, ())
    )
    for row, (tp, machine) in zip(rows, itertools.product((1, 2), ("h100-sxm", "p4d")), strict=True):
        asked = cm.predict("gpt2-small", seq=64, tp=tp, fsdp=8).on(machine, network="10 Gb/s")
        assert row["seconds"] == asked.seconds
    assert rows[2]["seconds"] > wide[2]["seconds"]
    quantities = ("seconds", "memory.peak")
    front = json.loads(here(capsys, "pareto", question[1], *quantities, *question[2:], *network, "--json").out)
    assert min(row["seconds"] for row in front) == min(row["seconds"] for row in rows)
    refused(here(capsys, *question[:-2], *network), "network='10 Gb/s' joins nodes of a cluster: give on=")
    refused(here(capsys, *question[:2], *question[-2:], *network), "between devices, of which there is one")


@pytest.mark.parametrize(
    ("layout", "said"), [("--dp 8,16", False), ("--pp 2,4 --accumulate 8", False), ("--dp 2 --zero 0,1", True)]
)
def test_a_table_says_how_many_devices_there_are_only_where_all_cells_have_as_many(
    layout: str, said: bool, capsys
) -> None:
    question = here(capsys, "sweep", "gpt2-small", "--seq", "64", *layout.split()).out.partition("\n\n")[0]
    assert "seq 64" in question
    assert ("devices" in question) == said


def test_what_was_measured_stands_beside_the_prediction(capsys) -> None:
    question = ("predict", "gpt2", "--on", "l4")
    data = json.loads(here(capsys, *question, "--measured", "0.6", "--json").out)
    assert data == cm.predict("gpt2", on="l4").time.mfu_of("600 ms").to_dict()
    phases = [word for phase in ("forward", "backward", "update") for word in ("--measured", f"{phase}=200ms")]
    by_phase = json.loads(here(capsys, *question, *phases, "--json").out)
    assert [row["measured"] for row in by_phase["rows"]] == pytest.approx([0.2, 0.2, 0.2, 0.6])
    refused(here(capsys, *question, *phases[:4]), "measured lacks update")
    refused(here(capsys, *question, *phases, "--measured", "1s"), "once for the step, or once for each phase")
    refused(here(capsys, *question, "--measured", "1s", "--epochs", "3", "--samples", "9"), "ask for one at a time")
    refused(here(capsys, "predict", "gpt2", "--measured", "1s"), "--measured: give --on MACHINE")


def test_the_power_of_a_device_has_one_name_in_all_verbs(capsys) -> None:
    words = ("energy", "--hours", "24", "--pue", "1.2")
    assert here(capsys, *words, "--power", "700 W") == here(capsys, *words, "--watts", "700")


def test_a_help_has_the_defaults_of_its_verb_and_settings_by_subject(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    gpus, predict = (here(capsys, verb, "--help").out for verb in ("gpus", "predict"))
    assert "Precision policy (default 16 bits)" in gpus
    assert "(default fp32)" in predict
    assert "--on NAME" not in gpus  # which is what it finds
    assert "--on NAME" in predict.partition("Settings of time:")[2].partition("Settings of training:")[0]
    assert "--tp N" in predict.partition("Settings of many devices:")[2]
    assert "(default block), such as" in predict
