"""The page of a document: one HTML file that opens from disk. It has no script, and its drawings are SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isolaw.report.document import Document
from isolaw.report.page import filled, templates, write
from isolaw.report.page.chart import palette

Sources = Sequence[tuple[str, str, str]]


def render(document: Document, command: str = "", sources: Sources = ()) -> str:
    """Return the page as HTML.

    ``command`` is the command that created the page. ``sources`` contains the name, kind and hash of each
    source, from `isolaw.report.page.provenance.sources`.
    """
    first, *rest = document.labelled
    answer, *opening = first.blocks
    return filled(
        "document.html.j2",
        title=document.simulated.title(document.title),
        palette=palette(1),
        answer=answer,
        opening=opening,
        rest=rest,
        command=command,
        sources=sources,
    )


def write_page(document: Document, path: str | Path, command: str = "", sources: Sources = ()) -> Path:
    """Write the page. Raises `DataError` if ``path`` is not a page or cannot be written."""
    return write(render(document, command, sources), path)


def notebook(document: Document) -> str:
    """Return the HTML that a notebook shows for a document: the passages of the page, without style."""
    parts = templates().get_template("parts.html.j2").module
    return str(parts.passages(document.labelled)).strip()  # type: ignore[attr-defined]
