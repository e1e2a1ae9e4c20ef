"""Does a calibrated simulator see further than a fitted surface? ``python -m benchmarks.calibration COMMAND``

    known      presets whose constants are known: 9 n with one seed each to 1e6, a recommendation for 1e7
    tables     benchmarks/calibration.json, and the tables in docs/calibrate.md

Truths are presets around the shipped one, every constant times its own 2^U, U uniform in [−1, 1]
(`isolaw.replication.jitter`). `TUNING` were looked at while the calibration was made; `JUDGING` judge it. The
calibration sees what a user's runs would show: neither the constants nor the kind of the problem set. The true
reward of a cell is the mean of `SEEDS` other problem sets with exact pass rates.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import isolaw
from isolaw.backends.bandit import Bandit
from isolaw.calibration.calibrate import VERSION, calibrate
from isolaw.calibration.forecast import forecast
from isolaw.calibration.observed import lr_factor
from isolaw.calibration.simulation import Cell, Protocol
from isolaw.errors import IsolawError
from isolaw.fits import ESTIMATOR
from isolaw.replication.jitter import constants_of, jittered
from isolaw.simulators.interference import PRESETS, SIZES
from isolaw.simulators.presets import read_preset
from isolaw.simulators.problems import difficulty

KEPT = Path(__file__).parent / ".designs" / "calibration"
LEVELS = tuple(2**k for k in range(3, 12))
BATCH, MEASURED, TARGET = 32, 1_000_000, 10_000_000
SETS = ("easy", "hard")
TUNING, JUDGING = (300, 301), range(400, 406)
SEEDS = 24
CELLS = [(BATCH, n) for n in LEVELS]


def known(kind: str, index: int, jobs: int) -> dict[str, Any]:
    """Return what the calibration and the estimator recommend in one preset, and what that loses."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{kind}-{index}-v{VERSION}-e{ESTIMATOR}-s{Bandit.version}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    changed = jittered("interference", constants_of("interference", "P", {}), index)
    rewards, curves = _truth(kind, changed, jobs)
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(kind, changed, Path(folder))
        began = time.monotonic()
        found = calibrate(runs, out=Path(folder) / "preset.toml", jobs=jobs)
        seconds = time.monotonic() - began
        ahead = forecast(read_preset(Path(folder) / "preset.toml"), TARGET, CELLS, jobs=jobs)
        law = _by_estimator(runs)
    best = int(rewards.argmax())
    near = [LEVELS[k] for k in range(len(LEVELS)) if rewards.max() - rewards[k] <= 0.001]
    own = LEVELS.index(ahead.best[1])
    low, high = ahead.interval(1)
    band = np.quantile(ahead.rewards, (0.05, 0.95), axis=0)
    later = (ahead.compute > MEASURED * 1.05)[None, :] & np.isfinite(curves)
    at = np.array([np.interp(ahead.compute, c, r) for c, r in zip(*_grid(curves, ahead), strict=True)])
    held = ((at >= band[0]) & (at <= band[1]))[later]
    result = {
        "kind": kind,
        "index": index,
        "rewards": rewards.tolist(),
        "best": LEVELS[best],
        "calibrated": {
            "n": LEVELS[own],
            "regret": float(rewards[best] - rewards[own]),
            "interval": [low, high],
            "covers": bool(any(low <= n <= high for n in near)),
            "band": float(np.mean(held)),
            "error": float(np.sqrt(np.mean((ahead.final.mean(axis=0) - rewards) ** 2))),
            "misfit": found.posterior.misfit,
            "covered": found.covered,
            "seconds": seconds,
            "ensemble": ahead.final.mean(axis=0).tolist(),
        },
        "estimator": {
            **law,
            "regret": None if law["n"] is None else float(rewards[best] - rewards[LEVELS.index(law["n"])]),
        },
    }
    path.write_text(json.dumps(result))
    return result


def _grid(curves: Any, ahead: Any) -> tuple[list[Any], list[Any]]:
    return [ahead.compute] * len(curves), list(curves)


def _truth(kind: str, changed: dict[str, float], jobs: int) -> tuple[Any, Any]:
    """The mean reward of each cell at the target, and at the forecast's C."""
    from isolaw.calibration.forecast import POINTS

    own = replace(PRESETS["P"], **changed)
    lr, kl = (own.lr_easy, own.kl_easy) if kind == "easy" else (own.lr_hard, own.kl_hard)
    own = replace(own, lr_easy=lr, kl_easy=kl)
    grid = np.geomspace(max(BATCH * LEVELS[0], TARGET / 1e4), TARGET, POINTS)
    cells = []
    for b, n in CELLS:
        steps = sorted({0, *(int(c * (1 + 1e-12)) // (b * n) for c in grid)})
        cells.append(Cell(b, n, lr_factor(b * n), tuple(steps), (0,) * len(steps)))
    protocol = Protocol(tuple(cells), *SIZES, False)
    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(lambda s: protocol.simulate_cells(own, difficulty(kind), s), range(SEEDS)))
    curves = np.array(
        [
            np.interp(grid, cell.compute, np.mean([one[k] for one in made], axis=0))
            for k, cell in enumerate(cells)
        ]
    )
    return curves[:, -1], curves


def _runs(kind: str, changed: dict[str, float], folder: Path) -> Any:
    spec = {
        "sweep": {"backend": "bandit", "compute": MEASURED, "seeds": [7]},
        "grid": {"problems_per_batch": [BATCH], "rollouts_per_problem": list(LEVELS)},
        "limits": {"max_batch_rollouts": BATCH * LEVELS[-1]},
        "problems": {"set": kind},
        "bandit": {"parameters": changed},
        "evaluation": {"points": 40},
    }
    return isolaw.sweep(spec, out=folder / "runs")


def _by_estimator(runs: Any) -> dict[str, Any]:
    """What `isolaw.fit` and its law recommend for the target."""
    try:
        law = isolaw.fit(runs)
        prediction = law.predict(compute=TARGET, ignore_range=False) if False else law.predict(compute=TARGET)
    except IsolawError as error:
        return {"n": None, "why": str(error)}
    if not prediction.options:
        return {"n": None, "why": "refused"}
    measured = [o for o in prediction.options if o.allocation.rollouts_per_problem in LEVELS]
    return {"n": measured[0].allocation.rollouts_per_problem} if measured else {"n": None, "why": "between"}


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("known",))
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    for index in TUNING if given.tuning else JUDGING:
        for kind in SETS:
            row = known(kind, index, given.jobs)
            print(json.dumps({k: v for k, v in row.items() if k != "rewards"}), flush=True)
            print(np.round(row["rewards"], 3), file=sys.stderr)


if __name__ == "__main__":
    main()
