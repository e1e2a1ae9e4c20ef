"""Fit the simulator to runs, and judge the fit: ``python -m benchmarks.calibration COMMAND``

    fit        SOURCE --out preset.toml: fit the simulator to runs, and print its constants
    known      presets whose constants are known: 9 n with one seed each to 1e6, a recommendation for 1e7
    published  the paper's drawn curves of the easy set at B_p = 32, calibrated to C = 1e6, judged to 4e6
    rest       real runs calibrated on their first 40 %, judged on the rest
    estimator  the law's recommendation in the presets of `known`, replacing an older version's
    presets    the presets that isolaw ships: isolaw/simulators/presets
    tables     calibration.json and the tables in README.md, both next to this file, and docs/simulators.md

Truths are presets around the shipped one, every constant times its own 2^U, U uniform in [−1, 1]
(`benchmarks.replication.jitter`). `TUNING` guided the development of the calibration; `JUDGING` judge it. The
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
from benchmarks.calibration import each
from benchmarks.calibration.ahead import POINTS, forecast
from benchmarks.calibration.calibrate import HEAD, VERSION, Calibration, calibrate
from benchmarks.calibration.ensemble import Ensemble, read_ensemble
from benchmarks.calibration.recorded import lr_factor
from benchmarks.calibration.simulation import Protocol, SimulatedCell
from benchmarks.calibration.space import parameters
from benchmarks.replication.jitter import constants_of, jittered
from isolaw.backends.bandit import _Bandit
from isolaw.documents.reading import toml_text
from isolaw.errors import IsolawError
from isolaw.evidence import columns, number
from isolaw.fits import ESTIMATOR
from isolaw.fits.curves.learning_curves import fit_curves
from isolaw.runs import Runs
from isolaw.simulators.interference import PRESETS, SIZES
from isolaw.simulators.presets import FOLDER, shipped
from isolaw.simulators.problems import difficulty

ROOT = Path(__file__).parents[2]
DATA = ROOT / "examples" / "data"
SUMMARY = Path(__file__).with_name("calibration.json")
README = Path(__file__).with_name("README.md")
DOCS = ROOT / "docs" / "simulators.md"
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
KEPT = Path(__file__).parents[1] / ".designs" / "calibration"
LEVELS = tuple(2**k for k in range(3, 12))
BATCH, MEASURED, TARGET = 32, 1_000_000, 10_000_000
SETS = ("easy", "hard")
TUNING, JUDGING = (300, 301, 400, 401), range(500, 506)
PUBLISHED, MEMBERS = "published-easy", (0, 20, 40)
SEEDS = 24
SHARE = 0.4
ANSWERS = 40  # behind a point of a drawn curve: three parameters fitted to some 30 evaluations of 4 answers
CELLS = [(BATCH, n) for n in LEVELS]


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
        calibration, ensemble = _calibrated(runs, {}, jobs)
        seconds = time.monotonic() - began
        ahead = forecast(ensemble, TARGET, CELLS, jobs=jobs)
        law = _by_estimator(runs)
    best = int(rewards.argmax())
    near = [LEVELS[k] for k in range(len(LEVELS)) if rewards.max() - rewards[k] <= 0.001]
    chosen = LEVELS.index(ahead.best[1])
    low, high = ahead.best_n
    band = np.quantile(ahead.rewards, (0.05, 0.95), axis=0)
    later = (ahead.compute > MEASURED * 1.05)[None, :] & np.isfinite(curves)
    held = ((curves >= band[0]) & (curves <= band[1]))[later]
    result = {
        "kind": kind,
        "index": index,
        "rewards": rewards.tolist(),
        "best": LEVELS[best],
        "calibrated": {
            "n": LEVELS[chosen],
            "loss": float(rewards[best] - rewards[chosen]),
            "interval": [low, high],
            "covers": bool(any(low <= n <= high for n in near)),
            "band": float(np.mean(held)),
            "error": float(np.sqrt(np.mean((ahead.final.mean(axis=0) - rewards) ** 2))),
            "discrepancy": calibration.posterior.discrepancy,
            "covered": calibration.covered,
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
        member = read_ensemble("published-easy").members[index]
        return asdict(parameters(member)), "easy", 6000
    return jittered("interference", constants_of("interference", "P", {}), index), kind, SIZES[0]


def _truth(kind: str, changed: dict[str, float], n_train: int, jobs: int) -> tuple[Any, Any]:
    """Return the mean reward of each cell at the target, and at the forecast's C."""
    population = replace(PRESETS["P"], **changed)
    if kind != "easy":
        population = replace(population, lr_easy=population.lr_hard, kl_easy=population.kl_hard)
    grid = np.geomspace(max(BATCH * LEVELS[0], TARGET / 1e4), TARGET, POINTS)
    cells = []
    for b, n in CELLS:
        steps = sorted({0, *(int(c * (1 + 1e-12)) // (b * n) for c in grid)})
        cells.append(SimulatedCell(b, n, lr_factor(b, n), tuple(steps), (0,) * len(steps)))
    protocol = Protocol(tuple(cells), n_train, SIZES[1], False)
    made = each(
        protocol.simulate_cells, [(population, difficulty(kind), seed) for seed in range(SEEDS)], jobs
    )
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
    results = json.loads(SUMMARY.read_text())
    for row in results["known"]:
        changed, kind, n_train = _population(row["kind"], row["index"])
        rewards, _ = _truth(kind, changed, n_train, jobs)
        with tempfile.TemporaryDirectory() as folder:
            n = _by_estimator(_runs(kind, changed, n_train, Path(folder)))["n"]
        loss = None if n is None else float(rewards.max() - rewards[LEVELS.index(n)])
        row["estimator"] = {"n": n, "loss": loss}
        print(row["kind"], row["index"], row["estimator"], flush=True)
    SUMMARY.write_text(json.dumps(results | {"estimator": ESTIMATOR}, indent=1) + "\n")
    write(results)


def _rewards(ensemble: Ensemble, cells: list[tuple[int, int]], compute: list[Any], jobs: int) -> list[Any]:
    """Return the ensemble's mean reward in each cell at the cell's own C."""
    ahead = forecast(ensemble, max(float(c[-1]) for c in compute), cells, jobs=jobs)
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


def _rest(runs: Runs, how: dict[str, Any], jobs: int) -> dict[str, Any]:
    metric = how.get("metric", "avg@4")
    points = runs.points
    rewards = points[(points["metric"] == metric) & (points["eval_set"] == "validation")]
    for key, value in how.get("where", {}).items():
        rewards = rewards[rewards["run_id"].map(runs.table()[key]) == value]
    ends = rewards.groupby("run_id")["compute"].max() * SHARE
    early = points[points["compute"] <= points["run_id"].map(ends).fillna(-1)]
    calibration, ensemble = _calibrated(Runs(early, runs.attributes, problems=runs.problems), how, jobs)
    cells = sorted(set(zip(rewards["problems_per_batch"], rewards["rollouts_per_problem"], strict=True)))
    is_late = rewards["compute"] > rewards["run_id"].map(ends)
    errors: dict[str, list[Any]] = {"calibrated": [], "stays": [], "exp": [], "hill": []}
    in_cell = [
        (rewards["problems_per_batch"] == b) & (rewards["rollouts_per_problem"] == n) for b, n in cells
    ]
    late = [rewards[inside & is_late].groupby("compute")["value"].mean() for inside in in_cell]
    compute = [mean.index.to_numpy(float) for mean in late]
    ahead = _rewards(ensemble, cells, compute, jobs)
    for inside, mean, c, predicted in zip(in_cell, late, compute, ahead, strict=True):
        before = rewards[inside & ~is_late].groupby("compute")["value"].mean()
        x, y = before.index.to_numpy(float), before.to_numpy()
        errors["calibrated"].append(predicted - mean.to_numpy())
        errors["stays"].append(y[-5:].mean() - mean.to_numpy())
        for family in ("exp", "hill"):
            keep = x > 0 if family == "hill" else x >= 0
            fit = fit_curves(x[keep], y[keep][None], np.ones((1, int(keep.sum()))), family)
            errors[family].append(np.clip(fit(c)[0], 0, 1) - mean.to_numpy())
    return {
        **{k: float(np.sqrt(np.mean(np.concatenate(v) ** 2))) for k, v in errors.items()},
        "bias": float(np.mean(np.concatenate(errors["calibrated"]))),
        "discrepancy": calibration.posterior.discrepancy,
        "error": calibration.error,
        "cells": len(cells),
    }


def _calibrated(runs: Runs, how: dict[str, Any], jobs: int) -> tuple[Calibration, Ensemble]:
    with tempfile.TemporaryDirectory() as folder:
        calibration = calibrate(runs, out=Path(folder) / "preset.toml", jobs=jobs, **how)
        return calibration, read_ensemble(Path(folder) / "preset.toml")


def published_runs() -> Runs:
    """Return the paper's drawn curves (easy, B_p = 32) as runs."""
    return isolaw.read(
        DATA / "frontier_curves_fixedBp_main_easy.csv",
        columns={"n": "n", "B_p": "B_p", "compute": "compute_rollouts", "avg@4": "validation_reward"},
        set={"n_problems": 300, "n_samples": ANSWERS},
    )


def tan_runs() -> Runs:
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
    root = f"{ROOT}/"  # of this copy of the repository
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
    calibration, ensemble = _calibrated(runs, how, jobs)
    points = runs.points[runs.points["metric"] == "avg@4"]
    cells = sorted(set(zip(points["problems_per_batch"], points["rollouts_per_problem"], strict=True)))
    curves = [points[points["rollouts_per_problem"] == n].sort_values("compute") for _, n in cells]
    later = [c[c["compute"] > 1e6] for c in curves]
    ahead = _rewards(ensemble, cells, [c["compute"].to_numpy(float) for c in later], jobs)
    errors = {n: p - c["value"].to_numpy() for (_, n), p, c in zip(cells, ahead, later, strict=True)}
    result: dict[str, Any] = {
        "error": float(np.sqrt(np.mean(np.concatenate(list(errors.values())) ** 2))),
        "by n": {int(n): float(np.sqrt(np.mean(e**2))) for n, e in errors.items()},
        "bias by n": {int(n): float(np.mean(e)) for n, e in errors.items()},
        "discrepancy": calibration.posterior.discrepancy,
    }
    for family in ("exp", "hill"):
        by_n = {}
        for (_, n), c, rest_ in zip(cells, curves, later, strict=True):
            early = c[c["compute"] <= 1e6]
            if len(early) < 5:
                continue
            x, y = early["compute"].to_numpy(float), early["value"].to_numpy()
            fit = fit_curves(x, y[None], np.ones((1, x.size)), family)
            by_n[int(n)] = float(
                np.sqrt(np.mean((fit(rest_["compute"].to_numpy(float))[0] - rest_["value"]) ** 2))
            )
        result[family] = by_n
    farther = forecast(ensemble, 4e6, CELLS, jobs=jobs)
    result["n_star"] = {"n": farther.best[1], "interval": list(farther.best_n), "published": 512}
    print(json.dumps(result, indent=1), flush=True)
    kept("published").write_text(json.dumps(result))
    return result


def kept(name: str) -> Path:
    """Return the path of a command's result, which names the versions that made it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    return KEPT / f"{name}-v{VERSION}-e{ESTIMATOR}-s{_Bandit.version}.json"


def summary() -> dict[str, Any]:
    """Return the results: a row for each judged preset, the paper's curves, the rest of real runs."""
    truths = [*((kind, i) for kind in SETS for i in JUDGING), *((PUBLISHED, i) for i in MEMBERS)]
    paths = [kept(f"{kind}-{index}") for kind, index in truths]
    names = "n", "loss", "interval", "covers", "band", "seconds"
    rows = []
    for one in (json.loads(path.read_text()) for path in paths if path.exists()):
        row = {k: one[k] for k in ("kind", "index", "best")}
        row["calibrated"] = {name: one["calibrated"][name] for name in names}
        row["estimator"] = {name: one["estimator"].get(name) for name in ("n", "loss")}
        rows.append(row)
    others = {name: kept(name) for name in ("published", "rest")}
    more = {name: json.loads(path.read_text()) for name, path in others.items() if path.exists()}
    versions = {"calibration": VERSION, "estimator": ESTIMATOR, "simulator": _Bandit.version}
    return {**versions, "known": rows, **more}


def lines(results: dict[str, Any]) -> list[str]:
    """Return the tables of README.md."""
    out = []
    if results["known"]:
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
    for kind, group in itertools.groupby(results["known"], key=lambda row: row["kind"]):
        rows = list(group)
        lost = [(row["calibrated"]["loss"], row["estimator"]["loss"]) for row in rows]
        known = [(ours, law) for ours, law in lost if law is not None]
        worse = [(ours, law) for ours, law in known if ours > law]
        ours, law = max(worse, default=(0.0, 0.0), key=lambda pair: pair[0] - pair[1])
        held = sum(low <= r["best"] <= high for r in rows for low, high in [r["calibrated"]["interval"]])
        cells = [
            f"{len(rows)}",
            f"{np.mean([law for _, law in known]):.4f}",
            f"{np.mean([ours for ours, _ in lost]):.4f}",
            f"{len(worse)}" + (f", at most {ours:.4f} against {law:.4f}" if worse else ""),
            f"{held} of {len(rows)}",
            f"{np.mean([row['calibrated']['band'] for row in rows]):.0%}",
        ]
        out.append(f"| {kind} | {' | '.join(cells)} |")
    if "rest" in results:
        head = (
            "runs",
            "calibrated",
            "constant (mean of the last five)",
            "exponential",
            "Hill",
            "discrepancy δ",
        )
        out += ["", f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|--:|"]
        for row in results["rest"]:
            errors = " | ".join(f"{row[key]:.4f}" for key in ("calibrated", "stays", "exp", "hill"))
            out.append(f"| {row['sweep']} | {errors} | {row['discrepancy']:.3f} |")
    if "published" in results:
        drawn = results["published"]
        head = ("n of the drawn curves", "calibrated on C ≤ 1e6", "exponential", "Hill")
        out += ["", f"| {' | '.join(head)} |", "|---|--:|--:|--:|"]
        for n, error in drawn["by n"].items():
            curves = [drawn[family].get(n) for family in ("exp", "hill")]
            cells = [f"{error:.4f}", *("" if v is None else f"{v:.4f}" for v in curves)]
            out.append(f"| {n} | {' | '.join(cells)} |")
        out.append(f"| all | {drawn['error']:.4f} | | |")
    return out


def preset_lines() -> list[str]:
    """Return the table of the presets that isolaw ships, in docs/simulators.md."""
    out = ["| preset | fitted to | error | noise | δ |", "|---|---|--:|--:|--:|"]
    for name in shipped():
        provenance = read_ensemble(name).provenance
        numbers = [f"{provenance[key]:.3f}".lstrip("0") for key in ("error", "noise", "discrepancy")]
        shown = ["", "", ""] if name == "published-hard" else numbers
        out.append(f"| `{name}` | {FITTED_TO[name]} | {' | '.join(shown)} |")
    return out


def tables() -> None:
    """Write calibration.json, and the tables between the marks of README.md and docs/simulators.md."""
    results = summary()
    if not results["known"]:
        raise SystemExit(f"{KEPT} has no results of these versions: python -m benchmarks.calibration known")
    SUMMARY.write_text(json.dumps(results, indent=1) + "\n")
    write(results)


def write(results: dict[str, Any]) -> None:
    """Write the tables between the marks of README.md and docs/simulators.md."""
    for page, (begin, end), rows in ((README, MARKS, lines(results)), (DOCS, PRESET_MARKS, preset_lines())):
        before, after = page.read_text(encoding="utf-8").split(begin)
        text = before + "\n".join([begin, "", *rows, "", end]) + after.split(end)[1]
        page.write_text(text, encoding="utf-8")


def fit(given: argparse.Namespace) -> None:
    """Fit the simulator to runs, write the preset, and print its constants and assumptions."""
    calibration = calibrate(
        isolaw.read(*given.sources),
        metric=given.metric,
        problems=given.problems,
        n_train=given.n_train,
        out=given.out,
        seed=given.seed,
        jobs=given.jobs,
    )
    rows = [["constant", "estimate", "90 % interval", "", "meaning"]]
    for c in calibration.constants:
        mark = "at the edge of the prior" if c.at_edge else "" if c.identified else "not identified"
        rows.append([c.name, number(c.value), " to ".join(map(number, c.interval)), mark, c.meaning])
    print(
        f"error {calibration.error:.4f}, noise {calibration.posterior.noise:.4f}, "
        f"δ {calibration.posterior.discrepancy:.4f}; "
        f"{calibration.covered:.0%} of the rewards are in the 90 % band"
    )
    print("\n".join([*columns(rows), *(f"- {text}" for text in calibration.observed.assumed)]))


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    others = {"published": published, "rest": rest, "presets": presets, "estimator": estimator}
    for name in ("fit", "known", *others, "tables"):
        commands.add_parser(name).add_argument("--jobs", type=int, default=2)
    commands.choices["known"].add_argument("--tuning", action="store_true")
    fitting = commands.choices["fit"]
    fitting.add_argument("sources", nargs="+", metavar="SOURCE")
    fitting.add_argument("--out", type=Path, help="the preset file to write")
    fitting.add_argument("--metric")
    fitting.add_argument("--problems", help="problem set, if its difficulty is known")
    fitting.add_argument("--n-train", type=int, help="D, if the runs did not record it")
    fitting.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.command == "fit":
        fit(given)
    elif given.command == "tables":
        tables()
    elif given.command in others:
        others[given.command](given.jobs)
    else:
        truths = [(kind, index) for index in (TUNING if given.tuning else JUDGING) for kind in SETS]
        for kind, index in truths if given.tuning else [*truths, *((PUBLISHED, i) for i in MEMBERS)]:
            row = known(kind, index, given.jobs)
            print(json.dumps({k: v for k, v in row.items() if k != "rewards"}), flush=True)
            print(np.round(row["rewards"], 3), file=sys.stderr)


if __name__ == "__main__":
    main()
