"""The outputs of a Jupyter notebook: the printed text and the HTML of its cells."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

HtmlTable = tuple[list[str], list[list[str]]]  # header, and rows with as many cells
_MOST_CELLS = 5_000_000


def tables(text: str) -> list[HtmlTable]:
    """Return the tables in an HTML text that have a header and rows of its length; nothing is executed.

    >>> tables("<table><tr><th>Step<th>reward</tr><tr><td>1</td><td>0.5</td></tr></table>")
    [(['Step', 'reward'], [['1', '0.5']])]
    """
    reader = _Reader()
    reader.feed(text)
    reader.close()
    out = []
    for rows in reader.tables:
        header, *below = rows or [[]]
        names = header[next((i for i, name in enumerate(header) if name), 0) :]  # pandas' index is unnamed
        body = [row[-len(names) :] for row in below if len(row) >= len(names) > 1]
        if body and len(set(names)) == len(names):
            out.append((names, body))
    return out


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._open = False  # whether the parser is inside a cell
        self._cells = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1] and self._cells < _MOST_CELLS:
            self.tables[-1][-1].append("")
            self._cells += 1
        self._open = tag in ("td", "th") or (self._open and tag not in ("table", "tr"))

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th", "tr", "table")

    def handle_data(self, data: str) -> None:
        if self._open and self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data.strip()


def is_notebook(document: Any) -> bool:
    """Return whether a JSON document is a notebook."""
    return isinstance(document, dict) and isinstance(document.get("cells"), list) and "nbformat" in document


def code(document: dict[str, Any]) -> list[str]:
    """Return the source of each code cell."""
    cells = (cell for cell in document["cells"] if isinstance(cell, dict))
    return [_joined(cell.get("source")) for cell in cells if cell.get("cell_type") == "code"]


def printed(document: dict[str, Any]) -> str:
    """Return the text that the cells printed, in order."""
    return "\n".join(
        _joined(output.get("text")) for output in _outputs(document) if output.get("output_type") == "stream"
    )


def shown(document: dict[str, Any]) -> list[str]:
    """Return the HTML in the outputs of the cells."""
    texts = (
        output["data"].get("text/html")
        for output in _outputs(document)
        if isinstance(output.get("data"), dict)
    )
    return [_joined(text) for text in texts if text]


def _outputs(document: dict[str, Any]) -> list[dict[str, Any]]:
    cells = (cell for cell in document["cells"] if isinstance(cell, dict))
    lists = (cell["outputs"] for cell in cells if isinstance(cell.get("outputs"), list))
    return [output for outputs in lists for output in outputs if isinstance(output, dict)]


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""
