"""The result of a law, a prediction or a study as the commands show it: as text, document and HTML."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from isolaw.fits.law import Law
from isolaw.fits.prediction import Prediction
from isolaw.registry import Shown
from isolaw.report.document import Document, Passage, Table
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import columns, in_reward, number, share
from isolaw.report.text.prediction import at_the_end, found_at_the_end, prediction_summary
from isolaw.report.text.runs_to_add import next_line

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument


# Result type of a study → the module of `isolaw.report.text` whose ``document`` renders it.
DOCUMENTS = {
    "Advice": "advise", "AxisComparison": "recipes", "Calibration": "calibration", "Prediction": "simulation",
    "DeadGroups": "dead_groups", "RecipeCheck": "recipe_check", "RecipeComparison": "recipes",
    "ShapeComparison": "shapes", "SweepForecast": "plan", "TargetStudy": "targets",
}  # fmt: skip


def summary(found: Law | Prediction | Shown, html: bool = False) -> str:
    """Return a law, a prediction or the result of a study as lines of text, or as HTML.

    For a law, the text consists of `law_lines`, the compared laws and the notes. Each compared law has its
    parameters with 95 % intervals, its mean loss in reward, and the share of draws in which it loses less
    than a constant n.
    """
    if html:
        from isolaw.report.page.document import notebook

        return notebook(document(found))
    return str(document(found))


def document(found: Law | Prediction | Shown) -> Document:
    """Return the document of a law, a prediction, or the result of a study."""
    if isinstance(found, Law):
        own = found.document
        notes = [f"Note: {note}." for note in law_text.notes(own.flags)]
        lines = [*law_lines(found), *_laws(own), *notes]
        passages = [Passage("", lines), Passage("n* by budget", [_frontier(own)])]
        return Document("law of n*", passages, found.to_dict())
    if isinstance(found, Prediction) and found.document is not None:
        lines = prediction_summary(found, found.document)
        return Document.of("prediction", lines, found.to_dict())
    home = importlib.import_module(f"isolaw.report.text.{DOCUMENTS[type(found).__name__]}")
    made: Document = home.document(found)
    return made


def _frontier(document: LawDocument) -> Table:
    """Return a table of n* at about eight points of the frontier, which only pages show."""
    heads = [law_text.symbol(document), "n*", "reward at n*"]
    points = document.frontier[:: -max(len(document.frontier) // 8, 1)][::-1]
    rows = [[number(p.x), str(p.n_star), str(p.reward)] for p in points]
    return Table.of([heads, *rows], page_only=heads)


def law_lines(law: Law) -> list[str]:
    """Return the lines that `isolaw fit` prints: the recommended n, the law, the next runs, and n*(C)."""
    document = law.document
    best, (first, *rest) = at_the_end(law), law_text.law_summary(document)
    if best is None:
        return [first, *rest]
    larger = next_line(best, document, spend="No further run is needed; predict answers for larger budgets.")
    return [found_at_the_end(best, document), first, larger, *rest]


def _laws(document: LawDocument) -> list[str]:
    """Return the compared laws as the lines of a table; empty if no laws were compared."""
    compared = {name: law for name, law in document.comparison.laws.items() if law.theta}
    if not compared:
        return []
    rows = [["law of n*", "parameters (95 % intervals)", "loss", "beats a constant"]]
    for name, law in compared.items():
        better = law.better.get("constant")
        own = f"{law_text.form_equation(name, document)}: {law_text.parameters(name, law)}"
        label = law_text.law_name(name) + " *" * (name == law_text.preferred(document))
        rows.append(
            [
                label,
                own,
                in_reward(law.mean_regret, document.tolerance),
                "" if better is None else share(better),
            ]
        )
    return columns(rows, "<<>>")
