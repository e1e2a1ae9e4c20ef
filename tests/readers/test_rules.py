"""The rules on records, in every container: one content is the same runs, or raises the same question.

Each container writes records: a step, a reward, a loss, a count of rollouts, and an evaluation at some steps.
"""

from __future__ import annotations

import csv
import io
import json
import pprint
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

Record = dict[str, Any]
SET = {"n": 4, "B_p": 8}


def records(steps: list[int], shift: float = 0.0, **more: Any) -> list[Record]:
    return [{"step": s, "mean_reward": round(0.1 * s + shift, 3), "loss": 0.5, **more} for s in steps]


def verl(rows: list[Record]) -> tuple[str, str]:
    names = {"mean_reward": "critic/score/mean", "loss": "actor/pg_loss", "val_acc": "val-core/m/acc/mean@4"}
    lines = []
    for row in rows:
        items = {names.get(key, f"x/{key}"): value for key, value in row.items() if key != "step"}
        lines.append(" - ".join([f"step:{row['step']}", *(f"{k}:{v}" for k, v in items.items())]))
    return "run.log", "\n".join(lines) + "\n"


def dictionaries(rows: list[Record]) -> tuple[str, str]:
    names = {"mean_reward": "rollout/reward_mean", "loss": "policy_loss", "val_acc": "eval_m_pass1"}
    lines = [
        f"Global step {row['step']}: { ({names.get(k, k): v for k, v in row.items() if k != 'step'}) }"
        for row in rows
    ]
    return "run.log", "Starting\n" + "\n".join(lines) + "\n"


def own_console(rows: list[Record]) -> tuple[str, str]:
    lines = []
    for row in rows:
        pairs = " ".join(f"{key}={value}" for key, value in row.items() if key not in ("step", "val_acc"))
        lines += [f"[step {row['step']}/9] {pairs}"]
        lines += [f"[eval] step {row['step']}/9 | acc={row['val_acc']}"] if "val_acc" in row else []
    return "run.log", "Starting\n" + "\n".join(lines) + "\n"


def jsonl(rows: list[Record]) -> tuple[str, str]:
    return "run.jsonl", "".join(json.dumps(row) + "\n" for row in rows)


def json_list(rows: list[Record]) -> tuple[str, str]:
    return "run.json", json.dumps({"records": rows}, indent=1)


def _cells(rows: list[Record]) -> tuple[list[str], list[list[Any]]]:
    names = list(dict.fromkeys(key for row in rows for key in row))
    return names, [[row.get(name, "") for name in names] for row in rows]


def table(rows: list[Record]) -> tuple[str, str]:
    text = io.StringIO()
    names, cells = _cells(rows)
    csv.writer(text).writerows([names, *cells])
    return "run.csv", text.getvalue()


def export(rows: list[Record]) -> tuple[str, str]:
    names, cells = _cells(rows)
    header = ["Step", *(f"r - {name}" for name in names if name != "step")]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([header, *cells])
    return "run.csv", text.getvalue()


def history(rows: list[Record]) -> tuple[str, str]:
    names, cells = _cells(rows)
    text = io.StringIO()
    lines = [[at, at * 1.5, *line] for at, line in enumerate(cells)]
    csv.writer(text).writerows([["_step", "_runtime", *names], *lines])
    return "run.csv", text.getvalue()


Write = Callable[[list[Record]], tuple[str, str]]
CONTAINERS: list[Write] = [
    *(verl, dictionaries, own_console, jsonl, json_list, table, export, history),
]
IN_ORDER = [one for one in CONTAINERS if one is not export]  # a panel has one row for each step
OWN = [one for one in CONTAINERS if one not in (verl, dictionaries)]  # without names of a framework
every = pytest.mark.parametrize("write", CONTAINERS)
of_ones_own = pytest.mark.parametrize("write", OWN)
in_order = pytest.mark.parametrize("write", IN_ORDER)


def read(folder: Path, written: tuple[str, str], metric: str | None = "mean_reward", **values: Any) -> Any:
    name, text = written
    (folder / name).write_text(text)
    pattern = values.pop("name_pattern", None)
    return survey([folder / name], HowToRead.of(set=values, metric=metric, name_pattern=pattern))


def curve(reading: Any, metric: str, eval_set: str) -> dict[int, float]:
    metric = metric if {metric} & {*reading.runs.points["metric"]} else "reward"  # a framework's name
    points = reading.runs.points
    rows = points[(points["eval_set"] == eval_set) & (points["metric"] == metric)]
    return dict(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


@every
def test_a_reward_next_to_a_loss_is_of_training(tmp_path: Path, write: Write) -> None:
    reading = read(tmp_path, write(records([1, 2, 3, 4])), **SET)
    assert curve(reading, "mean_reward", "train") == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert reading.runs.points["compute"].max() == 128


@every
def test_an_evaluation_is_of_validation(tmp_path: Path, write: Write) -> None:
    rows = records([1, 2, 3, 4])
    for row in rows[1::2]:
        row["val_acc"] = round(row["mean_reward"] / 2, 3)
    metric = "acc" if write is own_console else "val_acc"
    reading = read(tmp_path, write(rows), metric, **SET)
    name = {verl: "avg@4", dictionaries: "pass@1"}.get(write, metric)
    eval_set = {verl: "m", dictionaries: "m"}.get(write, "validation")
    assert curve(reading, name, eval_set) == {2: 0.1, 4: 0.2}


@in_order
def test_a_resumed_run_is_one(tmp_path: Path, write: Write) -> None:
    rows = records([1, 2, 3]) + records([2, 3, 4, 5], shift=0.05)
    reading = read(tmp_path, write(rows), **SET)
    assert [candidate.status for candidate in reading.candidates] == [LogStatus.READY]
    assert curve(reading, "mean_reward", "train") == {1: 0.1, 2: 0.25, 3: 0.35, 4: 0.45, 5: 0.55}


@pytest.mark.slow
@in_order
def test_trainings_in_one_file_are_asked_for_their_seeds(tmp_path: Path, write: Write) -> None:
    rows = records([1, 2, 3, 4]) + records([1, 2, 3], shift=0.05)
    found = read(tmp_path, write(rows), **SET).candidates
    assert [(result.steps, result.needs) for result in found] == [((1, 4), ["seed"]), ((1, 3), ["seed"])]
    assert [result.run.endswith("#2") for result in found] == [False, True]
    reading = read(tmp_path, write(rows), **SET, **{"*#2:seed": 1})
    assert [group.facts["seed"].value for group in reading.ready] == [0, 1]


@pytest.mark.slow
@in_order
def test_a_run_that_resumes_before_another_training_begins(tmp_path: Path, write: Write) -> None:
    rows = records([1, 2, 3, 4]) + records([3, 4, 5], shift=0.05) + records([1, 2, 3], shift=0.07)
    found = read(tmp_path, write(rows), **SET).candidates
    assert [(result.steps, result.needs) for result in found] == [((1, 5), ["seed"]), ((1, 3), ["seed"])]
    reading = read(tmp_path, write(rows), **SET, **{"*#2:seed": 1})
    points = reading.runs.points
    points = points[points["metric"].isin(["mean_reward", "reward"])]
    curves = {steps.max(): steps.tolist() for _, steps in points.groupby("run_id")["step"]}
    assert curves == {5: [1, 2, 3, 4, 5], 3: [1, 2, 3]}
    assert sorted(points["value"]) == pytest.approx([0.1, 0.17, 0.2, 0.27, 0.35, 0.37, 0.45, 0.55])


@in_order
def test_a_run_that_goes_on_from_a_checkpoint_twice_is_no_other_training(
    tmp_path: Path, write: Write
) -> None:
    rows = records([5, 6, 7]) + records([5, 6, 7, 8], shift=0.05)
    (own,) = read(tmp_path, write(rows), **SET).candidates
    assert (own.status, own.steps) == (LogStatus.READY, (5, 8))


@pytest.mark.slow
@every
@pytest.mark.parametrize(
    "counter",
    [
        *(pytest.param(k, marks=pytest.mark.nightly) for k in ("rollout_count", "n_trajectories")),
        "total_episodes",
    ],
)
def test_a_count_completes_or_contradicts(tmp_path: Path, write: Write, counter: str) -> None:
    rows = records([1, 2, 3, 4])
    for row in rows:
        row[counter] = 32 * (row["step"] if counter.startswith("total") else 1)
    (own,) = read(tmp_path, write(rows), n=4).ready
    assert own.facts["problems_per_batch"].value == 8
    assert len(read(tmp_path, write(rows), **SET).ready) == 1
    other = read(tmp_path, write(rows), n=4, B_p=16)
    assert not other.ready
    assert counter in other.candidates[0].message
    assert "B_p" in other.candidates[0].message


@pytest.mark.slow
@of_ones_own
@pytest.mark.parametrize("name", ["solve_rate", "win_rate"])
def test_an_accuracy_next_to_a_loss_is_no_supervised_training(
    tmp_path: Path, write: Write, name: str
) -> None:
    rows = [{"step": s, "loss": 0.5, "lr": 1e-6, name: s / 10} for s in range(1, 7)]
    (run,) = read(tmp_path, write(rows), None, **SET).ready
    assert run.metrics == {"train": {name: 6}}


@of_ones_own
def test_the_only_accuracy_is_the_metric_and_a_group_may_feed_several_updates(
    tmp_path: Path, write: Write
) -> None:
    rows = [{"step": s, "acc": s / 10} for s in range(1, 7)]
    (run,) = read(tmp_path, write(rows), None, n=8, B=2).ready
    assert (run.metrics, run.compute) == ({"validation": {"acc": 6}}, (2, 12))


@pytest.mark.parametrize("write", [own_console, jsonl, json_list])
def test_a_list_of_rewards_is_its_mean_and_its_length_is_n(tmp_path: Path, write: Write) -> None:
    rows = [{"step": s, "loss": 0.5, "rewards": [s / 10, 0.0]} for s in range(1, 7)]
    reading = read(tmp_path, write(rows), "rewards", B_p=4)
    assert [run.n for run in reading.ready] == [2]
    assert reading.runs.points["value"].tolist() == pytest.approx([s / 20 for s in range(1, 7)])


@pytest.mark.parametrize("write", [jsonl, json_list, table])
def test_rows_that_are_rollouts_are_asked_for_their_number(tmp_path: Path, write: Write) -> None:
    rows = [{"step": s, "prompt": 4 * s + p, "k": k, "reward": (s + p + k) % 2}
            for s in range(1, 6) for p in range(4) for k in range(2)]  # fmt: skip
    name, text = write(rows)
    (run,) = read(tmp_path, (name, text), "reward", n=2, B_p=4).candidates
    assert "no column distinguishes them" in run.message
    points = isolaw.read(
        tmp_path / name, metric="reward", columns={"rollout": "k", "problem": "prompt"}
    ).points
    assert (points["compute"].tolist(), set(points["value"])) == ([8, 16, 24, 32, 40], {0.5})


@pytest.mark.parametrize("write", [verl, jsonl, json_list, table, export, history])
def test_settings_above_the_records_are_the_configuration(tmp_path: Path, write: Write) -> None:
    rows = records([1, 2, 3, 4])
    name, text = write(rows)
    settings = {"n": 4, "B_p": 8, "seed": 7}
    if write is verl:
        config = {
            "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_epochs": 1}},
            "data": {"train_batch_size": 8, "seed": 7, "train_files": "/d/a.parquet"},
            "algorithm": {"adv_estimator": "grpo"}, "trainer": {"nnodes": 1, "n_gpus_per_node": 8},
        }  # fmt: skip
        text = pprint.pformat(config) + "\n" + text
    elif write in (jsonl, json_list):
        name, text = write([{"event": "config", **settings}, *({"event": "step", **row} for row in rows)])
    elif write is export:  # the label of the run
        text = text.replace('"r - ', '"n: 4, B_p: 8, seed: 7 - ')
    else:
        name, text = write([row | settings for row in rows])
    (own,) = read(tmp_path, (name, text)).ready
    assert (own.facts["rollouts_per_step"].value, own.facts["seed"].value) == (32, 7)


@pytest.mark.parametrize("write", [jsonl, json_list, table, own_console, history])
def test_what_is_measured_is_no_label_of_runs(tmp_path: Path, write: Write) -> None:
    """Two processes that write one step each: no loss, time or memory distinguishes them."""
    rows = records([1, 1, 2, 2, 3, 3])
    for at, row in enumerate(rows):
        row |= {"loss": 0.5 + at / 9, "mean_reward": at / 9, "elapsed_time": 1.5 * at, "gpu_mem_gb": 9 + at}
    try:
        reading = read(tmp_path, write(rows), **SET)
    except DataError as error:
        message = str(error)
    else:
        assert not reading.ready
        message = str(reading.candidates[0].message)
    for name in ("loss=loss", "mean_reward=mean", "elapsed_time=", "gpu_mem", '"loss"', '"elapsed_time"'):
        assert name not in message


def test_a_seed_in_the_label_of_an_export_is_not_replaced(tmp_path: Path) -> None:
    """Two groups with one seed: what differs is asked for, and no other seed is proposed."""
    header = [f"n: 4, B_p: 8, seed: 7, {word} - mean_reward" for word in ("lr: 0.1", "lr: 0.2")]
    rows = [[s, f"0.{s}", f"0.{s}5"] for s in range(1, 5)]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["Step", *header], *rows])
    reading = read(tmp_path, ("run.csv", text.getvalue()))
    assert [group.facts["seed"].value for group in reading.ready] == [7, 7]
    named = re.sub("n: 4, B_p: 8, seed: 7, lr: 0.[12]", "B_p: 8, seed: 7, Name: base_n", text.getvalue())
    for n in (4, 8):
        named = named.replace("base_n - ", f"base_n{n} - ", 1)
    (own,) = read(tmp_path, ("run.csv", named)).candidates
    assert (own.needs, own.offered["n"]) == (["n"], ("name_pattern", "*_n{n}*"))
    with pytest.raises(DataError) as error:
        read(tmp_path, ("run.csv", named)).runs  # noqa: B018
    assert str(error.value).endswith('Add name_pattern="*_n{n}*"')
    reading = read(tmp_path, ("run.csv", named), "mean_reward", name_pattern="*_n{n}*")
    assert [(group.n, group.facts["seed"].value) for group in reading.ready] == [(4, 7), (8, 7)]
