"""The result of a law, a prediction or a study as the commands show it: as text, document and HTML."""

from __future__ import annotations

import importlib

from isolaw.arguments import checked
from isolaw.registry import Shown
from isolaw.report.document import Document


@checked
def summary(result: Shown, html: bool = False) -> str:
    """Return a law, a prediction or the result of a study as lines of text, or as HTML.

    For a law, the text consists of the lines that ``isolaw fit`` prints, the compared laws and the notes.
    Each compared law has its parameters with 95 % intervals, its mean loss in reward, and the share of draws
    in which it loses less than a constant n.
    """
    if html:
        from isolaw.report.page import notebook

        return notebook(document(result))
    return str(document(result))


def document(result: Shown) -> Document:
    """Return the document of a law, a prediction, or the result of a study."""
    made: Document = importlib.import_module(f"isolaw.report.text.{result.TEXT}").document(result)
    return made
