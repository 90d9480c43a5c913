"""A rank of a module that a plan of names splits costs what PyTorch says; and which plans are none."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.importers.files import to_yaml
from tests.command import here
from tests.profiles import examples

from .plans import module_of
from .ranks import run
from .settings import DRAWN
from .test_ranks import RUNS, assert_a_sharded_rank_agrees, assert_events_agree


@st.composite
def planned_modules(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, str]]:
    """A module of one's own, and a plan that splits it."""
    gate = draw(st.sampled_from(["none", "apart", "fused"]))
    mlp = {"hidden": draw(st.sampled_from([16, 40])), "gated": gate == "apart", "fused": gate == "fused"}
    module: dict[str, Any] = {"kind": draw(st.sampled_from(["mlp", "encoder", "decoder"])), "layers": 2}
    module |= {"width": draw(st.sampled_from([16, 24])), "mlp": mlp | {"bias": draw(st.booleans())}}
    into = draw(st.sampled_from(["colwise", "packed_colwise"]))
    plan = {"*.up": into, "*.down": "rowwise"} | ({"*.gate": into} if gate == "apart" else {})
    if draw(st.integers(0, 3)) == 0:
        plan = {"*.down": "rowwise_split_input"}
    if module["kind"] == "mlp":
        return module, plan
    kind = draw(st.sampled_from(["sdpa", "matmul", "einsum", "merged", "fused"]))
    heads = {"heads": 8, "size": 4, "kind": kind}
    module["attention"] = heads if kind == "fused" else heads | {"kv_heads": draw(st.sampled_from([4, 8]))}
    module |= {"parallel": draw(st.booleans()), "rms": draw(st.booleans())}
    parts = ["*.qkv"] if kind == "fused" else ["*.q_proj", "*.k_proj", "*.v_proj"]
    plan |= dict.fromkeys(parts, "colwise") | {"*.o_proj": "rowwise"}
    if module["kind"] == "decoder":
        head = draw(st.sampled_from(["colwise_gather_output", "rowwise_split_input"]))
        table = draw(st.sampled_from(["embedding_rowwise", "embedding_colwise"]))
        tied = (head, table) == ("colwise_gather_output", "embedding_rowwise") and draw(st.booleans())
        module |= {"vocab": draw(st.sampled_from([32, 50])), "tied": tied}
        plan |= {"head": head, "embed": table} if tied or draw(st.booleans()) else {"head": head}
    return module, plan


@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(planned_modules(), RUNS, st.sampled_from([2, 4]), st.sampled_from(["sgd", "adamw"]))
def test_a_rank_of_a_module_that_a_plan_splits_costs_what_it_does(
    planned: tuple[dict[str, Any], dict[str, str]], runs: dict[str, Any], tp: int, optimizer: Any
) -> None:
    shape, plan = planned
    question = {"module": shape, "plan": plan, "tp": tp, "optimizer": optimizer, **runs}
    with torch.device("meta"):
        module, x = module_of(question)
    model = cm.from_torch(module, x)
    sizes: dict[str, Any] = {name: size for name, size in runs.items() if name in model.example}
    rank = cm.predict(model, plan=plan, tp=tp, optimizer=optimizer, loss="cross_entropy", **sizes).rank
    found = run(question)
    assert (rank.params, rank.memory.activations) == (found.params, found.saved)
    assert (rank.flops.forward, rank.flops.total) == (found.forward_flops, found.total_flops)
    assert_events_agree(rank, found, question)


SHARDED = st.sampled_from(
    [
        {"fsdp": 2, "tp": 2},
        {"fsdp": 3, "tp": 2, "dp": 2, "optimizer": "adamw"},
        {"fsdp": 2, "tp": 4, "accumulate": 2},
        {"fsdp": 2, "tp": 2, "precision": "bf16-master", "reshard": False},
    ]
)


@settings(examples(min(4, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(planned_modules(), SHARDED)
def test_a_rank_of_a_plan_whose_weights_are_sharded_too_costs_what_it_does(
    planned: tuple[dict[str, Any], dict[str, str]], chosen: dict[str, Any]
) -> None:
    shape, plan = planned
    if "precision" in chosen and "attention" in shape:  # without data SDPA's own code computes 16 bits in fp32
        shape["attention"] = shape["attention"] | {"kind": "matmul", "kv_heads": 8}
        plan = {"*.q_proj": "colwise", "*.k_proj": "colwise", "*.v_proj": "colwise"} | plan
        plan.pop("*.qkv", None)
    wrapped = {"wrap": "blocks"} if shape["kind"] == "decoder" else {}
    asked: dict[str, Any] = {"batch": 2, "seq": 8, "optimizer": "sgd"} | chosen | wrapped
    with torch.device("meta"):
        module, x = module_of({"module": shape, **asked})
    model = cm.from_torch(module, x)
    found = run({"module": shape, "plan": plan, **asked})
    absent = {"batch", "seq"} - {*model.example}
    own: dict[str, Any] = {name: value for name, value in asked.items() if name not in absent}
    rank = cm.predict(model, plan=plan, loss="cross_entropy", **own).rank
    assert_a_sharded_rank_agrees(rank, found, asked)


class Planned(torch.nn.Module):
    """A gate, heads that the code counts, and a table that the head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleDict(self.parts()) for _ in range(3))
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    @staticmethod
    def parts() -> dict[str, torch.nn.Module]:
        """Layers of a block."""
        names = ("q", "k", "v", "o")
        return {name: torch.nn.Linear(16, 16) for name in names} | {
            "up": torch.nn.Linear(16, 64),
            "down": torch.nn.Linear(64, 16),
        }

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        b, t, _ = x.shape
        for block in self.blocks:
            q, k, v = (block[name](x).view(b, t, 4, 4).transpose(1, 2) for name in "qkv")
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + block["o"](y.transpose(1, 2).reshape(b, t, 16))
            x = x + block["down"](torch.relu(block["up"](x)))
        return self.head(x)


PLAN = dict.fromkeys(("*.q", "*.k", "*.v", "blocks.*.up"), "colwise") | {"*.o": "rowwise", "*.down": "rowwise"}
PLAN |= {"head": "colwise_gather_output", "embed": "embedding_rowwise"}


@cache
def planned() -> Any:
    """The module above as a model."""
    return cm.from_torch(Planned(), torch.zeros(2, 8, dtype=torch.int64))


def test_a_sweep_over_ranks_of_a_plan_is_many_predictions() -> None:
    model, beside = planned(), {"plan": PLAN, "loss": "cross_entropy"}
    swept = cm.sweep(model, tp=[1, 2, 4], batch=[1, 3], seq=[8, 12], **beside)
    for (tp, batch, seq), row in swept.to_dataframe().iterrows():
        p = cm.predict(model, tp=tp, batch=batch, seq=seq, **beside)
        sent = sum(x.bytes for x in p.rank.timeline.every_collective())
        assert (row["memory.peak"], row["collectives.bytes"]) == (p.memory.peak, sent)


def test_a_plan_alone_changes_nothing_and_goes_where_a_model_goes() -> None:
    model = planned()
    assert cm.predict(model, plan=PLAN).to_dict()["memory"] == cm.predict(model).to_dict()["memory"]
    p = cm.predict(model, plan=PLAN, tp=2)
    assert cm.Prediction.from_json(p.to_json()).memory == p.memory
    whole = sum(weight.numel() for weight in Planned().parameters())
    shared = 50 * 16 + 3 * (4 * 16 * 16 + 3 * 16 + 2 * 16 * 64 + 64)
    assert 2 * p.rank.params == whole + (whole - shared)


@pytest.mark.parametrize(
    ("plan", "tp", "error"),
    [
        ({"*.gate": "colwise"}, 1, "'\\*.gate', which is no module"),
        ({"*.up": "column"}, 2, "unknown style of '\\*.up'"),
        ({"*.up": "colwise"}, 2, "down .* needs all of the axis"),
        ({"*.down": "rowwise"}, 2, "have it 'rowwise_split_input'"),
        ({"blocks.0": "colwise"}, 2, "no linear layer or embedding"),
        ({"*.up": "colwise", "blocks.1.up": "rowwise"}, 2, "both 'colwise' and 'rowwise'"),
        ({"head": "colwise"}, 2, "reads the weight of head"),
        (PLAN | {"head": "rowwise_split_input"}, 2, "both ways"),
        (PLAN, 8, "does not divide the 4 parts .* use tp=4"),
        (PLAN, 3, "use tp="),
        (None, 2, "needs a plan"),
        ({}, 2, "plan is empty"),
        ("own", 2, "is not 'auto'"),
        ([("*.up", 7)], 2, "no style"),
        ({"*.up" * 100: "colwise"}, 2, "no name of a module"),
        ({f"{n}": "colwise" for n in range(1001)}, 2, "at most 1,000"),
    ],
)
def test_a_plan_that_splits_nothing_like_it_is_refused_in_one_line(plan: object, tp: int, error: str) -> None:
    given: dict[str, Any] = {} if plan is None else {"plan": plan}
    with pytest.raises(cm.CostModelError, match=error) as caught:
        _ = cm.predict(planned(), tp=tp, **given).rank.params
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_plan_is_of_modules_alone() -> None:
    with pytest.raises(cm.CostModelError, match="models of from_torch"):
        cm.predict("gpt2-small", tp=2, plan={"*.up": "colwise"})


def test_a_plan_is_written_in_a_shell_as_names_and_styles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.yaml"
    model.write_text(to_yaml(planned()))
    written = ",".join(f"{name}={style}" for name, style in PLAN.items())
    answer = here(capsys, "predict", str(model), "--tp", "2", "--plan", written, "--json")
    assert json.loads(answer.out)["memory"]["peak"] == cm.predict(planned(), tp=2, plan=PLAN).memory.peak
    swept = here(capsys, "sweep", str(model), "--tp", "1,2", "--plan", written, "--quantities", "memory.peak")
    _, table = swept.out.strip().split("\n\n")
    assert (swept.code, len(table.splitlines())) == (0, 3)


def test_a_module_may_say_itself_what_is_split() -> None:
    module = Planned()
    module.tp_plan = PLAN | {"*.experts": "moe_tp_experts"}  # of what another of its kind has
    model = cm.from_torch(module, torch.zeros(2, 8, dtype=torch.int64))
    own = cm.predict(model, tp=2)
    assert own.rank.params == cm.predict(model, tp=2, plan=PLAN).rank.params
    assert cm.predict(model, tp=2, plan="auto").memory == own.memory
