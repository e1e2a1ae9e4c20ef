"""Read, check and write ``law.json``. Writing never replaces a file that is not a law."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.documents.reading import parse_json, read_bytes
from isolaw.errors import DataError, InputError, shown
from isolaw.files import check_replaceable, replacing
from isolaw.fits.curves.learning_curves import FAMILIES
from isolaw.fits.document.codec import Malformed
from isolaw.fits.document.schema import FORMAT, LawDocument
from isolaw.fits.selection import COLUMN_OF_HOLD


def check_writable(path: str | Path) -> None:
    """Raise `DataError` unless ``path`` is a new file or an existing law that can be replaced."""
    check_replaceable(Path(path), "a law", "law.json", is_law)


def save(document: LawDocument, path: str | Path) -> None:
    """Write a law's document; raise `DataError` if ``path`` is an existing file that is not a law."""
    check_writable(path)
    text = json.dumps(document.to_dict(), indent=1, allow_nan=False)
    with replacing(Path(path)) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")


def is_law(path: Path) -> bool:
    """Return whether a file declares the format of a law."""
    try:
        return bool(read(path))
    except DataError:
        return False


def read(path: Path) -> dict[str, Any]:
    """Return the content of a law's file; raise `DataError` if the file is not a law."""
    if path.is_dir():
        law = path / "law.json"
        hint = f"; did you mean {law}?" if law.is_file() else ""
        if not hint and (path / "sweep.json").is_file():
            hint = f"; to fit its runs: {commands.read_sweep(path)}"
        raise DataError(f"{path}: a directory, not a law{hint}")
    try:
        content = read_bytes(path)
    except InputError as error:
        raise DataError(str(error)) from None
    try:
        document = parse_json(content)
    except ValueError as error:
        raise DataError(f"{path}: not a law ({error}); isolaw fit --out writes one") from None
    found_format = document.get("format")
    if found_format != FORMAT:
        raise DataError(f"{path}: not a law: format: found {shown(found_format)}; expected {FORMAT!r}")
    return dict(document)


def load(path: Path) -> LawDocument:
    """Return a law's document; raise `DataError` if the file is not a law or is damaged."""
    data = read(path)
    try:
        document = LawDocument.from_dict(data)
        _check_consistency(document)
    except (Malformed, KeyError, TypeError, AttributeError, ValueError, OverflowError, IndexError) as error:
        raise DataError(f"{path}: the law is damaged: {error}") from None
    return document


def _check_consistency(document: LawDocument) -> None:
    """Raise `Malformed` if the parts of a document contradict each other."""
    grid, curves = ([cell.key for cell in entries] for entries in (document.grid, document.curves))
    if curves != (grid if document.curve else []) or not grid or not document.frontier:
        raise Malformed("its curves do not match its grid, or are missing")
    names = set(FAMILIES[document.curve].parameters) if document.curve else set()
    if any({k for k, q in c.parameters.items() if q.value is not None} != names for c in document.curves):
        raise Malformed(f"expected the parameters {', '.join(sorted(names))} of every curve, and no others")
    if any(entry.step_cost <= 0 for entry in document.grid):
        raise Malformed("grid: found a step_cost of 0 or less; expected a positive number")
    column = COLUMN_OF_HOLD.get(document.hold)
    if column and not isinstance(document.fixed.get(column), int):
        raise Malformed(f"fixed.{column}: found {shown(document.fixed.get(column))}; expected a whole number")
    file = document.bootstrap.file
    if file is not None and Path(file).name != file:
        raise Malformed(f"bootstrap.file: found {shown(file)}; expected the name of a file next to the law")
