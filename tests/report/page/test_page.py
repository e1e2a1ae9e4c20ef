"""The page as a file: what stands on it, what is left out and why, and that data stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from shared_laws import SharedLaws

import isolaw
from isolaw import evidence as numbers
from isolaw.errors import DataError, InputError
from isolaw.evidence import amount
from isolaw.report.figures import law_figure
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.fitted_runs import _common_compute as common_compute
from isolaw.report.page import PageContent, check_replaceable, law_charts, render, write
from isolaw.report.page import _script_json as as_script
from isolaw.report.page.budgets import Budgets, budget_texts, budgets
from isolaw.report.page.budgets import _preferred_numbers as stops
from isolaw.report.page.chart import joined, log_axis, palette, rounded
from isolaw.report.page.law_charts import reward
from isolaw.report.text import law as law_text
from isolaw.runs import Runs

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]
VENDOR = Path(isolaw.__file__).parent / "report" / "page" / "vendor"


def fitted(law: isolaw.Law, runs: Runs) -> FittedRuns:
    return FittedRuns(runs, law.document.metric, law.document.eval_set, law)


class Seen(HTMLParser):
    """Elements that are open, headings by section, and whether tags match."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.sections.append(str(dict(attrs)["id"]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def seen(text: str) -> Seen:
    parser = Seen()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def data(text: str) -> Any:
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def study(runs: Runs, **options: Any) -> FittedRuns:
    law = isolaw.fit(runs, **({"draws": 8} | options))
    return FittedRuns(runs, "avg@4", "validation", law)


def few(law: Any, compute: float | None, **limits: Any) -> Budgets:
    """A slider of two stops to the decade: each is a prediction."""
    with mock.patch("isolaw.report.page.budgets._E6", (1.0, 3.3)):
        return budgets(law, compute, **limits)


_BUDGETS: dict[int, tuple[FittedRuns, Budgets]] = {}


def facts(own: FittedRuns, **more: Any) -> PageContent:
    """What a page says of a study; the predictions, which take seconds, once for all pages of a study."""
    if own.law and id(own) not in _BUDGETS:
        _BUDGETS[id(own)] = own, few(own.law, None)
    return PageContent(_BUDGETS[id(own)][1] if own.law else None, "not asked for", **more)


@pytest.fixture(scope="module")
def joint(synthetic: Make) -> FittedRuns:
    return study(synthetic([(b, n) for b in (16, 32) for n in LEVELS], noise=0.004))


@pytest.fixture(scope="module")
def text(joint: FittedRuns) -> str:
    return render(joint, facts(joint, command="isolaw report x -o y.html", title="runs/easy"))


def test_sections(text: str) -> None:
    assert seen(text).sections == ["budget", "next", "law", "reward", "grid", "health", "how"]
    assert "Backtest: not asked for" in text
    assert "isolaw report x -o y.html" in text
    assert "<title>runs/easy · isolaw</title>" in text


def test_only_these_scripts_may_run_and_nothing_is_fetched(text: str) -> None:
    tags = seen(text).tags
    policy = next(
        item["content"] for tag, item in tags if item.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'" for s in scripts
    ]
    assert rules["script-src"].split() == hashes
    assert len(hashes) == 4
    for _, item in tags:
        assert not {"src", "srcset", "onclick", "onload", "onerror"} & set(item)
        assert str(item.get("href", "#")).startswith("#")


def test_the_same_data_give_the_same_page(joint: FittedRuns, text: str) -> None:
    again = render(joint, facts(joint, command="isolaw report x -o y.html", title="runs/easy"))
    assert again == text


def test_data_are_escaped(synthetic: Make) -> None:
    evil = "</script><script>alert(1)</script><b>&amp;\u2028"
    runs = synthetic([(32, n) for n in LEVELS])
    runs = Runs(runs.points.assign(run_id=[f"{r}{evil}" for r in runs.points["run_id"]]), source=evil)
    own = study(runs, draws=0)
    page = render(own, facts(own, title=evil, notes=(evil,), sources=[(evil, evil, evil)]))
    assert "<script>alert" not in page
    assert sum(tag == "script" for tag, _ in seen(page).tags) == 5
    # plotly.js reads tags, so a text goes in as entities; in the JSON these are escaped once more.
    assert data(page)["runs"][0].startswith("32x128s0&lt;/script&gt;")
    assert "&lt;b&gt;&amp;amp;\u2028" in data(page)["runs"][0]


def test_script_escapes() -> None:
    value = {"a": "</script>&<!--\u2028\u2029", "b": [1.5, None]}
    written = as_script(value)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_script(float("nan"))


def test_no_number_of_the_page_is_missing_or_infinite(text: str) -> None:
    assert "NaN" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    page = data(text)
    assert len(page["runs"]) == 24
    assert [chart["name"] for chart in page["charts"]] == ["buys", "n-star", "reward", "grid"]
    names = {name for theme in page["palette"].values() for name in theme}
    asked = set(re.findall(r'"var\(--(\w+)\)"', json.dumps(page["charts"])))
    assert asked <= names
    assert set(page["palette"]["light"]) == set(page["palette"]["dark"])


def test_without_a_law(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in (8, 32)])
    own = FittedRuns(runs, "avg@4", "validation", None, "too few <n>")
    page = render(own, PageContent(None, "there is no law"))
    assert seen(page).sections == ["reward", "grid", "health", "next", "how"]
    assert (
        page.count("too few &lt;n&gt;") == 3
    )  # as the answer, as what is to run, and among what is left out
    assert data(page)["budgets"] == []


@pytest.mark.parametrize("steps", [[0], [5], [0, 7]])
@pytest.mark.parametrize("n", [[8], [4, 8]])
def test_little_data_have_a_page(steps: list[int], n: list[int]) -> None:
    row = {"problem_set": "p", "algorithm": "grpo", "eval_set": "validation", "metric": "avg@4", "seed": 0}
    rows = [
        {**row, "run_id": f"n{k}", "problems_per_batch": 2, "rollouts_per_problem": k, "step": t,
         "compute": 2 * k * t, "value": 0.5}
        for k in n for t in steps
    ]  # fmt: skip
    own = FittedRuns(Runs(pd.DataFrame(rows)), "avg@4", "validation", None, "too little")
    assert seen(render(own, PageContent(None, "there is no law"))).sections == [
        "reward",
        "grid",
        "health",
        "next",
        "how",
    ]


@pytest.mark.parametrize(
    "options", [{"method": "paper"}, {"draws": 0}, {"hold": "B"}, {"curve": "power"}], ids=str
)
def test_every_kind_of_law_has_a_page(synthetic: Make, options: dict[str, Any]) -> None:
    places = [(1024 // n, n) for n in LEVELS] if "hold" in options else [(32, n) for n in LEVELS]
    runs = synthetic(places, noise=0.004, zero=False)
    own = FittedRuns(runs, "avg@4", "validation", isolaw.fit(runs, **({"draws": 8} | options)))
    page = render(own, facts(own))
    assert {"budget", "law"} <= set(seen(page).sections)
    chart = next(chart for chart in data(page)["charts"] if chart["name"] == "n-star")
    named = {trace.get("name") for trace in chart["data"]}
    assert ("95 % of draws" in named) == bool(options.get("draws", 8))
    chips = re.findall(r'data-key="(.)" data-value="(\d+)"', page)
    assert {n for key, n in chips if key == "n"} == {str(n) for n in LEVELS}
    axis = "M, update steps" if "hold" in options else "C, rollouts generated"
    assert chart["layout"]["xaxis"]["title"]["text"] == axis


@pytest.mark.slow
@pytest.mark.parametrize("hold", ["B_p", "B", "nothing"])
def test_one_best_n_at_one_budget(shared: SharedLaws, hold: str) -> None:
    """The text, JSON, the page, every chart and the figures name the same n at the same C."""
    own = fitted(shared.law(f"surface {hold}"), shared.runs(f"surface {hold}"))
    found, law = few(own.law, 2e6), own.law
    today, asked = found.today, found.answer
    n, m = asked.to_dict()["rollouts_per_problem"], today.to_dict()["rollouts_per_problem"]
    # Text: of predict and of fit.
    assert f": n = {n:,}, B_p = {asked.B_p:,}, M = " in str(asked)
    assert law.predict(2e6).n == n
    assert law.summary().startswith(f"For {amount(today.compute)} rollouts: n = {m:,}, B_p = {today.B_p:,}, ")
    # The page: its headline, its marks, the labels of its charts, and its table.
    page = render(own, PageContent(found, "not asked for"))
    assert f"n\u00a0=\u00a0{n:,}, B_p\u00a0=\u00a0" in re.search(r"<h1[^>]*>([^<]*)</h1>", page)[1]
    drawn = data(page)
    stop = drawn["budgets"][drawn["first"]]
    assert stop["best"].split(",")[0] == f"n = {n}"
    charts = {chart["name"]: chart for chart in drawn["charts"]}
    for name in ("buys", "n-star"):
        texts = " ".join(shape["label"]["text"] for shape in charts[name]["layout"]["shapes"])
        assert f"today: n = {m}" in texts
    symbol, scale = ("M", 1024) if hold == "B" else ("C", 1)
    for budget, best in ((today.compute, m), (asked.compute, n)):
        start = f"{symbol} = {numbers.number(budget / scale)}: n = {best}"
        for name in ("buys", "n-star", "reward"):
            hovers = [text for trace in charts[name]["data"] for text in trace.get("text", [])]
            told = [
                text for text in hovers if re.match(rf"{symbol} = {re.escape(start.split(' ')[2])} ", text)
            ]
            assert all(text.startswith(start) for text in told)
            assert told or name == "n-star"  # n* may be unknown
    row = next(
        row
        for row in law_charts._frontier_table(found.recommended, own.document).rows
        if row[0].sort_key == asked.compute
    )
    assert row[1].sort_key == n
    # Rewards at the same compute, which all configurations reached.
    same = common_compute(own.metric_rows())
    there = law.predict(same)
    assert f"Recommended here: B_p = {there.B_p:,}, n = {there.n:,}, with" in page
    assert any(text.get_text().startswith(f"today: n = {m}") for text in law_figure(law).axes[0].texts)


def test_no_fitted_reward_is_above_the_frontier(joint: FittedRuns) -> None:
    """What is recommended has the highest fitted reward, up to the noise of 2,000 draws."""
    curves = {
        (g.problems_per_batch, g.rollouts_per_problem): curve
        for g, curve in zip(joint.document.grid, law_charts._fitted_curves(joint.law), strict=True)
    }
    for p in facts(joint).budgets.recommended:
        known = [
            np.interp(p.compute, *curve)
            for curve in curves.values()
            if curve[0][0] <= p.compute <= curve[0][-1]
        ]
        assert max(known, default=0.0) <= p.reward.value + 2e-3


@pytest.mark.slow
@pytest.mark.numbers
def test_the_drawn_n_star_is_smooth_and_inside_its_axis(synthetic: Make) -> None:
    own = study(synthetic([(32, n) for n in LEVELS], noise=0.004), draws=60)
    found = budgets(own.law, None)
    chart = law_charts.n_star(own.law, found)
    low, high = chart.layout["yaxis"]["range"]
    band, line = chart.data[:2], next(trace for trace in chart.data if trace.get("name") == "n*")
    for trace in (*band, line):
        y = np.log10(np.array(trace["y"], dtype=float))
        assert np.all((y >= low - 1e-4) & (y <= high + 1e-4))
    even = np.isin(line["x"], stops(min(line["x"]), max(line["x"])))  # the end of the runs is between stops
    bends = np.diff(np.log2(np.array(line["y"], dtype=float)[even]), 2)
    assert np.abs(bends).max() < 0.5  # doublings; the grid of n alone steps by whole cells
    said = {p.compute: p.n_star.value for p in found.predictions}
    assert all(
        abs(np.log2(n / said[c])) < 0.5 for c, n in zip(line["x"], line["y"], strict=True) if c in said
    )


@pytest.mark.slow
def test_rewards_at_less_than_the_end_say_so(synthetic: Make) -> None:
    uneven = study(
        synthetic([(32, n) for n in LEVELS], compute=lambda b, n: 200 * b * n * (4 if n == 512 else 1))
    )
    even = study(synthetic([(32, n) for n in LEVELS]), draws=0)
    said = "Some runs end there; others continue to C = 1.31e7, where another n may be best."
    assert said in render(uneven, facts(uneven))
    assert "Some runs end there" not in render(even, facts(even))


def test_failed_runs_stand_first(joint: FittedRuns) -> None:
    run_id = joint.runs.points["run_id"].iloc[0]
    place = {"problems_per_batch": 16, "rollouts_per_problem": 8, "seed": 7}
    failed = [
        {"run_id": run_id, **place, "cause": "out of memory"},
        {"run_id": "lost", **place, "cause": "no <disk>"},
    ]
    page = render(joint, facts(joint, failed=failed))
    rows = re.search(r'<table[^>]*id="table-runs">.*?</table>', page, re.S)[0].split("<tr>")[2:]
    assert len(rows) == 25
    assert all("failed" in row for row in rows[:2])
    assert "out of memory" in rows[0] + rows[1]
    assert "no &lt;disk&gt;" in rows[0] + rows[1]
    assert "24 healthy, 2 failed" in page


def test_final_rewards_are_in_a_table(synthetic: Make) -> None:
    own = study(synthetic([(32, n) for n in LEVELS], seeds=2), draws=0)
    page = render(own, facts(own))
    rows = re.search(r'<table[^>]*id="table-finals">.*?</table>', page, re.S)[0].split("<tr>")
    assert re.findall(r'<th scope="col">(.*?)</th>', rows[1]) == ["B_p", "n", "runs", "avg@4"]
    assert len(rows) == 2 + 4
    cells = re.findall(r">([^<]*)</td>", rows[2])
    assert cells[:3] == ["32", "8", "2"]
    last = own.metric_rows().query("compute > 8e5 and rollouts_per_problem == 8")
    assert float(cells[3].split()[0]) == pytest.approx(last["value"].mean(), abs=6e-4)


# Budgets


@pytest.mark.numbers
def test_stops_are_round_and_even() -> None:
    found = np.array(stops(1e3, 1e6))
    assert {1_000, 1_500, 3_300, 1_000_000} <= set(found)
    assert len(found) == 3 * 6 + 1
    steps = np.diff(np.log10(found))
    assert steps.min() > 0.15
    assert steps.max() < 0.18


def test_the_slider_says_what_the_law_predicts(joint: FittedRuns) -> None:
    own = few(joint.law, None, max_batch_rollouts=4096, n_train_problems=500)
    largest = max(g.measured[1] for g in joint.document.grid)
    assert own.answer.compute <= largest * 1.01 < own.predictions[own.first + 1].compute
    assert own.predictions[-1].compute <= own.answer.comparable
    assert own.nearest is None
    for prediction in own.predictions[::3]:
        expected = joint.law.predict(prediction.compute, max_batch_rollouts=4096, n_train_problems=500)
        assert prediction.to_dict() == expected.to_dict()
        said = budget_texts(prediction, joint.law, own)
        assert said["n"] == f"{expected.allocation.rollouts_per_problem:,}"
        assert said["flags"] == law_text.notes(expected.flags)


def test_the_slider_opens_with_the_budget_asked_for(joint: FittedRuns) -> None:
    with mock.patch("isolaw.report.page.budgets._E6", (1.0,)):
        own = budgets(joint.law, 123_456)
    assert own.answer.compute == 123_456
    with pytest.raises(InputError, match="does not allow one step"):
        few(joint.law, 10)


def test_the_slider_counts_steps_where_the_law_does(synthetic: Make) -> None:
    own = study(synthetic([(1024 // n, n) for n in LEVELS]))
    assert own.document.hold == "B"
    found = few(own.law, None)
    said = budget_texts(found.answer, own.law, found)
    assert said["x"] == pytest.approx(found.answer.compute / 1024)
    assert said["n_star"] == law_text.star(found.answer.n_star)
    assert said["b_star"] == ""  # it follows from n


def test_where_nothing_is_recommended_no_number_stands_large(synthetic: Make) -> None:
    """The budget asked for lies 30 times beyond what can be compared."""
    own = study(synthetic([(32, n) for n in LEVELS], noise=0.003))
    found = few(own.law, 3e7)
    assert found.answer.options == []
    assert found.nearest is not None
    said = budget_texts(found.answer, own.law, found)
    assert [said[name] for name in ("n", "b", "m", "spoken")] == [*"–––", "no recommendation"]
    assert all(said[name] == "" for name in ("reward", "n_star", "b_star", "best", "epochs"))
    page = render(own, PageContent(found, "not asked for"))
    assert re.search(r"<h1[^>]*>([^<]*)</h1>", page)[1] == "isolaw recommends no allocation for 30M rollouts."
    assert not any(re.search(r"\d", n) for n in re.findall(r'data-show="[nbm]">([^<]*)<', page))
    assert said["next"].startswith("Train n = 32, 128, 512 at B_p = 32 to ")
    assert "The largest budget with a recommendation is 10M rollouts: n\u00a0=\u00a0" in page


def test_without_a_budget_asked_for_the_page_opens_with_a_recommendation(synthetic: Make) -> None:
    """n = 512 alone went on so far that at its end nothing can be compared."""
    runs = synthetic([(32, n) for n in LEVELS], compute=lambda b, n: 4e7 if n == 512 else 1e6, noise=0.003)
    found = few(study(runs).law, None)
    assert found.answer.options
    assert found.answer.compute <= found.answer.comparable < found.predictions[-1].compute
    assert found.predictions[-1].options == []


def test_the_table_of_laws(synthetic: Make) -> None:
    own = study(synthetic([(32, n) for n in LEVELS], noise=0.003), draws=20)
    table = re.search(r'<table[^>]*id="table-laws">.*?</table>', render(own, facts(own)), re.S)[0]
    rows = [re.findall(r">([^<]*)</td>", row) for row in table.split("<tr>")[2:]]
    comparison = own.document.comparison
    assert [row[0].removesuffix(" (preferred)") for row in rows] == [*map(law_text.law_name, comparison.laws)]
    for row, (name, law) in zip(rows, comparison.laws.items(), strict=True):
        assert row[0].endswith("(preferred)") == (name == comparison.preferred)
        assert row[2] == law_text.parameters(name, law)
        assert row[3] == f"{law.mean_loss:.4f}"
        assert row[4] == ("" if name == "constant" else numbers.share(law.better["constant"]))


# What is drawn


def test_long_runs_are_thinned_and_keep_their_ends(synthetic: Make) -> None:
    steps = np.arange(1, 12_001)
    row = {"problem_set": "p", "algorithm": "grpo", "eval_set": "train", "metric": "reward", "seed": 0}
    parts = [
        pd.DataFrame({**row, "run_id": f"n{n}", "problems_per_batch": 1, "rollouts_per_problem": n,
                      "step": steps, "compute": n * steps, "value": np.sin(steps)})
        for n in (2, 4, 8)
    ]  # fmt: skip
    own = FittedRuns(Runs(pd.concat(parts)), "reward", "train")
    chart = reward(own, ["n2", "n4", "n8"])
    assert [len(trace["x"]) <= 10_001 for trace in chart.data] == [True] * 3
    assert sum(len(trace["x"]) for trace in chart.data) > 1_000
    assert [trace["x"][-1] for trace in chart.data] == [24_000, 48_000, 96_000]
    assert "For long runs, the chart shows only some checkpoints" in chart.caption


def test_pieces() -> None:
    assert joined([[1], [2, 3], [4]]) == [1, None, 2, 3, None, 4]
    assert rounded([1.0, float("inf"), None, 0.1234567]) == [1, None, None, 0.12346]
    low, high = log_axis("C", [0, 10, 1000])["range"]
    assert low < 1 < 3 < high


def test_palettes_are_sequential_in_n() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    colours = palette(9)
    light, dark = ([lightness(theme[f"n{i}"]) for i in range(9)] for theme in colours.values())
    assert np.all(np.diff(light) < 0)  # darker on white
    assert np.all(np.diff(dark) > 0)  # lighter on black


# Files


def test_it_replaces_a_report_and_nothing_else(text: str, tmp_path: Path) -> None:
    page = write(text, tmp_path / "new" / "report.html")
    assert page.read_text() == text
    write(text, page)
    mine = tmp_path / "mine.html"
    mine.write_text("<!doctype html><p>mine</p>")
    with pytest.raises(DataError, match="exists and is not a report"):
        write(text, mine)
    assert mine.read_text() == "<!doctype html><p>mine</p>"
    with pytest.raises(DataError, match="found a directory"):
        check_replaceable(tmp_path)
    with pytest.raises(DataError, match="cannot write"):  # told before the page is made
        check_replaceable(tmp_path / f"{250 * 'a'}.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.html", "new"]


def test_it_is_named_as_it_was_asked_for(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(write(text, "out/report.html")) == "out/report.html"


def test_a_link_to_a_report_stays_one(text: str, tmp_path: Path) -> None:
    link = tmp_path / "report.html"
    link.symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(DataError, match="which does not exist"):
        write(text, link)
    write(text, tmp_path / "elsewhere.html")
    write(text, link)
    assert link.is_symlink()
    assert (tmp_path / "elsewhere.html").read_text() == text


def test_what_is_not_ours_is_as_it_was_published() -> None:
    table = (VENDOR / "README.md").read_text()
    scripts = sorted(VENDOR.glob("*.js"))
    assert len(scripts) == 3
    for script in scripts:
        assert hashlib.sha256(script.read_bytes()).hexdigest() in table
        assert "\r" not in script.read_text()  # a browser would read another text than was hashed
        assert not re.search(r"</script|<!--", script.read_text(), re.I)
    for licence in ("plotly-LICENSE.txt", "sortable-LICENSE.txt"):
        assert licence in table
        assert (VENDOR / licence).stat().st_size > 500


# Studies


def test_buttons_are_of_what_is_drawn(synthetic: Make) -> None:
    runs = synthetic([(b, n) for b in (16, 32) for n in LEVELS] + [(64, 2048)])
    own = FittedRuns(runs, "avg@4", "validation", isolaw.fit(runs, hold="B_p", draws=0))
    page = render(own, facts(own))
    assert re.findall(r'data-key="(.)" data-value="(\d+)"', page) == [("n", str(n)) for n in LEVELS]
    assert "--n4: #" in page  # the scale is that of all n


def test_what_is_held_is_held_in_every_picture(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS])
    other = runs.points.assign(run_id=runs.points["run_id"] + "-other", value=0.9)
    lr = {r: {"lr": 1.0} for r in runs.points["run_id"]} | {r: {"lr": 2.0} for r in other["run_id"]}
    both = Runs(pd.concat([runs.points, other], ignore_index=True), lr)
    law = isolaw.fit(both, where={"lr": 1.0}, draws=0)
    own = FittedRuns(both, "avg@4", "validation", law)
    assert own.metric_rows()["value"].max() < 0.9
    assert len(own.runs) == 2 * len(own.selected)
