"""Results for readers: figures, HTML pages, and the same findings as text."""

from __future__ import annotations

from isolaw.arguments import checked
from isolaw.registry import Shown


@checked
def summary(result: Shown, html: bool = False) -> str:
    """Return a law, a prediction or the result of a study as lines of text, or as HTML.

    For a law, the text consists of the lines that ``isolaw fit`` prints, the compared laws and the notes.
    Each compared law has its parameters with 95 % intervals, its mean loss in reward, and the share of draws
    in which it loses less than a constant n.
    """
    from isolaw.report.document import document

    if html:
        from isolaw.report.page import notebook

        return notebook(document(result))
    return str(document(result))
