"""The published n* of `isolaw advise`: ``python -m benchmarks.published`` writes ``published.csv``.

The data are the tables of ``examples/data``, whose README names the sources. The file has a row per source,
B_p and C, with n* and its range (an empty end is open):

- points of a figure: the logistic law by least squares, and the 95 % prediction interval of one more point,
  conditional on independent points;
- drawn curves: at each B_p the n with the highest curve, and its reward; figures give no uncertainty;
- runs: n* of the fitted surface with its 95 % interval, where two n at least were measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from lmfit import Model

import isolaw
from isolaw.design.published import COLUMNS, FILE
from isolaw.fits.laws.equations import fit_logistic, logistic

DATA = Path(__file__).parents[1] / "examples" / "data"
Row = tuple[str, float | None, float, float, float | None, float | None, float | None]
_POINTS = 25


def points(source: str, batch: int | None, file: str, column: str) -> Iterator[Row]:
    """Return rows from ready-made points."""
    table = pd.read_csv(DATA / file)
    x, y = np.log10(table[column]), np.log2(table["n_star"])
    start = fit_logistic(x.to_numpy(), y.to_numpy()[None])
    model = Model(logistic, independent_vars=["x"])
    parameters = model.make_params(**{name: getattr(start, name)[0] for name in ("b", "L", "k", "x0")})
    parameters["L"].min = parameters["k"].min = 0.0
    result = model.fit(y, parameters, x=x)
    compute = np.geomspace(table[column].min(), table[column].max(), _POINTS)
    result.eval_uncertainty(x=np.log10(compute), sigma=0.95)
    fitted = result.eval(x=np.log10(compute))
    least, most = table["n_star"].min(), table["n_star"].max()
    for c, y, half in zip(compute, fitted, result.dely_predicted, strict=True):
        low = 2 ** (y - half)
        yield (
            source,
            batch,
            c,
            float(np.clip(2**y, least, most)),
            low if low > least else None,
            2 ** (y + half),
            None,
        )


def curves(source: str, file: str) -> Iterator[Row]:
    """Return rows from drawn curves."""
    table = pd.read_csv(DATA / file).sort_values("compute_rollouts")
    start = table.groupby("B_p")["compute_rollouts"].min().max()  # below, no two B_p are drawn
    for batch, panel in table.groupby("B_p"):
        solid = panel[panel["style"] == "solid"]
        ends = solid.groupby("n")["compute_rollouts"].agg(["min", "max"])
        for c in np.geomspace(start, solid["compute_rollouts"].max(), _POINTS):
            frontier = ends.index[(ends["min"] <= c) & (c <= ends["max"])]
            if not len(frontier):  # where one curve ends and the next begins
                continue
            line = panel[panel["n"] == frontier[0]]
            reward = np.interp(c, line["compute_rollouts"], line["validation_reward"])
            yield source, batch, c, frontier[0], None, None, reward


def runs(source: str, batch: int, law: isolaw.Law, within: tuple[float, float]) -> Iterator[Row]:
    """Return rows from fitted runs."""
    for point in law.document.frontier:
        n = point.n_star
        if n.value is not None and n.interval is not None and within[0] <= point.x <= within[1]:
            yield source, batch, point.x, n.value, *n.interval, None


def tan() -> Iterator[Row]:
    """Return rows of the sweep of Tan et al., over the C at which two n at least were measured."""
    runs_of_n = isolaw.read(
        DATA / "tan_rollout_n_base.csv",
        metric="holdout_acc_raw",
        columns={"n": "rollout_n", "C": "prompts_seen*rollout_n"},
        set={"B_p": 512},
    )
    measured = runs_of_n.points.groupby("rollouts_per_problem")["compute"].agg(["min", "max"])
    first, last = sorted(measured["min"]), sorted(measured["max"])
    yield from runs("tan", 512, isolaw.fit(runs_of_n, metric="holdout_acc_raw"), (first[1], last[-2]))


def arithmetic(kind: str) -> Iterator[Row]:
    """Return rows of the recorded sweeps of a tiny model."""
    own = isolaw.read(DATA / "real-arithmetic.parquet")
    law = isolaw.fit(own, where={"problem_set": kind, "lr": 1e-3})
    yield from runs(f"arithmetic-{kind}", 16, law, (0, np.inf))


def figures() -> Iterator[Row]:
    """Return the rows from figures."""
    yield from points("isocompute-joint", None, "nstar_joint_easy.csv", "compute_rollouts_snapped")
    yield from points("isocompute-32", 32, "nstar_fixedBp_easy.csv", "compute_rollouts")
    yield from curves("isocompute-curves", "frontier_curves_appx_fixBprob_easy.csv")


def fits() -> Iterator[Row]:
    """Return the rows from runs."""
    yield from tan()
    yield from arithmetic("easy")
    yield from arithmetic("hard")


def written(rows: Iterator[Row]) -> list[dict[str, str]]:
    """Return rows in the form of the file, rounded to four digits."""
    out = []
    for source, *values in rows:
        texts = ["" if value is None or not np.isfinite(value) else f"{value:.4g}" for value in values]
        out.append(dict(zip(COLUMNS, [source, *texts], strict=True)))
    return out


if __name__ == "__main__":
    rows = [*written(figures()), *written(fits())]
    pd.DataFrame(rows, columns=COLUMNS).to_csv(FILE, index=False)
    print(f"{FILE}: {len(rows)} rows")
