"""Which metric counts as reward when nobody said."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.fits.fit_options import fit_options
from isolaw.fits.metric import choose
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers


def runs(*series: tuple[str, str], steps: int = 3) -> Runs:
    rows = [
        {"run_id": "a", "step": s, "compute": 8 * s, "eval_set": e, "metric": m, "value": 0.5}
        for m, e in series
        for s in range(1, steps + 1)
    ]
    fixed: dict[str, Any] = {"problem_set": "p", "algorithm": "grpo", "seed": 0}
    return Runs(
        pd.DataFrame(rows).assign(problems_per_batch=2, rollouts_per_problem=4, **fixed), source="logs"
    )


TRAINING = [("reward", "train"), ("entropy", "train"), ("acc", "train")]


@pytest.mark.parametrize(
    ("series", "asked", "chosen"),
    [
        ([("avg@4", "validation"), ("avg@8", "aime24")], (None, None), ("avg@4", "validation")),
        ([("avg@8", "aime24"), *TRAINING], (None, None), ("avg@8", "aime24")),
        (
            [("avg@8", "aime24"), ("best@8", "aime24"), ("worst@8", "aime24")],
            (None, None),
            ("avg@8", "aime24"),
        ),
        (
            [("exact_match,strict-match", "validation"), *TRAINING],
            (None, None),
            ("exact_match,strict-match", "validation"),
        ),
        ([("pass@1", "math"), ("pass@8", "math")], (None, None), ("pass@1", "math")),
        (
            [("holdout_acc", "validation"), ("reward", "validation")],
            (None, None),
            ("holdout_acc", "validation"),
        ),
        ([("best@8", "aime24"), *TRAINING], (None, None), ("best@8", "aime24")),
        ([("avg@8", "aime24"), ("avg@8", "math")], (None, "math"), ("avg@8", "math")),
        ([("avg@8", "aime24"), ("avg@4", "math")], (None, "math"), ("avg@4", "math")),
        ([("avg@8", "aime24"), ("best@8", "aime24")], ("best@8", None), ("best@8", "aime24")),
        ([("reward", "train"), ("reward", "validation")], ("reward", None), ("reward", "validation")),
        ([("reward", "train"), ("avg@8", "aime24")], ("reward", None), ("reward", "train")),
        ([("acc", "train"), ("avg@8", "aime24")], (None, "train"), ("acc", "train")),
        ([("avg@8", "aime24")], ("anything", "anywhere"), ("anything", "anywhere")),
    ],
)
def test_the_only_one_it_can_be(series: Any, asked: Any, chosen: tuple[str, str]) -> None:
    metric, eval_set, said = choose(runs(*series), *asked)
    assert (metric, eval_set) == chosen
    default = (asked[0] or "avg@4", asked[1] or "validation")
    assert bool(said) == (chosen != default)
    assert all(f"reward is {metric} on {eval_set}, the only" in flag.text for flag in said)


@pytest.mark.parametrize(
    ("series", "asked", "words"),
    [
        (
            [("avg@8", "aime24"), ("avg@8", "math"), *TRAINING],
            (None, None),
            [
                "logs: found no avg@4 on validation, and 2 metrics that could replace it",
                "Choose with metric and eval_set",
                "avg@8 on aime24 (1 run, 3 checkpoints), avg@8 on math (1 run, 3 checkpoints)",
                'metric="reward", eval_set="train" (1 run, 3 checkpoints)',
            ],
        ),
        (
            TRAINING,
            (None, None),
            ["no metrics that could replace it", "measured metrics: none", 'eval_set="train"'],
        ),
        ([("f1", "validation"), *TRAINING], (None, None), ['checkpoints); if f1 is a reward: metric="f1"']),
        ([("loss", "train")], (None, None), ["measured metrics: none", "on train: loss"]),
        ([("avg@8", "aime24")], ("avg@5", None), ["no avg@5 on validation", "avg@8 on aime24"]),
        ([("avg@8", "aime24")], (None, "math"), ["no avg@4 on math", "avg@8 on aime24"]),
        ([("avg@8", f"set{i}") for i in range(30)], (None, None), ["30 metrics that could", "and 10 more"]),
    ],
)
def test_otherwise_what_there_is(series: Any, asked: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        choose(runs(*series), *asked)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(("metric", "turned"), [("error_rate", "1-error_rate"), ("val_loss", "-val_loss")])
def test_what_falls_as_training_improves_is_no_reward(metric: str, turned: str) -> None:
    with pytest.raises(InputError, match="falls as training improves") as error:
        choose(runs((metric, "validation")), metric)
    assert turned in str(error.value)


@pytest.mark.parametrize(("column", "name"), [("error_rate", "accuracy"), ("val_loss", "score")])
def test_turned_round_as_the_message_says_it_is_fitted(column: str, name: str) -> None:
    rows = [
        {"run_id": f"n{n}", "n": n, "B_p": 32, "seed": 0, "step": s, column: 0.6 - 1e-5 * n * s}
        for n in (8, 32, 128)
        for s in range(1, 4000 // n, 400 // n)
    ]
    table = pd.DataFrame(rows)
    with pytest.raises(InputError) as error:
        isolaw.fit(table, metric=column)
    columns = json.loads(str(error.value).partition("columns=")[2])
    assert list(columns) == [name]
    law = isolaw.fit(table, columns=columns, metric=name, draws=0)
    assert law.document.frontier
    own = isolaw.read(table, columns=columns, metric=name).points["value"]
    assert own.iloc[-1] > own.iloc[0]


def test_the_options_of_fit_name_the_only_evaluation() -> None:
    rows = [
        runs(("f1", "validation"), *TRAINING, steps=9).points.assign(run_id=str(n), rollouts_per_problem=n)
        for n in (4, 8, 16)
    ]
    table = pd.concat(rows).assign(
        compute=lambda t: 2 * t.rollouts_per_problem * t.step, value=lambda t: t.step / 9
    )
    assert fit_options(Runs(table)) == ["--metric", "f1", "--eval-set", "validation"]
