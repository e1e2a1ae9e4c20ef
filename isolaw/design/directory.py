"""`Adaptive`: a race stored in a sweep's directory.

``decisions.jsonl`` contains the race's decisions, one per line with a checksum. If lines are missing or
damaged, isolaw recomputes the decisions from the results. Since decisions depend only on the results, the
recomputed decisions are identical.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isolaw.config import RunSpec, SweepSpec
from isolaw.design.decisions import Decision, DecisionStage, Ending, RunKey, horizons
from isolaw.design.race import TOLERANCE, Race
from isolaw.documents import seal
from isolaw.documents.reading import parse_json
from isolaw.documents.seal import canonical_json
from isolaw.errors import Issue, StoreError
from isolaw.fits.document.codec import decoded
from isolaw.fits.selection import LEAST_CURVES, Configuration, configurations_of, measured_points
from isolaw.registry import traits
from isolaw.store import SweepStore
from isolaw.store.sweep import DECISIONS

_EVAL_SET = "validation"
_LEAST_CHECKPOINTS = 2  # a run is compared once it has step 0 and one later checkpoint


def race_of(spec: SweepSpec, runs: Sequence[RunSpec]) -> Race:
    """Return the race that a sweep file describes, over the cells of these runs."""
    design = spec.design
    forbidden = set(design.forbidden)
    run_keys = {_key_of(run) for run in runs}
    cells = tuple(sorted({(b, n) for b, n, seed in run_keys if seed == spec.sweep.seeds[0]} - forbidden))
    missing = frozenset((*cell, seed) for cell in cells for seed in spec.sweep.seeds) - run_keys
    total_rollouts = sum(run.rollouts for run in runs)
    spend = design.spend * total_rollouts if design.spend <= 1 else design.spend
    batches = sorted({b for b, _ in cells}) or [0]
    start = design.start or batches[(len(batches) - 1) // 2]
    pinned = tuple(sorted(set(design.pinned) & set(cells)))
    return Race(
        cells,
        start,
        spec.sweep.compute,
        spec.sweep.seeds,
        int(spend),
        design.tolerance,
        pinned=pinned,
        missing=missing,
    )


def issues_of(spec: SweepSpec, runs: Sequence[RunSpec]) -> list[Issue]:
    """Return the issues in the sweep file that prevent a race over these runs."""
    design, issues = spec.design, []
    cells = {run.shape for run in runs}
    for name in ("pinned", "forbidden"):
        absent = [cell for cell in getattr(design, name) if cell not in cells]
        issues += [Issue(f"design.{name}", "", list(cell), "[B_p, n] of the grid") for cell in absent]
    for key in sorted(set(design.pinned) & set(design.forbidden)):
        note = "is in design.forbidden, too"
        issues.append(Issue("design.pinned", note, list(key), "[B_p, n] that may run"))
    if spec.grid.recipe_axes:
        axes = ", ".join(spec.grid.recipe_axes)
        issues.append(Issue("design.kind", f"a race cannot vary recipe keys ({axes})", "race", "grid"))
    metrics = [*spec.evaluation.metrics, *filter(None, [spec.options.get("metric")])]
    if design.metric not in metrics and not traits(spec.sweep.backend).by_command:  # it may log any
        issues.append(Issue("design.metric", found=design.metric, accepted=", ".join(metrics)))
    if _EVAL_SET not in spec.evaluation.sets:
        accepted = f"a list with {_EVAL_SET!r}: a race compares configurations there"
        issues.append(Issue("evaluation.sets", found=list(spec.evaluation.sets), accepted=accepted))
    batches = sorted({b for b, _ in cells})
    if design.start is not None and design.start not in batches:
        issues.append(Issue("design.start", found=design.start, accepted=" or ".join(map(str, batches))))
    if issues or not cells:
        return issues
    race = race_of(spec, runs)
    n_values = [n for b, n in race.cells if b == race.start]
    if len(n_values) < LEAST_CURVES:
        accepted = f"at least {LEAST_CURVES} values with B_p = {race.start} that are not forbidden"
        issues.append(Issue("grid.rollouts_per_problem", found=n_values, accepted=accepted))
    elif race.spend < race.least:
        accepted = f"enough for {LEAST_CURVES} runs to the target, {race.least} rollouts"
        issues.append(Issue("design.spend", f"it allows {race.spend} rollouts", design.spend, accepted))
    return issues


def _key_of(run: RunSpec) -> RunKey:
    """Return the key (B_p, n, seed) of a run."""
    return *run.shape, run.seed


@dataclass
class Adaptive:
    """A race, the runs that it may request, and its decisions so far."""

    race: Race
    metric: str
    grid: Mapping[RunKey, RunSpec]
    store: SweepStore
    history: list[Decision] = field(default_factory=list)

    @classmethod
    def open(cls, spec: SweepSpec, runs: Sequence[RunSpec], store: SweepStore) -> Adaptive:
        """Return the race stored in the directory, without writing anything.

        The last decision of an ended race is dropped if the user has since changed the design's keys, or if
        the race ended because runs failed. The race can then continue.
        """
        adaptive = cls(race_of(spec, runs), spec.design.metric, {_key_of(run): run for run in runs}, store)
        adaptive.history = adaptive._confirmed(read(store))
        if unknown := sorted(horizons(adaptive.history).keys() - adaptive.grid.keys()):
            b, n, seed = unknown[0]
            raise StoreError(
                f"{store.directory}: its race has a run with B_p = {b}, n = {n} and seed {seed}, which the "
                "grid lacks; put it back (design.forbidden excludes it from now on), or use a new --out"
            )
        last = adaptive.history[-1] if adaptive.history else None
        if last and last.ending and (last.ending is Ending.FAILED or last.limits != adaptive.race.limits):
            adaptive.history.pop()
        adaptive.advance()
        return adaptive

    def _confirmed(self, stored: list[Decision]) -> list[Decision]:
        """Return the decisions before the first one that the results contradict; the race repeats the rest.

        A decision made under other limits is accepted, since the user has changed the limits since then.
        """
        for index, decision in enumerate(stored):
            if decision.limits != self.race.limits:
                continue
            recomputed = self.race.next(
                stored[:index], _measured(self.store, stored[:index], self.metric), set(decision.failed)
            )
            if replace(recomputed, limits=decision.limits) != decision:
                return stored[:index]
        return stored

    @property
    def ended(self) -> bool:
        """Whether the race requests no more runs."""
        return bool(self.history) and self.history[-1].stage is DecisionStage.STOP

    @property
    def runs(self) -> list[RunSpec]:
        """The requested runs with their horizons."""
        return [self._run(key, end) for key, end in horizons(self.history).items()]

    @property
    def todo(self) -> list[RunSpec]:
        """The runs of the last decision that have not reached their horizon."""
        requests = self.history[-1].runs if self.history else ()
        runs = [self._run(request.run, request.compute) for request in requests]
        return [run for run in runs if not self.store.run(run.run_id).recorded().is_done(run)]

    @property
    def whole(self) -> int:
        """The rollouts that all runs of the grid would generate in total."""
        return sum(run.rollouts for run in self.grid.values())

    def _run(self, key: RunKey, compute: int) -> RunSpec:
        return self.grid[key].model_copy(update={"compute": compute})

    def advance(self, after_failures: bool = False) -> list[Decision]:
        """Make decisions until one requests runs or ends the race, and return the new decisions.

        By default the race waits for failed runs to be repeated. With ``after_failures`` it continues without
        them.
        """
        decided = len(self.history)
        while not self.ended:
            failed = set(self.history[-1].failed) if self.history else set()
            unfinished = self.todo
            if after_failures:
                failed_runs = [run for run in unfinished if self.store.run(run.run_id).failure is not None]
                failed |= {_key_of(run) for run in failed_runs}
                unfinished = [run for run in unfinished if run not in failed_runs]
            if unfinished:
                break
            decision = self.race.next(self.history, _measured(self.store, self.history, self.metric), failed)
            self.history.append(replace(decision, limits=self.race.limits))
        return self.history[decided:]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data: the parameters of the race and its decisions so far."""
        names = ("cells", "start", "target", "spend", "pinned")
        return {
            "kind": "race",
            "whole": self.whole,
            **{name: getattr(self.race, name) for name in names},
            "tolerance": self.race.tolerance or TOLERANCE,
            "decisions": [decision.to_dict() for decision in self.history],
        }

    def keep(self) -> None:
        """Write the decisions so far to ``decisions.jsonl``."""
        ids = {key: run.run_id for key, run in self.grid.items()}
        lines = [
            canonical_json(seal.sealed(decision.to_dict(), f"{_owner(self.history[: i + 1], ids)} {i}"))
            for i, decision in enumerate(self.history)
        ]
        self.store.root.write(DECISIONS, "".join(f"{line}\n" for line in lines).encode())


def _owner(history: Sequence[Decision], ids: Mapping[RunKey, str]) -> str:
    """Return a hash of the runs that decisions request; raise `KeyError` if the grid lacks one."""
    return hashlib.sha256("".join(sorted(ids[key] for key in horizons(history))).encode()).hexdigest()


def read(store: SweepStore) -> list[Decision]:
    """Return the stored decisions of a sweep before the first that is damaged or belongs to other runs."""
    content = store.root.read(DECISIONS) if store.directory.is_dir() else None
    decisions: list[Decision] = []
    ids = {_key_of(run): run_id for run_id, run in store.specs()[0].items()} if content else {}
    for line in (content or b"").splitlines():
        try:
            document = parse_json(line)
            history = [*decisions, decoded(Decision, document)]
            unknown = document.keys() - {"crc"} - history[-1].to_dict().keys()
            if unknown or not seal.is_sealed(document, f"{_owner(history, ids)} {len(decisions)}"):
                break  # damaged, of another sweep, or of a version that wrote other keys or no sweep
            decisions = history
        except (ValueError, TypeError, KeyError):
            break
    return decisions


def race_state(store: SweepStore) -> dict[str, Any] | None:
    """Return a race's decisions, requested rollouts, ending and best cell, or None without a race."""
    history = read(store)
    if not history:
        return None
    last = history[-1]
    return {
        "decisions": len(history),
        "asked": last.spent + last.cost,
        "spend": last.limits[0] if last.limits else None,
        "ending": last.ending,
        "best": last.best,
        "expected_loss": last.expected_loss,
    }


def _measured(store: SweepStore, history: Sequence[Decision], metric: str) -> list[Configuration]:
    """Return the measurements of the requested runs up to their horizons."""
    end_of_run = horizons(history)
    specs = store.specs()[0] if end_of_run else {}
    if not any(store.run(run_id).bytes_recorded for run_id in specs):
        return []
    runs = store.collect()
    points = measured_points(runs, metric, _EVAL_SET)
    columns = ["problems_per_batch", "rollouts_per_problem", "seed"]
    limits = [end_of_run.get(key, -1) for key in points[columns].itertuples(index=False, name=None)]
    points = points[points["compute"] <= limits]
    table = runs.table()
    table = table[table.index.isin(points["run_id"])]
    return configurations_of(points, table, [], least=_LEAST_CHECKPOINTS)
