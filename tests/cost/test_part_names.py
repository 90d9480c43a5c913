"""What a part's name picks: the same whether equal rounds of a part are traced at once or each by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.predict import Prediction
from costmodel.architectures.trace import new_tape, trace
from costmodel.graph.recomputation import Recomputation, is_named, paths_to
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Cast
from costmodel.training.settings import Settings
from tests.command import error_of
from tests.cost.test_folding import CONV, ITEMS, repeated
from tests.strategies import questions

DEEP = "resnet18", "vgg11", "mobilenet_v2", "unet", "gpt2-small", "bert-base", "vit-ti-16", "whisper-tiny", "gemma-3-1b"
DEEP += "gpt-oss-20b", "deepseek-v2-lite", "t5-v1.1-small", "mlp-mnist"
"""A model of each family, and of blocks that differ in attention, in MLPs and in positions."""


class Unrolled(Tape):
    """Records every round of a repeated part by itself, and numbers it."""

    def repeat(self, times: int, body: Any, x: Tensor, name: str, **how: Any) -> Tensor:
        for number in range(1, int(times) + 1):
            with self.scope(f"{name}.{number}", listed=how.get("listed", False)):
                x = body(x)
        return x


def both(model: Any, **given: Any) -> tuple[Prediction, Prediction]:
    """Folded, and unrolled."""
    chosen = Settings(**given)
    unrolled = trace(model, chosen, new_tape(chosen, kind=Unrolled))
    return Prediction(model, chosen), Prediction(model, chosen, unrolled)


def without_rounds(path: str) -> str:
    return ".".join(word for word in path.split(".") if not word.isdigit())


def names_of(data: st.DataObject, paths: set[str]) -> str:
    """One of the names of parts: a path without rounds or its end, and some words of it without their numbers."""
    words = data.draw(st.sampled_from(sorted(map(without_rounds, paths)))).split(".")
    words = words[data.draw(st.integers(0, len(words) - 1)) :]
    return ".".join(word.rstrip("0123456789") if data.draw(st.booleans()) else word for word in words)


def nets() -> st.SearchStrategy[Any]:
    blocks = st.lists(st.recursive(st.sampled_from(ITEMS), repeated, max_leaves=5), min_size=1, max_size=4)
    ends = ["flatten", {"linear": {"features": 3}}]
    cnns = blocks.map(lambda blocks: cm.CNN(input=(3, 5, 5), blocks=[CONV, *blocks, *ends]))
    mlps = st.lists(st.sampled_from([4, 6]), min_size=1, max_size=5).map(lambda some: cm.MLP(sizes=(4, *some, 3)))
    return cnns | mlps | questions().map(lambda question: question[0])


@pytest.mark.slow
@given(nets(), st.data())
def test_a_name_freezes_the_same_folded_and_unrolled(model: Any, data: st.DataObject) -> None:
    rows = cm.predict(model).layers
    paths = {path for row in rows if row.params for path in paths_to(row.name)}
    assume(paths)
    folded, unrolled = both(model, freeze=[names_of(data, paths)])
    assert folded.trainable_params == unrolled.trainable_params
    assert folded.flops == unrolled.flops


@pytest.mark.slow
@given(nets(), st.data())
def test_a_name_recomputes_the_same_folded_and_unrolled(model: Any, data: st.DataObject) -> None:
    seen = Recomputation(names=frozenset({"none"}))
    chosen = Settings()
    tape = Tape(training=True, device=chosen.device, precision=chosen.policy, cast=Cast, recomputation=seen)
    assert "unknown part" in error_of(lambda: trace(model, chosen, tape))
    assume(seen.seen and not getattr(model, "shared_kv_layers", None))  # keys and values lent are not recomputed
    folded, unrolled = both(model, checkpoint=[names_of(data, seen.seen)])
    assert folded.flops == unrolled.flops
    assert folded.pointwise_flops == unrolled.pointwise_flops


@pytest.mark.slow
@pytest.mark.parametrize("model", DEEP)
def test_every_row_can_be_named_as_it_is_shown(model: str) -> None:
    found = cm.predict(model)
    tied = {"head"}  # whose weight is the embedding's
    for row in found.layers:
        if row.params and row.name not in tied:
            assert cm.predict(model, freeze=[row.name]).trainable_params <= found.params - row.params
        elif not row.params and not row.name.startswith("loss"):
            assert "has no weights" in error_of(lambda row=row: cm.predict(model, freeze=[row.name]))


def test_a_repeated_part_is_all_of_its_rounds() -> None:
    """The first of two convolutions from 128 to 256 channels and from 256 to 256 is traced by itself."""
    found = cm.predict("vgg11")
    sizes = {row.name: row.params for row in found.layers if row.name.startswith("repeat3")}
    assert {name for name in sizes if sizes[name]} == {"repeat3.conv", "repeat3.2.conv"}
    for name in ("repeat3", "repeat3.conv"):
        assert found.params - cm.predict("vgg11", freeze=[name]).trainable_params == sum(sizes.values())
    second = cm.predict("vgg11", freeze=["repeat3.2"])
    assert found.params - second.trainable_params == sizes["repeat3.2.conv"]


def test_a_hidden_layer_has_its_own_number_whether_or_not_those_before_are_equal() -> None:
    """The one of 16 to 12 features is the third; the second is one of two equal ones, which go by the first."""
    model = cm.MLP(sizes=[8, 16, 16, 12, 4])
    frozen = cm.predict(model, freeze=["hidden3"])
    assert frozen.params - frozen.trainable_params == 16 * 12 + 12
    equal = cm.predict(model, freeze=["hidden1"])
    assert equal.params - equal.trainable_params == (8 * 16 + 16) + (16 * 16 + 16)
    assert "'hidden3'" in error_of(lambda: cm.predict(model, freeze=["hidden2"]))


@pytest.mark.parametrize(
    ("path", "name", "named"),
    [
        ("stage1.block2.residual.conv1", "conv1", True),
        ("stage1.block2.residual.conv1", "conv", True),
        ("stage1.block2.residual.conv1", "block2.residual.conv", True),
        ("stage1.block2.residual.conv1", "stage1.block.residual.conv1", True),
        ("stage1.block2.residual.conv1", "conv2", False),
        ("stage1.block2.residual.conv1", "residual", False),
        ("stage1.block2.residual.conv1", "onv1", False),
        ("repeat3.2.conv", "repeat3.conv", True),
        ("repeat3.2.conv", "repeat3.2.conv", True),
        ("repeat3.2", "repeat3", True),
        ("repeat3.2", "2", False),
        ("layers.0.up", "layers.up", True),
        ("layers.0.up", "layers.1.up", False),
        ("block_0.up", "block.up", True),
        ("0", "0", True),
        ("4.conv", "conv", True),
    ],
)
def test_what_a_part_is_called(path: str, name: str, named: bool) -> None:
    assert is_named(path, name) is named


def test_a_part_is_named_alike_whatever_blocks_are_recomputed_together() -> None:
    plain = cm.predict("gpt2-small", seq=8, freeze=["block.mlp.up"])
    assert cm.predict("gpt2-small", seq=8, freeze=["block.mlp.up"], checkpoint=2).trainable_params == (
        plain.trainable_params
    )
    mixed = cm.predict("gemma-3-1b", seq=8, freeze=["block.local.mlp"])
    assert cm.predict("gemma-3-1b", seq=8, freeze=["block.local.mlp"], checkpoint=4).trainable_params == (
        mixed.trainable_params
    )


def test_costs_of_parts_are_named_as_parts_are_elsewhere() -> None:
    found = cm.break_even("vgg11", "conv:params", "linear:params", for_="batch")
    sizes = {
        kind: sum(row.params for row in cm.predict("vgg11").layers if row.kind == kind) for kind in ("conv", "linear")
    }
    assert found.first == (sizes["conv"], sizes["linear"])


def test_an_unknown_part_is_told_by_the_short_names() -> None:
    message = error_of(lambda: cm.predict("googlenet", freeze=["zzz"]))
    assert "known are batchnorm, branches, conv" in message
    assert len(message) < 200
    assert "'params'" in error_of(lambda: cm.break_even("gpt2-small", "paramss", "mlp:params", for_="batch"))
    assert "known are add, " in error_of(lambda: cm.break_even("resnet18", "qqq", "params", for_="batch")).replace(
        "adaptive_avg_pool, ", ""
    )


def test_a_long_list_of_names_ends_in_how_many_more_there_are() -> None:
    message = error_of(lambda: cm.load(""))
    listed, _, more = message.partition("known are ")[2].rpartition(" and ")
    assert len(message) < 200
    assert len(listed) <= 120
    assert len(listed.split(", ")) + int(more.partition(" more")[0].replace(",", "")) >= len(cm.models())


@pytest.mark.parametrize(("name", "kinds"), [("o_proj", ("attention", "cross_attention")), ("up_proj", ("mlp",))])
def test_names_of_model_hubs_leave_no_namesake_out(name: str, kinds: tuple[str, ...]) -> None:
    for model in ("t5-small", "qwen1.5-moe-a2.7b"):
        ours = {"o_proj": "output", "up_proj": "up"}[name]
        hub, own = (cm.predict(model, seq=8, lora={"rank": 2, "targets": [t]}).trainable_params for t in (name, ours))
        assert hub == own > 0


def test_a_path_of_numbers_is_held_against_a_name_of_numbers_in_few_steps() -> None:
    """Which of them are left out is not tried one by one: there would be more ways than seconds."""
    path, name = ".".join(["0"] * 200), ".".join(["0"] * 100)
    assert is_named(path, name)
    assert not is_named(path, f"x.{name}")
