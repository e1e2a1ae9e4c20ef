"""`Document`: the result of a study as one value, which renders as text, JSON and HTML.

A document consists of passages, and a passage of blocks: sentences, lists, tables, cautions and snippets.
Each study states its result once, in the function that its ``TEXT`` names (`document` finds it). Most
commands print `Document.lines`, or `Document.data` with ``--json``; `isolaw.report.page` renders the HTML
page and the notebook view. Only this module labels simulated results (`isolaw.evidence.Simulated`), at the
start of the text, the page, its title and the JSON.

>>> result = Document("runs", [Passage("", ["n = 8 is best.", Table.of([["n", "reward"], ["8", "0.5"]])])],
...                  {"n": 8, "simulated": True})
>>> print("\\n".join(result.lines()))
Simulated runs. n = 8 is best.
n  reward
8  0.5
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from isolaw.evidence import Quantity, Simulated, columns, in_reward, number
from isolaw.registry import Shown
from isolaw.report.text.law import notes

if TYPE_CHECKING:
    from isolaw.fits.flags import Flag


@dataclass(frozen=True)
class TableCell:
    """One cell of a table: text, sort key (the text by default) and kind (``good`` or ``bad``)."""

    text: str
    sort_key: float | str | None = None
    kind: str = ""

    @classmethod
    def number(cls, value: float | None, digits: str = "") -> TableCell:
        """Return the cell of a number, in a format if given; None is empty."""
        if value is None:
            return cls("", "")
        return cls(format(value, digits) if digits else number(value), float(value))

    @classmethod
    def lost(cls, value: float | None, tolerance: float) -> TableCell:
        """Return the cell of a loss in reward; None is empty."""
        return cls("", "") if value is None else cls(in_reward(value, tolerance), float(value))

    @classmethod
    def of(cls, quantity: Quantity, text: str | None = None) -> TableCell:
        """Return the cell of an estimate, as another ``text`` if given."""
        return cls(str(quantity) if text is None else text, "" if quantity.value is None else quantity.value)


@dataclass(frozen=True)
class Table:
    """A table. A page shows a ``long`` table collapsed; text output omits the columns in ``page_only``."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    long: bool = False
    align: str = "<"  #: < or > for each column of the text; the last one applies to all remaining columns
    page_only: Sequence[str] = ()
    indent: str = ""  #: inserted before each row of the text

    @classmethod
    def of(cls, rows: Sequence[Sequence[str | TableCell]], align: str = "<", **others: Any) -> Table:
        """Return a table of these rows, where the first row contains the column names."""
        header, *cells = [[c if isinstance(c, TableCell) else TableCell(c) for c in row] for row in rows]
        texts = {"name": "", "caption": "", **others}
        return cls(columns=[cell.text for cell in header], rows=cells, align=align, **texts)

    @classmethod
    def by_column(cls, rows: Sequence[Mapping[str, str | None]], align: str = "<") -> Table:
        """Return a table of rows that map column names to text, without columns that are always None.

        >>> Table.by_column([{"n": "8", "hours": None}, {"n": "16", "hours": None}]).lines()
        ['n', '8', '16']
        """
        names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        return cls.of([names, *([row[name] or "" for name in names] for row in rows)], align)

    def lines(self) -> list[str]:
        """Return the table as text."""
        indices = [i for i, name in enumerate(self.columns) if name not in self.page_only]
        rows = [self.columns, *([cell.text for cell in row] for row in self.rows)]
        lines = columns([[row[i] for i in indices] for row in rows], self.align) if indices else []
        return [f"{self.indent}{line}" for line in lines]


@dataclass(frozen=True)
class Bullets:
    """A list of items with an introductory sentence."""

    lead: str
    items: Sequence[str]
    mark: str = "- "

    def lines(self) -> list[str]:
        """Return the list as text."""
        return [*([self.lead] if self.lead else []), *(f"{self.mark}{item}" for item in self.items)]


@dataclass(frozen=True)
class Snippet:
    """Commands to run, or lines of a file. In text output, ``lead`` precedes the first line."""

    code: Sequence[str]
    lead: str = ""

    def lines(self) -> list[str]:
        """Return the code as text."""
        leads = [self.lead, *[" " * len(self.lead)] * len(self.code)]
        return [f"{lead}{line}" for lead, line in zip(leads, self.code, strict=False)]


@dataclass(frozen=True)
class Caution:
    """A sentence that states what could be wrong with a result."""

    text: str

    def lines(self) -> list[str]:
        """Return the caution as text."""
        return [f"Caution: {self.text}"]


def cautions(flags: Iterable[Flag]) -> list[Caution]:
    """Return flags as cautions, except the simulation flag, which the document's label already states."""
    return [Caution(f"{text}.") for text in notes(flags)]


Stanza = str | Table | Bullets | Snippet | Caution


@dataclass(frozen=True)
class Passage:
    """Blocks under a title. Text output shows the title only if ``printed`` is true."""

    title: str
    blocks: Sequence[Stanza]
    printed: bool = False

    def lines(self) -> list[str]:
        """Return the passage as text."""
        lines = [
            line for block in self.blocks for line in ([block] if isinstance(block, str) else block.lines())
        ]
        return [f"{self.title}:", *lines] if self.printed else lines


@dataclass(frozen=True)
class Document:
    """The result of a study. Its first sentence is the answer."""

    title: str  #: the subject of the result
    passages: Sequence[Passage]
    data: Mapping[str, Any]  #: the result as JSON-compatible data; has ``simulated`` if it depends on runs

    @classmethod
    def of(cls, title: str, lines: Sequence[Stanza], data: Mapping[str, Any]) -> Document:
        """Return a document that consists of one passage."""
        return cls(title, [Passage("", lines)], data)

    def lines(self) -> list[str]:
        """Return the lines of the text, with an empty line between passages."""
        texts = [lines for passage in self.labelled if (lines := passage.lines())]
        return [line for index, lines in enumerate(texts) for line in ([""] if index else []) + lines]

    @property
    def simulated(self) -> Simulated:
        """Label that states whether the result comes from simulated runs, according to its data."""
        return Simulated.of_json(self.data)

    @property
    def labelled(self) -> list[Passage]:
        """The passages, with the label for simulated runs at the start of the first sentence."""
        first, *passages = self.passages
        answer, *blocks = first.blocks
        label = self.simulated.first(str(answer))
        return [replace(first, blocks=[label, *blocks]), *passages]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def document(result: Shown) -> Document:
    """Return the document of a law, a prediction, or the result of a study."""
    module, _, function = result.TEXT.rpartition(".")
    text: Document = getattr(importlib.import_module(f"isolaw.report.{module}"), function)(result)
    return text
