"""What a law, a prediction or a study found, in the words of the commands: as text, document and HTML."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from isolaw.fits.law import Law
from isolaw.fits.prediction import Prediction
from isolaw.registry import Shown
from isolaw.report.document import Document
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import columns, share
from isolaw.report.text.prediction import prediction_summary

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument


# The modules whose ``document`` is of a study's result, below `isolaw.report.text`.
_DOCUMENTS = {
    "Advice": "advise", "AxisComparison": "recipes", "Calibration": "calibration",
    "DeadGroups": "dead_groups", "RecipeCheck": "recipe_check", "RecipeComparison": "recipes",
    "ShapeComparison": "shapes", "SweepForecast": "plan", "TargetStudy": "targets",
}  # fmt: skip


def summary(found: Law | Prediction | Shown) -> str:
    """Return what was found as text, a line each: a law, a prediction, or the result of a study.

    Of a law: what was fitted, n*(C), crossovers, saturation, the law, a row for each law that was compared
    (its parameters with 95 % intervals, its mean loss in reward, the share of draws in which it loses less
    than a constant n), and the notes.
    """
    if isinstance(found, Prediction) and found.document is not None:
        return "\n".join(found.simulated.lines(prediction_summary(found, found.document)))
    if not isinstance(found, Law):
        return str(document(found))
    notes = [f"Note: {note}." for note in law_text.notes(found.document.flags)]
    lines = [*law_text.law_summary(found.document), *_laws(found.document), *notes]
    return "\n".join(found.document.simulated.lines(lines))


def document(found: Prediction | Shown) -> Document:
    """Return the document of a study's result, or of a prediction by simulation."""
    if isinstance(found, Prediction):
        from isolaw.report.text.calibration import prediction_document

        return prediction_document(found)
    home = importlib.import_module(f"isolaw.report.text.{_DOCUMENTS[type(found).__name__]}")
    own: Document = home.document(found)
    return own


def html(found: Shown) -> str:
    """Return what a notebook shows of a study's result."""
    from isolaw.report.page.document import notebook

    return notebook(document(found))


def _laws(document: LawDocument) -> list[str]:
    """The laws that were compared, as a table; empty where none was."""
    compared = {name: law for name, law in document.comparison.laws.items() if law.theta}
    if not compared:
        return []
    rows = [["law of n*", "parameters (95 % intervals)", "loss", "beats a constant"]]
    for name, law in compared.items():
        better = law.better.get("constant")
        own = f"{law_text.form_equation(name, document)}: {law_text.parameters(name, law)}"
        label = law_text.law_name(name) + " *" * (name == law_text.preferred(document))
        rows.append([label, own, f"{law.mean_regret:.4f}", "" if better is None else share(better)])
    return columns(rows, "<<>>")
