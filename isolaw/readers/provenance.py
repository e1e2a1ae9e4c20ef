"""`Provenance`: what was read of a run, and where each fact comes from; `isolaw read` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from isolaw.readers.frameworks.base import Fact
from isolaw.readers.sources import Found
from isolaw.runs import Runs, listed, plain

if TYPE_CHECKING:
    from isolaw.readers.assemble import LoggedRun


@dataclass
class Provenance:
    """What was read of one run."""

    run: str  # its id
    framework: str  # whose names the log uses; ``isolaw`` for a sweep, empty for a table
    container: str  # how it was written
    sources: list[str]  # the files
    facts: dict[str, Fact]  # B_p, n, rollouts per step, seed, on-policy and so on, each with its origin
    metrics: dict[str, dict[str, int]]  # evaluation set → metric → number of values
    steps: tuple[int, int]  # the first and the last
    compute: tuple[int, int]
    left_out: dict[str, int] = field(default_factory=dict)  # reason → number of values, records or names
    notes: list[str] = field(default_factory=list)  # what was assumed or changed

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def of_logged(run: LoggedRun) -> Provenance:
    """Return the provenance of a run read from logs."""
    metrics: dict[str, dict[str, int]] = {}
    for (eval_set, metric), curve in run.curves.of.items():
        metrics.setdefault(eval_set, {})[metric] = curve.step.size
    left_out = dict(run.curves.dropped)
    if run.curves.ignored:
        left_out["names that are no metric (timings and the like)"] = len(run.curves.ignored)
    first, last = run.curves.steps or (0, 0)
    batch = run.facts["rollouts_per_step"].value
    origin = run.framework.name, run.container, run.sources
    compute = first * batch, last * batch
    notes = [*run.notes, *run.curves.notes]
    return Provenance(run.name, *origin, run.facts, metrics, (first, last), compute, left_out, notes)


def of_table(runs: Runs, found: Found) -> list[Provenance]:
    """Return the provenance of the runs of a table or a sweep."""
    framework, container = ("isolaw", "sweep") if found.sweep else ("", "table")
    counts = runs.points.groupby(["run_id", "eval_set", "metric"]).size()
    ends = runs.points.groupby("run_id")[["step", "compute"]].agg(["min", "max"])
    out = []
    for run_id, row in runs.table().iterrows():
        facts = {str(k): Fact(plain(v), f"in the {container}") for k, v in row.items() if v == v}
        batch = facts["problems_per_batch"].value * facts["rollouts_per_problem"].value
        facts["rollouts_per_step"] = Fact(batch, "B_p · n")
        metrics: dict[str, dict[str, int]] = {}
        for (eval_set, metric), size in counts.loc[run_id].items():
            metrics.setdefault(str(eval_set), {})[str(metric)] = int(size)
        first, last, least, most = (int(end) for end in ends.loc[run_id])
        origin = framework, container, [str(found.path)]
        out.append(Provenance(str(run_id), *origin, facts, metrics, (first, last), (least, most)))
    return out


def shared_notes(provenance: Sequence[Provenance]) -> list[str]:
    """Return the notes of all runs, each once, with the runs it is about."""
    about: dict[str, list[str]] = {}
    for own in provenance:
        for note in own.notes:
            about.setdefault(note, []).append(own.run)
    every = f" (all {len(provenance)} runs)" if len(provenance) > 1 else ""
    return [
        f"{note}{every}" if len(runs) >= len(provenance) else f"{listed(runs, 4)}: {note}"
        for note, runs in about.items()
    ]
