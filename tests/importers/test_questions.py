"""A file that asks a whole question: a model and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import costmodel as cm
from tests.command import error_of, here

RUN = "model: llama-3.1-8b\nbatch: 2\nseq: 1024\ntp: 8\nsp: true\n"


def test_a_file_of_a_question_is_answered_as_the_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    asked = cm.predict("llama-3.1-8b", batch=2, seq=1024, tp=8, sp=True)
    assert cm.predict(str(path)) == cm.predict(path) == asked  # type: ignore[arg-type]
    assert cm.predict(str(path), tp=4).memory == cm.predict("llama-3.1-8b", batch=2, seq=1024, tp=4, sp=True).memory
    code, out, _ = here(capsys, "predict", str(path), "--json")
    assert (code, cm.Prediction.from_json(out)) == (0, asked)
    swept = here(capsys, "sweep", str(path), "--tp", "4,8", "--quantities", "memory.peak", "--json")
    assert str(asked.memory.peak) in swept.out


def test_a_model_is_sought_beside_the_file_or_described_in_it(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("architecture: mlp\nsizes: [8, 4]\n")
    for number, model in enumerate(("model.yaml", "{architecture: mlp, sizes: [8, 4]}")):
        path = tmp_path / f"run{number}.yaml"
        path.write_text(f"model: {model}\nbatch: 3\n")
        assert cm.predict(str(path)).settings.batch == 3
        assert cm.predict(str(path)).params == 36


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RUN.replace("tp:", "tpp:"), "line 4: unknown setting 'tpp': did you mean 'tp'"),
        (RUN.replace("1024", "-3"), "line 3: seq=-3 is not between"),
        (RUN.replace("tp: 8", "tp: [8]"), "line 4: tp=[8] is no whole number"),
        (RUN.replace("tp: 8", "tp: 3"), "use seq=1023 or 1026"),
        (RUN.replace("llama-3.1-8b", "no-such-model"), "no-such-model"),
        (RUN.replace("llama-3.1-8b", "run.yaml"), "no architecture is given"),
        (RUN.replace("llama-3.1-8b", "[1]"), "[1] is not a model"),
        (RUN.replace("llama-3.1-8b", "{architecture: mlp}"), "sizes"),
    ],
)
def test_a_bad_question_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert words in error_of(lambda: cm.predict(str(path)))
