"""The document of a dead-group study: the share of dead groups for each n, and its effect on the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.report.document import Document, Stanza, Table
from isolaw.report.text.numbers import count, number

if TYPE_CHECKING:
    from isolaw.fits.studies.dead_groups import DeadGroups, GroupSize

_USUAL = 16


def document(result: DeadGroups) -> Document:
    """Return the share of dead groups of a problem set; the first line is about n = 16."""
    least, most = result.samples
    usual = min(result.sizes, key=lambda size: abs(size.rollouts_per_problem - _USUAL))
    samples = f"{least}" if least == most else f"{least} to {most}"
    heads = ("all wrong", "all right", "live of 100", "live in 1,000 rollouts", "estimate")
    rows = [["n", "dead", "95 % interval", *heads]]
    rows += [_row(size) for size in result.sizes]
    lines: list[Stanza] = [
        f"With n = {usual.rollouts_per_problem}, {_share(usual.dead.value or 0.0)} of the groups have no "
        f"signal: of 100 problems in a batch, {100 * usual.live:.0f} contribute to the gradient.",
        f"The estimate is from {count(result.problems, 'problem')} with {samples} samples each; "
        f"{_share(result.mean)} of the samples are correct on average.",
        Table.of(rows),
        "A group is dead if all its rollouts are right or all are wrong: its advantages are then 0.",
        "Of the B_p problems of a batch, B_p · (1 − dead) contribute to the gradient.",
        "An unbiased estimate assumes no model of pass rates.",
    ]
    if any(size.basis == "model" for size in result.sizes):
        lines.append(
            f"A model estimate is for an n above the {least} samples of a problem. Its value comes from a "
            "beta-binomial fit. Its interval assumes no model, and more samples narrow the interval."
        )
    lines.append("Pass rates are for the sampled model; they change during training.")
    return Document.of("groups without a signal", lines, result.to_dict())


def _row(size: GroupSize) -> list[str]:
    dead = size.dead
    low, high = dead.interval or (None, None)
    ends = f"{100 * (low or 0.0):.1f}–{_share(1.0 if high is None else high)}"
    return [
        str(size.rollouts_per_problem), _share(dead.value or 0.0), ends,
        _share(size.wrong), _share(size.right),
        f"{100 * size.live:.0f}", number(size.per_thousand_rollouts), size.basis,
    ]  # fmt: skip


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
