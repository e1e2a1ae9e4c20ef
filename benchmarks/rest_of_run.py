"""The rest of a learning curve, predicted from a part of it: ``python -m benchmarks.rest_of_run``

`isolaw compare` predicts the end of a curve from the first half of its compute, its reward at three times its
compute and its ceiling (`isolaw.fits.curves.pooled`). This benchmark compares these predictions with the
outcome, next to simpler ones: each family alone, and "the last fifth stays".

- **Real curves**: Qwen2.5 base, 0.5B to 14B, single runs, and four n with 7B (Tan et al., arXiv 2509.25300);
  isolaw's own sweep of a real language model. The outcome is the mean of the last tenth of the checkpoints.
- **Simulated curves**: ten kinds, five of which guided the development of the pool, with 1 to 3 seeds, 12 to
60 checkpoints, and 30 to 99 % of the rise seen. The outcome is the truth.

A ceiling or a reward at three times the compute is judged where isolaw states it. The table goes to
docs/statistics.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from isolaw.fits.curves.learning_curves import fit_curves
from isolaw.fits.selection import Configuration
from isolaw.fits.studies.recipes import Foreseen, foresee
from isolaw.fits.surface.bootstrap import resample

DATA = Path(__file__).parents[1] / "examples" / "data"
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "statistics.md"
EACH, DRAWS, FURTHER = 43, 300, 3.0
END = 1e6
Floats = np.ndarray


class Case(NamedTuple):
    """A curve, with its known true values."""

    group: str
    observed: Configuration
    end: float  # reward at the end of the compute
    further: float | None = None  # at FURTHER times it
    ceiling: float | None = None


def exp(x: Floats, rng: np.random.Generator) -> Floats:
    return -np.expm1(-x)


def hill(x: Floats, rng: np.random.Generator) -> Floats:
    return 1 / (1 + np.maximum(x, 1e-9) ** -rng.uniform(0.7, 2.0))


def stretched(x: Floats, rng: np.random.Generator) -> Floats:
    return -np.expm1(-(x ** rng.uniform(0.5, 1.4)))


def young(x: Floats, rng: np.random.Generator) -> Floats:
    """Straight in log C over three decades, then level."""
    return np.clip(0.5 + np.log10(np.maximum(x, 1e-9)) / rng.uniform(2, 4), 0, 1)


def late(x: Floats, rng: np.random.Generator) -> Floats:
    """Flat for a while, then rising."""
    delay = rng.uniform(0.05, 0.3)
    return -np.expm1(-np.maximum(x - delay, 0))


def gompertz(x: Floats, rng: np.random.Generator) -> Floats:
    return np.exp(-(np.maximum(x, 1e-9) ** -rng.uniform(0.6, 1.5)))


def two_rates(x: Floats, rng: np.random.Generator) -> Floats:
    share, faster = rng.uniform(0.2, 0.8), rng.uniform(5, 30)
    return -share * np.expm1(-x * faster) - (1 - share) * np.expm1(-x)


def normal(x: Floats, rng: np.random.Generator) -> Floats:
    return norm.cdf(np.log(np.maximum(x, 1e-9)) / rng.uniform(0.7, 2.0))


def power(x: Floats, rng: np.random.Generator) -> Floats:
    return 1 - (1 + x) ** -rng.uniform(0.5, 2.0)


def straight(x: Floats, rng: np.random.Generator) -> Floats:
    """A straight line in C up to a bend."""
    return np.minimum(x, 1.0)


Shape = Callable[[Floats, np.random.Generator], Floats]
TUNING: tuple[Shape, ...] = (exp, hill, stretched, young, late)
JUDGING: tuple[Shape, ...] = (gompertz, two_rates, normal, power, straight)


def simulated(half: str, index: int) -> Case:
    """Return one simulated curve."""
    shapes = TUNING if half == "tuning" else JUDGING
    shape = shapes[index % len(shapes)]
    rng = np.random.default_rng((index, half == "judging"))
    state = rng.integers(2**31)
    start, rise, seen = rng.uniform(0.02, 0.5), rng.uniform(0.08, 0.45), rng.uniform(0.3, 0.99)
    fine = np.geomspace(1e-3, 1e3, 4000)
    scale = fine[np.searchsorted(shape(fine, np.random.default_rng(state)), seen)] / END

    def truth(compute: float | Floats) -> Floats:
        return start + rise * shape(np.atleast_1d(compute) * scale, np.random.default_rng(state))

    looks, seeds = int(rng.integers(12, 61)), int(rng.integers(1, 4))
    at = np.linspace(0, END, looks + 1)
    mean, samples = truth(at), int(rng.choice([400, 1200, 4000]))
    own = rng.uniform(0.0, 0.01)  # scatter of runs, which grows with C
    runs = [
        rng.binomial(samples, np.clip(mean + own * rng.standard_normal() * np.sqrt(at / END), 0, 1)) / samples
        for _ in range(seeds)
    ]
    observed = Configuration(
        32, 16, np.tile(at, seeds), np.concatenate(runs), np.repeat(np.arange(seeds), at.size),
        tuple(range(seeds)), 512.0,
    )  # fmt: skip
    return Case(half, observed, float(truth(END)[0]), float(truth(FURTHER * END)[0]), start + rise)


def real() -> Iterator[Case]:
    """Yield the real curves."""
    single = pd.read_csv(DATA / "tan_qwen_holdout_per_run_base.csv").dropna(subset="run")
    single = single.assign(value=single["correct_of_500"] / 500, compute=single["compute_C_flops"])
    for _, rows in single.groupby(["model_size_B", "run"]):
        yield _observed("Tan et al., single runs", rows.assign(seed=0))
    several = pd.read_csv(DATA / "tan_rollout_n_base.csv")
    several["compute"] = several["prompts_seen"] * several["rollout_n"]
    for _, rows in several.rename(columns={"holdout_acc_rounded_1_over_500": "value"}).groupby("rollout_n"):
        yield _observed("Tan et al., n", rows.assign(seed=0))
    sweep = pd.read_parquet(DATA / "real-arithmetic.parquet")
    sweep = sweep[(sweep["metric"] == "avg@4") & (sweep["eval_set"] == "validation")]
    for _, rows in sweep.groupby(["problem_set", "rollouts_per_problem"]):
        yield _observed("isolaw's sweep", rows)


def _observed(group: str, table: pd.DataFrame) -> Case:
    table = table.sort_values(["seed", "compute"]).drop_duplicates(["seed", "compute"])
    seeds = sorted(table["seed"].unique())
    compute, value = table["compute"].to_numpy(float), table["value"].to_numpy(float)
    run = np.searchsorted(seeds, table["seed"])
    observed = Configuration(32, 16, compute, value, run, tuple(int(s) for s in seeds), 512.0)
    return Case(group, observed, float(value[compute >= 0.9 * compute.max()].mean()))


RIVALS = ("exp", "hill", "line", "stays")


def _alone(name: str, c: Floats, y: Floats, w: Floats, at: float) -> float:
    if name == "stays":
        return float(y[-max(y.size // 5, 1) :].mean())
    if name == "line":
        kept = c > 0
        return float(np.polyval(np.polyfit(np.log(c[kept]), y[kept], 1, w=np.sqrt(w[kept])), np.log(at)))
    return float(np.clip(fit_curves(c, y[None], w[None], name)(at)[0, 0], 0, 1))


def judged(case: Case) -> list[dict[str, Any]]:
    """Return a row for each question about a curve."""
    c = case.observed
    (sample,), _ = resample([c], "hill", DRAWS, 0)
    found = foresee(c, sample, c.measured[1], FURTHER * c.measured[1], bounds=(0.0, 1.0))
    half = c.checkpoints <= c.measured[1] / 2
    asked: list[tuple[str, Foreseen, float | None, float, Any]] = [
        ("end, from half", found["predicted"], case.end, c.measured[1], half),
        ("3 times further", found["reward"], case.further, FURTHER * c.measured[1], slice(None)),
        ("ceiling", found["A"], case.ceiling, 1e6 * c.measured[1], slice(None)),
    ]
    rows = []
    for question, stated, truth, at, part in asked:
        if truth is None:
            continue
        low, high = np.quantile(stated.draws[1:], [0.025, 0.975])
        row = {
            "group": case.group,
            "question": question,
            "stated": stated.status == "ok",
            "held": bool(low <= truth <= high),
            "width": float(high - low),
            "pooled": abs(float(stated.draws[0]) - truth),
        }
        for name in RIVALS if question != "ceiling" else ("exp", "hill"):
            value = _alone(name, c.checkpoints[part], c.mean[part], c.runs_at[part], at)
            row[name] = abs(value - truth)
        rows.append(row)
    return rows


def cases(half: str) -> list[Case]:
    """Return the curves of one half: the tuning half is simulated."""
    made = [simulated(half, i) for i in range(EACH * len(TUNING))]
    return made if half == "tuning" else [*real(), *made]


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each group and question."""
    out = []
    for (group, question), item in pd.DataFrame(rows).groupby(["group", "question"], sort=False):
        stated = item[item["stated"]]
        line = {"group": group, "question": question, "curves": len(item), "stated": len(stated)}
        line |= {"held": int(stated["held"].sum()), "width": float(stated["width"].mean())}
        out.append(line | {n: _mean(stated, n) for n in ("pooled", *RIVALS)})
    return out


def _mean(table: pd.DataFrame, name: str) -> float | None:
    values = table[name].dropna() if name in table else []
    return float(np.mean(values)) if len(values) else None


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the summary of the judging half as Markdown."""
    out = [
        "| curves | question | stated | held | width | error: pool | exp | Hill | line in log C | constant |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in (row for row in rows if row["group"] != "tuning"):
        errors = ["–" if row[n] is None else f"{row[n]:.4f}".lstrip("0") for n in ("pooled", *RIVALS)]
        share = f"{row['held']} of {row['stated']}" if row["stated"] else "–"
        out.append(
            f"| {row['group']} | {row['question']} | {row['stated']} of {row['curves']} | {share} | "
            f"{row['width']:.3f} | {' | '.join(errors)} |"
        )
    return out


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rest_of_run", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--tuning", action="store_true", help="print the tuning half alone, by kinds")
    parser.add_argument("--tables", action="store_true", help="only write the kept table into the docs")
    options = parser.parse_args(arguments)
    if not options.tables:
        halves = ["tuning"] if options.tuning else ["tuning", "judging"]
        every = [case for half in halves for case in cases(half)]
        with ProcessPoolExecutor() as pool:
            found = [row for rows in pool.map(judged, every, chunksize=8) for row in rows]
        if options.tuning:
            kinds = [shape.__name__ for shape in TUNING]
            found = [row | {"group": kinds[i // 3 % len(kinds)]} for i, row in enumerate(found)]
            print(pd.DataFrame(summary(found)).round(4).to_string())
            return
        kept = {"first": judged(next(real())), "rows": summary(found)}
        SUMMARY.write_text(json.dumps(kept, indent=1) + "\n")
    begin, end = "<!-- rest_of_run -->", "<!-- /rest_of_run -->"
    before, rest = DOCS.read_text().split(begin)
    lines = table(json.loads(SUMMARY.read_text())["rows"])
    DOCS.write_text(before + "\n".join([begin, "", *lines, "", end]) + rest.split(end)[1])


if __name__ == "__main__":
    main()
