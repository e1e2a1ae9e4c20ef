"""What a law found, in the words of ``isolaw fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.report.text.law import law_summary
from isolaw.report.text.law import notes as as_notes

if TYPE_CHECKING:
    from isolaw.fits.law import Law


def summary(law: Law) -> str:
    """Return what was fitted, n*(C), crossovers, saturation, the law, and the notes, a line each."""
    notes = [f"Note: {note}." for note in as_notes(law.document.flags)]
    return "\n".join(law.document.simulated.lines([*law_summary(law.document), *notes]))
