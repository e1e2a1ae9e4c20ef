"""What a law found, or what it predicts, in the words of ``isolaw fit`` and ``isolaw predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.fits.prediction import Prediction
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import columns, share
from isolaw.report.text.prediction import at_the_end, found_at_the_end, prediction_summary
from isolaw.report.text.runs_to_add import next_line

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.law import Law


def summary(found: Law | Prediction) -> str:
    """Return a law or a prediction as text, a line each.

    Of a law: `law_lines`, a row for each law that was compared (its parameters with 95 % intervals, its mean
    loss in reward, the share of draws in which it loses less than a constant n), and the notes.
    """
    if isinstance(found, Prediction):
        assert found.document is not None
        return "\n".join(found.simulated.lines(prediction_summary(found, found.document)))
    document = found.document
    notes = [f"Note: {note}." for note in law_text.notes(document.flags)]
    return "\n".join(document.simulated.lines([*law_lines(found), *_laws(document), *notes]))


def law_lines(law: Law) -> list[str]:
    """Return what `isolaw fit` prints: the n at the end of the runs, the law, what to run next, and n*(C)."""
    document = law.document
    best, (first, *rest) = at_the_end(law), law_text.law_summary(document)
    if best is None:
        return [first, *rest]
    larger = next_line(best, document, spend="No run is missing; predict answers for larger budgets.")
    return [found_at_the_end(best, document), first, larger, *rest]


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
