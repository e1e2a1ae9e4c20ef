"""The rest of a run, predicted from its first 40 %, on real runs: python benchmarks/rest_of_run.py

Runs: Qwen2.5 base, 0.5B to 14B, three runs each (Tan et al., arXiv 2509.25300). Each run's first 40 % of
checkpoints are fitted, on its own, and every later one is predicted. Intervals are for a single evaluation on
500 problems, from 1,000 draws:

    blocks     refits to the fitted curve plus its residuals in blocks; the later evaluations have them, too
    binomial   refits to binomial counts about the fitted curve; the later evaluations are such counts

Beside the curves, what one would do without any: the last value stays; the mean of the last five stays; a
straight line in log C goes on. RMSE is over single later evaluations, whose own error is part of it ("whole
run" says how large: exp fitted to all checkpoints, no prediction); the bias and its interval are for the mean
of the last ten. "open": the fit says itself that its ceiling is not determined.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from isolaw.fits.curves.learning_curves import FAMILIES, fit_curves

DATA = Path(__file__).parents[1] / "examples" / "data" / "tan_qwen_holdout_per_run_base.csv"
SHARE, PROBLEMS, DRAWS, LAST = 0.4, 500, 1000, 10
Floats = np.ndarray
# A method takes the fitted part and the later compute, and returns the prediction (P,), draws of the later
# evaluations (D, P), and whether it says itself that its ceiling is not determined.
Method = Callable[[Floats, Floats, Floats, np.random.Generator], tuple[Floats, Floats, bool]]


def in_blocks(residuals: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Residuals in circular blocks of about P^(1/3), (DRAWS, size)."""
    length = max(1, round(residuals.size ** (1 / 3)))
    starts = rng.integers(0, residuals.size, (DRAWS, -(-size // length)))
    index = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, :size] % residuals.size
    return residuals[index]


def curve(family: str, scheme: str) -> Method:
    """A learning curve of one family."""

    def method(c: Floats, y: Floats, later: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, bool]:
        ones = np.ones((1, y.size))
        fit = fit_curves(c, y[None], ones, family)
        at = np.clip(fit(c)[0], 0.0, 1.0)
        parameters = len(FAMILIES[family].parameters)
        residuals = (y - at) * np.sqrt(y.size / (y.size - parameters))
        if scheme == "binomial":
            drawn = rng.binomial(PROBLEMS, at, (DRAWS, y.size)) / PROBLEMS
        else:
            drawn = at + in_blocks(residuals, y.size, rng)
        rest = np.clip(fit_curves(c, drawn, ones, family)(later), 0.0, 1.0)
        if scheme == "binomial":
            new = rng.binomial(PROBLEMS, rest) / PROBLEMS
        else:
            new = rest + in_blocks(residuals, later.size, rng)
        return np.clip(fit(later)[0], 0.0, 1.0), new, bool(fit.open_ended[0])

    return method


def stays(last: int) -> Method:
    """The mean of the last evaluations stays; all errors are binomial."""

    def method(c: Floats, y: Floats, later: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, bool]:
        level = float(y[-last:].mean())
        true = rng.binomial(PROBLEMS * last, level, (DRAWS, 1)) / (PROBLEMS * last)
        return np.full(later.size, level), rng.binomial(PROBLEMS, true, (DRAWS, later.size)) / PROBLEMS, False

    return method


def line(c: Floats, y: Floats, later: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, bool]:
    """Reward = a + b log C, with the textbook's prediction interval."""
    rows, new_rows = (np.stack([np.ones_like(v), np.log(v)], axis=1) for v in (c, later))
    b, sse, *_ = np.linalg.lstsq(rows, y, rcond=None)
    freedom = y.size - 2
    root = np.linalg.cholesky(np.linalg.inv(rows.T @ rows))
    scale = np.sqrt(sse[0] / freedom * freedom / rng.chisquare(freedom, (DRAWS, 1)))
    drawn = (b + scale * rng.standard_normal((DRAWS, 2)) @ root.T) @ new_rows.T
    return new_rows @ b, drawn + scale * rng.standard_normal(drawn.shape), False


METHODS: dict[tuple[str, str], Method] = {
    **{(f, scheme): curve(f, scheme) for f in FAMILIES for scheme in ("blocks", "binomial")},
    ("last value", "binomial"): stays(1),
    ("mean of last 5", "binomial"): stays(5),
    ("line in log C", "normal"): line,
}


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each run and method."""
    rows = []
    for (size, run), own in table.groupby(["model_size_B", "run"]):
        own = own.sort_values("step")
        c, y = own["compute_C_flops"].to_numpy(np.float64), own["correct_of_500"].to_numpy() / PROBLEMS
        fitted = round(SHARE * y.size)
        rest, end = y[fitted:], y[-LAST:].mean()
        whole = fit_curves(c, y[None], np.ones((1, y.size)), "exp")(c[fitted:])[0]
        for (method, interval), predict in METHODS.items():
            found, drawn, is_open = predict(c[:fitted], y[:fitted], c[fitted:], np.random.default_rng(0))
            low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
            end_low, end_high = np.quantile(drawn[:, -LAST:].mean(axis=1), [0.025, 0.975])
            rows.append(
                {
                    "size": size,
                    "run": run,
                    "method": method,
                    "interval": interval,
                    "rmse": np.sqrt(np.mean((found - rest) ** 2)),
                    "bias": found[-LAST:].mean() - end,
                    "held": np.mean((low <= rest) & (rest <= high)),
                    "width": np.mean(high - low),
                    "end held": end_low <= end <= end_high,
                    "end width": end_high - end_low,
                    "open": is_open,
                    "whole": np.sqrt(np.mean((whole - rest) ** 2)),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    """Print both tables, for all steps and from step 30 on."""
    table = pd.read_csv(DATA)
    table = table[table["run"].notna()]
    for first in (12, 30):
        result = judged(table[table["step"] >= first])
        runs = result.groupby(["size", "run"]).ngroups
        print(f"\n{runs} runs, checkpoints from step {first} on; the first {SHARE:.0%} are fitted")
        print(
            f"{'':15} {'interval':9} {'RMSE':>6} {'bias':>7} {'|bias|':>6} {'held':>6} {'width':>6} "
            f"{'end held':>8} {'width':>6} {'open':>5}"
        )
        print(f"{'whole run':25} {result['whole'].mean():6.4f}")
        for (method, interval), own in result.groupby(["method", "interval"], sort=False):
            print(
                f"{method:15} {interval:9} {own['rmse'].mean():6.4f} {own['bias'].mean():+7.4f} "
                f"{own['bias'].abs().mean():6.4f} {own['held'].mean():6.1%} {own['width'].mean():6.3f} "
                f"{own['end held'].sum():5d}/{runs} {own['end width'].mean():6.3f} "
                f"{own['open'].sum():2d}/{runs}"
            )
        print("bias at the end, by size")
        once = result.drop_duplicates(["size", "run", "method"])
        by_size = once.pivot_table(index="method", columns="size", values="bias", sort=False)
        print(by_size.to_string(float_format="{:+.3f}".format))


if __name__ == "__main__":
    main()
