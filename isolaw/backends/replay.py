"""The replay backend: plays recorded runs back as if they were being trained.

A table of real curves becomes a backend: the same plans, store, resume and statistics, at no cost.
Every recorded checkpoint within the horizon is played as it was recorded; nothing is interpolated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, FiniteFloat

from isolaw.backends.base import Backend, Checkpoint, Row, RunContext, UnreadableState
from isolaw.config import ProblemsSpec, RunSpec, canonical_json
from isolaw.config.parsing import parse_section
from isolaw.errors import DataError, Issue, SpecError
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.tables import read_table
from isolaw.runs import Runs

_CONFIGURATION = ["problems_per_batch", "rollouts_per_problem", "seed"]


class ReplayOptions(BaseModel):
    """The ``[replay]`` section: a table, and how its columns map (as in ``isolaw fit``)."""

    model_config = ConfigDict(extra="forbid")
    source: str
    metric: str | None = None
    columns: dict[str, str] = {}
    derive: dict[str, str] = {}
    constants: dict[str, str | int | FiniteFloat] = {}


class Replay(Backend):
    """`Backend` over a recorded table."""

    name = "replay"
    version = 1

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Read the table once; its hash and its mapping enter the identity, never its path."""
        path, digest, mapping, runs = _open(spec.options or spec.sources)
        sets = sorted(set(runs.points["problem_set"]))
        if len(sets) > 1 and spec.problems.set not in sets:
            raise SpecError([Issue("problems.set", found=spec.problems.set, accepted=", ".join(sets))])
        name = spec.problems.set if len(sets) > 1 else sets[0]
        found = _matching(spec.model_copy(update={"problems": ProblemsSpec(set=name)}), runs)
        recorded = runs.attributes.get(found[0], {}) if found else {}
        algorithm = str(runs.table().loc[found[0], "algorithm"]) if found else "grpo"
        return spec.model_copy(
            update={
                "backend_version": self.version,
                "recipe": spec.recipe.model_copy(update={"algorithm": algorithm}),
                "options": {**mapping, **({"recorded": recorded} if recorded else {})},
                "content": {"table": digest},
                "sources": {"source": str(path), **mapping},
                "problems": spec.problems.model_copy(update={"set": name}),
            }
        )

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return an issue when the table holds no such run, or more than one."""
        runs = _runs(spec)
        found = _matching(spec, runs)
        given = spec.recipe.model_dump(exclude_defaults=True, exclude={"algorithm"})
        message = "replay cannot change the recipe of a recorded run"
        issues = [Issue(f"recipe.{key}", message, found=value) for key, value in given.items()]
        where = f"B_p = {spec.problems_per_batch}, n = {spec.rollouts_per_problem}, seed = {spec.seed}"
        if len(found) > 1:
            issues.append(Issue("replay.source", f"{len(found)} recorded runs have {where}", found=found))
        elif not found:
            table = runs.table()[_CONFIGURATION]
            recorded = sorted({tuple(map(int, row)) for row in table.itertuples(index=False)})
            shown = ", ".join(map(str, recorded[:12])) + (" …" if len(recorded) > 12 else "")
            message = f"no recorded run has {where}"
            issues.append(Issue("grid", message, accepted=f"(B_p, n, seed) of {shown}"))
        return issues

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Yield the recorded checkpoints up to the horizon, after the one in ``ctx.state``."""
        if _digest(Path(spec.sources["source"])) != spec.content["table"]:
            raise DataError(f"{spec.sources['source']}: the table changed since the sweep was planned")
        runs = _runs(spec)
        points = runs.points
        points = points[(points["run_id"] == _matching(spec, runs)[0]) & (points["compute"] <= spec.compute)]
        if points.empty:
            raise DataError(f"{spec.sources['source']}: the run has no checkpoint within C = {spec.compute}")
        last = int(points["step"].max())
        done = -1
        if ctx.state is not None:
            try:
                done = json.loads((ctx.state / "state.json").read_text())["step"]
            except Exception as error:
                raise UnreadableState(ctx.state, error) from error
        for step, rows in points[points["step"] > done].groupby("step", sort=True):
            step = int(step)

            def save(folder: Path, step: int = step) -> None:
                (folder / "state.json").write_text(json.dumps({"step": step}))

            first = rows.iloc[0]
            values = [
                Row(r.eval_set, r.metric, float(r.value), _optional(r.n_problems), _optional(r.n_samples))
                for r in rows.itertuples()
            ]
            tokens = _optional(first["tokens"])
            yield Checkpoint(step, int(first["compute"]), values, save, tokens, final=step == last)

    def axes(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the table's grid, seeds and horizon: the defaults of a sweep."""
        *_, runs = _open(options)
        table = runs.table()
        axes = {name: sorted({int(value) for value in table[name]}) for name in _CONFIGURATION}
        return {"seeds": axes.pop("seed"), **axes, "compute": int(runs.points["compute"].max())}


BACKEND = Replay()


def _open(section: dict[str, Any]) -> tuple[Path, str, dict[str, Any], Runs]:
    """Return the path, the hash, the mapping and the runs of a ``[replay]`` section's table."""
    options = parse_section(ReplayOptions, section, prefix="replay")
    path = Path(options.source).resolve()
    try:
        digest = _digest(path)
    except (OSError, ValueError) as error:
        reason = f"{path}: {getattr(error, 'strerror', None) or error}"
        raise SpecError([Issue("replay.source", reason, found=options.source)]) from None
    mapping = options.model_dump(exclude={"source"}, exclude_defaults=True)
    return path, digest, mapping, _table(str(path), digest, canonical_json(mapping))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _runs(spec: RunSpec) -> Runs:
    mapping = {k: v for k, v in spec.sources.items() if k != "source"}
    return _table(spec.sources["source"], spec.content["table"], canonical_json(mapping))


@lru_cache(maxsize=4)
def _table(path: str, digest: str, mapping: str) -> Runs:
    """Read the table once for each content (``digest`` is the cache's key) and mapping."""
    options: dict[str, Any] = json.loads(mapping)
    metric = options.pop("metric", None)
    return read_table(path, ColumnMapping(**options), metric)


def _matching(spec: RunSpec, runs: Runs) -> list[str]:
    table = runs.table()
    same = table["problem_set"] == spec.problems.set
    for name in _CONFIGURATION:
        same &= table[name] == getattr(spec, name)
    return [str(r) for r in table.index[same]]


def _optional(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
