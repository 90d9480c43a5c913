"""Whatever is wrong with a question is said in one line: what, where, which value, and what would be right."""

from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import SettingError
from costmodel.training.settings import SETTING_NAMES
from tests.command import error_of, here, refused

GPT: dict[str, Any] = {"vocab": 11, "context": 8, "layers": 2, "width": 6, "heads": 3}
CNN: dict[str, Any] = {"input": [3, 8, 8]}
MACHINE: dict[str, Any] = {
    "name": "m",
    "category": "gpu",
    "peak": {"bf16": "400 TFLOP/s"},
    "bandwidth": "3 TB/s",
    "memory": 2**34,
}
HUGE = 10**30

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


class Nameless:
    def __repr__(self) -> str:
        raise RuntimeError("an error that shows this value must not fail")


WRONG_NUMBERS = [0, -1, HUGE, -HUGE, 2**40 + 1, 2.0, 2.5, float("nan"), float("inf"), 2j, np.bool_(True), np.ones(3)]
WRONG_SIZES = [*WRONG_NUMBERS, 10**100_000, True, False, "2", "", b"2", [2], {}, DEEP, Nameless(), np.ones((2, 2))]


@pytest.mark.parametrize("value", WRONG_SIZES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("setting", ["batch", "seq", "image"])
def test_a_wrong_size_in_a_question_is_refused(setting: str, value: Any) -> None:
    model = "resnet18" if setting == "image" else "gpt2-small"
    assert setting in error_of(lambda: cm.predict(model, **{setting: value}))


@pytest.mark.parametrize("value", [*WRONG_SIZES, None], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("field", ["vocab", "context", "layers", "width", "heads"])
def test_a_wrong_size_in_a_transformer_is_refused(field: str, value: Any) -> None:
    assert field in error_of(lambda: cm.Transformer(**{**GPT, field: value}))


@pytest.mark.parametrize("value", [*WRONG_SIZES, None], ids=lambda v: type(v).__name__)
def test_a_wrong_size_in_an_mlp_or_cnn_is_refused(value: Any) -> None:
    assert "sizes.1" in error_of(lambda: cm.MLP(sizes=[2, value, 3]))
    assert "input.1" in error_of(lambda: cm.CNN(input=[3, value, 3], blocks=["relu"]))
    layer = {"conv": {"channels": value, "kernel": 1}}
    assert "channels" in error_of(lambda: cm.CNN(**CNN, blocks=[layer]))
    assert "times" in error_of(lambda: cm.CNN(**CNN, blocks=[{"repeat": {"times": value, "blocks": ["relu"]}}]))


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16])
def test_a_whole_number_of_numpy_is_one_everywhere(kind: Any) -> None:
    three = kind(3)
    assert cm.MLP(sizes=[2, three, 3]) == cm.MLP(sizes=[2, 3, 3])
    of_three, of_3 = ([{"conv": {"channels": size, "kernel": 1}}] for size in (three, 3))
    assert cm.predict(cm.CNN(**CNN, blocks=of_three)).to_json() == cm.predict(cm.CNN(**CNN, blocks=of_3)).to_json()
    p = cm.predict("gpt2-small", batch=three, seq=three)
    assert type(p.settings.batch) is int
    assert p.to_json() == cm.predict("gpt2-small", batch=3, seq=3).to_json()
    assert cm.sweep("mlp-mnist", batch=[three, 4]).equals(cm.sweep("mlp-mnist", batch=[3, 4]))
    assert cm.Engine(name="e", page_size=three) == cm.Engine(name="e", page_size=3)
    assert cm.Machine(**MACHINE, processors=three).to_json() == cm.Machine(**MACHINE, processors=3).to_json()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cm.MLP(), ["sizes", "missing"]),
        (lambda: cm.MLP(sizes=[3]), ["MLP: sizes: [3] has 1 item: give features of the input", "at least 2"]),
        (lambda: cm.MLP(sizes=3), ["MLP: sizes: 3 is not a list: give features of the input"]),
        (lambda: cm.MLP(sizes=[3] * 10_001), ["MLP: sizes: [3, ", "10,001 items", "at most 10,000"]),
        (lambda: cm.CNN(input=[3, 8], blocks=["relu"]), ["input: [3, 8] has 2 items: give [channels, height, width]"]),
        (lambda: cm.CNN(input=[3] * 4, blocks=["relu"]), ["input: [3, 3, 3, 3] has 4 items: give [channels, "]),
        (lambda: cm.CNN(input=3, blocks=["relu"]), ["input: 3 is not a list: give [channels, height, width]"]),
        (lambda: cm.predict("gpt2-small", etp=1), ["etp=1 is of ranks of runtime='megatron'", "leave it out"]),
        (lambda: cm.predict("gpt2-small", pp=3, accumulate=4, pp_split=1.5), ["pp_split=1.5", "(3, 9)"]),
        (
            lambda: cm.predict("mlp-mnist", attention="flash"),
            ["attention='flash' does not apply to MLP 'mlp-mnist'", "leave it out"],
        ),
        (
            lambda: cm.predict("resnet18", attention_pairs="visible"),
            ["attention_pairs='visible' does not apply to CNN"],
        ),
        (
            lambda: cm.predict("mlp-mnist", mode="inference", optimizer="sgd"),
            ["optimizer='sgd' does not apply to mode 'inference'"],
        ),
        (
            lambda: cm.predict("mlp-mnist", mode="inference", loss="mean_squared_error"),
            ["loss='mean_squared_error' do"],
        ),
        (lambda: cm.predict("gpt2-small", mode="inference", checkpoint="block"), ["checkpoint='block' does not apply"]),
        (lambda: cm.MLP(sizes=[3, 4] * 3_000), ["sizes: 5,998 changes of size", "at most 2,499"]),
        (lambda: setattr(cm.GPT2Small, "layers", 3), ["Transformer.layers cannot be set", "make another"]),
        (lambda: setattr(cm.GPT2Small, "lairs", 3), ["Transformer.lairs cannot be set"]),
        (lambda: delattr(cm.GPT2Small, "layers"), ["Transformer.layers cannot be deleted"]),
        (lambda: cm.MLP(sizes="784"), ["sizes", "'784'"]),
        (lambda: cm.MLP(sizes=[3, 2], dropout=1.0), ["dropout", "1.0"]),
        (lambda: cm.MLP(sizes=[3, 2], dropout=-0.1), ["dropout", "-0.1"]),
        (lambda: cm.MLP(sizes=[3, 2], dropout=float("nan")), ["dropout", "nan"]),
        (lambda: cm.MLP(sizes=[3, 2], bias=1), ["bias", "1"]),
        (lambda: cm.MLP(sizes=[3, 2], bias="no"), ["bias", "'no'"]),
        (lambda: cm.MLP(sizes=[3, 2], norm="batch"), ["norm", "'batchnorm'"]),
        (lambda: cm.MLP(sizes=[3, 2], activation="relo"), ["activation 'relo'", "'relu'"]),
        (lambda: cm.MLP(sizes=[3, 2], activation=None), ["activation"]),
        (lambda: cm.MLP(sizes=[3, 2], activaton="relu"), ["field 'activaton'", "'activation'"]),
        (lambda: cm.MLP(sizes=[3, 2], self=1), ["field 'self'"]),
        (lambda: cm.MLP(sizes=[3, 2], name="x" * 300), ["name"]),
        (lambda: cm.Transformer(**{**GPT, "heads": 4}), ["heads 4", "width 6", "3"]),
        (lambda: cm.Transformer(**GPT, kv_heads=2), ["kv_heads 2", "heads 3"]),
        (lambda: cm.Transformer(**GPT, positions="rotary", rotary={"size": 3}), ["rotary.size 3", "even"]),
        (lambda: cm.Transformer(**GPT, positions="learnt"), ["positions", "'learned'"]),
        (lambda: cm.predict(cm.GPT2Small, seq=1025), ["seq 1025", "1024"]),
        (lambda: cm.predict(cm.GPT2Small, image=224), ["image", "gpt2-small", "seq"]),
        (lambda: cm.predict("resnet18", seq=3), ["seq=3", "ResNet-18", "image"]),
        (lambda: cm.predict("mlp-mnist", seq=3), ["seq=3", "mlp-mnist", "batch"]),
        (lambda: cm.predict("mlp-mnist", image=3), ["image", "mlp-mnist", "batch"]),
        (lambda: cm.predict("resnet18", image=(3, 4, 5)), ["image", "(3, 4, 5)", "(height, width)"]),
        (lambda: cm.predict("resnet18", image=[]), ["image", "[]", "(height, width)"]),
        (lambda: cm.predict("gpt2-smal"), ["model 'gpt2-smal'", "'gpt2-small'"]),
        (lambda: cm.predict("gpt2-small", btach=3), ["setting 'btach'", "'batch'"]),
        (lambda: cm.predict("gpt2-small", optimizer="adamv"), ["optimizer 'adamv'", "'adam'"]),
        (lambda: cm.predict("gpt2-small", batch=None), ["batch", "None"]),
        (lambda: cm.predict("gpt2-small", optimizer=None), ["optimizer"]),
        (lambda: cm.predict("gpt2-small", precision="fp23"), ["precision 'fp23'", "'fp32'"]),
        (lambda: cm.predict("gpt2-small", mode="training"), ["mode 'training'", "'train'"]),
        (lambda: cm.predict("gpt2-small", attention="flsh"), ["attention 'flsh'", "'flash'"]),
        (lambda: cm.predict("gpt2-small", loss="crossentropy"), ["loss 'crossentropy'", "'cross_entropy'"]),
        (lambda: cm.predict("gpt2-small", loss="mse"), ["loss 'mse': did you mean 'mean_squared_error'?"]),
        (
            lambda: cm.predict("gpt2-small", loss="x"),
            ["known are binary_cross_entropy, cross_entropy, kl_divergence, mean_squared_error, none"],
        ),
        (
            lambda: cm.predict("gpt2-small", loss=3),
            ["known are binary_cross_entropy, cross_entropy, kl_divergence, mean_squared_error, none"],
        ),
        (lambda: cm.predict("gpt2-small", mode="eval"), ["mode 'eval': did you mean 'inference'?"]),
        (lambda: cm.predict("gpt2-small", device=["cpu"]), ["device", "cpu"]),
        (lambda: cm.predict("mlp-mnist").explain("parms"), ["quantity 'parms'", "'params'"]),
        (lambda: cm.predict("mlp-mnist").formula("memory.activation"), ["'memory.activations'"]),
        (lambda: cm.predict("mlp-mnist").formula(None), ["quantity"]),  # type: ignore[arg-type]
        (lambda: cm.load(None), ["None", "'gpt2-small'"]),  # type: ignore[arg-type]
        (lambda: cm.load(3), ["3 is not a model"]),  # type: ignore[arg-type]
        (lambda: cm.load(DEEP), ["is not a model"]),  # type: ignore[arg-type]
        (lambda: cm.load(Nameless()), ["Nameless", "is not a model"]),  # type: ignore[arg-type]
        (lambda: cm.load("\ud800"), ["model"]),
        (lambda: cm.predict("gpt2-small", mode=10**100_000), ["mode", "digits"]),
        (lambda: cm.predict("gpt2-small", optimizer=DEEP), ["optimizer"]),
        (lambda: cm.predict("gpt2-small", precision=DEEP), ["precision"]),
        (lambda: cm.predict("gpt2-small", precision=Nameless()), ["precision", "Nameless"]),
        (lambda: cm.MLP(sizes=[3, 2], activation="\ud800"), ["activation"]),
        (lambda: cm.load(b"gpt2-small"), ["is not a model"]),  # type: ignore[arg-type]
        (lambda: cm.load(cm.MLP), ["is not a model"]),  # type: ignore[arg-type]
        (lambda: cm.load(""), ["model ''", "known are alexnet, bert-base"]),
        (lambda: cm.load("x" * 100_000), ["unknown model"]),
        (lambda: cm.load("x" * 100_000 + ".yaml"), ["no such file"]),
        (lambda: cm.load("a\0b.yaml"), ["no such file"]),
        (lambda: cm.load("a\nb/c.yaml"), ["no such file"]),
        (lambda: cm.load("../gpt2-small"), ["no such file", "'gpt2-small'"]),
        (lambda: cm.Prediction.from_json("{"), ["not a prediction"]),
        (lambda: cm.Prediction.from_json("[" * 100_000), ["not a prediction"]),
        (lambda: cm.Prediction.from_json("{}"), ["not a prediction"]),
        (lambda: cm.Prediction.from_dict({"model": {}, "settings": {}}), ["architecture"]),
    ],
)
def test_a_wrong_question_from_python_is_refused(call: Any, said: list[str]) -> None:
    message = error_of(call)
    assert [words for words in said if words not in message] == []


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (["rellu"], ["'rellu'", "'relu'", "blocks[0]"]),
        ([{"conv": {"channels": 3}}], ["blocks[0]", "kernel"]),
        ([{"conv": {"channels": 4, "kernel": 9}}], ["conv", "kernel", "9", "8"]),
        ([{"conv": {"channels": 4, "kernel": 3, "groups": 2}}], ["conv", "groups", "2", "3"]),
        ([{"max_pool": {"kernel": 9}}], ["max_pool", "9", "8"]),
        ([{"residual": {"body": [{"conv": {"channels": 4, "kernel": 1}}]}}], ["residual", "3", "4"]),
        (
            [{"branches": {"paths": [[], [{"max_pool": {"kernel": 2}}]], "join": "concat"}}],
            ["8", "4"],
        ),
        (None, ["blocks"]),
        (3, ["blocks"]),
        ([3], ["blocks[0]"]),
        ([{}], ["blocks[0]"]),
        ([{"relu": None, "conv": None}], ["blocks[0]"]),
    ],
)
def test_blocks_that_do_not_fit_are_refused(blocks: Any, said: list[str]) -> None:
    message = error_of(lambda: cm.predict(cm.CNN(**CNN, blocks=blocks)).params)
    assert [words for words in said if words not in message] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("predict gpt2-small --batch 0", ["batch=0", "between 1"]),
        ("predict gpt2-small --batch -4", ["batch=-4", "between 1"]),
        (f"predict gpt2-small --batch {HUGE}", ["batch", str(HUGE), "between 1"]),
        ("predict gpt2-small --batch " + "9" * 100_000, ["--batch", "whole number"]),
        ("predict gpt2-small --batch true", ["--batch", "'true'", "whole number"]),
        ("predict gpt2-small --batch 2.0", ["--batch", "'2.0'", "whole number"]),
        ("predict gpt2-small --batch 1_0", ["--batch", "'1_0'", "whole number"]),
        ("predict gpt2-small --batch ٣", ["--batch", "whole number"]),
        ("predict gpt2-small --batch 1 --json --batch=32", ["--batch is given twice"]),
        ("predict gpt2-small --out a.csv --out b.csv", ["--out is given twice"]),
        ("fits gpt2-small 24Gb", ["'24Gb'", "could be bits: use '24 GB'"]),
        ("predict gpt2-small --seq x", ["--seq", "'x'", "whole number"]),
        ("predict gpt2-small --seq 1025", ["seq 1025", "1024"]),
        ("predict gpt2-small --image 224", ["image", "gpt2-small"]),
        ("predict resnet18 --seq 5", ["seq=5", "ResNet-18"]),
        ("predict mlp-mnist --seq 5", ["seq=5", "mlp-mnist"]),
        ("predict mlp-mnist --image 5", ["image", "mlp-mnist"]),
        ("predict resnet18 --image 3x", ["--image", "image='3x' is not (height, width)", "224x320"]),
        ("predict resnet18 --image 3x4x5", ["--image", "'3x4x5'"]),
        ("predict resnet18 --image 0x5", ["image=0"]),
        ("predict vgg16 --image 8", ["max_pool"]),
        ("predict gpt2-small --plan x", ["--plan", "'x'", "*.up=colwise"]),
        ("gpus gpt2-small --prices .", [". is a directory", "price file"]),
        ("predict gpt2-smal", ["'gpt2-smal'", "'gpt2-small'"]),
        ("predict gpt2-small --optimizer admw", ["'admw'", "'adamw'"]),
        ("predict gpt2-small --precision fp23", ["'fp23'", "'fp32'"]),
        ("predict gpt2-small --mode infer", ["'infer'", "'inference'"]),
        ("predict gpt2-small --attention flsh", ["'flsh'", "'flash'"]),
        ("predict gpt2-small --loss mse", ["'mse'", "mean_squared_error"]),
        ("predict gpt2-small --device tpu", ["'tpu'", "gpu"]),
        ("explain gpt2-small parms", ["'parms'", "'params'"]),
        ("explain gpt2-smal params", ["'gpt2-smal'", "'gpt2-small'"]),
        ("show resnet-51", ["'resnet-51'", "'resnet50'"]),
        ("explain peak gpt2-small", ["'gpt2-small' is the model", "'explain gpt2-small peak'"]),
        ("solve params gpt2-small 1B", ["'gpt2-small' is the model", "'solve gpt2-small params'"]),
        ("roofline check gpt2-small --device gpu", ["processor of this host", "costmodel predict --on MACHINE"]),
        ("predict llama-3.1-8b --over dim=512", ["'dim'", "did you mean 'width'?"]),
        ("predict llama-3.1-8b --over rope.base=5e5", ["'rope.base'", "did you mean 'rotary'?"]),
        ("predict gpt2-small --bf16", ["--bf16 is no option, but a value of one: use --precision bf16"]),
        ("predict gpt2-small --half", ["use --precision fp16"]),
        ("predict gpt2-small --inference", ["use --mode inference"]),
        ("predict gpt2-small --bs 8", ["did you mean --batch?"]),
        ("predict gpt2-small --ctx 8", ["did you mean --seq?"]),
        ("predict gpt2-small --context 8", ["--over context=...", "--seq"]),
        ("predict gpt2-small --fsdp", ["requires an argument, as in --fsdp 8"]),
        ("predict gpt2-small t4", ["takes MODEL alone", "is a machine: use --on t4"]),
        ("gpus gpt2-small t4", ["is a machine: use --machines t4"]),
        ("gpus gpt2-small --gpu t4", ["did you mean --machines?"]),
        ("gpus gpt2-small --gpus 8", ["did you mean --counts?"]),
        ("gpus gpt2-small --by cost", ["did you mean 'money'?"]),
        ("fits gpt2-small 8xh100", ["is of 8 devices: name one, 'h100-sxm'", "tp=8"]),
        ("fits gpt2-small 4090", ["has no unit", "a machine such as 'rtx-4090'"]),
        ("fits gpt2-small", ["memory is not given", "a machine with on"]),
        ("list optimizer", ["did you mean 'optimizers'?"]),
        ("estimate gpt2-small", ["no verb 'estimate': did you mean 'predict'?"]),
        ("gpt2-small", ["which is a model: did you mean costmodel predict gpt2-small?"]),
        ("train gpt2-small", ["'train' is a mode: use costmodel predict MODEL --mode train"]),
        ("predict 8b", ["did you mean 'granite-3.0-8b' or 'llama-3-8b'"]),
        ("predict bert", ["did you mean 'bert-base' or", "costmodel models --family bert"]),
        ("serve llama-3.1-8b", ["'--on'", "type such as costmodel serve llama", "--input 1024 --output 256"]),
        ("energy", ["'--hours'", "type such as costmodel energy --hours"]),
        ("break-even gpt2-small", ["'A'", "type such as costmodel break-even gpt2-small"]),
    ],
)
def test_a_wrong_question_from_a_shell_is_refused(
    capsys: pytest.CaptureFixture[str], command: str, said: list[str]
) -> None:
    refused(here(capsys, *command.split()), *said)


@pytest.mark.parametrize("layers", [10_000, 2**40])
def test_repeats_beyond_reason_take_no_longer(layers: int) -> None:
    shape = {"vocab": 2**40, "context": 2**40, "width": 2**40, "heads": 2**40, "positions": "none"}
    few, many = (cm.predict(cm.Transformer(**GPT | {"layers": n})) for n in (1, layers))
    assert len(many.layers) == len(few.layers)
    assert "larger than any machine" in error_of(lambda: cm.predict(cm.Transformer(**shape, layers=layers)))


P = cm.predict("mlp-mnist")
IN_OTHER_WORDS = {
    "did you mean 'adamw'?": lambda: cm.predict("gpt2-small", optimizer="AdamW"),
    "'8bit': did you mean 'adam-8bit'?": lambda: cm.predict("gpt2-small", optimizer="8bit"),
    "did you mean 'bf16'?": lambda: cm.predict("gpt2-small", precision="BF16"),
    "'bfloat16': did you mean 'bf16'?": lambda: cm.predict("gpt2-small", precision="bfloat16"),
    "did you mean 'fp16'?": lambda: cm.predict("gpt2-small", precision="float16"),
    "'8bit': did you mean 'int8'?": lambda: cm.predict("gpt2-small", precision="8bit"),
    "did you mean 'on'?": lambda: cm.predict("gpt2-small", gpu="h100"),
    "did you mean 'precision'?": lambda: cm.predict("gpt2-small", dtype="bf16"),
    "sweep takes batch=range(1, 9), in a shell --batch 1:8": lambda: cm.predict("gpt2-small", batch="1..8"),
    "'mistral-7b-v0.3'": lambda: cm.load("mistral"),
    "'gpt-3-13b'": lambda: cm.load("gpt-3"),
    "did you mean 'llama-3-8b' or 'llama-3-70b'": lambda: cm.load("llama3"),
    "MLP([784, 10]): fields are given by name, such as sizes=...": lambda: cm.MLP([784, 10]),  # type: ignore[misc]
    "Transformer('gpt2'): fields are given by name": lambda: cm.Transformer("gpt2"),  # type: ignore[misc]
    "no items such as 'params': use p.params": lambda: P["params"],
    "use p.flops.total, or p.value('flops.total')": lambda: P["flops.total"],
    "no items such as 0": lambda: list(P),  # type: ignore[call-overload]
    "use memory.peak": lambda: P.memory["peak"],
    "none such as nan: use recommendations.best, or": lambda: cm.recommend("mlp-mnist", memory="1 GiB")[float("nan")],  # type: ignore
    "'best': use recommendations.best, or": lambda: cm.recommend("mlp-mnist", memory="1 GiB")["best"],  # type: ignore
}


@pytest.mark.parametrize(("said", "call"), IN_OTHER_WORDS.items(), ids=IN_OTHER_WORDS)
def test_what_others_call_it_gets_the_right_sentence(said: str, call: Any) -> None:
    message = error_of(call)
    assert said in message
    assert len(message) < 200


def test_a_long_error_has_its_details_on_lines_below() -> None:
    text = "layers 3 of the model: " + ", ".join(f"part{n} of width {n} is none of these" for n in range(20))
    first, *details = str(SettingError(text)).split("\n")
    assert details
    assert max(map(len, (first, *details))) < 200
    assert " ".join([first, *(line.strip() for line in details)]) == text
    assert max(map(len, str(SettingError(f"file, line 3: {SettingError(text)}")).split("\n"))) < 200
    assert str(SettingError("a  short\none")) == "a  short\none"


HOSTILE = ["", "1..8", "AdamW", -1, 0, 2**70, 1.5, None, True, [], {}, [3, "x"], {"count": 3}, "x" * 300, float("nan")]
HOSTILE += [object(), "\x1b[31m", b"a", ("a",), 10**400]


@pytest.mark.parametrize("model", ["gpt2-small", "resnet18", "mlp-mnist"])
def test_whatever_a_setting_is_given_its_error_is_below_200_characters(model: str) -> None:
    long = {}
    for name in SETTING_NAMES:
        for value in HOSTILE:
            try:
                cm.predict(model, **{name: value})
            except cm.CostModelError as error:
                if len(str(error)) > 200:
                    long[name] = str(error)
    assert long == {}
