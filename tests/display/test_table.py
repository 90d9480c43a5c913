"""Tables on pages of every width: what has no room is named, and nothing is wider than the page."""

import re
from io import StringIO

import pytest

import costmodel as cm
from costmodel.analysis.recommend import recommend
from costmodel.display.table import Marked, Page, Table, is_terminal, shortened, written_for

TABLE = Table(
    ("layer", "kind", "params", "forward"),
    [("block.attention.scores", "matmul", "12", "1,000"), ("total", "2 layers", "12", "1,000")],
    words=frozenset({0, 1}),
    total=True,
    worth=("params", "forward"),
)


def written(columns: int | None, *, colours: bool = False) -> str:
    with written_for(Page(columns, colours)):
        return TABLE.text()


def test_a_wide_page_has_everything() -> None:
    assert written(None) == written(200) == TABLE.text()
    assert "matmul" in written(200)


@pytest.mark.parametrize("columns", range(40, 60))
def test_a_narrow_page_says_what_it_leaves_out(columns: int) -> None:
    text = written(columns)
    assert max(map(len, text.splitlines())) <= columns
    assert ("kind" in text.splitlines()[0]) != ("no room for: kind" in text)


def test_what_means_something_stands_out_only_in_colours() -> None:
    marked = Table(("verdict",), [(Marked("does not fit", "alarm"),)])
    assert marked.text() == "verdict\ndoes not fit"
    with written_for(Page(80, colours=True)):
        assert "\x1b[1;31mdoes not fit\x1b[0m" in marked.text()
    assert "color:" in marked.html().replace("color:inherit", "")


@pytest.mark.parametrize("columns", [60, 80, 110, 200])
@pytest.mark.parametrize(
    "answer",
    [
        cm.predict("gpt2-small", batch=32, seq=512),
        cm.predict("deepseek-v2-lite", seq=512),
        cm.predict("gpt2-small", batch=32).timeline,
        cm.predict("gpt2-small", batch=32).fits("24 GiB"),
        cm.predict("gpt2-small").explain("memory.peak"),
        cm.compare("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"),
        recommend("gpt2-small", memory="24 GiB", samples=64),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_answers_fit_the_page(answer: object, columns: int) -> None:
    with written_for(Page(columns)):
        text = str(answer)
    assert [line for line in text.splitlines() if len(line) > columns] == []
    with written_for(Page(columns, colours=True)):
        coloured = str(answer)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text


def test_nobody_looks_at_a_closed_stream() -> None:
    stream = StringIO()
    assert not is_terminal(stream)
    stream.close()
    assert not is_terminal(stream)
    assert not is_terminal(None)


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "name", ["x" * 10_000, "block." * 2_000, "λ" * 300, "a b " * 500, "1,234," * 100, "", "a100-pcie-40gb"]
)
@pytest.mark.parametrize("key", [1, 2, 4])
def test_no_name_makes_a_line_wider_than_the_page(name: str, columns: int, key: int) -> None:
    row = (name, name, "12.5 GiB", "no", name, "1")
    table = Table(("layer", name, "memory", "fits", "bound by", "of"), [row, row], words=frozenset({0, 1, 4}), key=key)
    with written_for(Page(columns)):
        text = table.text()
    assert max(map(len, text.splitlines())) <= columns
    assert len(text) < 5_000
    assert all(cell in text for cell in ("12.5 GiB", "no", "memory", "fits"))


def test_names_go_on_over_lines_between_their_words() -> None:
    name = "block.attention.scores_of_all_heads"
    with written_for(Page(40)):
        lines = Table(("layer", "memory", "time"), [(name, "12.5 GiB", "1.25 ms")]).text().splitlines()
    assert lines[1].split() == ["block.attention.", "12.5", "GiB", "1.25", "ms"]
    assert "".join(line.strip() for line in lines[2:]) == "scores_of_all_heads"
    assert shortened(name, 30) == "block.attention.…of_all_heads"


def test_columns_without_room_go_on_below_beside_the_key() -> None:
    header = ("rank", *(f"quantity {n}" for n in range(9)))
    with written_for(Page(60)):
        blocks = Table(header, [tuple(map(str, range(10)))]).text().split("\n\n")
    assert len(blocks) > 1
    assert all("rank" in block for block in blocks)
    assert sum(block.count("quantity") for block in blocks) == 9
