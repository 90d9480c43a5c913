"""The page in a real browser: what a person sees, types and reads is what `predict` says."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.units import show_bytes, show_count, show_seconds
from tests.command import here
from tests.explorer.engine import drawn, parts_of, predicted

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
CHOICES: dict[str, Any] = {"precision": ["fp32", "bf16-autocast"], "checkpoint": ["none", "block"]}
HOSTILE = '</script><img src=x onerror="window.hit=1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("COSTMODEL_REQUIRE_BROWSER"):
            pytest.fail(f"COSTMODEL_REQUIRE_BROWSER is set, but there is no browser ({', '.join(BROWSERS)})")
        pytest.skip("no browser: install Chromium, as with apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, "gpt2-small", **CHOICES)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, "mlp-mnist", **CHOICES)


def made(folders: pytest.TempPathFactory, *models: Any, **asked: Any) -> Path:
    path = folders.mktemp("page") / "page.html"
    cm.explore(*models, out=path, **asked)
    return path


class Opened:
    """A page in a window of its own, and all that went wrong or was asked of a network in it."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", **window: Any) -> None:
        self.path = path
        self.wrong: list[str] = []
        context = browser.new_context(**window)
        self.page = context.new_page()
        self.page.on("console", lambda said: self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: asked.url.startswith("file://") or self.wrong.append(asked.url))
        self.page.goto(f"file://{path}{fragment}")
        self.data = parts_of(path.read_text())[0]["models"][0]

    def put(self, sizes: dict[str, int], choices: dict[str, int]) -> None:
        """Set all as a person does: the choices, then the fields."""
        for number, choice in enumerate(self.data["choices"]):
            field = self.page.locator(f"#choice-{number}")
            if field.count() and field.is_enabled():
                value = str(choices[choice["name"]])
                field.fill(value) if field.get_attribute("type") == "range" else field.select_option(value)
        for number, size in enumerate(self.data["sizes"]):
            self.page.fill(f"#size-{number}", str(sizes[size["name"]]))
        self.settle()

    def settle(self) -> None:
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def wait_for_link(self, part: str) -> None:
        """Until the link has the state; the page's policy lets no test evaluate a condition in it by itself."""
        for _ in range(100):
            if part in self.page.evaluate("location.hash"):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"the link has no {part}")

    def number(self, card: str) -> int:
        return int(re.sub("[^0-9]", "", self.page.inner_text(f"#card-{card} .exact")))

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def has(self, selector: str) -> bool:
        return self.page.is_visible(selector)


def check_shown(opened: Opened, p: cm.Prediction) -> None:
    assert opened.number("params") == p.params
    assert opened.number("flops") == p.flops.total
    assert opened.number("peak") == p.memory.peak


@pytest.mark.parametrize("name", ["gpt2-small", "mlp-mnist"])
def test_what_is_typed_gives_what_predict_says(name: str, browser: Any, request: pytest.FixtureRequest) -> None:
    opened = Opened(browser, request.getfixturevalue(name.partition("-")[0]))
    model = cm.load(name)
    answered = 0
    for sizes, choices in drawn(opened.data, 12, seed=1):
        opened.put(sizes, choices)
        try:
            p = predicted(model, opened.data, sizes, choices)
        except cm.CostModelError:
            assert opened.has("#refusal")
            continue
        assert not opened.has("#refusal"), opened.text("#refusal")
        check_shown(opened, p)
        answered += 1
    assert answered > 6
    assert opened.wrong == []


def test_serving_says_when_the_first_token_is_there_what_is_kept_how_many_requests_fit_and_tokens_a_second(
    browser: Any, tmp_path: Path
) -> None:
    path, asked = tmp_path / "page.html", {"precision": "bf16", "attention": "flash"}
    cm.explore("gpt2-small", out=path, mode=["prefill", "decode"], on="t4", **asked)
    opened = Opened(browser, path, "#machine=t4")
    first = cm.predict("gpt2-small", batch=8, seq=1024, mode="prefill", **asked).on("t4")
    assert "Time to first token" in opened.text("#card-time")
    assert f"{show_seconds(first.low)} to {show_seconds(first.high)}" in opened.text("#card-time")
    assert f"The first token of 8 prompts that are read at once typically takes {show_seconds(first.seconds)}" in (
        opened.text("#time-lead")
    )
    opened.page.select_option(
        "#choice-0", label="decode"
    )  # with the whole context before there is no room for one more
    opened.settle()
    requests = int(cm.max_batch("gpt2-small", "16 GiB", past=768, mode="decode", **asked))
    opened.page.wait_for_selector("#requests", state="visible")
    full = cm.predict("gpt2-small", batch=requests, past=768, mode="decode", **asked).on("t4")
    together = show_count(round(requests / full.seconds))
    assert opened.text("#requests") == (
        f"Requests that fit the 16 GiB of t4 at once, with 768 tokens kept of each: {requests:,}. So many together are"
        f" served {together} tokens/s: a token of each every {show_seconds(full.seconds)}"
        f" ({show_seconds(full.low)} to {show_seconds(full.high)})."
    )
    served = opened.text("#machines-table")
    assert together in served.partition("t4")[2]
    time = cm.predict("gpt2-small", batch=8, past=768, mode="decode", **asked).on("t4")
    assert opened.number("peak") == time.prediction.memory.peak
    assert "36.0 KiB of keys and values" in opened.text("#memory-lead")
    assert f"{show_seconds(time.low)} to {show_seconds(time.high)}" in opened.text("#card-time")
    assert time.tokens_per_second is not None
    rate = f"{show_count(round(time.tokens_per_second))} tokens/s"
    assert rate in opened.text("#card-time .exact")
    least, most = (show_count(round(8 / seconds)) for seconds in (time.high, time.low))
    assert f"{rate}, four of five times {least} to {most}." in opened.text("#time-lead")
    assert "past=768" in opened.text("#again")
    assert opened.wrong == []


def test_a_hostile_name_does_nothing(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    model = cm.MLP(sizes=(8, 16, 4), name=HOSTILE)
    cm.explore(model, out=path, precision="fp32", mode="inference")
    opened = Opened(browser, path)
    assert opened.text("#title") == HOSTILE
    assert opened.page.title().startswith(HOSTILE)
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("img").count() == 0
    assert opened.wrong == []


def test_the_policy_lets_no_other_script_run_and_nothing_be_asked_for(browser: Any, mlp: Path) -> None:
    opened = Opened(browser, mlp)
    code = """() => {
      const script = document.createElement("script");
      script.textContent = "window.hit = 1";
      document.body.append(script);
      return fetch("https://example.org/").then(() => "fetched", () => "refused");
    }"""
    assert opened.page.evaluate(code) == "refused"
    assert opened.page.evaluate("window.hit") is None


def test_sliders_and_tables_work_from_the_keyboard(browser: Any, mlp: Path) -> None:
    opened = Opened(browser, mlp)
    before = opened.number("peak")
    opened.page.focus("#size-0")
    opened.page.keyboard.press("Tab")
    for _ in range(3):
        opened.page.keyboard.press("ArrowRight")
    opened.settle()
    assert opened.number("peak") > before
    opened.page.focus("#memory-table td[tabindex='0']")
    first = opened.text("#formula")
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.evaluate("document.activeElement.tagName") == "TD"
    assert opened.text("#formula") != first
    assert opened.page.get_attribute("#formula", "aria-live") == "polite"


def test_everything_has_a_name_for_a_screen_reader(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    nameless = """() => [...document.querySelectorAll("input, select, button, [role=img], [role=group]")]
      .filter((each) => !each.labels?.length && !each.getAttribute("aria-label") && !each.textContent.trim())
      .map((each) => each.outerHTML)"""
    assert opened.page.evaluate(nameless) == []
    assert opened.page.evaluate("[...document.querySelectorAll('table')].every((each) => each.caption)")


def test_what_is_looked_at_shows_its_formula_with_the_numbers_put_in(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    opened.page.hover("#card-params")
    said = opened.text("#formula")
    value = cm.predict("gpt2-small").params
    assert f"{value:,}" in said
    assert "12 × (12 × 7682 + 13 × 768)" in said, "the square's 2 is raised, which text does not show"
    plain = "query heads divide model width", "sequence length is at most longest sequence"
    assert all(condition in said for condition in plain)
    assert "sequence length is not 1" not in said, "it is none wherever the slider stands"
    assert not opened.page.locator("#formula details[open]").count(), "what is checked as it is stays folded"


def test_the_peak_is_drawn_along_the_slider_moved_last(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    assert not opened.has("#curve")
    opened.page.focus("#size-0")
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("ArrowRight")
    opened.page.wait_for_selector("#curve-picture svg")
    lead = opened.text("#curve-lead")
    least, most = (show_bytes(cm.predict("gpt2-small", batch=batch).memory.peak) for batch in (1, 1024))
    assert f"{least} at 1, {most} at 1,024" in lead
    fitting = [
        batch for batch in opened.data["sizes"][0]["stops"] if cm.predict("gpt2-small", batch=batch).fits("24 GiB")
    ]
    assert f"within 24 GiB is {fitting[-1]:,}." in lead
    assert opened.wrong == []


def test_memory_over_a_step_is_drawn_and_told_of_moment_by_moment(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2, "#batch=3&checkpoint=block")
    timeline = cm.predict("gpt2-small", batch=3, checkpoint="block").timeline
    opened.page.wait_for_selector("#course-picture svg")
    assert f"peak {show_bytes(timeline.peak)}, {timeline.peak_step.phase} of {timeline.peak_step.layer}" in opened.text(
        "#course-picture"
    )
    assert f"each of {timeline.happenings:,} moments" in opened.text("#course-lead")
    opened.page.focus("#course-picture svg")
    for _ in range(60):
        opened.page.keyboard.press("PageUp")
    first = max(islice(timeline.unrolled(), -(-timeline.happenings // 480)), key=lambda step: step.alive.total)
    assert f"{first.phase} of {first.layer}: {show_bytes(first.alive.total)}" in opened.text("#course-said")
    opened.page.keyboard.press("ArrowRight")
    assert "activations" in opened.text("#course-said")
    assert opened.wrong == []


@pytest.mark.parametrize("width", [390, 520, 768, 1000, 1400])
def test_no_number_is_cut_at_any_width(width: int, browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2, "#batch=384&machine=h100-sxm&pinned=1", viewport={"width": width, "height": 800})
    cut = """() => [...document.querySelectorAll("td, .value, .exact, .other, .total")]
      .filter((each) => each.textContent && each.offsetParent)
      .filter((each) => each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().right > innerWidth)
      .map((each) => each.textContent)"""
    assert opened.page.evaluate(cut) == []
    outside = """() => [...document.querySelectorAll("svg text")]
      .map((each) => [each.textContent, each.getBoundingClientRect()])
      .filter(([, { left, right }]) => left < 0 || right > innerWidth).map(([text]) => text)"""
    opened.page.wait_for_selector("#course-picture svg")
    assert opened.page.evaluate(outside) == []
    assert opened.has("#card-peak .other")
    assert opened.has("#roofline svg")
    assert opened.wrong == []


def test_what_no_model_can_be_is_refused(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    place = next(n for n, size in enumerate(opened.data["sizes"]) if size["name"] == "heads")
    opened.page.fill(f"#size-{place}", "11")
    opened.settle()
    assert opened.has("#refusal")
    opened.page.fill(f"#size-{place}", "10000000")
    opened.settle()
    assert "outside what this page holds" in opened.text("#refusal")
    opened.page.fill(f"#size-{place}", "12")
    opened.settle()
    assert not opened.has("#refusal")


def test_a_link_keeps_the_state(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    opened.page.fill("#size-0", "3")
    opened.settle()
    opened.page.click("#compare")
    opened.page.fill("#size-0", "5")
    opened.page.fill("#budget", "2 GiB")
    opened.page.select_option("#choice-2", "1")
    opened.settle()
    opened.wait_for_link("precision")
    again = Opened(browser, gpt2, opened.page.evaluate("location.hash"))
    for selector in ("#cards", "#memory-table", "#flops-table", "#layers-table"):
        assert again.text(selector) == opened.text(selector)
    assert "pinned" in again.text("#card-peak")
    assert again.number("peak") == cm.predict("gpt2-small", batch=5, precision="bf16-autocast").memory.peak


def test_what_is_copied_asks_the_same_question(browser: Any, gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = Opened(browser, gpt2)
    place = next(n for n, size in enumerate(opened.data["sizes"]) if size["name"] == "width")
    opened.page.fill("#size-0", "3")
    for width, verb in (("768", "predict"), ("1536", "sweep")):
        opened.page.fill(f"#size-{place}", width)
        opened.settle()
        python, shell, _ = opened.page.locator("#again pre").all_inner_texts()
        lines = python.replace("cm.predict(", "found = cm.predict(").strip()
        scope: dict[str, Any] = {}
        exec(lines, scope)
        check_shown(opened, scope["found"])
        program, asked, *rest = shlex.split(shell)
        assert (program, asked) == ("costmodel", verb)
        done = here(capsys, asked, *rest, "--json")
        assert done.code == 0
        assert str(opened.number("peak")) in done.out


def test_the_budget_is_held_against_the_peak(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    peak = opened.number("peak")
    opened.page.fill("#budget", f"{peak} B")
    opened.settle()
    assert opened.text("#card-fits .value") == "fits"
    opened.page.fill("#budget", f"{peak - 1} B")
    opened.settle()
    assert opened.text("#card-fits .value") == "does not fit"
    opened.page.fill("#budget", "much")
    opened.settle()
    assert opened.text("#card-fits .value") == "–"


@pytest.mark.parametrize("width", [340, 390, 700, 1000, 1600])
def test_nothing_is_wider_than_the_window(width: int, browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2, viewport={"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_have_readable_text(browser: Any, mlp: Path) -> None:
    for scheme in ("light", "dark"):
        opened = Opened(browser, mlp, color_scheme=scheme)
        for selector in ("body", ".lead", "#card-fits .value", "#formula .letter"):
            assert opened.page.evaluate(CONTRAST, selector) >= 4.5, (scheme, selector)


CONTRAST = """(selector) => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(channel);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ink = light(getComputedStyle(document.querySelector(selector)).color);
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


def test_degrees_are_sliders_with_memory_by_rank_what_is_sent_and_the_bubble(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = cm.Transformer(vocab=96, context=64, layers=4, width=64, heads=8, tied=False)
    path = made(tmp_path_factory, model, tp=[1, 2], pp=[1, 2, 4], accumulate=[4, 8], fsdp=[1, 2, 4])
    opened = Opened(browser, path)
    assert "1 device." in opened.text("#devices-lead")
    sizes = {size["name"]: n for n, size in enumerate(opened.data["sizes"])}
    opened.page.fill(f"#size-{sizes['tp']}", "2")
    opened.page.fill(f"#choice-{[choice['name'] for choice in opened.data['choices']].index('pp')}", "2")
    opened.page.fill("#devices-slider", "1")
    opened.settle()
    p = cm.predict(model, batch=8, seq=64, precision="bf16", attention="flash", tp=2, pp=4, accumulate=4, fsdp=2)
    assert opened.number("peak") == p.memory.peak
    assert "16 devices: tp 2 × fsdp 2 × pp 4" in opened.text("#devices-lead")
    assert "waits 42.9% of a step (9 of 21 units" in opened.text("#devices-lead")
    rows = opened.page.locator("#ranks-table tbody tr").all()
    peaks = [row.locator("td").all_text_contents()[-2] for row in rows]
    order = sorted(p.ranks, key=lambda rank: rank.place.rank if rank.place else 0)
    assert peaks == [show_bytes(rank.memory.peak) for rank in order]
    assert opened.page.locator("#sums-table tr.sum td").all_text_contents()[-1] == show_bytes(p.collectives.wire_bytes)
    opened.page.select_option("#machine", label="h100-sxm")
    opened.settle()
    time = p.on("h100-sxm")
    assert f"and {show_seconds(time.bubble)} ({time.bubble / time.seconds:.1%}) for other stages" in opened.text(
        "#time-lead"
    )
    assert show_seconds(time.bubble) in opened.page.locator("#sent-table tr", has_text="other stages").inner_text()
    opened.page.fill(f"#size-{sizes['tp']}", "3")
    opened.settle()
    assert "outside what this page holds, 1 or 2" in opened.text("#refusal")
    assert opened.wrong == []


def test_beside_a_choice_stands_what_it_is_about_and_where_what_is_chosen_is_from(browser: Any, gpt2: Path) -> None:
    opened = Opened(browser, gpt2)
    names = [choice["name"] for choice in opened.data["choices"]]
    row = f"#choice-{names.index('precision')}-row"
    assert "IEEE single precision" in opened.text(row)
    opened.page.select_option(f"#choice-{names.index('precision')}", "1")
    assert "torch.autocast, bfloat16" in opened.text(row)


def test_several_models_have_a_switch(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = made(tmp_path_factory, "mlp-mnist", "mlp-lenet-300-100", precision="fp32", mode="inference")
    opened = Opened(browser, path)
    opened.page.select_option("#model", label="mlp-lenet-300-100")
    opened.settle()
    assert opened.number("params") == cm.predict("mlp-lenet-300-100").params
    opened.wait_for_link("lenet")
    again = Opened(browser, path, opened.page.evaluate("location.hash"))
    assert again.number("params") == cm.predict("mlp-lenet-300-100").params
