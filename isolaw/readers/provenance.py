"""`Account`: what was read of a run, and where each thing is known from; `isolaw read` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isolaw.readers.frameworks.base import Fact
from isolaw.readers.sources import Found
from isolaw.runs import Runs, plain

if TYPE_CHECKING:
    from isolaw.readers.logged import LoggedRun

_SHOWN = 4


@dataclass
class Account:
    """What was read of one run.

    Attributes
    ----------
    run
        its id.
    framework
        whose names the log uses; ``isolaw`` for a sweep, empty for a table.
    container, sources
        how it was written, and the files.
    facts
        B_p, n, rollouts per step, seed, on-policy and so on, each with its origin.
    metrics
        evaluation set → metric → number of values.
    steps, compute
        the first and the last.
    left_out
        reason → how often.
    notes
        what was assumed or changed.
    """

    run: str
    framework: str
    container: str
    sources: list[str]
    facts: dict[str, Fact]
    metrics: dict[str, dict[str, int]]
    steps: tuple[int, int]
    compute: tuple[int, int]
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        facts = {name: {"value": fact.value, "origin": fact.origin} for name, fact in self.facts.items()}
        return {**vars(self), "facts": facts, "steps": list(self.steps), "compute": list(self.compute)}


def of_logged(run: LoggedRun) -> Account:
    """Return the account of a run read from logs."""
    metrics: dict[str, dict[str, int]] = {}
    for (eval_set, metric), curve in run.curves.of.items():
        metrics.setdefault(eval_set, {})[metric] = curve.step.size
    left_out = dict(run.curves.dropped)
    if run.curves.ignored:
        left_out["names that are no metric (timings and the like)"] = len(run.curves.ignored)
    steps = run.curves.steps or (0, 0)
    batch = run.facts["rollouts_per_step"].value
    return Account(
        run.name,
        run.framework.name,
        run.container,
        run.sources,
        run.facts,
        metrics,
        steps,
        (steps[0] * batch, steps[1] * batch),
        left_out,
        [*run.notes, *run.curves.notes],
    )


def of_table(runs: Runs, found: Found) -> list[Account]:
    """Return the accounts of runs that came as a table or a sweep."""
    origin = "in the sweep" if found.sweep else "in the table"
    container = "sweep" if found.sweep else "table"
    out = []
    table = runs.table()
    counts = runs.points.groupby(["run_id", "eval_set", "metric"]).size()
    ends = runs.points.groupby("run_id")[["step", "compute"]].agg(["min", "max"])
    for run_id, row in table.iterrows():
        facts = {str(name): Fact(plain(value), origin) for name, value in row.items() if value == value}
        batch = facts["problems_per_batch"].value * facts["rollouts_per_problem"].value
        metrics: dict[str, dict[str, int]] = {}
        for (eval_set, metric), size in counts.loc[run_id].items():
            metrics.setdefault(str(eval_set), {})[str(metric)] = int(size)
        low, high = (
            tuple(int(ends.loc[run_id, (name, end)]) for end in ("min", "max"))
            for name in ("step", "compute")
        )
        out.append(
            Account(
                str(run_id),
                "isolaw" if found.sweep else "",
                container,
                [str(found.path)],
                {**facts, "rollouts_per_step": Fact(batch, "B_p · n")},
                metrics,
                (low[0], low[1]),
                (high[0], high[1]),
            )
        )
    return out


def shared_notes(accounts: Sequence[Account]) -> list[str]:
    """Return the notes of all runs, each once, with the runs it is about."""
    about: dict[str, list[str]] = {}
    for account in accounts:
        for note in account.notes:
            about.setdefault(note, []).append(account.run)
    out = []
    for note, runs in about.items():
        if len(runs) == len(accounts):
            out.append(note if len(runs) == 1 else f"{note} (all {len(runs)} runs)")
        else:
            more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
            out.append(f"{', '.join(runs[:_SHOWN])}{more}: {note}")
    return out
