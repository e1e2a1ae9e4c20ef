"""Tables in other forms than CSV: a JSON document with a list of steps, JSON lines with a header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.table_files import load

REWARDS = [0.125, 0.25, 0.375]
STEPS = [{"step": k, "eval": {"acc": r}, "lengths": [1, 2]} for k, r in enumerate(REWARDS, 1)]
OF_STEPS: list[Any] = [
    STEPS,
    {"steps": STEPS, "group_size": 4, "samples": [{"text": "a"}, {"text": "b"}]},
    {
        "run": {"history": STEPS, "name": "r"},
        "config": {"train": {"lr": 1e-6}, "group_size": 4},
        "notes": [1],
    },
]


@pytest.mark.parametrize("document", OF_STEPS)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_documents_list_of_steps(tmp_path: Path, document: Any, indent: int | None) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document, indent=indent) + "\n")
    frame = load(path)
    assert frame["eval.acc"].tolist() == REWARDS
    given = {"B_p": 8} | ({"n": 4} if isinstance(document, list) else {})
    columns = {} if isinstance(document, list) else {"n": "group_size"}
    runs = isolaw.read(path, columns=columns, set=given, metric="eval.acc")
    assert runs.points["compute"].tolist() == [32, 64, 96]
    assert runs.points["value"].tolist() == REWARDS
    if not isinstance(document, list):
        with pytest.raises(DataError, match=r"\"n\": \"group_size\""):  # its own proposal
            isolaw.read(path, set={"B_p": 8}).points  # noqa: B018


def test_a_header_is_no_step(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    header = {"type": "config", "num_generations": 4, "time": 1}
    rows = [{"type": "step", "time": k, "iteration": k, "acc": r} for k, r in enumerate(REWARDS, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)))
    frame = load(path)
    assert frame.index.tolist() == [2, 3, 4]
    assert frame["num_generations"].tolist() == [4, 4, 4]
    assert frame["type"].tolist() == ["step"] * 3
    assert any("line 1 has no step" in note for note in frame.attrs["notes"])
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"iteration": 0, "acc": 0.1}, *rows)))
    assert len(load(path)) == 4  # an evaluation before training is a step


def test_a_frameworks_lines_below_their_configuration(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = [{"config": {"num_generations": 4, "seed": 3}}]
    rows += [{"step": k, "reward": r, "reward_std": 0.1} for k, r in enumerate(REWARDS, 1)]  # type: ignore[dict-item]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = isolaw.read(path, set=["B_p=8"]).points
    assert points[["rollouts_per_problem", "seed"]].iloc[0].tolist() == [4, 3]
    assert points[points["metric"] == "reward"]["value"].tolist() == REWARDS


@pytest.mark.parametrize(
    "content", ["[1, 2]", "{\n}", '{"a":\n', "<html></html>", "[[[]]]", '{"a": {"b": [1]}\n}']
)
def test_what_has_no_steps_says_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"other\.json"):
        load(path)


def test_a_row_for_each_run_is_no_learning_curve(tmp_path: Path) -> None:
    path = tmp_path / "finals.csv"
    path.write_text("run_name,group,num_rollouts,best_acc\nb16-g2,a,2,0.5\nb16-g4,a,4,0.6\n")
    with pytest.raises(
        DataError,
        match="each row has a different run_name, and one final value per run is not a learning curve",
    ):
        isolaw.read(path)


def test_a_reward_next_to_a_loss_is_of_training(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,mean_reward,val_reward,loss\n1,0.1,0.2,0.5\n2,0.2,0.3,0.4\n")
    for metric, expected in {"mean_reward": "train", "val_reward": "validation"}.items():
        runs = isolaw.read(path, set={"B_p": 8, "n": 4}, metric=metric)
        assert set(runs.points["eval_set"]) == {expected}
    trl = tmp_path / "trl.csv"
    trl.write_text("step,rewards/correct/mean\n1,0.1\n2,0.2\n")
    runs = isolaw.read(trl, set={"B_p": 8, "n": 4}, metric="rewards/correct/mean")
    assert set(runs.points["eval_set"]) == {"train"}
    assert any("comes from training batches" in note for note in runs.notes)


@pytest.mark.parametrize(("key", "eval_set"), [("train", "train"), ("eval", "validation")])
def test_the_key_of_a_list_says_what_it_is_of(tmp_path: Path, key: str, eval_set: str) -> None:
    rows = [{"step": i, "reward": i / 8} for i in range(4)]
    (tmp_path / "a.json").write_text(json.dumps({"args": {"n": 8, "B_p": 4}, key: rows, "other": rows[:2]}))
    assert set(isolaw.read(tmp_path / "a.json", metric="reward").points["eval_set"]) == {eval_set}


LONG = [
    {"B_p": 8, "n": n, "seed": 0, "step": step, "of": of, "value": value}
    for n in (4, 16)
    for step in (1, 2)
    for of, value in (("acc", step / 8), ("len", 100.0 + step), ("reward-shaped", 0.5))
]


@pytest.mark.parametrize(
    ("name", "run"),
    [("variable", None), ("metric_name", None), ("name", "run"), ("tag", "run_id"), ("of", "id")],
)
def test_the_column_that_names_metrics_is_asked_for(name: str, run: str | None) -> None:
    frame = pd.DataFrame(LONG).rename(columns={"of": name})
    if run:
        frame[run] = "r" + frame["n"].astype(str)
    with pytest.raises(DataError, match=r"names .*metric") as error:
        isolaw.read(frame)
    assert f'columns={{"metric": "{name}"}}' in str(error.value)
    runs = isolaw.read(frame, columns={"metric": name})
    assert set(runs.points["metric"]) == {"acc", "len", "reward-shaped"}
    assert runs.points.loc[runs.points["metric"] == "acc", "value"].tolist() == [0.125, 0.25] * 2


def test_a_column_that_may_name_runs_does_not_name_metrics() -> None:
    """Without another column of runs, a name could be a run's, and a tag a recipe's."""
    frame = pd.DataFrame(LONG)
    assert set(isolaw.read(frame.rename(columns={"of": "name"})).points["metric"]) == {"reward"}
    recipes = frame.assign(run="r" + frame["n"].astype(str) + frame["of"]).rename(columns={"of": "recipe"})
    assert set(isolaw.read(recipes).points["metric"]) == {"reward"}
    with pytest.raises(DataError, match="If of names the metric of each row"):
        isolaw.read(frame).points  # noqa: B018


@pytest.mark.parametrize(
    "more", [{"note": "\ud800"}, {"\ud800": 1}, {"run_id": "a\udc00"}, {"problem_set": "\ud800"}], ids=str
)
@pytest.mark.parametrize("document", [True, False])
def test_half_a_surrogate_pair_is_a_question_mark(
    tmp_path: Path, more: dict[str, object], document: bool
) -> None:
    rows = [{"step": step, "n": 8, "B_p": 16, "avg@4": 0.1 * step, **more} for step in (1, 2, 3)]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows) if document else "\n".join(map(json.dumps, rows)))
    runs = isolaw.read(path)
    assert len(runs.points) == 3
    repr((runs.table(), runs.points, runs.notes)).encode()


@pytest.mark.parametrize("name", ["run_id", "seed", "problem_set", "note"])
@pytest.mark.parametrize("kind", ["bytes", "dictionary", "fixed", "text"])
def test_bytes_in_parquet_are_text(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "runs.parquet"
    values = pa.array([b"\xffa"] * 3)
    if kind == "dictionary":
        values = values.dictionary_encode()
    elif kind == "fixed":
        values = values.cast(pa.binary(2))
    elif kind == "text":
        values = pa.Array.from_buffers(pa.string(), 3, values.buffers())
    rows = {"step": [1, 2, 3], "n": [8] * 3, "B_p": [16] * 3, "avg@4": [0.1, 0.2, 0.3]}
    pq.write_table(pa.table({**rows, name: values}), path)
    if name == "seed":
        with pytest.raises(DataError, match="seed"):
            isolaw.read(path)
    else:
        runs = isolaw.read(path)
        assert name == "note" or set(runs.points[name]) == {r"\xffa"}
