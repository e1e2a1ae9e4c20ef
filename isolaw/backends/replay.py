"""Define the replay backend, which plays back recorded runs as if they were training.

Recorded curves can thus test designs, the store, resuming and statistics without training cost. Every
recorded checkpoint within the horizon is replayed unchanged, without interpolation.

A source is anything that `isolaw.read` accepts. isolaw reads it once, when the sweep is resolved. The sweep's
directory then stores the runs, and the hash of their content is part of a run's identity.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, FiniteFloat

from isolaw.backend import (
    Backend,
    Checkpoint,
    Measurement,
    RunContext,
    sampling_issues,
    saved_step,
    saving,
)
from isolaw.config import ProblemsSpec, RunSpec, SweepSpec
from isolaw.documents.validation import parse_section
from isolaw.errors import DataError, Issue, SpecError
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey
from isolaw.runs import IDENTITY, KEY, Runs
from isolaw.store.folder import RECORDED

_CONFIGURATION = ["problems_per_batch", "rollouts_per_problem", "seed"]
_MEASURED = ["eval_set", "metric", "value", "n_problems", "n_samples"]
_UNHASHED_COLUMNS = ["run_id", "wall_s"]  # a path, and the only column in which identical runs differ
_CACHE_SIZE = 4
_runs_by_hash: dict[str, Runs] = {}  # cache of runs by the hash of their content


class _ReplayOptions(BaseModel):
    """The ``[replay]`` section: the source of recorded runs, and its columns as in ``isolaw fit``.

    In a resolved sweep, the source is the file in the sweep's directory, and ``sha256`` is the hash of the
    runs' content (`_content_hash`).
    """

    model_config = ConfigDict(extra="forbid")
    source: Any
    metric: str | None = None
    columns: dict[str, str] = {}
    set: dict[str, str | int | FiniteFloat] = {}
    sha256: str | None = None

    @property
    def reader_options(self) -> dict[str, Any]:
        """Options of `isolaw.read` that the user has set."""
        return self.model_dump(include={"metric", "columns", "set"}, exclude_defaults=True)


class _Replay(Backend):
    """The `Backend` that replays recorded runs."""

    name = "replay"
    version = 1

    def with_axes(
        self, spec: SweepSpec, directory: Path, notes: list[str]
    ) -> tuple[SweepSpec, Runs | None, bool]:
        """Return the sweep with the recorded values of unset axes, and the runs to store.

        If all axes contain only recorded values, the sweep is the recorded subset of the product of its axes.
        """
        section, runs, is_stored = _load_runs(spec.options, directory, notes)
        spec = spec.model_copy(update={self.name: section})
        axis_values = _recorded_axes(runs)
        data = spec.model_dump(mode="json", exclude_unset=True)
        for name, axes_section in (("grid", spec.grid), ("sweep", spec.sweep)):
            unset = type(axes_section).model_fields.keys() - axes_section.model_fields_set
            data[name] = {**data.get(name, {}), **{k: axis_values[k] for k in axis_values.keys() & unset}}
        if not spec.limits.model_fields_set:  # a recorded run has no hardware limit
            grid = SweepSpec.parse(data).grid
            largest_batch = max(grid.problems_per_batch) * max(grid.rollouts_per_problem)
            data["limits"] = {"max_batch_rollouts": largest_batch}
        resolved = SweepSpec.parse(data)
        axes = {
            "seeds": resolved.sweep.seeds,
            **{name: getattr(resolved.grid, name) for name in axis_values.keys() - {"seeds", "compute"}},
        }
        is_recorded = all(set(values) <= set(axis_values[name]) for name, values in axes.items())
        return resolved, None if is_stored else runs, is_recorded

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Return the spec with the hash of the recorded runs, which is part of the runs' identity."""
        options = parse_section(_ReplayOptions, spec.options, prefix="replay")
        assert options.sha256 is not None
        runs = _stored_runs(options.source, options.sha256)
        set_names = sorted(set(runs.points["problem_set"]))
        if len(set_names) > 1 and spec.problems.set not in set_names:
            raise SpecError([Issue("problems.set", found=spec.problems.set, accepted=", ".join(set_names))])
        name = spec.problems.set if len(set_names) > 1 else set_names[0]
        run_ids = _matching_ids(spec.model_copy(update={"problems": ProblemsSpec(set=name)}), runs)
        attributes = runs.attributes.get(run_ids[0], {}) if run_ids else {}
        algorithm = str(runs.table().loc[run_ids[0], "algorithm"]) if run_ids else "grpo"
        return spec.model_copy(
            update={
                "backend_version": self.version,
                "recipe": spec.recipe.model_copy(update={"algorithm": algorithm}),
                "options": {"recorded": attributes} if attributes else {},
                "content": {"runs": options.sha256},
                "sources": {"source": options.source},
                "problems": spec.problems.model_copy(update={"set": name}),
            }
        )

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return issues if the source has no such run or several, or if a setting cannot be replayed."""
        runs = _runs_of(spec)
        run_ids = _matching_ids(spec, runs)
        recipe_keys = {key: value for key, value in spec.recipe.chosen().items() if key != "algorithm"}
        message = "replay cannot change the recipe of a recorded run"
        issues = [Issue(f"recipe.{key}", message, found=value) for key, value in recipe_keys.items()]
        issues += sampling_issues(spec, "replay cannot sample again")
        b, n = spec.problems_per_batch, spec.rollouts_per_problem
        configuration = f"B_p = {b}, n = {n}, seed = {spec.seed}"
        if len(run_ids) > 1:
            issues.append(
                Issue("replay.source", f"{len(run_ids)} recorded runs have {configuration}", found=run_ids)
            )
        elif not run_ids:
            table = runs.table()[_CONFIGURATION]
            configurations = sorted({tuple(map(int, row)) for row in table.itertuples(index=False)})
            shown = ", ".join(map(str, configurations[:12])) + (" …" if len(configurations) > 12 else "")
            message = f"no recorded run has {configuration}"
            issues.append(Issue("grid", message, accepted=f"(B_p, n, seed) of {shown}"))
        return issues

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Yield the recorded checkpoints up to the horizon, starting after the state ``ctx.state``."""
        runs = _runs_of(spec)
        points = runs.points
        run_id = _matching_ids(spec, runs)[0]
        points = points[(points["run_id"] == run_id) & (points["compute"] <= spec.compute)]
        if points.empty:
            raise DataError(f"{spec.sources['source']}: the run has no checkpoint within C = {spec.compute}")
        last = int(points["step"].max())
        saved = saved_step(ctx.state)
        for step, rows in points[points["step"] > saved].groupby("step", sort=True):
            step = int(step)
            first = rows.iloc[0]
            values = [
                Measurement(eval_set, metric, float(value), _int_or_none(problems), _int_or_none(samples))
                for eval_set, metric, value, problems, samples in rows[_MEASURED].itertuples(index=False)
            ]
            tokens = _int_or_none(first["tokens"])
            yield Checkpoint(step, int(first["compute"]), values, saving(step), tokens, final=step == last)


BACKEND = _Replay()


def _recorded_axes(runs: Runs) -> dict[str, Any]:
    """Return the recorded grid, seeds and horizon, which are the defaults of a sweep."""
    table = runs.table()
    axes = {name: sorted({int(value) for value in table[name]}) for name in _CONFIGURATION}
    return {"seeds": axes.pop("seed"), **axes, "compute": int(runs.points["compute"].max())}


def _load_runs(
    section: Mapping[str, Any], directory: Path, notes: list[str]
) -> tuple[dict[str, Any], Runs, bool]:
    """Return a section for the sweep, its recorded runs, and whether its directory already stores them.

    Otherwise isolaw reads the source and adds to ``notes``, and the caller must store the runs in the file
    `RECORDED` of the directory.
    """
    options = parse_section(_ReplayOptions, section, prefix="replay")
    stored_path = directory.absolute() / RECORDED
    if options.sha256 is not None:
        source = str(stored_path if stored_path.exists() else options.source)
        return {**section, "source": source}, _stored_runs(source, options.sha256), True
    runs = _read_source(options, notes)
    digest = _content_hash(runs)
    _cache_runs(digest, runs)
    metric = {"metric": options.metric} if options.metric else {}
    return {"source": str(stored_path), "sha256": digest, **metric}, runs, False


def _read_source(options: _ReplayOptions, notes: list[str]) -> Runs:
    """Read the user's source, and add to ``notes``."""
    source = options.source
    if not isinstance(source, str | os.PathLike):
        from isolaw.readers.read import as_runs

        return as_runs(source, **options.reader_options)
    path = os.fspath(source)
    if not (os.path.exists(path) or glob.has_magic(path) or "://" in path):
        raise SpecError([Issue("replay.source", f"{path}: No such file or directory", path)])
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise SpecError([Issue("replay.source", "found a special file; expected a file or a folder", path)])
    reading = survey([path], HowToRead.of(**options.reader_options))
    notes += [*reading.notes, *reading.warnings]
    return reading.runs


def _content_hash(runs: Runs) -> str:
    """Return the SHA-256 of the runs as a sorted CSV table, without run names and wall-clock times."""
    columns = [name for name in runs.points.columns if name not in _UNHASHED_COLUMNS]
    table = runs.points[columns].sort_values([*IDENTITY, *KEY[1:], "value"], kind="stable")
    return hashlib.sha256(table.to_csv(index=False, float_format="%.17g").encode()).hexdigest()


def _cache_runs(digest: str, runs: Runs) -> None:
    _runs_by_hash[digest] = runs
    while len(_runs_by_hash) > _CACHE_SIZE:
        del _runs_by_hash[next(iter(_runs_by_hash))]


def _stored_runs(path: str, digest: str) -> Runs:
    """Return the recorded runs that a sweep's directory stores; raise `DataError` if they have changed."""
    if digest not in _runs_by_hash:
        runs = Runs.from_parquet(path)
        if _content_hash(runs) != digest:
            raise DataError(f"{path}: the runs changed since the sweep was resolved")
        _cache_runs(digest, runs)
    return _runs_by_hash[digest]


def _runs_of(spec: RunSpec) -> Runs:
    return _stored_runs(spec.sources["source"], spec.content["runs"])


def _matching_ids(spec: RunSpec, runs: Runs) -> list[str]:
    table = runs.table()
    is_same = table["problem_set"] == spec.problems.set
    for name in _CONFIGURATION:
        is_same &= table[name] == getattr(spec, name)
    return [str(run_id) for run_id in table.index[is_same]]


def _int_or_none(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
