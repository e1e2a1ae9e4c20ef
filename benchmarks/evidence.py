"""isolaw's statements from the beginning of real sweeps, and the outcome: ``python -m benchmarks.evidence``.

Every sweep of `SWEEPS`, all real trainings, is cut to a share of its compute C. From this part isolaw states
n*(C), the n that loses least, and rewards at C with intervals (`statement`); so do

    paper          the paper's method: record points, exponential curves, the highest
    best measured  the n with the highest mean at the largest compute that three n reached
    isoflop        parabolas in log n at equal budgets and a line through their vertices (`isolaw.fits.rules`)
    half slope     the same, with half of the line's slope beyond the runs
    process        scikit-learn's Gaussian process about a line (`rivals.process`)
    learnt priors  isolaw with the priors that all other groups teach (`benchmarks.priors`)

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import isolaw
from benchmarks.designs import rivals
from benchmarks.evidence_tables import RULES, tables
from isolaw.errors import IsolawError
from isolaw.evidence import estimated
from isolaw.fits import ESTIMATOR, SURFACE
from isolaw.fits.metric import choose
from isolaw.fits.selection import LEAST_CURVES, Configuration, Floats, Hold, law_axis, select
from isolaw.runs import Runs

DATA = Path(__file__).parents[1] / "examples" / "data"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "published"
SHARES = (0.12, 0.25, 0.5)  # of C
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "evidence.md"
BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
_WINDOW = 1.25  # evaluations within this factor of C judge
_TOGETHER = 0.95  # of C: runs that end at the same compute, but for a batch
_EDGE = 1e-6
_ENOUGH, _DRAWS = 4, 4000  # n at the smallest comparable C, and draws of the exponent
_STACKED = 1.4  # markers of the figure that count as single
_LR, _KL, _SMALLEST, _EVALUATED, _COLLAPSED = 1e-6, 1e-3, 8, 8, 0.1
_CURVES = ("validation_reward", {"n": "n", "B_p": "B_p", "C": "compute_rollouts"})


@dataclass(frozen=True)
class RealSweep:
    """A recorded sweep, and the shares of it that isolaw sees."""

    name: str
    file: str
    reading: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""  # of related sweeps, which count once; "" for curves that were fitted, which do not count
    hold: Hold = "B_p"  # "n": a sweep of B_p
    statement: str = ""  # a file of `DATA`: what was stated before the runs went on
    folder: Path = DATA

    @property
    def path(self) -> Path:
        """The file of the runs."""
        return self.folder / self.file

    def runs(self) -> Runs:
        """Read the runs."""
        source = _TABLES[self.file](pd.read_csv(self.path)) if self.file in _TABLES else self.path
        return isolaw.read(source, **self.reading)


def _cloud(table: pd.DataFrame) -> pd.DataFrame:
    """Return single evaluations read off the figure, whose markers do not overlap, by n and step."""
    n = pd.to_numeric(table["n"], errors="coerce")
    table = table[n.notna() & (table["touches_neighbour"] == 0) & (table["stack_estimate"] < _STACKED)]
    table = table.assign(n=n[table.index].astype(int))
    step = (table["compute_rollouts"] / (32 * table["n"])).round().clip(1)
    table = table.assign(B_p=32, C=(step * 32 * table["n"]).astype(int), acc=table["validation_reward"])
    return table.groupby(["n", "B_p", "C"], as_index=False)["acc"].mean()


def _chain(table: pd.DataFrame) -> pd.DataFrame:
    """Return the exact pass rates of a chain of skills, eight seeds of five n."""
    names = {"problems_per_batch": "B_p", "rollouts_per_problem": "n", "compute": "C", "value": "mean_pass"}
    return table[table["metric"] == "mean_pass"].rename(columns=names)[["B_p", "n", "seed", "C", "mean_pass"]]


def _critical(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of one lr and KL coefficient that did not collapse, segments joined by name."""
    table = table[(table["lr"] == _LR) & (table["kl"] == _KL) & ~table["fixed"]]
    table = table[table["problems_per_batch"] >= _SMALLEST]
    joined = table.groupby(["name", "problems_per_batch", "step"], as_index=False)["value"].mean()
    sound = joined.groupby("name")["value"].transform(
        lambda v: v.size >= _EVALUATED and v.iloc[-1] > _COLLAPSED
    )
    joined = (
        joined[sound.astype(bool)].assign(n=16).rename(columns={"problems_per_batch": "B_p", "value": "acc"})
    )
    joined["C"] = joined["B_p"] * 16 * joined["step"]
    return joined.groupby(["n", "B_p", "C"], as_index=False)["acc"].mean()


_TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "runs_cloud_fixedBp_main_easy.csv": _cloud,
    "skillchain/uniform.csv": _chain,
    "cbs/curves_n16.csv": _critical,
}


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
        group="Tan",
    ),
    *(
        RealSweep(
            f"sums, {kind}, B_p = 16, lr {lr}",
            "real-arithmetic.parquet",
            fixed={"problem_set": kind, "lr": float(lr)},
            group=f"sums, {kind}",
        )
        for kind, lr in (("easy", "5e-4"), ("easy", "1e-3"), ("hard", "1e-3"))
    ),
    RealSweep(
        "sums, easy, B_p = 16, the long sweep",
        "real-long.parquet",
        fixed={"lr": 5e-4},
        group="sums, long",
        statement="real-long-forecast.json",
    ),
    *(
        RealSweep(
            f"sums, easy, B_p = {b}, lr {lr}, three n",
            "real-long-lr.parquet",
            fixed={"lr": float(lr), "B_p": b},
            group="sums, lr",
        )
        for lr, b in (("2.5e-4", 16), ("5e-4", 64), ("1e-3", 16), ("2e-3", 16))
    ),
    RealSweep("sums, hard, a race", "real-race.parquet", group="sums, race"),
    # The data state no licence, or are points of a figure; they are not in this repository.
    RealSweep(
        "IsoCompute, easy, B_p = 32 (single evaluations)",
        "runs_cloud_fixedBp_main_easy.csv",
        {"metric": "acc"},
        group="IsoCompute",
        folder=SHARED,
    ),
    RealSweep(
        "chain of skills (a table, not a language model)",
        "skillchain/uniform.csv",
        {"metric": "mean_pass"},
        {},
        group="skills",
        folder=SHARED,
    ),
    RealSweep(
        "critical batch, n = 16, lr 1e-6, a sweep of B_p",
        "cbs/curves_n16.csv",
        {"metric": "acc"},
        group="critical batch",
        hold="n",
        folder=SHARED,
    ),
)


def cut(runs: Runs, compute: float) -> Runs:
    """Return the runs without the checkpoints above a compute."""
    return Runs(runs.points[runs.points["compute"] <= compute], runs.attributes)


def digest(runs: Runs, metric: str | None = None) -> str:
    """Return the SHA-256 of the rewards of runs with their keys, the same for any file that holds them."""
    columns = ["run_id", "step", "compute", "eval_set", "metric", "value"]
    metric, eval_set, _ = choose(runs, metric)
    rows = runs.points[(runs.points["metric"] == metric) & (runs.points["eval_set"] == eval_set)]
    text = rows.sort_values(columns[:5])[columns].to_csv(index=False, float_format="%.9g")
    return hashlib.sha256(text.encode()).hexdigest()


def configurations_of(runs: Runs, sweep: RealSweep) -> list[Configuration]:
    """Return the configurations of a sweep, or of a part of it."""
    metric, eval_set, _ = choose(runs, sweep.reading.get("metric"))
    return select(runs, metric, eval_set, sweep.hold, sweep.fixed).configurations


def horizon(runs: Runs, sweep: RealSweep) -> float:
    """Return the largest C that at least three n reached, with any others that ended shortly before."""
    ends = sorted(float(c.checkpoints[-1]) for c in configurations_of(runs, sweep))
    return min(end for end in ends if end >= _TOGETHER * ends[-LEAST_CURVES])


def statement(runs: Runs, computes: list[float], sweep: RealSweep) -> dict[str, Any]:
    """Return the statements of isolaw and its rivals about larger budgets from these runs, as JSON."""
    metric, eval_set, _ = choose(runs, sweep.reading.get("metric"))
    configurations = configurations_of(runs, sweep)
    axis = law_axis(sweep.hold)
    law = isolaw.fit(runs, metric, eval_set=eval_set, hold=sweep.hold, where=sweep.fixed)
    assert law.surface is not None
    try:
        paper: Any = isolaw.fit(
            runs, metric, eval_set=eval_set, hold=sweep.hold, where=sweep.fixed, method="paper", draws=0
        )
    except IsolawError as error:
        paper = str(error)
    levels = np.array(sorted({c.level(axis) for c in configurations}))
    other = "problems_per_batch" if axis == "rollouts_per_problem" else "rollouts_per_problem"
    held = np.log2(configurations[0].level(other))
    surface, rules, reached = law.surface.drawn(), law.document.rules, horizon(runs, sweep)

    def places(log2: Floats) -> tuple[Floats, Floats]:
        both = log2, np.full(log2.size, held)
        return both if axis == "rollouts_per_problem" else both[::-1]

    out = []
    for compute in computes:
        p = law.predict(compute)
        drawn = surface.rewards(*places(np.log2(levels)), np.full(levels.size, compute))
        fine = np.linspace(*np.log2(levels[[0, -1]]), 8 * (levels.size - 1) + 1)
        at = rivals.process(surface.model.observations, *places(fine), np.full(fine.size, np.log(compute)))
        flop = rules.choices(compute).get("isoflop", float("nan"))
        said = {
            "isolaw": p.allocation and getattr(p.allocation, axis),
            "highest": rules.best_measured,
            "isoflop": round(flop, 2),
            "half": round(
                float(np.sqrt(flop * rules.choices(min(compute, reached)).get("isoflop", flop))), 2
            ),
            "process": round(float(2 ** fine[at.argmax()]), 2),
        }
        if not isinstance(paper, str):
            best = paper.predict(compute).allocation
            said["paper"] = best and getattr(best, axis)
        n_star = p.n_star if axis == "rollouts_per_problem" else p.b_star
        out.append(
            {
                "compute": compute,
                "chosen": said,
                "n_star": n_star.to_dict(),
                "expected_loss": p.options[0].expected_loss if p.options else None,
                "reward": p.reward.to_dict(),
                "rewards": {
                    str(level): estimated(drawn[:, i]).to_dict() for i, level in enumerate(levels.tolist())
                },
            }
        )
    return {
        "estimator": ESTIMATOR,
        "surface": SURFACE,
        "input": digest(runs, metric),
        "metric": metric,
        "runs": len(runs.table()),
        "largest_compute": int(runs.points["compute"].max()),
        "budgets": out,
        **({"paper": paper} if isinstance(paper, str) else {}),
    }


def by_seed(runs: Runs, compute: float, sweep: RealSweep) -> dict[int, dict[int, float]]:
    """Return for each n that reached C the mean reward of each seed within a factor of `_WINDOW` of C."""
    out: dict[int, dict[int, float]] = {}
    for c in configurations_of(runs, sweep):
        own = {}
        for i, seed in enumerate(c.seeds):
            at, reward = c.compute[c.run == i], c.reward[c.run == i]
            near = (at >= compute / _WINDOW) & (at <= compute * _WINDOW)
            if at[-1] + c.step_cost >= compute * (1 - _EDGE) and near.any():
                own[seed] = float(reward[near].mean())
        if own:
            out[c.level(law_axis(sweep.hold))] = own
    return out


def came(runs: Runs, compute: float, sweep: RealSweep) -> dict[str, Any]:
    """Return for each n that reached C the mean reward there, its standard error, and the number of seeds."""
    out = {}
    for n, rewards in by_seed(runs, compute, sweep).items():
        values = list(rewards.values())
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        out[str(n)] = {"reward": float(np.mean(values)), "error": error, "seeds": len(values)}
    return out


def tied(measured: dict[str, Any]) -> tuple[int, list[int] | None, float | None]:
    """Return the best n, all n within two standard errors of a difference of it, and the pooled error."""
    n = np.array(sorted(map(int, measured)))
    reward = np.array([measured[str(level)]["reward"] for level in n])
    errors = [measured[str(level)]["error"] for level in n]
    if None in errors:
        return int(n[reward.argmax()]), None, None
    pooled = float(np.sqrt(np.mean(np.square(errors))))
    as_good = n[reward >= reward.max() - 2 * np.sqrt(2) * pooled]
    return int(n[reward.argmax()]), [int(level) for level in as_good], pooled


def moved(runs: Runs, sweep: RealSweep, last: float) -> dict[str, Any] | None:
    """Return the best n at the smallest comparable C and at the largest, and the exponent of n* in C.

    The smallest C is the first at which four n (or all, of three) were evaluated. The exponent is the slope
    in log-log between both best n. Its interval comes from draws of all rewards with the pooled standard
    error over seeds, and of n* within half of the distance between measured n. Returns None if the runs span
    less than a factor of four of C.
    """
    begins = sorted(float(c.checkpoints[c.checkpoints > 0][0]) for c in configurations_of(runs, sweep))
    first = begins[min(_ENOUGH, len(begins)) - 1]
    if last < 2 * first:
        return None
    ends = [came(runs, compute, sweep) for compute in (first, last)]
    best = [tied(end) for end in ends]
    span = float(np.log2(last / first))
    tops, rng = [], np.random.default_rng(0)
    for end, (*_, error) in zip(ends, best, strict=True):
        log2 = np.log2([int(n) for n in end])
        rewards = np.array([item["reward"] for item in end.values()])
        top = log2[(rewards + (error or 0.0) * rng.normal(size=(_DRAWS, log2.size))).argmax(axis=1)]
        tops.append(top + np.diff(np.sort(log2)).min() * rng.uniform(-0.5, 0.5, _DRAWS))
    known = all(error is not None for *_, error in best)
    return {
        "compute": [first, last],
        "best": [top for top, *_ in best],
        "tied": [as_good for _, as_good, _ in best],
        "largest": [max(map(int, end)) for end in ends],
        "exponent": float(np.log2(best[1][0] / best[0][0]) / span),
        "interval": np.quantile((tops[1] - tops[0]) / span, (0.025, 0.975)).tolist() if known else None,
    }


def judged(said: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Compare the statement about one budget with the outcome."""
    n = np.array(sorted(map(int, measured)))
    reward = np.array([measured[str(level)]["reward"] for level in n])
    best, as_good, pooled = tied(measured)

    def lost(chosen: float | None) -> float | None:
        if chosen is None:
            return None
        return float(reward.max() - np.interp(np.log2(chosen), np.log2(n), reward))

    inside = {
        item: q["interval"][0] <= measured[item]["reward"] <= q["interval"][1]
        for item, q in said["rewards"].items()
        if item in measured and q["interval"] and None not in q["interval"]
    }
    star = said["n_star"]
    held = None
    if star["interval"] and star["interval"] != [None, None]:
        low, high = star["interval"]
        held = any((low or 0) <= item <= (high or np.inf) for item in (as_good or [best]))
    return {
        "best": best,
        "tied": as_good,
        "error": pooled,
        "lost": {rule: lost(said["chosen"].get(rule)) for rule in RULES},
        "rewards_inside": sum(inside.values()),
        "rewards_stated": len(inside),
        "n_star_held": held,
    }


def entry(sweep: RealSweep) -> dict[str, Any]:
    """Return a sweep's entry of the summary: each share's statement, the outcome, and the verdict."""
    runs = sweep.runs()
    compute = horizon(runs, sweep)
    cuts: list[dict[str, Any]] = []
    if sweep.statement:
        stated = json.loads((DATA / sweep.statement).read_text())
        cuts += [
            {"before": sweep.statement, "said": budget, "input": stated["input"]}
            for budget in stated["budgets"]
        ]
    for share in SHARES:
        begin = cut(runs, share * compute)
        try:
            stated = statement(begin, [compute], sweep)
        except IsolawError as error:
            cuts.append(
                {"share": share, "refused": str(error), "input": digest(begin, sweep.reading.get("metric"))}
            )
        else:
            said = stated["budgets"][0]
            said["chosen"]["learnt"] = _learnt(begin, compute, sweep)
            cuts.append({"share": share, "said": said, "input": stated["input"]})
    for item in cuts:
        if "said" in item and (measured := came(runs, item["said"]["compute"], sweep)):
            item |= {"came": measured, "verdict": judged(item["said"], measured)}
    files = {sweep.file: sha256(sweep.path)}
    files |= {sweep.statement: sha256(DATA / sweep.statement)} if sweep.statement else {}
    return {
        "name": sweep.name,
        "group": sweep.group,
        "axis": law_axis(sweep.hold),
        "files": files,
        "compute": compute,
        "moved": moved(runs, sweep, compute),
        "cuts": cuts,
    }


def _learnt(runs: Runs, compute: float, sweep: RealSweep) -> float | None:
    """Return what isolaw chooses with the priors that the other groups teach."""
    from benchmarks.priors import KEPT, using  # which reads the sweeps of this module

    taught = json.loads(KEPT.read_text())
    with using(taught["without"].get(sweep.group, taught["all"])):
        law = isolaw.fit(runs, sweep.reading.get("metric"), hold=sweep.hold, where=sweep.fixed)
    allocation = law.predict(compute).allocation
    return allocation and getattr(allocation, law_axis(sweep.hold))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
        said = statement(isolaw.read(options.state), options.compute, RealSweep("", options.state))
        sha = hashlib.sha256(Path(options.state).read_bytes()).hexdigest()
        print(json.dumps({"file": Path(options.state).name, "sha256": sha, **said}, indent=1))
        return
    kept = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {"sweeps": []}
    if not options.tables:
        known = {item["name"]: item for item in kept["sweeps"]}
        found = []
        for sweep in SWEEPS:
            if sweep.path.exists() and (options.only in sweep.name or sweep.name not in known):
                known[sweep.name] = entry(sweep)
                print(sweep.name, file=sys.stderr, flush=True)
            found += [known[sweep.name]] if sweep.name in known else []
        kept = {"estimator": ESTIMATOR, "surface": SURFACE, "sweeps": found}
        SUMMARY.write_text(json.dumps(kept, indent=1) + "\n")
    write(kept)


if __name__ == "__main__":
    main()
