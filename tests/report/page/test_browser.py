"""The page in a real browser: Chromium by its path, driven by Playwright."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from isolaw.cli import run
from isolaw.evidence import Quantity
from isolaw.fits.flags import Flag
from isolaw.report.text import law as law_text
from isolaw.runs import Runs

ROOT = Path(__file__).parents[3]
CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), ""
)
if not CHROMIUM:
    pytest.skip("no Chromium on PATH; on Debian: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install 'isolaw[test]'")

pytestmark = pytest.mark.slow
EVIL = '<img src=x onerror="window.hit=1"><b>bold</b>&lt;i&gt;\'"</script>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # In containers Chromium has no namespaces for its sandbox and little shared memory; the pages are ours.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as api:
        started = api.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A sweep over n and B_p, its law, and its page."""
    folder = tmp_path_factory.mktemp("made")
    sweep, law, page = folder / "sweep", folder / "sweep" / "law.json", folder / "report.html"
    keys = {
        "sweep.compute": "3e5",
        "sweep.seeds": "2",
        "grid.problems_per_batch": "[16, 64]",
        "grid.rollouts_per_problem": "[4, 16, 64, 256]",
        "problems.n_train": "300",
        "problems.n_validation": "200",
        "evaluation.points": "30",
        "executor.kind": "inline",
    }
    settings = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    assert run(["sweep", "--out", str(sweep), *settings]) == 0
    assert run(["fit", str(sweep), "--out", str(law), "--draws", "20"]) == 0
    assert run(["report", str(sweep), "-o", str(page), "--draws", "20"]) == 0
    return SimpleNamespace(sweep=sweep, law=law, page=page)


class Visitor:
    """Opens pages from disk, waits until their charts are drawn, and keeps what they said and asked for."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.contexts: list[Any] = []
        self.said: list[str] = []
        self.asked: list[str] = []

    def __call__(self, path: Path, width: int = 1000, scheme: str = "light") -> Any:
        context = self.browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        return page

    def leave(self) -> None:
        """Close everything: no message in the console, no request but for the pages themselves."""
        for context in self.contexts:
            context.close()
        assert self.said == []
        from_disk = [url for url in self.asked if url.startswith("file:///")]
        assert len(from_disk) == len(self.contexts)
        assert all(url.startswith("data:") for url in self.asked if url not in from_disk)


@pytest.fixture
def visit(browser: Any) -> Iterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    visitor.leave()


@pytest.fixture(scope="module")
def page(browser: Any, made: SimpleNamespace) -> Iterator[Any]:
    """The page, opened once for all tests that leave it as it was or do not care."""
    visitor = Visitor(browser)
    yield visitor(made.page)
    visitor.leave()


# Pairs of texts of which one lies over the other, and how much wider than the window the page is.
OVERLAPS = """() => {
  const texts = "nav a, header :is(h1, p, dt, dd), main :is(h2, h3, p, li, dt, dd, figcaption, pre), summary";
  const seen = [...document.querySelectorAll(texts)].filter(
    (e) => e.offsetParent && !e.closest(".scroll") && !e.closest(".bar"));
  const leaves = seen.filter((e) => !seen.some((o) => o !== e && e.contains(o)));
  const boxes = leaves.map((e) => [e.textContent.trim().slice(0, 40), e.getBoundingClientRect()]);
  const over = [];
  boxes.forEach(([name, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (width > 2 && height > 2) over.push([name, other]);
  }));
  return [over, Math.max(document.documentElement.scrollWidth - innerWidth, 0)];
}"""


@pytest.mark.nightly
def test_no_text_lies_over_another_at_any_width(visit: Visitor, made: SimpleNamespace) -> None:
    page = visit(made.page, width=360)
    for box in [plot.bounding_box() for plot in page.locator(".plot svg.main-svg").all()]:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    assert page.evaluate(OVERLAPS) == [[], 0]
    # To draw all charts again at each width takes longest, and their places stay without them.
    page.evaluate("document.querySelectorAll('.plot').forEach(Plotly.purge)")
    for width in (400, 768, 1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(OVERLAPS) == [[], 0]
    shown = page.locator("header").inner_text()
    assert all(text in shown for text in ("n\u00a0=\u00a0", "Expected loss ", "Next: "))


def until(page: Any, script: str, value: Any) -> None:
    """Wait for a value. (Playwright's own waiting evaluates text in the page, which its policy forbids.)"""
    for _ in range(200):
        if page.evaluate(script) == value:
            return
        page.wait_for_timeout(50)
    assert page.evaluate(script) == value


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def test_responses_stay_text_and_are_searched(
    visit: Visitor, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep whose runs kept hostile responses, by the command."""
    from isolaw.backend import Response
    from isolaw.store import SweepStore
    from isolaw.store.sweep import SavedResponses

    spec = next(iter(SweepStore(made.sweep).specs()[0].values()))
    said = [
        Response(
            "validation", f"p{i}", f"{EVIL} {i}+{i}=", f"<think>{EVIL}</think>\n{2 * i}", "4", 0.5, 7, False
        )
        for i in range(4)
    ]
    monkeypatch.setattr(
        "isolaw.report.fitted_runs.FittedRuns.backtest", lambda *_, **__: "it takes longest, and is not read"
    )
    monkeypatch.setattr(SweepStore, "responses", lambda store: iter([SavedResponses(spec, 3, 300, said)]))
    out = tmp_path / "said.html"
    assert run(["report", str(made.sweep), "-o", str(out), "--draws", "20"]) == 0
    page = visit(out)
    assert page.locator("#responses h2").inner_text() == "Responses"
    page.locator("#responses summary").click()
    shown = texts(page, "#table-responses td:nth-child(5)")
    assert shown == [f"<think>{EVIL}</think>\n{2 * i}" for i in range(4)]
    assert page.evaluate(
        "window.hit === undefined && !document.querySelector('#responses img, #responses b')"
    )
    page.locator("#find").fill("THINK 3+3=")
    assert texts(page, "#table-responses tbody tr:visible td:nth-child(4)") == [f"{EVIL} 3+3="]
    assert page.locator("#found").inner_text() == "1 of 4"
    page.locator("#find").fill("")
    assert page.locator("#table-responses tbody tr:visible").count() == 4


def test_it_opens_with_every_chart(page: Any) -> None:
    plots = page.locator(".plot")
    assert plots.count() == 4  # budget, n*, runs, map
    for i in range(plots.count()):
        assert plots.nth(i).get_attribute("role") == "img"
        assert len(plots.nth(i).get_attribute("aria-label")) > 40
        assert plots.nth(i).locator("svg.main-svg path").count() > 0
    assert page.locator("h1").inner_text().startswith("Simulated runs. For 299k rollouts: ")
    assert all(text for text in texts(page, "figcaption"))


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_the_slider_shows_what_predict_says(
    page: Any, made: SimpleNamespace, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    slider = page.locator("#slider")
    stop = round(share * int(slider.get_attribute("max")))
    slider.fill(str(stop))
    page.evaluate("new Promise(requestAnimationFrame)")
    budget = json.loads(page.locator("#data").text_content())["budgets"][stop]["x"]
    capsys.readouterr()
    assert run(["predict", str(made.law), "--compute", repr(budget), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    shown = {name: texts(page, f"[data-show={name}]") for name in ("n", "b", "m")}
    for name, key in {"n": "rollouts_per_problem", "b": "problems_per_batch", "m": "steps"}.items():
        assert shown[name]
        assert set(shown[name]) == {f"{said[key]:,}"}
    for name in ("n_star", "b_star"):
        assert page.locator(f"dd[data-show={name}]").inner_text() == law_text.star(Quantity(**said[name]))
    assert page.locator("dd[data-show=reward]").inner_text() == str(Quantity(**said["reward"]))
    lost = page.locator("p[data-show=loss]").inner_text()
    assert lost.startswith(f"Expected loss {said['expected_loss']:.4f} in avg@4 against the best of n = ")
    assert texts(page, "#flags li") == law_text.notes(Flag(**flag) for flag in said["flags"])
    rows = [
        texts(page, f"#table-options tbody tr:nth-child({i + 1}) td") for i in range(len(said["options"]) - 1)
    ]
    assert rows == [
        [
            f"{o['rollouts_per_problem']:,}", f"{o['problems_per_batch']:,}", f"{o['steps']:,}",
            "yes" if o["measured"] else "no",
            f"{o['expected_loss']:.4f}", f"{math.floor(100 * o['probability_within_tolerance'])}%",
        ]
        for o in said["options"][1:]
    ]  # fmt: skip
    # The charts that have a budget on their axis mark it.
    for chart in ("buys", "reward", "n-star"):
        at = page.evaluate(
            "name => document.querySelector(`[data-chart=${name}]`).layout.shapes.at(-1).x0", chart
        )
        assert at == pytest.approx(budget)
        mark = f"document.querySelector('[data-chart={chart}]')._fullLayout"
        best = f"n = {said['rollouts_per_problem']:,}, B_p = {said['problems_per_batch']:,}"
        assert page.evaluate(f"{mark}.shapes.at(-1).label.text") == f"budget: {best}"
        low, high = page.evaluate(f"{mark}.xaxis.range")
        assert low < math.log10(budget) < high


def test_the_slider_goes_by_keys_and_is_told(page: Any) -> None:
    page.locator("#slider").focus()
    page.keyboard.press("End")
    before = page.locator("h1").inner_text()
    page.keyboard.press("Home")
    first = page.locator("h1").inner_text()
    page.keyboard.press("ArrowRight")
    assert len({before, first, page.locator("h1").inner_text()}) == 3
    told = page.locator("#slider").get_attribute("aria-valuetext")
    assert re.fullmatch(r"[\d.]+k rollouts: n [\d,]+, B_p [\d,]+, M [\d,]+", told)
    assert told.startswith(page.locator("#c").inner_text())


def test_tables_sort_by_click_and_by_key(page: Any) -> None:
    page.locator("summary", has_text="Every run").click()
    head = page.locator("#table-runs th", has_text=re.compile("^n"))

    def order() -> list[int]:
        return [int(value) for value in texts(page, "#table-runs tbody td:nth-child(3)")]

    first = "document.querySelector('#table-runs tbody td:nth-child(3)').innerText"
    before = order()
    assert len(before) == 16
    head.click()
    page.wait_for_selector("#table-runs th[aria-sort=ascending]")
    until(page, first, "4")
    assert order() == sorted(before)
    head.focus()
    page.keyboard.press("Enter")
    until(page, first, "256")
    assert order() == sorted(before, reverse=True)


def hover(page: Any, name: str, trace: int, point: int) -> str:
    """The label of one point of a chart, after the mouse went there."""
    place = page.evaluate(
        """([name, trace, point]) => {
            const chart = document.querySelector(`[data-chart="${name}"]`);
            chart.scrollIntoView({ block: "center", behavior: "instant" });
            const { x, y } = chart.data[trace], full = chart._fullLayout, box = chart.getBoundingClientRect();
            return [box.x + full.xaxis._offset + full.xaxis.d2p(x[point]),
                    box.y + full.yaxis._offset + full.yaxis.d2p(y[point])];
        }""",
        [name, trace, point],
    )
    page.mouse.move(place[0] - 2, place[1])
    page.mouse.move(*place)
    label = page.locator(f'[data-chart="{name}"] .hoverlayer .hovertext').first
    label.wait_for()
    return label.text_content()


def test_hover_names_the_run(page: Any) -> None:
    others = page.locator(".chip[data-key=n]").all()[1:]
    for chip in others:
        chip.click()  # only the smallest n is left
    label = hover(page, "reward", 0, 20)
    for chip in others:
        chip.click()
    assert re.search(r"n = 4, B_p = 16, seed [01]step [\d,]+, C [\d,]+avg@4 0\.\d+", label), label


def test_chips_hide_an_n(page: Any) -> None:
    shown = "document.querySelectorAll('[data-chart=reward] .scatterlayer .trace').length"
    before = page.evaluate(shown)
    chip = page.locator(".chip[data-key=n]").first
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert page.evaluate(shown) < before
    chip.click()
    assert page.evaluate(shown) == before


def test_dark_by_preference_and_by_button_and_printed(
    visit: Visitor, page: Any, made: SimpleNamespace, tmp_path: Path
) -> None:
    font = "document.querySelector('[data-chart=reward]')._fullLayout.font.color"

    def paper(page: Any) -> tuple[str, str]:
        return page.evaluate("getComputedStyle(document.body).backgroundColor"), page.evaluate(font)

    light, dark = ("rgb(255, 255, 255)", "#1c1f24"), ("rgb(19, 21, 25)", "#e7e9ed")
    page.locator("#theme").click()
    assert paper(page) == dark
    assert page.locator("#theme").get_attribute("aria-pressed") == "true"
    page.locator("#theme").click()
    assert paper(page) == light
    preferred = visit(made.page, scheme="dark")
    assert paper(preferred) == dark
    preferred.emulate_media(media="print")
    until(preferred, "document.querySelector('[data-chart=reward]')._fullLayout.width", 680)
    assert paper(preferred) == light
    assert not preferred.locator(".bar").is_visible()
    assert not preferred.locator("nav").is_visible()
    assert preferred.locator("h1").is_visible()
    preferred.emulate_media(media="screen")
    preferred.pdf(path=tmp_path / "page.pdf", format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes())) >= 4
    preferred.locator("#theme").click()
    assert paper(preferred) == light


def test_charts_are_saved_as_svg(page: Any) -> None:
    for name in ("reward", "n-star", "grid"):
        with page.expect_download() as caught:
            page.locator(f"[data-svg={name}]").click()
        assert caught.value.suggested_filename == f"{name}.svg"
        text = Path(caught.value.path()).read_text()
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "rollouts" in text
        assert ">simulated runs<" in text
        assert "rgb(28, 31, 36)" in text  # the light theme's ink
        assert "var(--" not in text


def test_text_in_the_data_is_never_markup(
    visit: Visitor, synthetic: Callable[..., Runs], tmp_path: Path
) -> None:
    runs = synthetic([(32, n) for n in (8, 32, 128)], seeds=2, noise=0.004)
    metric = "acc<img src=x onerror='window.hit=2'>"
    points = runs.points.assign(
        run_id=[f"{r} {EVIL}" for r in runs.points["run_id"]], metric=metric, eval_set=EVIL
    )
    Runs(points, {r: {"lr": EVIL} for r in points["run_id"]}).to_parquet(tmp_path / "<img src=x>.parquet")
    out = tmp_path / "page.html"
    source = str(tmp_path / "<img src=x>.parquet")
    assert (
        run(["report", source, "-o", str(out), "--metric", metric, "--eval-set", EVIL, "--draws", "20"]) == 0
    )
    page = visit(out)
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0
    assert (
        page.locator("main b, header b").evaluate_all("all => all.map(b => b.textContent)").count("bold") == 0
    )
    label = hover(page, "reward", 0, 20)
    assert label.startswith(f"32x8s0 {EVIL}")
    assert metric in label
    assert any(EVIL in line for line in texts(page, "#table-runs td:first-child"))
    assert metric in page.locator('[data-chart="reward"] .ytitle').text_content()
    assert any(metric in line for line in texts(page, "#table-runs th"))
    assert EVIL in page.locator(".facts").inner_text()


def test_a_page_without_a_law(visit: Visitor, synthetic: Callable[..., Runs], tmp_path: Path) -> None:
    table = tmp_path / "two.parquet"
    synthetic([(32, n) for n in (8, 32)], seeds=1).to_parquet(table)
    assert run(["report", str(table), "-o", str(tmp_path / "page.html")]) == 0
    page = visit(tmp_path / "page.html")
    assert page.locator("h1").inner_text() == "isolaw recommends no allocation yet."
    assert "at least three values of n" in page.locator("p.loss").inner_text()
    assert page.locator("#slider").count() == 0
    assert page.locator("[data-chart=reward] svg.main-svg").count() > 0
    assert page.locator("#law").count() == 0
    assert "not shown" in page.locator("#how").inner_text()


@pytest.mark.nightly
def test_the_pages_of_make_docs(visit: Visitor, shell: dict[str, str], tmp_path: Path) -> None:
    command = ["sh", "examples/pages.sh", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"sh {command[1]} " in (ROOT / "Makefile").read_text()
    files = sorted(tmp_path.glob("*.html"))
    assert [file.name for file in files] == ["demo.html", "qwen.html", "real.html"]
    for file in files:
        for width in (400, 800, 1400):
            page = visit(file, width=width)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            drawn = page.locator(".plot svg.main-svg").all()
            assert len(drawn) >= 8
            for box in [svg.bounding_box() for svg in drawn]:
                assert box["x"] + box["width"] <= width
            for name in ("gtitle", "xtitle", "ytitle"):  # nothing is cut off at the chart's edge
                for title in page.locator(f".plot .{name}").all():
                    inner, outer = (
                        title.bounding_box(),
                        title.locator("xpath=ancestor::*[@data-chart]").bounding_box(),
                    )
                    assert outer["x"] - 1 <= inner["x"]
                    assert inner["y"] + inner["height"] <= outer["y"] + outer["height"] + 1
            page.close()


def test_the_table_of_runs_is_whole_without_a_script(browser: Any, made: SimpleNamespace) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(made.page.as_uri())
    assert page.locator("h1").inner_text().startswith("Simulated runs. For 299k rollouts: ")
    assert page.locator("#table-runs tbody tr").count() == 16
    assert "need JavaScript" in page.locator("body").inner_text()
    context.close()


def test_pandas_is_what_the_page_was_given(made: SimpleNamespace) -> None:
    """What the chart draws is what was recorded, to five digits."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', made.page.read_text(), re.S)[1])
    drawn = next(chart for chart in data["charts"] if chart["name"] == "reward")["data"]
    measured = [trace for trace in drawn if trace.get("meta", {}).get("runs")]
    values = sorted(v for trace in measured for v in trace["y"] if v is not None)
    points = Runs.from_parquet(made.sweep / "points.parquet").points
    own = points[(points["metric"] == "avg@4") & (points["eval_set"] == "validation") & (points["step"] > 0)]
    pd.testing.assert_series_equal(
        pd.Series(values), own["value"].sort_values(ignore_index=True), check_names=False, rtol=1e-4
    )
