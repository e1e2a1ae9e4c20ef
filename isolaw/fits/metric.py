"""Which metric counts as reward when nobody said: avg@4 on validation, or the only one it can be."""

from __future__ import annotations

import pandas as pd

from isolaw.errors import DataError
from isolaw.fits.document.flags import Code, Flag
from isolaw.metrics import is_accuracy, is_mean_accuracy
from isolaw.runs import Runs

METRIC, EVAL_SET = "avg@4", "validation"
_SHOWN = 20


def choose(runs: Runs, metric: str | None = None, eval_set: str | None = None) -> tuple[str, str, list[Flag]]:
    """Return the metric and the evaluation set to fit, and what to tell the user of the choice.

    ``avg@4`` on ``validation`` where it was measured. Otherwise the only mean accuracy (``avg@8``,
    ``pass@1``) that was measured on held-out problems; where there is none, the only accuracy of another
    kind (``best@8``).

    Parameters
    ----------
    runs
        all runs at hand.
    metric, eval_set
        what was asked for; None leaves it open.

    Raises
    ------
    DataError
        none is left, or several: the message lists what was measured.

    >>> row = dict(run_id="a", problem_set="easy", algorithm="grpo", problems_per_batch=32,
    ...            rollouts_per_problem=8, seed=0, step=1, compute=256, eval_set="aime24",
    ...            metric="avg@8", value=0.5)
    >>> metric, eval_set, flags = choose(Runs(pd.DataFrame([row])))
    >>> metric, eval_set, flags[0].text
    ('avg@8', 'aime24', 'reward is avg@8 on aime24, the only accuracy measured')
    """
    if metric is not None and eval_set is not None:
        return metric, eval_set, []
    series = runs.points.groupby(["eval_set", "metric"])["run_id"].agg(["nunique", "size"])
    there = [(str(own), str(name)) for own, name in series.index]
    if (eval_set or EVAL_SET, metric or METRIC) in there:
        return metric or METRIC, eval_set or EVAL_SET, []
    open_ = [
        (own, name)
        for own, name in there
        if name == (metric or name) and own == (eval_set or own) and (own != "train" or eval_set or metric)
    ]
    if metric is not None:
        found = [pair for pair in open_ if pair[0] != "train"] or open_
    else:
        found = [pair for pair in open_ if is_mean_accuracy(pair[1])]
        found = found or [pair for pair in open_ if is_accuracy(pair[1])]
    if len(found) != 1:
        raise DataError(_refusal(series, metric, eval_set, len(found), runs.source))
    own, name = found[0]
    text = f"reward is {name} on {own}, the only {'such' if metric else 'accuracy'} measured"
    return name, own, [Flag(Code.REWARD_CHOSEN, text)]


def _refusal(series: pd.DataFrame, metric: str | None, eval_set: str | None, found: int, source: str) -> str:
    wanted = " on ".join(part for part in (metric or METRIC, eval_set or EVAL_SET) if part)
    held_out = series[series.index.get_level_values("eval_set") != "train"]
    shown = [_described(row) for row in held_out.head(_SHOWN).itertuples()]
    more = f" and {len(held_out) - _SHOWN} more" if len(held_out) > _SHOWN else ""
    text = f"{source + ': ' if source else ''}no {wanted}, and {found or 'none'} that could stand for it"
    text += f". Choose with --metric and --eval-set; measured: {', '.join(shown) or 'no evaluation'}{more}"
    reward = ("train", "reward")
    if reward in series.index:
        row = next(series.loc[[reward]].itertuples())
        text += f"; the training reward is --metric reward --eval-set train ({_counts(row)})"
    else:
        train = [name for own, name in series.index if own == "train"]
        text += f"; on train: {', '.join(train[:_SHOWN])}" if train else ""
    return text


def _described(row: object) -> str:
    eval_set, metric = row.Index  # type: ignore[attr-defined]
    return f"{metric} on {eval_set} ({_counts(row)})"


def _counts(row: object) -> str:
    runs, size = row.nunique, row.size  # type: ignore[attr-defined]
    return f"{runs} run{'' if runs == 1 else 's'}, {size:,} checkpoint{'' if size == 1 else 's'}"
