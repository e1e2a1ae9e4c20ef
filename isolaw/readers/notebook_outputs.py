"""The outputs of a Jupyter notebook: the printed text and the HTML of its cells."""

from __future__ import annotations

from typing import Any


def is_notebook(document: Any) -> bool:
    """Return whether a JSON document is a notebook."""
    return isinstance(document, dict) and isinstance(document.get("cells"), list) and "nbformat" in document


def code(document: dict[str, Any]) -> list[str]:
    """Return the source of each code cell."""
    cells = (own for own in document["cells"] if isinstance(own, dict))
    return [_joined(own.get("source")) for own in cells if own.get("cell_type") == "code"]


def printed(document: dict[str, Any]) -> str:
    """Return the text that the cells printed, in order."""
    return "\n".join(
        _joined(own.get("text")) for own in _outputs(document) if own.get("output_type") == "stream"
    )


def shown(document: dict[str, Any]) -> list[str]:
    """Return the HTML in the outputs of the cells."""
    found = (own["data"].get("text/html") for own in _outputs(document) if isinstance(own.get("data"), dict))
    return [_joined(own) for own in found if own]


def _outputs(document: dict[str, Any]) -> list[dict[str, Any]]:
    cells = (own for own in document["cells"] if isinstance(own, dict))
    lists = (own["outputs"] for own in cells if isinstance(own.get("outputs"), list))
    return [own for outputs in lists for own in outputs if isinstance(own, dict)]


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(own for own in text if isinstance(own, str))
    return text if isinstance(text, str) else ""
