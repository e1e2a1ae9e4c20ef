"""The page of a document: one value, in which data stay text."""

from __future__ import annotations

import importlib
import inspect

from isolaw.registry import PUBLIC, Shown
from isolaw.report.document import Bullets, Caution, Document, Passage, Snippet, Table
from isolaw.report.page import notebook


def test_every_study_has_a_document() -> None:
    for home in PUBLIC.values():
        importlib.import_module(home)
    results = [kind for kind in Shown.__subclasses__() if kind.__module__.startswith("isolaw.")]
    assert len(results) > 5
    for kind in results:
        module, _, function = kind.TEXT.rpartition(".")
        made = getattr(importlib.import_module(f"isolaw.report.{module}"), function)
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
    found = Document("runs", passages, {"n": 8, "simulated": True})
    assert str(found).split("\n") == [
        "Simulated runs. n = 8 is best.", "Caution: one <seed>.", "",
        " n  <b>", " 8    1", "16    2", "Assumptions:", "- a", "- b", "",
        "Next:", "Next: isolaw fit a", "      isolaw fit b",
    ]  # fmt: skip
    page = notebook(found)
    assert "Simulated runs. n = 8 is best." in page
    assert "Caution: one &lt;seed&gt;." in page
    assert '<th scope="col">&lt;b&gt;</th>' in page
    assert "<li>b</li>" in page
    assert "Nothing" not in page
    assert "isolaw fit a\nisolaw fit b" in page
