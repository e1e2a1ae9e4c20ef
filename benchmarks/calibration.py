"""Does a calibrated simulator beat a fitted surface? ``python -m benchmarks.calibration COMMAND``

    known      presets whose constants are known: 9 n with one seed each to 1e6, a recommendation for 1e7
    published  the paper's drawn curves of the easy set at B_p = 32, calibrated to C = 1e6, judged to 4e6
    rest       real runs calibrated on their first 40 %, judged on the rest
    estimator  the law's recommendation in the presets of `known`, replacing an older version's
    presets    the presets that isolaw ships: isolaw/simulators/presets
    tables     benchmarks/calibration.json, and the tables in docs/calibrate.md and its presets

Truths are presets around the shipped one, every constant times its own 2^U, U uniform in [−1, 1]
(`isolaw.replication.jitter`). `TUNING` guided the development of the calibration; `JUDGING` judge it. The
calibration sees only what a user's runs would show: neither the constants nor the kind of the problem set.
The true reward of a cell is the mean of `SEEDS` other problem sets with exact pass rates. `MEMBERS` of
published-easy are truths, too: their constants are far from the centre of the prior.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import isolaw
from isolaw.backends.bandit import Bandit
from isolaw.calibration.ahead import POINTS, RewardForecast, forecast
from isolaw.calibration.calibrate import HEAD, VERSION, calibrate
from isolaw.calibration.recorded import lr_factor
from isolaw.calibration.simulation import Protocol, SimulatedCell
from isolaw.calibration.space import parameters
from isolaw.children import each
from isolaw.config.writing import toml_text
from isolaw.errors import IsolawError
from isolaw.fits import ESTIMATOR
from isolaw.fits.curves.learning_curves import fit_curves
from isolaw.replication.jitter import constants_of, jittered
from isolaw.simulators.interference import PRESETS, SIZES
from isolaw.simulators.presets import FOLDER, read_preset, shipped
from isolaw.simulators.problems import difficulty

DATA = Path(__file__).parents[1] / "examples" / "data"
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "calibrate.md"
MARKS = "<!-- calibration -->", "<!-- /calibration -->"
PRESET_MARKS = "<!-- presets -->", "<!-- /presets -->"
FITTED_TO = {
    "published-easy": "the drawn curves of the easy set in the IsoCompute Playbook: B_p = 32, n = 8 to 512, "
    "to C = 4e6",
    "published-hard": "no runs: it has the constants of `published-easy`, the simulator's hard problems, "
    "and no KL penalty",
    "qwen-7b-base": "Tan et al. (arXiv 2509.25300): Qwen2.5-7B base, B_p = 512, n = 4 to 32, one seed "
    "to C = 1.6e6",
}
KEPT = Path(__file__).parent / ".designs" / "calibration"
LEVELS = tuple(2**k for k in range(3, 12))
BATCH, MEASURED, TARGET = 32, 1_000_000, 10_000_000
SETS = ("easy", "hard")
TUNING, JUDGING = (300, 301, 400, 401), range(500, 506)
PUBLISHED, MEMBERS = "published-easy", (0, 20, 40)
SEEDS = 24
SHARE = 0.4
ANSWERS = 40  # behind a point of a drawn curve: three parameters fitted to some 30 evaluations of 4 answers
CELLS = [(BATCH, n) for n in LEVELS]


def _best_n(ahead: RewardForecast) -> tuple[int, int]:
    """Return the interval that holds the best n of 90 % of the members."""
    of_members = [ahead.cells[k][1] for k in ahead.final.argmax(axis=1)]
    low, high = np.quantile(of_members, (0.05, 0.95), method="inverted_cdf")
    return int(low), int(high)


def known(kind: str, index: int, jobs: int) -> dict[str, Any]:
    """Return the recommendations of the calibration and the estimator in one preset, and their losses."""
    path = kept(f"{kind}-{index}")
    if path.exists():
        return dict(json.loads(path.read_text()))
    changed, kind_of, n_train = _population(kind, index)
    rewards, curves = _truth(kind_of, changed, n_train, jobs)
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(kind_of, changed, n_train, Path(folder))
        began = time.monotonic()
        found = calibrate(runs, out=Path(folder) / "preset.toml", jobs=jobs)
        seconds = time.monotonic() - began
        ahead = forecast(read_preset(Path(folder) / "preset.toml"), TARGET, CELLS, jobs=jobs)
        law = _by_estimator(runs)
    best = int(rewards.argmax())
    near = [LEVELS[k] for k in range(len(LEVELS)) if rewards.max() - rewards[k] <= 0.001]
    own = LEVELS.index(ahead.best[1])
    low, high = np.quantile(
        [CELLS[k][1] for k in ahead.final.argmax(axis=1)], (0.05, 0.95), method="inverted_cdf"
    )
    band = np.quantile(ahead.rewards, (0.05, 0.95), axis=0)
    later = (ahead.compute > MEASURED * 1.05)[None, :] & np.isfinite(curves)
    held = ((curves >= band[0]) & (curves <= band[1]))[later]
    result = {
        "kind": kind,
        "index": index,
        "rewards": rewards.tolist(),
        "best": LEVELS[best],
        "calibrated": {
            "n": LEVELS[own],
            "loss": float(rewards[best] - rewards[own]),
            "interval": [low, high],
            "covers": bool(any(low <= n <= high for n in near)),
            "band": float(np.mean(held)),
            "error": float(np.sqrt(np.mean((ahead.final.mean(axis=0) - rewards) ** 2))),
            "discrepancy": found.posterior.discrepancy,
            "covered": found.covered,
            "seconds": seconds,
            "ensemble": ahead.final.mean(axis=0).tolist(),
        },
        "estimator": {
            **law,
            "loss": None if law["n"] is None else float(rewards[best] - rewards[LEVELS.index(law["n"])]),
        },
    }
    path.write_text(json.dumps(result))
    return result


def _population(kind: str, index: int) -> tuple[dict[str, float], str, int]:
    """Return a truth's constants, problem set and D."""
    if kind == PUBLISHED:
        member = read_preset("published-easy").members[index]
        return asdict(parameters(member)), "easy", 6000
    return jittered("interference", constants_of("interference", "P", {}), index), kind, SIZES[0]


def _truth(kind: str, changed: dict[str, float], n_train: int, jobs: int) -> tuple[Any, Any]:
    """Return the mean reward of each cell at the target, and at the forecast's C."""
    own = replace(PRESETS["P"], **changed)
    lr, kl = (own.lr_easy, own.kl_easy) if kind == "easy" else (own.lr_hard, own.kl_hard)
    own = replace(own, lr_easy=lr, kl_easy=kl)
    grid = np.geomspace(max(BATCH * LEVELS[0], TARGET / 1e4), TARGET, POINTS)
    cells = []
    for b, n in CELLS:
        steps = sorted({0, *(int(c * (1 + 1e-12)) // (b * n) for c in grid)})
        cells.append(SimulatedCell(b, n, lr_factor(b, n), tuple(steps), (0,) * len(steps)))
    protocol = Protocol(tuple(cells), n_train, SIZES[1], False)
    made = each(protocol.simulate_cells, [(own, difficulty(kind), seed) for seed in range(SEEDS)], jobs)
    curves = np.array(
        [
            np.interp(grid, cell.compute, np.mean([one[k] for one in made], axis=0))
            for k, cell in enumerate(cells)
        ]
    )
    return curves[:, -1], curves


def _runs(kind: str, changed: dict[str, float], n_train: int, folder: Path) -> Any:
    spec = {
        "sweep": {"backend": "bandit", "compute": MEASURED, "seeds": [7]},
        "grid": {"problems_per_batch": [BATCH], "rollouts_per_problem": list(LEVELS)},
        "limits": {"max_batch_rollouts": BATCH * LEVELS[-1]},
        "problems": {"set": kind, "n_train": n_train},
        "bandit": {"parameters": changed},
        "evaluation": {"points": 40},
    }
    return isolaw.sweep(spec, out=folder / "runs")


def _by_estimator(runs: Any) -> dict[str, Any]:
    """Return the recommendation of `isolaw.fit` for the target."""
    try:
        law = isolaw.fit(runs)
        prediction = law.predict(compute=TARGET)
    except IsolawError as error:
        return {"n": None, "why": str(error)}
    if not prediction.options:
        return {"n": None, "why": "refused"}
    asked = prediction.options[0].allocation.rollouts_per_problem
    return {"n": min(LEVELS, key=lambda n: abs(np.log2(n / asked)))}


def estimator(jobs: int) -> None:
    """Measure the estimator's column again; the calibration's columns stay those of the version they name."""
    found = json.loads(SUMMARY.read_text())
    for row in found["known"]:
        changed, kind, n_train = _population(row["kind"], row["index"])
        rewards, _ = _truth(kind, changed, n_train, jobs)
        with tempfile.TemporaryDirectory() as folder:
            n = _by_estimator(_runs(kind, changed, n_train, Path(folder)))["n"]
        loss = None if n is None else float(rewards.max() - rewards[LEVELS.index(n)])
        row["estimator"] = {"n": n, "loss": loss}
        print(row["kind"], row["index"], row["estimator"], flush=True)
    SUMMARY.write_text(json.dumps(found | {"estimator": ESTIMATOR}, indent=1) + "\n")
    write(found)


def _rewards(preset: Any, cells: list[tuple[int, int]], compute: list[Any], jobs: int) -> list[Any]:
    """Return the ensemble's mean reward in each cell at the cell's own C."""
    ahead = forecast(preset, max(float(c[-1]) for c in compute), cells, jobs=jobs)
    mean = np.nanmean(ahead.rewards, axis=0)
    out = []
    for cell, at in zip(cells, compute, strict=True):
        row = mean[ahead.cells.index(cell)]
        known = np.isfinite(row)
        out.append(np.interp(np.log(at), np.log(ahead.compute[known]), row[known]))
    return out


def rest(jobs: int) -> list[dict[str, Any]]:
    """Return the errors on the rest of real runs, a row for each sweep."""
    real = DATA / "real-arithmetic.parquet"
    sweeps: dict[str, tuple[Any, dict[str, Any]]] = {
        "Tan et al., 7B": (tan_runs(), {"metric": "holdout_acc_raw", "n_train": 54_000}),
    }
    for kind, lr in (("easy", 1e-3), ("easy", 5e-4), ("hard", 1e-3)):
        sweeps[f"tiny, {kind}, lr {lr:g}"] = (isolaw.read(real), {"where": {"problem_set": kind, "lr": lr}})
    out = []
    for name, (runs, how) in sweeps.items():
        out.append({"sweep": name, **_rest(runs, how, jobs)})
        print(json.dumps(out[-1]), flush=True)
    kept("rest").write_text(json.dumps(out))
    return out


def _rest(runs: Any, how: dict[str, Any], jobs: int) -> dict[str, Any]:
    metric = how.get("metric", "avg@4")
    points = runs.points
    own = points[(points["metric"] == metric) & (points["eval_set"] == "validation")]
    for key, value in how.get("fixed", {}).items():
        own = own[own["run_id"].map(runs.table()[key]) == value]
    ends = own.groupby("run_id")["compute"].max() * SHARE
    early = points[points["compute"] <= points["run_id"].map(ends).fillna(-1)]
    found, preset = _calibrated(isolaw.Runs(early, runs.attributes, problems=runs.problems), how, jobs)
    cells = sorted(set(zip(own["problems_per_batch"], own["rollouts_per_problem"], strict=True)))
    later = own[own["compute"] > own["run_id"].map(ends)]
    errors: dict[str, list[Any]] = {"calibrated": [], "stays": [], "exp": [], "hill": []}
    at = [later[(later["problems_per_batch"] == b) & (later["rollouts_per_problem"] == n)] for b, n in cells]
    grid = [np.unique(rows["compute"].to_numpy(float)) for rows in at]
    ahead = _rewards(preset, cells, grid, jobs)
    for (b, n), rows, c, predicted in zip(cells, at, grid, ahead, strict=True):
        mean = rows.groupby("compute")["value"].mean().to_numpy()
        before = own[(own["problems_per_batch"] == b) & (own["rollouts_per_problem"] == n)]
        before = before[before["compute"] <= before["run_id"].map(ends)].groupby("compute")["value"].mean()
        x, y = before.index.to_numpy(float), before.to_numpy()
        errors["calibrated"].append(predicted - mean)
        errors["stays"].append(y[-5:].mean() - mean)
        for family in ("exp", "hill"):
            keep = x > 0 if family == "hill" else x >= 0
            fit = fit_curves(x[keep], y[keep][None], np.ones((1, int(keep.sum()))), family)
            errors[family].append(np.clip(fit(c)[0], 0, 1) - mean)
    return {
        **{k: float(np.sqrt(np.mean(np.concatenate(v) ** 2))) for k, v in errors.items()},
        "bias": float(np.mean(np.concatenate(errors["calibrated"]))),
        "discrepancy": found.posterior.discrepancy,
        "error": found.error,
        "cells": len(cells),
    }


def _calibrated(runs: Any, how: dict[str, Any], jobs: int) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = calibrate(runs, out=Path(folder) / "preset.toml", jobs=jobs, **how)
        return found, read_preset(Path(folder) / "preset.toml")


def published_runs() -> Any:
    """Return the paper's drawn curves (easy, B_p = 32) as runs."""
    return isolaw.read(
        DATA / "frontier_curves_fixedBp_main_easy.csv",
        columns={"n": "n", "B_p": "B_p", "compute": "compute_rollouts", "avg@4": "validation_reward"},
        set={"n_problems": 300, "n_samples": ANSWERS},
    )


def tan_runs() -> Any:
    """Return the sweep of n by Tan et al. (arXiv 2509.25300): Qwen2.5-7B base, 500 held-out problems."""
    return isolaw.read(
        DATA / "tan_rollout_n_base.csv",
        columns={"n": "rollout_n", "C": "prompts_seen*rollout_n"},
        set={"B_p": 512, "n_problems": 500, "n_samples": 1},
        metric="holdout_acc_raw",
    )


def presets(jobs: int) -> None:
    """Write the presets that isolaw ships.

    published-hard has the constants of published-easy, the simulator's hard problems and no KL penalty, since
    the paper's hard curves are not available: its appendix states only the difficulty of the problems, and
    that KL is off.
    """
    FOLDER.mkdir(exist_ok=True)
    qwen, easy, hard = (
        FOLDER / f"{name}.toml" for name in ("qwen-7b-base", "published-easy", "published-hard")
    )
    calibrate(tan_runs(), metric="holdout_acc_raw", n_train=54_000, out=qwen, jobs=jobs)
    calibrate(published_runs(), problems="easy", n_train=6000, out=easy, jobs=jobs)
    root = f"{DATA.parents[1]}/"  # of this copy of the repository
    for file in (qwen, easy):
        file.write_text(file.read_text(encoding="utf-8").replace(root, ""), encoding="utf-8")
    data = tomllib.loads(easy.read_text(encoding="utf-8"))
    data["preset"]["problems"] = "hard"
    del data["discrepancy"]  # left of easy runs; its size, in the provenance, stays
    data["constants"] |= {"kl_easy": 0.0, "kl_hard": 0.0}
    members = len(data["ensemble"]["problems"])
    data["ensemble"] |= {"problems": ["hard"] * members, "kl": [0.0] * members}
    data["provenance"]["assumed"].append("hard problems and no KL penalty; nothing was fitted to hard runs")
    hard.write_text(HEAD + toml_text(data), encoding="utf-8")


def published(jobs: int) -> dict[str, Any]:
    """Return the errors beyond C = 1e6 of the paper's curves."""
    runs = published_runs()
    how = {"problems": "easy", "n_train": 6000, "until": 1e6}
    found, preset = _calibrated(runs, how, jobs)
    points = runs.points[runs.points["metric"] == "avg@4"]
    cells = sorted(set(zip(points["problems_per_batch"], points["rollouts_per_problem"], strict=True)))
    curves = [points[points["rollouts_per_problem"] == n].sort_values("compute") for _, n in cells]
    later = [c[c["compute"] > 1e6] for c in curves]
    ahead = _rewards(preset, cells, [c["compute"].to_numpy(float) for c in later], jobs)
    errors = {n: p - c["value"].to_numpy() for (_, n), p, c in zip(cells, ahead, later, strict=True)}
    result: dict[str, Any] = {
        "error": float(np.sqrt(np.mean(np.concatenate(list(errors.values())) ** 2))),
        "by n": {int(n): float(np.sqrt(np.mean(e**2))) for n, e in errors.items()},
        "bias by n": {int(n): float(np.mean(e)) for n, e in errors.items()},
        "discrepancy": found.posterior.discrepancy,
    }
    for family in ("exp", "hill"):
        own = {}
        for (_, n), c, rest_ in zip(cells, curves, later, strict=True):
            early = c[c["compute"] <= 1e6]
            if len(early) < 5:
                continue
            x, y = early["compute"].to_numpy(float), early["value"].to_numpy()
            fit = fit_curves(x, y[None], np.ones((1, x.size)), family)
            own[int(n)] = float(
                np.sqrt(np.mean((fit(rest_["compute"].to_numpy(float))[0] - rest_["value"]) ** 2))
            )
        result[family] = own
    ahead4 = forecast(preset, 4e6, [(BATCH, n) for n in LEVELS], jobs=jobs)
    result["n_star"] = {"n": ahead4.best[1], "interval": list(_best_n(ahead4)), "published": 512}
    print(json.dumps(result, indent=1), flush=True)
    kept("published").write_text(json.dumps(result))
    return result


def kept(name: str) -> Path:
    """Return the path of a command's result, which names the versions that made it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    return KEPT / f"{name}-v{VERSION}-e{ESTIMATOR}-s{Bandit.version}.json"


def summary() -> dict[str, Any]:
    """Return the results: a row for each judged preset, the paper's curves, the rest of real runs."""
    truths = [*((kind, i) for kind in SETS for i in JUDGING), *((PUBLISHED, i) for i in MEMBERS)]
    paths = [kept(f"{kind}-{index}") for kind, index in truths]
    names = "n", "loss", "interval", "covers", "band", "seconds"
    rows = []
    for one in (json.loads(path.read_text()) for path in paths if path.exists()):
        own = {name: one["calibrated"][name] for name in names}
        theirs = {name: one["estimator"].get(name) for name in ("n", "loss")}
        rows.append(
            {**{k: one[k] for k in ("kind", "index", "best")}, "calibrated": own, "estimator": theirs}
        )
    found = {name: kept(name) for name in ("published", "rest")}
    more = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    versions = {"calibration": VERSION, "estimator": ESTIMATOR, "simulator": Bandit.version}
    return {**versions, "known": rows, **more}


def lines(found: dict[str, Any]) -> list[str]:
    """Return the tables of docs/calibrate.md."""
    out = []
    if found["known"]:
        head = (
            "truths",
            "how many",
            "law loses",
            "calibrated loses",
            "cases where calibrated loses more",
            "best n in members' interval",
            "in the band",
        )
        out += [f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|--:|--:|"]
    for kind, group in itertools.groupby(found["known"], key=lambda row: row["kind"]):
        rows = list(group)
        lost = [(row["calibrated"]["loss"], row["estimator"]["loss"]) for row in rows]
        known = [(own, law) for own, law in lost if law is not None]
        worse = [(own, law) for own, law in known if own > law]
        own, law = max(worse, default=(0.0, 0.0), key=lambda pair: pair[0] - pair[1])
        held = sum(low <= r["best"] <= high for r in rows for low, high in [r["calibrated"]["interval"]])
        cells = [
            f"{len(rows)}",
            f"{np.mean([law for _, law in known]):.4f}",
            f"{np.mean([own for own, _ in lost]):.4f}",
            f"{len(worse)}" + (f", at most {own:.4f} against {law:.4f}" if worse else ""),
            f"{held} of {len(rows)}",
            f"{np.mean([row['calibrated']['band'] for row in rows]):.0%}",
        ]
        out.append(f"| {kind} | {' | '.join(cells)} |")
    rest_ = found.get("rest", [])
    if rest_:
        out += [
            "",
            "| runs | calibrated | constant (mean of the last five) | exponential | Hill | discrepancy δ |",
        ]
        out.append("|---|--:|--:|--:|--:|--:|")
        for row in rest_:
            errors = " | ".join(f"{row[key]:.4f}" for key in ("calibrated", "stays", "exp", "hill"))
            out.append(f"| {row['sweep']} | {errors} | {row['discrepancy']:.3f} |")
    if "published" in found:
        own = found["published"]
        out += [
            "",
            "| n of the drawn curves | calibrated on C ≤ 1e6 | exponential | Hill |",
            "|---|--:|--:|--:|",
        ]
        for n, error in own["by n"].items():
            theirs = [own[f].get(n) for f in ("exp", "hill")]
            cells = [f"{error:.4f}", *("" if v is None else f"{v:.4f}" for v in theirs)]
            out.append(f"| {n} | {' | '.join(cells)} |")
        out.append(f"| all | {own['error']:.4f} | | |")
    return out


def preset_lines() -> list[str]:
    """Return the table of the presets that isolaw ships."""
    out = ["| preset | fitted to | error | noise | δ |", "|---|---|--:|--:|--:|"]
    for name in shipped():
        found = read_preset(name).provenance
        numbers = [f"{found[key]:.3f}".lstrip("0") for key in ("error", "noise", "discrepancy")]
        own = ["", "", ""] if name == "published-hard" else numbers
        out.append(f"| `{name}` | {FITTED_TO[name]} | {' | '.join(own)} |")
    return out


def tables() -> None:
    """Write ``benchmarks/calibration.json`` and the tables between the marks of docs/calibrate.md."""
    found = summary()
    if not found["known"]:
        raise SystemExit(f"{KEPT} has no results of these versions: python -m benchmarks.calibration known")
    SUMMARY.write_text(json.dumps(found, indent=1) + "\n")
    write(found)


def write(found: dict[str, Any]) -> None:
    """Write the tables between the marks of docs/calibrate.md."""
    for (begin, end), own in ((MARKS, lines(found)), (PRESET_MARKS, preset_lines())):
        before, rest_ = DOCS.read_text().split(begin)
        DOCS.write_text(before + "\n".join([begin, "", *own, "", end]) + rest_.split(end)[1])


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("known", "published", "rest", "estimator", "presets", "tables"))
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.command == "tables":
        tables()
        return
    if given.command != "known":
        others = {"published": published, "rest": rest, "presets": presets, "estimator": estimator}
        others[given.command](given.jobs)
        return
    truths = [(kind, index) for index in (TUNING if given.tuning else JUDGING) for kind in SETS]
    for kind, index in truths if given.tuning else [*truths, *((PUBLISHED, i) for i in MEMBERS)]:
        row = known(kind, index, given.jobs)
        print(json.dumps({k: v for k, v in row.items() if k != "rewards"}), flush=True)
        print(np.round(row["rewards"], 3), file=sys.stderr)


if __name__ == "__main__":
    main()
