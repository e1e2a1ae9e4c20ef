"""Jupyter notebooks: their printed output, and the tables that show the Trainer's progress.

In a notebook, the Trainer of transformers shows an HTML table with one row per log entry. Its columns are
``Step``, ``Training Loss``, ``reward``, ``rewards / correct / mean`` and so on. Printed text is read like a
console. The configuration comes from a printed banner and from the arguments of a ``GRPOConfig(…)`` in the
code.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import orjson

from isolaw.errors import DataError, NoHistory
from isolaw.readers import containers, frameworks, limits
from isolaw.readers.containers.printed_config import PrintedArguments
from isolaw.readers.raw_log import Container, RawLog, clean, finite

# Each pattern ends before the next "<", so the search takes linear time.
_TABLE, _ROW = re.compile("<table(?=[ >])"), re.compile("<tr(?=[ >])")
_CELL = re.compile(r"<t[hd](?: [^<>]*+)?>([^<>]{0,300}+)</t[hd]>")
_LARGEST = 50 * limits.MB
_CONSOLES = ("verl-console", "step-console", "stdout-dicts")  # that a cell can print
_KEY_OF_COLUMN = {"Training Loss": "loss", "Validation Loss": "eval_loss"}
_CONFIG_CLASS = re.compile(r"\w{0,40}(?:GRPO|RLOO|GSPO|DAPO|PPO)\w{0,40}(?:Config|Arguments)")
_MOST_CODE = 200_000  # characters per cell


def _is_notebook(path: Path, head: bytes) -> bool:
    """Return whether a file is a notebook with a framework's metrics."""
    names = (b'"cells"', b'"nbformat"', b'"metadata"')  # Colab's widgets precede the cells
    if head.lstrip()[:1] != b"{" or not any(name in head for name in names):
        return False
    try:
        notebook = _Notebook(path)
    except DataError:
        return False
    return bool(notebook.tables) or notebook.console() is not None


def _read(path: Path) -> Iterator[RawLog]:
    """Read a notebook; raise `DataError` if it is not a notebook, and `NoHistory` if it shows no metrics."""
    notebook = _Notebook(path)
    if notebook.tables:
        for number, (header, rows) in enumerate(notebook.tables, 1):
            run = str(path) if number == 1 else f"{path}#{number}"
            log = RawLog(str(path), "notebook", run, notebook.config, "the notebook")
            for row in rows:
                values = dict(zip(header, row, strict=True))
                log.add(values, finite(values.pop("Step")))
            yield log
        return
    container = notebook.console()
    if container is None:
        raise NoHistory(
            f"{path}: no cell output has metrics; expected a table with Step, or lines of a console"
        )
    with _temporary_file(notebook.text) as text:
        for log in container.read(text):
            name = log.run.replace(str(text), str(path))
            config = notebook.config | log.config
            log.source, log.container, log.run = str(path), "notebook", name
            log.config, log.config_source = config, "the notebook"
            yield log


class _Notebook:
    """The outputs of a notebook as text and tables."""

    def __init__(self, path: Path) -> None:
        with limits.opened(path) as file:
            content = file.read(_LARGEST + 1)
        try:
            document = orjson.loads(content)
        except ValueError:
            document = None
        if not is_notebook(document):
            raise DataError(f"{path}: not a notebook, or one larger than {_LARGEST // limits.MB} MB")
        self.text = _printed_text(document)
        self.tables = []
        for header, rows in (table for html in _html_outputs(document) for table in _html_tables(html)):
            keys = [_KEY_OF_COLUMN.get(name, name.replace(" / ", "/")) for name in header]
            if "Step" in keys and frameworks.find(keys, {}):
                self.tables.append((keys, rows))
        arguments = PrintedArguments()
        for line in self.text.splitlines():
            arguments.add(clean(line.encode("utf-8", "replace")))
        self.config = _trainer_arguments(_code_cells(document)) | arguments.config

    def console(self) -> Container | None:
        """Return the container that can read the printed text, or None."""
        with _temporary_file(self.text) as path:
            head = limits.start(path, 65_536)
            consoles = map(containers.get, _CONSOLES)
            return next((console for console in consoles if console.file(path, head)), None)


@contextmanager
def _temporary_file(text: str) -> Iterator[Path]:
    """Yield the path of a temporary file with this text, since consoles are read from files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "printed"
        path.write_text(text, encoding="utf-8", errors="replace")
        yield path


def _trainer_arguments(code: list[str]) -> dict[str, Any]:
    """Return the keyword arguments of trainer configurations: literals, and names with one literal value.

    A keyword with several values is left out, since it is unknown which call belongs to the last training
    run.
    """
    arguments: dict[str, list[Any]] = {}
    names: dict[str, list[Any]] = {}
    for node in (node for cell in code for node in ast.walk(_parse_cell(cell))):
        if isinstance(node, ast.Assign):
            constant = node.value.value if isinstance(node.value, ast.Constant) else None
            for target in node.targets:
                names.setdefault(getattr(target, "id", ""), []).append(constant)
        elif isinstance(node, ast.Call):
            callee = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for keyword in node.keywords if _CONFIG_CLASS.fullmatch(callee) else ():
                arguments.setdefault(keyword.arg or "", []).append(keyword.value)
    config = {
        key: node.value if isinstance(node, ast.Constant) else _only_value(names.get(node.id, []))
        for key, [node, *others] in arguments.items()
        if all(ast.dump(other) == ast.dump(node) for other in others)
        and isinstance(node, ast.Constant | ast.Name)
    }
    return {key: value for key, value in config.items() if value is not None}


def _only_value(values: list[Any]) -> Any:
    """Return the value of a name that never had another value, else None."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _parse_cell(cell: str) -> ast.AST:
    """Parse a cell without its shell lines; return an empty module if it is not Python."""
    lines = ("pass" if line[:1] in ("%", "!") else line for line in cell[:_MOST_CODE].split("\n"))
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


# Tables and texts


def _html_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return the header and the rows of each table in HTML that the Trainer or pandas wrote, in linear time.

    >>> _html_tables("<table><tr><th>Step</th><th>reward</th></tr><tr><td>1</td><td>0.5</td></tr></table>")
    [(['Step', 'reward'], [['1', '0.5']])]
    """
    tables = []
    for table in _TABLE.split(text)[1:]:
        rows = [[unescape(cell).strip() for cell in _CELL.findall(row)] for row in _ROW.split(table)[1:]]
        header = rows.pop(0) if rows else []
        names = header[next((i for i, name in enumerate(header) if name), 0) :]  # pandas' index is unnamed
        body = [row[-len(names) :] for row in rows if len(row) >= len(names) > 1]
        if body and len(set(names)) == len(names):
            tables.append((names, body))
    return tables


def is_notebook(document: Any) -> bool:
    """Return whether a JSON document is a notebook."""
    return isinstance(document, dict) and isinstance(document.get("cells"), list) and "nbformat" in document


def _code_cells(document: dict[str, Any]) -> list[str]:
    """Return the source of each code cell."""
    cells = (cell for cell in document["cells"] if isinstance(cell, dict))
    return [_joined(cell.get("source")) for cell in cells if cell.get("cell_type") == "code"]


def _printed_text(document: dict[str, Any]) -> str:
    """Return the text that the cells printed, in order."""
    return "\n".join(
        _joined(output.get("text")) for output in _outputs(document) if output.get("output_type") == "stream"
    )


def _html_outputs(document: dict[str, Any]) -> list[str]:
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
        return "".join(piece for piece in text if isinstance(piece, str))
    return text if isinstance(text, str) else ""


CONTAINER = Container("notebook", _read, file=_is_notebook)
