"""Define the replay backend, which plays back recorded runs as if they were training.

Recorded curves can thus test designs, the store, resuming and statistics without training cost. Every
recorded checkpoint within the horizon is replayed unchanged, without interpolation.

If the source is a table file, isolaw does not copy it, and the hash of its bytes is part of a run's identity.
Any other source that `isolaw.read` accepts is read once, when the sweep is resolved. The sweep's directory
then stores the runs, and the hash of their content is part of the identity.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
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
from isolaw.documents.seal import canonical_json
from isolaw.documents.validation import parse_section
from isolaw.errors import DataError, Issue, SpecError
from isolaw.files import sha256
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.sources import is_table
from isolaw.readers.survey import survey
from isolaw.readers.tables import read_table
from isolaw.runs import IDENTITY, KEY, Runs
from isolaw.store.folder import RECORDED

_CONFIGURATION = ["problems_per_batch", "rollouts_per_problem", "seed"]
_NOT_HASHED = ["run_id", "wall_s"]  # a path, and the only column in which identical runs differ
_MOST_HELD = 4
_held: dict[str, Runs] = {}  # cache of runs by the hash of their content


class _ReplayOptions(BaseModel):
    """The ``[replay]`` section: the source of recorded runs, and its columns as in ``isolaw fit``.

    ``sha256`` is set if the sweep's directory stores the runs, and is the hash of their content
    (`_content_hash`).
    """

    model_config = ConfigDict(extra="forbid")
    source: Any
    metric: str | None = None
    columns: dict[str, str] = {}
    set: dict[str, str | int | FiniteFloat] = {}
    sha256: str | None = None

    @property
    def mapping(self) -> dict[str, Any]:
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
        section, recorded, more = _gathered(spec.options, directory)
        notes += more
        spec = spec.model_copy(update={self.name: section})
        offered = _axes(section)
        data = spec.model_dump(mode="json", exclude_unset=True)
        for name, section_of in (("grid", spec.grid), ("sweep", spec.sweep)):
            keys = type(section_of).model_fields.keys() & offered.keys() - section_of.model_fields_set
            data[name] = {**data.get(name, {}), **{key: offered[key] for key in keys}}
        if not spec.limits.model_fields_set:  # a recorded run has no hardware limit
            grid = SweepSpec.parse(data).grid
            most = max(grid.problems_per_batch) * max(grid.rollouts_per_problem)
            data["limits"] = {"max_batch_rollouts": most}
        out = SweepSpec.parse(data)
        axes = {
            "seeds": out.sweep.seeds,
            **{name: getattr(out.grid, name) for name in offered.keys() - {"seeds", "compute"}},
        }
        return out, recorded, all(set(values) <= set(offered[name]) for name, values in axes.items())

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Read the source, and return the spec with the source's hash and columns.

        Hash and columns are part of a run's identity, but the path of the source is not.
        """
        content, mapping, sources, runs = _open(spec.options or spec.sources)
        sets = sorted(set(runs.points["problem_set"]))
        if len(sets) > 1 and spec.problems.set not in sets:
            raise SpecError([Issue("problems.set", found=spec.problems.set, accepted=", ".join(sets))])
        name = spec.problems.set if len(sets) > 1 else sets[0]
        matching = _matching(spec.model_copy(update={"problems": ProblemsSpec(set=name)}), runs)
        recorded = runs.attributes.get(matching[0], {}) if matching else {}
        algorithm = str(runs.table().loc[matching[0], "algorithm"]) if matching else "grpo"
        return spec.model_copy(
            update={
                "backend_version": self.version,
                "recipe": spec.recipe.model_copy(update={"algorithm": algorithm}),
                "options": {**mapping, **({"recorded": recorded} if recorded else {})},
                "content": content,
                "sources": sources,
                "problems": spec.problems.model_copy(update={"set": name}),
            }
        )

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return issues if the source has no such run or several, or if a setting cannot be replayed."""
        runs = _runs(spec)
        matching = _matching(spec, runs)
        given = {key: value for key, value in spec.recipe.chosen().items() if key != "algorithm"}
        message = "replay cannot change the recipe of a recorded run"
        issues = [Issue(f"recipe.{key}", message, found=value) for key, value in given.items()]
        issues += sampling_issues(spec, "replay cannot sample again")
        where = f"B_p = {spec.problems_per_batch}, n = {spec.rollouts_per_problem}, seed = {spec.seed}"
        if len(matching) > 1:
            issues.append(
                Issue("replay.source", f"{len(matching)} recorded runs have {where}", found=matching)
            )
        elif not matching:
            table = runs.table()[_CONFIGURATION]
            recorded = sorted({tuple(map(int, row)) for row in table.itertuples(index=False)})
            shown = ", ".join(map(str, recorded[:12])) + (" …" if len(recorded) > 12 else "")
            message = f"no recorded run has {where}"
            issues.append(Issue("grid", message, accepted=f"(B_p, n, seed) of {shown}"))
        return issues

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Yield the recorded checkpoints up to the horizon, starting after the state ``ctx.state``."""
        table = spec.content.get("table")
        if table is not None and sha256(spec.sources["source"]) != table:
            raise DataError(f"{spec.sources['source']}: the table changed since the sweep was resolved")
        runs = _runs(spec)
        points = runs.points
        points = points[(points["run_id"] == _matching(spec, runs)[0]) & (points["compute"] <= spec.compute)]
        if points.empty:
            raise DataError(f"{spec.sources['source']}: the run has no checkpoint within C = {spec.compute}")
        last = int(points["step"].max())
        done = saved_step(ctx.state)
        for step, rows in points[points["step"] > done].groupby("step", sort=True):
            step = int(step)
            first = rows.iloc[0]
            values = [
                Measurement(
                    r.eval_set, r.metric, float(r.value), _optional(r.n_problems), _optional(r.n_samples)
                )
                for r in rows.itertuples()
            ]
            tokens = _optional(first["tokens"])
            yield Checkpoint(step, int(first["compute"]), values, saving(step), tokens, final=step == last)


BACKEND = _Replay()


def _axes(options: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded grid, seeds and horizon, which are the defaults of a sweep."""
    *_, runs = _open(options)
    table = runs.table()
    axes = {name: sorted({int(value) for value in table[name]}) for name in _CONFIGURATION}
    return {"seeds": axes.pop("seed"), **axes, "compute": int(runs.points["compute"].max())}


def _gathered(section: Mapping[str, Any], directory: Path) -> tuple[dict[str, Any], Runs | None, list[str]]:
    """Read a source that is not a table file; return a section for the sweep, the runs, and notes.

    The caller must store the runs in the file `RECORDED` of the sweep's directory. The runs are None if the
    source is a table file, or if the directory already contains them.
    """
    options = parse_section(_ReplayOptions, section, prefix="replay")
    source, kept = options.source, directory.absolute() / RECORDED
    if options.sha256 is not None:
        return {**section, "source": str(kept if kept.exists() else source)}, None, []
    mapping = options.mapping
    if not isinstance(source, str | os.PathLike):
        from isolaw.readers.read import as_runs

        runs, notes = as_runs(source, **mapping), list[str]()
    elif os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source)):
        raise SpecError([Issue("replay.source", "found a special file; expected a file or a folder", source)])
    elif mapping.keys() - {"metric"} or is_table(os.fspath(source)):
        return {**section, "source": os.fspath(source)}, None, []
    else:
        reading = survey([os.fspath(source)], HowToRead.of(metric=options.metric))
        runs, notes = reading.runs, [*reading.notes, *reading.warnings]
    digest = _content_hash(runs)
    _hold(digest, runs)
    metric = {"metric": options.metric} if options.metric else {}
    return {"source": str(kept), "sha256": digest, **metric}, runs, notes


def _content_hash(runs: Runs) -> str:
    """Return the SHA-256 of the runs as a sorted CSV table, without run names and wall-clock times."""
    columns = [name for name in runs.points.columns if name not in _NOT_HASHED]
    table = runs.points[columns].sort_values([*IDENTITY, *KEY[1:], "value"], kind="stable")
    return hashlib.sha256(table.to_csv(index=False, float_format="%.17g").encode()).hexdigest()


def _hold(digest: str, runs: Runs) -> None:
    _held[digest] = runs
    while len(_held) > _MOST_HELD:
        del _held[next(iter(_held))]


def _kept(path: str, digest: str) -> Runs:
    """Return the recorded runs that a sweep's directory stores; raise `DataError` if they have changed."""
    if digest not in _held:
        runs = Runs.from_parquet(path)
        if _content_hash(runs) != digest:
            raise DataError(f"{path}: the runs changed since the sweep was resolved")
        _hold(digest, runs)
    return _held[digest]


def _open(section: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[str, Any], Runs]:
    """Open the source of a ``[replay]`` section; return its content hash, mapping, sources and runs."""
    options = parse_section(_ReplayOptions, section, prefix="replay")
    if options.sha256 is not None:
        sources = {"source": options.source, "sha256": options.sha256}
        return {"runs": options.sha256}, {}, sources, _kept(options.source, options.sha256)
    path = Path(options.source).resolve()
    try:
        digest = sha256(path)
    except (OSError, ValueError) as error:
        reason = f"{path}: {getattr(error, 'strerror', None) or error}"
        raise SpecError([Issue("replay.source", reason, found=options.source)]) from None
    mapping = options.mapping
    runs = _table(str(path), digest, canonical_json(mapping))
    return {"table": digest}, mapping, {"source": str(path), **mapping}, runs


def _runs(spec: RunSpec) -> Runs:
    if "runs" in spec.content:
        return _kept(spec.sources["source"], spec.content["runs"])
    mapping = {k: v for k, v in spec.sources.items() if k != "source"}
    return _table(spec.sources["source"], spec.content["table"], canonical_json(mapping))


@lru_cache(maxsize=4)
def _table(path: str, digest: str, mapping: str) -> Runs:
    """Read a table file; results are cached by path, ``digest`` and mapping."""
    return read_table(path, HowToRead.of(**json.loads(mapping)))


def _matching(spec: RunSpec, runs: Runs) -> list[str]:
    table = runs.table()
    same = table["problem_set"] == spec.problems.set
    for name in _CONFIGURATION:
        same &= table[name] == getattr(spec, name)
    return [str(r) for r in table.index[same]]


def _optional(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
