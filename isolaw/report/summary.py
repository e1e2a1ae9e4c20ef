"""What a law found, in the words of ``isolaw fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.report.text.law import flag, law_summary

if TYPE_CHECKING:
    from isolaw.fits.law import Law


def summary(law: Law) -> str:
    """Return what was fitted, n*(C), crossovers, saturation, the law, and the notes, a line each."""
    notes = [f"Note: {flag(own)}." for own in law.document.flags]
    return "\n".join([*law_summary(law.document), *notes])
