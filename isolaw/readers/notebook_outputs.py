"""The outputs of a Jupyter notebook: the printed text and the HTML of its cells."""

from __future__ import annotations

from typing import Any


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
