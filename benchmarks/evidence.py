"""isolaw's statements from the beginning of real sweeps, and the outcome: ``python -m benchmarks.evidence``.

Every sweep of `SWEEPS`, all real trainings, is cut to a share of its compute C. From this part isolaw states
n*(C), the n that loses least, and rewards at C with intervals (`statement`); so do

    paper          the paper's method: record points, exponential curves, the highest
    best measured  the n with the highest mean over the last tenth of its checkpoints
    isoflop        parabolas in log n at equal budgets and a line through their vertices (`rivals.isoflop`)
    process        scikit-learn's Gaussian process about a line (`rivals.process`)

Then the rest of the runs judges them (`came`): the mean of each n over the evaluations within a factor of
1.25 of C, and its standard error over seeds. The reward of an n between measured ones is interpolated
linearly in log n; an n beyond counts as the nearest. The best of noisy means is too high, which adds the same
to all losses.

Statements that were committed before the rest of the runs existed are files of their own (`--state`), with
the SHA-256 of the rows they rest on; they are judged as they stand. The results go to
docs/evidence.md, whose tables a test compares with ``evidence.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import isolaw
from benchmarks.designs import rivals
from benchmarks.evidence_tables import RULES, tables
from isolaw.errors import IsolawError
from isolaw.evidence import estimated
from isolaw.fits import ESTIMATOR, SURFACE
from isolaw.fits.metric import choose
from isolaw.fits.selection import LEAST_CURVES, select
from isolaw.runs import Runs

DATA = Path(__file__).parents[1] / "examples" / "data"
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "evidence.md"
BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
_WINDOW = 1.25  # evaluations within this factor of C judge
_TOGETHER = 0.95  # of C: runs that end at the same compute, but for a batch
_EDGE = 1e-6
_CURVES = ("validation_reward", {"n": "n", "B_p": "B_p", "C": "compute_rollouts"})


@dataclass(frozen=True)
class RealSweep:
    """A recorded sweep, and the shares of it that isolaw sees."""

    name: str
    file: str
    reading: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    shares: tuple[float, ...] = (0.25, 0.1)  # of C
    statement: str = ""  # a file of `DATA`: what was stated before the runs went on

    def runs(self) -> Runs:
        """Read the runs."""
        return isolaw.read(DATA / self.file, **self.reading)


SWEEPS = (
    RealSweep(
        "IsoCompute, easy, B_p = 32 (fitted curves as drawn)",
        "frontier_curves_fixedBp_main_easy.csv",
        {"metric": _CURVES[0], "columns": _CURVES[1]},
    ),
    RealSweep(
        "Tan et al., Qwen2.5-7B, B_p = 512",
        "tan_rollout_n_base.csv",
        {
            "metric": "holdout_acc_raw",
            "columns": {"n": "rollout_n", "C": "prompts_seen*rollout_n"},
            "set": {"B_p": 512},
        },
        shares=(0.5, 0.25),
    ),
    *(
        RealSweep(
            f"sums, {kind}, B_p = 16, lr {lr}",
            "real-arithmetic.parquet",
            fixed={"problem_set": kind, "lr": float(lr)},
        )
        for kind, lr in (("easy", "5e-4"), ("easy", "1e-3"), ("hard", "1e-3"))
    ),
    RealSweep(
        "sums, easy, B_p = 16, the long sweep",
        "real-long.parquet",
        fixed={"lr": 5e-4},
        shares=(0.25,),  # the statement saw a tenth
        statement="real-long-forecast.json",
    ),
)


def cut(runs: Runs, compute: float) -> Runs:
    """Return the runs without the checkpoints above a compute."""
    return Runs(runs.points[runs.points["compute"] <= compute], runs.attributes)


def digest(runs: Runs) -> str:
    """Return the SHA-256 of the rewards of runs with their keys, the same for any file that holds them."""
    columns = ["run_id", "step", "compute", "eval_set", "metric", "value"]
    metric, eval_set, _ = choose(runs)
    rows = runs.points[(runs.points["metric"] == metric) & (runs.points["eval_set"] == eval_set)]
    text = rows.sort_values(columns[:5])[columns].to_csv(index=False, float_format="%.9g")
    return hashlib.sha256(text.encode()).hexdigest()


def horizon(runs: Runs, fixed: Mapping[str, Any]) -> float:
    """Return the largest C that at least three n reached, with any others that ended shortly before."""
    metric, eval_set, _ = choose(runs)
    configurations = select(runs, metric, eval_set, "B_p", fixed).configurations
    ends = sorted(float(c.checkpoints[-1]) for c in configurations)
    return min(end for end in ends if end >= _TOGETHER * ends[-LEAST_CURVES])


def statement(runs: Runs, computes: list[float], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statements of isolaw and its rivals about larger budgets from these runs, as JSON."""
    metric, eval_set, _ = choose(runs)
    configurations = select(runs, metric, eval_set, "B_p", fixed).configurations
    law = isolaw.fit(runs, where=fixed)
    assert law.surface is not None
    n = np.array(sorted({c.rollouts_per_problem for c in configurations}))
    batch = configurations[0].problems_per_batch
    try:
        paper: Any = isolaw.fit(runs, where=fixed, method="paper", draws=0)
    except IsolawError as error:
        paper = str(error)
    late = {c.rollouts_per_problem: c.mean[-max(1, c.mean.size // 10) :].mean() for c in configurations}
    out = []
    for compute in computes:
        p = law.predict(compute)
        u, v = np.log2(n), np.full(n.size, np.log2(batch))
        drawn = law.pool.rewards(u, v, np.full(n.size, compute))
        fine = np.linspace(u.min(), u.max(), 8 * (n.size - 1) + 1)
        at = (fine, np.full(fine.size, v[0]), np.full(fine.size, np.log(compute)))
        process = fine[rivals.process(law.surface.process.observations, *at).argmax()]
        said = {
            "isolaw": p.allocation and p.allocation.rollouts_per_problem,
            "highest": int(max(late, key=late.__getitem__)),
            "isoflop": round(rivals.isoflop(configurations, compute), 2),
            "process": round(float(2**process), 2),
        }
        if not isinstance(paper, str):
            best = paper.predict(compute).allocation
            said["paper"] = best and best.rollouts_per_problem
        out.append(
            {
                "compute": compute,
                "chosen": said,
                "n_star": p.n_star.to_dict(),
                "expected_loss": p.options[0].expected_loss if p.options else None,
                "reward": p.reward.to_dict(),
                "rewards": {str(own): estimated(drawn[:, i]).to_dict() for i, own in enumerate(n.tolist())},
            }
        )
    return {
        "estimator": ESTIMATOR,
        "surface": SURFACE,
        "input": digest(runs),
        "metric": metric,
        "runs": len(runs.table()),
        "largest_compute": int(runs.points["compute"].max()),
        "budgets": out,
        **({"paper": paper} if isinstance(paper, str) else {}),
    }


def by_seed(runs: Runs, compute: float, fixed: Mapping[str, Any]) -> dict[int, dict[int, float]]:
    """Return for each n that reached C the mean reward of each seed within a factor of `_WINDOW` of C."""
    metric, eval_set, _ = choose(runs)
    out: dict[int, dict[int, float]] = {}
    for c in select(runs, metric, eval_set, "B_p", fixed).configurations:
        own = {}
        for i, seed in enumerate(c.seeds):
            at, reward = c.compute[c.run == i], c.reward[c.run == i]
            near = (at >= compute / _WINDOW) & (at <= compute * _WINDOW)
            if at[-1] + c.step_cost >= compute * (1 - _EDGE) and near.any():
                own[seed] = float(reward[near].mean())
        if own:
            out[c.rollouts_per_problem] = own
    return out


def came(runs: Runs, compute: float, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each n that reached C the mean reward there, its standard error, and the number of seeds."""
    out = {}
    for n, own in by_seed(runs, compute, fixed).items():
        values = list(own.values())
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        out[str(n)] = {"reward": float(np.mean(values)), "error": error, "seeds": len(values)}
    return out


def judged(said: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Compare the statement about one budget with the outcome."""
    n = np.array(sorted(map(int, measured)))
    reward = np.array([measured[str(own)]["reward"] for own in n])
    best = int(n[reward.argmax()])
    errors = [measured[str(own)]["error"] for own in n]
    pooled = None if None in errors else float(np.sqrt(np.mean(np.square(errors))))
    # Within two standard errors of a difference of the best.
    tied = (
        None if pooled is None else [int(own) for own in n[reward >= reward.max() - 2 * np.sqrt(2) * pooled]]
    )

    def lost(chosen: float | None) -> float | None:
        if chosen is None:
            return None
        return float(reward.max() - np.interp(np.log2(chosen), np.log2(n), reward))

    inside = {
        own: q["interval"][0] <= measured[own]["reward"] <= q["interval"][1]
        for own, q in said["rewards"].items()
        if own in measured and q["interval"] and None not in q["interval"]
    }
    star = said["n_star"]
    held = None
    if star["interval"] and star["interval"] != [None, None]:
        low, high = star["interval"]
        held = any((low or 0) <= own <= (high or np.inf) for own in (tied or [best]))
    return {
        "best": best,
        "tied": tied,
        "error": pooled,
        "lost": {rule: lost(said["chosen"].get(rule)) for rule in RULES},
        "rewards_inside": sum(inside.values()),
        "rewards_stated": len(inside),
        "n_star_held": held,
    }


def entry(sweep: RealSweep) -> dict[str, Any]:
    """Return a sweep's entry of the summary: each share's statement, the outcome, and the verdict."""
    runs = sweep.runs()
    compute = horizon(runs, sweep.fixed)
    cuts: list[dict[str, Any]] = []
    if sweep.statement:
        stated = json.loads((DATA / sweep.statement).read_text())
        cuts += [
            {"before": sweep.statement, "said": own, "input": stated["input"]} for own in stated["budgets"]
        ]
    for share in sweep.shares:
        begin = cut(runs, share * compute)
        try:
            stated = statement(begin, [compute], sweep.fixed)
        except IsolawError as error:
            cuts.append({"share": share, "refused": str(error), "input": digest(begin)})
        else:
            cuts.append({"share": share, "said": stated["budgets"][0], "input": stated["input"]})
    for own in cuts:
        if "said" in own and (measured := came(runs, own["said"]["compute"], sweep.fixed)):
            own |= {"came": measured, "verdict": judged(own["said"], measured)}
    files = {file: sha256(file) for file in (sweep.file, sweep.statement) if file}
    return {"name": sweep.name, "files": files, "compute": compute, "cuts": cuts}


def sha256(file: str) -> str:
    """Return the SHA-256 of a file of `DATA`."""
    return hashlib.sha256((DATA / file).read_bytes()).hexdigest()


def write(summary: dict[str, Any]) -> None:
    """Put the tables into the page."""
    before, rest = DOCS.read_text().split(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n\n{tables(summary)}\n\n{END}{rest.split(END)[1]}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument(
        "--only", default="", help="measure again sweeps whose name has this; keep the others"
    )
    parser.add_argument("--tables", action="store_true", help="only write the kept results into the page")
    parser.add_argument(
        "--state", metavar="RUNS", help="print the statement about --compute from these runs, as JSON"
    )
    parser.add_argument("--compute", type=float, nargs="+", default=[], help="budgets of --state")
    options = parser.parse_args(arguments)
    if options.state:
        said = statement(isolaw.read(options.state), options.compute, {})
        sha = hashlib.sha256(Path(options.state).read_bytes()).hexdigest()
        print(json.dumps({"file": Path(options.state).name, "sha256": sha, **said}, indent=1))
        return
    kept = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {"sweeps": []}
    if not options.tables:
        known = {own["name"]: own for own in kept["sweeps"]}
        found = []
        for sweep in SWEEPS:
            if (DATA / sweep.file).exists() and (options.only in sweep.name or sweep.name not in known):
                known[sweep.name] = entry(sweep)
                print(sweep.name, file=sys.stderr, flush=True)
            found += [known[sweep.name]] if sweep.name in known else []
        kept = {"estimator": ESTIMATOR, "surface": SURFACE, "sweeps": found}
        SUMMARY.write_text(json.dumps(kept, indent=1) + "\n")
    write(kept)


if __name__ == "__main__":
    main()
