"""The page of a document: of a calibration, with its picture and bars; and that data stay text."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from isolaw.calibration.calibrate import Calibration, calibrate
from isolaw.calibration.space import BOUND
from isolaw.errors import DataError
from isolaw.registry import PUBLIC, Shown
from isolaw.report.document import Bullets, Caution, Document, Passage, Snippet, Table
from isolaw.report.page import notebook, render_document, write
from isolaw.report.text.calibration import document
from isolaw.runs import Runs

NAME = "</svg><script>alert(1)</script>"


class Seen(HTMLParser):
    """Elements that open, and whatever they would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [v for name, v in attrs if name in ("src", "href", "xlink:href", "data")]


@pytest.fixture
def found(synthetic: Callable[..., Runs], quick_calibration: None) -> Calibration:
    runs = synthetic([(8, 4), (8, 16)], seeds=1, checkpoints=8, compute=20_000)
    runs.points["eval_set"] = NAME
    return calibrate(Runs(runs.points, runs.attributes, source=NAME), jobs=1)


def test_the_page(found: Calibration) -> None:
    text = render_document(
        document(found, "my preset.toml"), "isolaw calibrate runs", [(NAME, "file", "abc")]
    )
    seen = Seen(text)
    assert "script" not in seen.tags  # names are text, in the figure too
    assert all(own is not None and own.startswith("#") for own in seen.loaded)
    assert "url(http" not in text
    assert "<title>partly simulated runs: calibration of &lt;/svg&gt;" in text  # only the bands are simulated
    assert "isolaw predict --method simulate --preset &#39;my preset.toml&#39;" in text
    assert "D is not recorded" in text
    assert f"δ = {found.posterior.discrepancy:.4f};" in text
    assert text.count('class="bar-in"') == len(found.constants)
    dots = [float(v) for v in re.findall(r'<circle cx="([\d.]+)"', text)]
    for c, coordinate, dot in zip(found.constants, found.space.coordinates, dots, strict=True):
        assert coordinate.value((dot / 50 - 1) * BOUND) == pytest.approx(c.value, rel=0.02)
        assert f"<td>{c.name}</td>" in text
    shown = Seen(notebook(document(found)))
    assert ("script" in shown.tags, shown.tags.count("svg") > len(found.constants)) == (False, True)


@pytest.mark.parametrize(("discrepancy", "warned"), [(0.004, False), (0.02, True)])
def test_a_poor_fit_is_a_caution(found: Calibration, discrepancy: float, warned: bool) -> None:
    text = render_document(
        document(replace(found, posterior=replace(found.posterior, discrepancy=discrepancy)))
    )
    assert ("Caution: no constants reproduce these runs" in text) == warned


def test_it_replaces_pages_only(found: Calibration, tmp_path: Path) -> None:
    path = write(render_document(document(found)), tmp_path / "new" / "calibration.html")
    write(render_document(document(found)), path)
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(DataError, match="exists and is not a report"):
        write(render_document(document(found)), tmp_path / "mine.html")


def test_every_study_has_a_document() -> None:
    for home in PUBLIC.values():
        importlib.import_module(home)
    results = [kind for kind in Shown.__subclasses__() if kind.__module__.startswith("isolaw.")]
    assert len(results) > 10
    for kind in results:
        made = importlib.import_module(f"isolaw.report.text.{kind.TEXT}").document
        assert kind.__name__ in inspect.get_annotations(made)[next(iter(inspect.signature(made).parameters))]


def test_text_page_and_json_are_of_one_value() -> None:
    table = Table.by_column(
        [{"n": "8", "hours": None, "<b>": "1"}, {"n": "16", "hours": None, "<b>": "2"}], ">"
    )
    passages = [
        Passage("", ["n = 8 is best.", Caution("one <seed>.")]),
        Passage("Runs", [table, Bullets("Assumptions:", ["a", "b"])]),
        Passage("Next", [Snippet(["isolaw fit a", "isolaw fit b"], "Next: ")], printed=True),
        Passage("Nothing", []),
    ]
    found = Document("runs", passages, {"n": 8, "simulated": "partly"})
    assert str(found).split("\n") == [
        "Partly simulated runs. n = 8 is best.", "Caution: one <seed>.", "",
        " n  <b>", " 8    1", "16    2", "Assumptions:", "- a", "- b", "",
        "Next:", "Next: isolaw fit a", "      isolaw fit b",
    ]  # fmt: skip
    page = render_document(found, "isolaw x")
    assert "<h1>Partly simulated runs. n = 8 is best.</h1>" in page
    assert "Caution: one &lt;seed&gt;." in page
    assert '<th scope="col">&lt;b&gt;</th>' in page
    assert "<li>b</li>" in page
    assert "Nothing" not in page
    assert "isolaw fit a\nisolaw fit b" in page
