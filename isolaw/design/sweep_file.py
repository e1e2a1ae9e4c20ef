"""Write the sweep files that `plan` recommends and `advise` suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.config.writing import toml_text
from isolaw.design.advice import Advice
from isolaw.design.candidate_sweeps import CandidateSweep, DesignKind
from isolaw.design.question import Question
from isolaw.design.race import Race
from isolaw.files import check_replaceable, open_file, replacing

_MARK = "# isolaw plan:"
_ADVICE = "# isolaw advise:"
PLANNED, FIRST = "runs/plan", "runs/first"  # default directories of the two sweeps


def content(asked: Question, candidate: CandidateSweep) -> dict[str, Any]:
    """Return the sections of the sweep file: the user's sections, with the runs of the design."""
    spec = asked.spec
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    design = data.pop("design", {})
    sweep = {**data.get("sweep", {}), "compute": candidate.horizon or asked.target}
    sweep["seeds"] = list(spec.sweep.seeds[: candidate.seeds])
    data["sweep"] = {"backend": spec.sweep.backend, **sweep}
    if isinstance(candidate.design, Race):
        race = candidate.design
        data["design"] = {**design, "kind": "race", "spend": float(race.spend), "start": race.start}
    elif candidate.kind in (DesignKind.HALF, DesignKind.LINE):
        axes = zip(*candidate.cells, strict=True)
        b, n = (sorted(set(axis)) for axis in axes)
        data["grid"] = {**data.get("grid", {}), "problems_per_batch": b, "rollouts_per_problem": n}
    first = ("sweep", "grid", "design", "limits")
    return {name: data[name] for name in (*first, *(k for k in data if k not in first)) if name in data}


def check(path: Path) -> None:
    """Raise `DataError` if the file exists and was not written by `write` or `write_advice`."""
    check_replaceable(path, "a sweep file of isolaw plan or advise", "plan.toml", _is_ours)


def write(asked: Question, candidate: CandidateSweep, path: Path) -> None:
    """Write the sweep file of a design; raise `DataError` if ``path`` is another kind of file."""
    what = f"{candidate.name} to C = {asked.target:,}, chosen on simulated truths and not on measured runs."
    _write(f"{_MARK} {what}", content(asked, candidate), path, PLANNED)


def write_advice(advice: Advice, path: Path) -> None:
    """Write the sweep file of `Advice.sweep`; raise `DataError` if ``path`` is another kind of file."""
    what = f"a first sweep for C = {advice.case.budget:,}, based on published results."
    _write(f"{_ADVICE} {what} Set problems.set and real.model.", advice.sections(), path, FIRST)


def _write(head: str, data: dict[str, Any], path: Path, directory: str) -> None:
    check(path)
    head += f"\n# {commands.sweep_file(path, directory)}\n"
    with replacing(path) as temporary:
        temporary.write_text(f"{head}\n{toml_text(data)}", encoding="utf-8")


def _is_ours(path: Path) -> bool:
    with open_file(path) as file:
        return file.readline(1_000).startswith((_MARK.encode(), _ADVICE.encode()))
