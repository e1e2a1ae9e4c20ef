"""The outputs of a Jupyter notebook: the printed text and the HTML of its cells."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

HtmlTable = tuple[list[str], list[list[str]]]  # header, and rows with as many cells
_MOST_CELLS = 5_000_000
# A tag ends before the next "<", and the quantifiers are possessive, so the search takes linear time.
_TAG = re.compile(
    r"""<!--|<(?P<end>/?)(?P<name>[a-zA-Z][^\s/<>]*+)(?:(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+|[^<>]*+)>|<[!?][^<>]*+>"""
)
_COMMENT_END = re.compile("-->")
_HIDDEN = {name: re.compile(f"</{name}[^<>]*+>", re.IGNORECASE) for name in ("script", "style")}


def tables(text: str) -> list[HtmlTable]:
    """Return the tables in an HTML text that have a header and rows of its length; nothing is executed.

    >>> tables("<table><tr><th>Step<th>reward</tr><tr><td>1</td><td>0.5</td></tr></table>")
    [(['Step', 'reward'], [['1', '0.5']])]
    """
    out = []
    for rows in _rows_of_tables(text):
        header, *below = rows or [[]]
        names = header[next((i for i, name in enumerate(header) if name), 0) :]  # pandas' index is unnamed
        body = [row[-len(names) :] for row in below if len(row) >= len(names) > 1]
        if body and len(set(names)) == len(names):
            out.append((names, body))
    return out


def _rows_of_tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each row of each table, in linear time, also if nothing is closed."""
    tables: list[list[list[list[str]]]] = []  # table, row, cell, pieces of its text
    cells = at = 0
    cell: list[str] | None = None  # the one that is open
    while tag := _TAG.search(text, at):
        if cell is not None:
            cell.append(_plain(text[at : tag.start()]))
        at = tag.end()
        name = (tag["name"] or "").lower()
        if tag[0] == "<!--" or (name in _HIDDEN and not tag["end"]):
            closing = _HIDDEN.get(name, _COMMENT_END).search(text, at)
            if closing is None:
                break
            at = closing.end()
        elif name in ("table", "tr", "td", "th"):
            cell = None
            if tag["end"]:
                continue
            if name == "table":
                tables.append([])
            elif name == "tr" and tables:
                tables[-1].append([])
            elif name in ("td", "th") and tables and tables[-1] and cells < _MOST_CELLS:
                cell = []
                tables[-1][-1].append(cell)
                cells += 1
    else:
        if cell is not None:
            cell.append(_plain(text[at:]))
    return [[["".join(pieces) for pieces in row] for row in rows] for rows in tables]


def _plain(text: str) -> str:
    try:
        return unescape(text).strip()
    except ValueError:  # the number of a character with thousands of digits
        return text.strip()


_PIPES = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?[ \t]*\|?)?[ \t]*")
_MARKUP = re.compile(r"[*`_]{1,3}(.*?)[*`_]{1,3}")


def pipe_tables(text: str) -> list[HtmlTable]:
    """Return the Markdown tables in a text: a header, a line of dashes, and rows, with ``|`` between cells.

    >>> pipe_tables("# Run\\nStep | reward\\n-- | --\\n1 | **0.5**\\n")
    [(['Step', 'reward'], [['1', '0.5']])]
    """
    lines = text.splitlines()
    out = []
    for at in (at for at, line in enumerate(lines) if at and "|" in line and _PIPES.fullmatch(line)):
        names = _cells(lines[at - 1])
        rows = []
        for line in lines[at + 1 :]:
            if len(cells := _cells(line)) != len(names):
                break
            rows.append(cells)
        if rows and len(set(names)) == len(names) > 1:
            out.append((names, rows))
    return out


def _cells(line: str) -> list[str]:
    cells = (cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
    return [match[1] if (match := _MARKUP.fullmatch(cell)) else cell for cell in cells]


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
