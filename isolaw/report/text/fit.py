"""The text of a fitted law, as ``isolaw fit`` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.fits.law import Law
from isolaw.report.document import Document, Passage, Table
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import in_reward, number, share
from isolaw.report.text.prediction import at_the_end, verdict

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument


def document(law: Law) -> Document:
    """Return the lines of `law_lines`, the compared laws and the notes; for pages also n* by budget.

    Each compared law has its parameters with 95 % intervals, its mean loss in reward, and the share of draws
    in which it loses less than a constant n.
    """
    of_law = law.document
    notes = [f"Note: {note}." for note in law_text.notes(of_law.flags)]
    lines = [*law_lines(law), *_laws(of_law), *notes]
    passages = [Passage("", lines), Passage("n* by budget", [_frontier(of_law)])]
    return Document("law of n*", passages, law.to_dict())


def _frontier(document: LawDocument) -> Table:
    """Return a table of n* at about eight points of the frontier, which only pages show."""
    heads = [law_text.symbol(document), "n*", "reward at n*"]
    points = document.frontier[:: -max(len(document.frontier) // 8, 1)][::-1]
    rows = [[number(p.x), str(p.n_star), str(p.reward)] for p in points]
    return Table.of([heads, *rows], page_only=heads)


def law_lines(law: Law) -> list[str]:
    """Return the lines that `isolaw fit` prints: the answer where the runs end, then the law and n*(C)."""
    best = at_the_end(law)
    return [*([] if best is None else verdict(best)), *law_text.law_summary(law.document)]


def _laws(document: LawDocument) -> list[Table]:
    """Return the compared laws as a table; empty if no laws were compared."""
    compared = {name: law for name, law in document.comparison.laws.items() if law.theta}
    if not compared:
        return []
    rows = [["law of n*", "parameters (95 % intervals)", "loss", "beats a constant"]]
    for name, law in compared.items():
        better = law.better.get("constant")
        equation = f"{law_text.form_equation(name, document)}: {law_text.parameters(name, law)}"
        label = law_text.law_name(name) + " *" * (name == law_text.preferred(document))
        rows.append(
            [
                label,
                equation,
                in_reward(law.mean_loss, document.tolerance),
                "" if better is None else share(better),
            ]
        )
    return [Table.of(rows, "<<>>")]
