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
from pathlib import Path
from typing import Any

import orjson

from isolaw.errors import DataError, NoHistory
from isolaw.readers import containers, frameworks, limits, notebook_outputs
from isolaw.readers.containers.printed_config import PrintedArguments
from isolaw.readers.notebook_outputs import HtmlTable, tables
from isolaw.readers.raw_log import Container, RawLog, finite
from isolaw.readers.text_lines import clean

_LARGEST = 50 * limits.MB
_TEXTS = ("verl-console", "prime-rl-console", "step-console", "stdout-dicts")  # that a cell can print
_NAMES = {"Training Loss": "loss", "Validation Loss": "eval_loss"}
_CONFIG = re.compile(r"\w{0,40}(?:GRPO|RLOO|GSPO|DAPO|PPO)\w{0,40}(?:Config|Arguments)")
_MOST_CODE = 200_000  # characters per cell


def is_notebook(path: Path, head: bytes) -> bool:
    """Return whether a file is a notebook with a framework's metrics."""
    if head.lstrip()[:1] != b"{" or b'"cells"' not in head:
        return False
    try:
        notebook = _Notebook(path)
    except DataError:
        return False
    return bool(notebook.tables) or notebook.console() is not None


def read(path: Path) -> Iterator[RawLog]:
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
    with _as_file(notebook.text) as text:
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
        if not notebook_outputs.is_notebook(document):
            raise DataError(f"{path}: not a notebook, or one larger than {_LARGEST // limits.MB} MB")
        self.text = notebook_outputs.printed(document)
        shown = (table for html in notebook_outputs.shown(document) for table in tables(html))
        named = map(_named, shown)
        self.tables = [
            table for table in named if "Step" in table[0] and frameworks.find(table[0], {}) is not None
        ]
        printed = PrintedArguments()
        for line in self.text.splitlines():
            printed.add(clean(line.encode("utf-8", "replace")))
        self.config = _arguments(notebook_outputs.code(document)) | printed.config

    def console(self) -> Container | None:
        """Return the container that can read the printed text, or None."""
        with _as_file(self.text) as path:
            head = limits.start(path, 65_536)
            return next(
                (container for container in map(containers.get, _TEXTS) if container.file(path, head)), None
            )


@contextmanager
def _as_file(text: str) -> Iterator[Path]:
    """Yield the path of a temporary file with this text, since consoles are read from files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "printed"
        path.write_text(text, encoding="utf-8", errors="replace")
        yield path


def _named(table: HtmlTable) -> HtmlTable:
    header, rows = table
    return [_NAMES.get(name, name.replace(" / ", "/")) for name in header], rows


def _arguments(code: list[str]) -> dict[str, Any]:
    """Return the keyword arguments of trainer configurations: literals, and names with one literal value.

    A keyword with several values is left out, since it is unknown which call belongs to the last training
    run.
    """
    arguments: dict[str, list[Any]] = {}
    names: dict[str, list[Any]] = {}
    for node in (node for cell in code for node in ast.walk(_tree(cell))):
        if isinstance(node, ast.Assign):
            constant = node.value.value if isinstance(node.value, ast.Constant) else None
            for target in node.targets:
                names.setdefault(getattr(target, "id", ""), []).append(constant)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for keyword in node.keywords if _CONFIG.fullmatch(called) else ():
                arguments.setdefault(keyword.arg or "", []).append(keyword.value)
    config = {
        key: values[0].value if isinstance(values[0], ast.Constant) else _only(names.get(values[0].id, []))
        for key, values in arguments.items()
        if len({ast.dump(value) for value in values}) == 1 and isinstance(values[0], ast.Constant | ast.Name)
    }
    return {key: value for key, value in config.items() if value is not None}


def _only(values: list[Any]) -> Any:
    """Return the value of a name that never had another value, else None."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _tree(cell: str) -> ast.AST:
    """Parse a cell without its shell lines; return an empty module if it is not Python."""
    lines = ("pass" if line[:1] in ("%", "!") else line for line in cell[:_MOST_CODE].split("\n"))
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


CONTAINER = Container("notebook", read, file=is_notebook)
