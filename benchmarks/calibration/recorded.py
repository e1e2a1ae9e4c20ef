"""Read the recorded training settings that a simulation of the runs repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isolaw import metrics
from isolaw.commands import option
from isolaw.config.run import EXPONENTS, REFERENCE_BATCH, lr_ratio
from isolaw.errors import DataError
from isolaw.fits.selection import Configuration
from isolaw.runs import plain
from isolaw.simulators.interference import SIZES
from isolaw.simulators.model import ADVANTAGES

_VALIDATION = 300
_NEAR = np.log(1.1)  # an lr follows a rule of B if its log is at most this far from the rule


def _positive(value: Any) -> bool:
    return _number(value) and float(value) > 0


def _number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


# The columns of runs and of their points that a simulation uses, each with its accepted values and a test.
_RUNS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "lr": ("a positive number", _positive),
    "n_train_problems": ("1 or more", lambda v: _number(v) and float(v) >= 1),
    "advantage": (", ".join(ADVANTAGES), lambda v: v in ADVANTAGES),
    "zero_variance_filter": ("true or false", lambda v: isinstance(v, bool)),
    "replacement": ("true or false", lambda v: isinstance(v, bool)),
    "staleness": ("0, 1, 2, …", lambda v: _number(v) and float(v) >= 0 and float(v).is_integer()),
}
_POINTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "n_problems": ("1 or more", lambda v: _number(v) and float(v) >= 1),
    "n_samples": ("1 or more, or 0 for exact rewards", lambda v: _number(v) and (v == 0 or float(v) >= 1)),
}
_UPDATE: dict[str, Callable[[Any], Any]] = {"advantage": str, "zero_variance_filter": bool, "staleness": int}


@dataclass(frozen=True)
class Sizes:
    """The numbers of training problems D, validation problems, and answers per problem in an evaluation."""

    train: int
    validation: int
    samples: int


def check(source: str, table: pd.DataFrame, points: pd.DataFrame) -> None:
    """Raise `DataError`, with all issues, if the runs recorded values that no simulation can repeat."""
    wrong = []
    for frame, accepted in ((table, _RUNS), (points, _POINTS)):
        for name, (words, good) in accepted.items():
            values = frame[name].dropna().unique() if name in frame.columns else ()
            bad = sorted({repr(item) for v in values if not good(item := plain(v))})
            if bad:
                wrong.append(f"{name}: found {', '.join(bad)}; expected {words}")
    if wrong:
        raise DataError(f"{source}: " + "; ".join(wrong))


def sizes(
    points: pd.DataFrame, table: pd.DataFrame, metric: str, n_train: int | None, assumed: list[str]
) -> Sizes:
    """Return the sizes that the runs recorded, or assumed sizes.

    ``assumed`` receives a sentence for each assumption.
    """
    recorded = table.get("n_train_problems", pd.Series(dtype=float)).dropna()
    train = n_train or (int(float(recorded.iloc[0])) if len(recorded) else 0)
    if not train:
        train = SIZES[0]
        assumed.append(f"D is not recorded; isolaw assumes {train:,} training problems (--n-train)")
    known = points["n_problems"].dropna()
    validation = int(known.iloc[0]) if len(known) else _VALIDATION
    if not len(known):
        text = f"the size of the validation set is not recorded; isolaw assumes {validation} problems"
        assumed.append(f"{text} (--set n_problems=500), which determines the noise of an evaluation")
    answers = points["n_samples"].dropna()
    parsed = metrics.parse(metric)
    samples = int(answers.iloc[0]) if len(answers) else parsed[1] if parsed else 1
    return Sizes(train, validation, samples)


def lr_rule(
    configurations: Sequence[Configuration], table: pd.DataFrame, source: str, assumed: list[str]
) -> str:
    """Return the rule in `isolaw.config.run.EXPONENTS` that lr(B_p, n) follows.

    Raises `DataError` if the recorded lr follows no rule, because the lr at other batch sizes is then
    unknown.
    """
    recorded = table["lr_scaling"].iloc[0] if "lr_scaling" in table.columns else None
    if recorded in EXPONENTS:
        return str(recorded)
    if "lr" not in table.columns or table["lr"].isna().any():
        assumed.append("lr is not recorded; isolaw assumes lr ∝ √B")
        return "sqrt"
    recorded_lr = table.groupby(["problems_per_batch", "rollouts_per_problem"])["lr"].first()
    lr = np.log([float(recorded_lr[c.key]) for c in configurations])
    shape = np.log([c.key for c in configurations])
    away = {rule: float(np.ptp(lr - shape @ powers)) for rule, powers in EXPONENTS.items()}
    rule = min(away, key=lambda name: away[name])
    if away[rule] > 2 * _NEAR:
        values = ", ".join(f"{recorded_lr[c.key]} for {c.label}" for c in configurations)
        raise DataError(
            f"{source}: lr: found {values}; expected one lr, or lr ∝ √B, √B_p or B, since "
            "the lr at other batch sizes is unknown otherwise. "
            "Choose with " + option("where", "lr", float(recorded_lr[configurations[0].key]))
        )
    return rule


def lr_factor(problems: float, rollouts: float, rule: str = "sqrt") -> float:
    """Return lr(B_p, n) / η. For every rule, η is the lr that the square-root rule gives at B = 1."""
    return float(np.sqrt(REFERENCE_BATCH)) * lr_ratio(problems, rollouts, rule)


def update_of(table: pd.DataFrame) -> dict[str, Any]:
    """Return the recorded fields of `isolaw.simulators.model.Update`, which all simulated models share."""
    return {
        key: kind(plain(table[key].iloc[0]))
        for key, kind in _UPDATE.items()
        if key in table.columns and table[key].notna().all()
    }


def has_kl(table: pd.DataFrame, assumed: list[str]) -> bool:
    """Return whether the runs had a KL penalty; isolaw assumes so if they did not record it."""
    if "kl" not in table.columns or table["kl"].isna().any():
        assumed.append("the weight of the KL penalty is not recorded, so isolaw fits it")
        return True
    return bool((pd.to_numeric(table["kl"], errors="coerce") != 0).any())
