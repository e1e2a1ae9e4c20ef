"""Columns of a table that the user names: Tan- and ScaleRL-style tables and rows of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.readers.how_to_read import HowToRead, _read_reading_file
from isolaw.readers.survey import survey
from isolaw.readers.table_files import columns_of, load

ROOT = Path(__file__).parents[2]
TAN = ROOT / "examples" / "data" / "tan_rollout_n_base.csv"
LOGS = ROOT.parent / "shared" / "data" / "logs"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def told(path: Path, text: str) -> Path:
    """Return the table, with an ``isolaw.toml`` next to it."""
    write(path.parent / "isolaw.toml", text)
    return path


def wide(folder: Path) -> Path:
    """A trainer's own table: an evaluation in percent at every fifth step, empty cells between."""
    rows = ["it,group,reward_avg,eval_acc,lr"]
    for n in (4, 8):
        for step in range(1, 11):
            accuracy = f"{step * n / 2}" if step % 5 == 0 else ""
            rows.append(f"{step},{n},{step / 10},{accuracy},0.5")
    return write(folder / "own.csv", "\n".join(rows) + "\n")


MAPPING = """
[columns]
step = "it"
rollouts_per_problem = "group"
[set]
problems_per_batch = 16
[metrics]
reward = { column = "reward_avg", eval_set = "train" }
accuracy = "eval_acc"
"""


def test_columns_are_used(tmp_path: Path) -> None:
    runs = isolaw.read(told(wide(tmp_path), MAPPING))
    assert len(runs) == 2
    points = runs.points
    reward = points[points["metric"] == "reward"]
    assert set(reward["eval_set"]) == {"train"}
    assert len(reward) == 20
    accuracy = points[points["metric"] == "accuracy"]
    assert set(accuracy["eval_set"]) == {"validation"}
    assert accuracy["value"].tolist() == [0.1, 0.2, 0.2, 0.4]
    assert accuracy["step"].tolist() == [5, 10, 5, 10]


def test_what_was_left_out_and_converted_is_said(tmp_path: Path) -> None:
    notes = isolaw.read(told(wide(tmp_path), MAPPING)).notes
    assert "accuracy was in percent (up to 40): divided by 100" in notes
    assert "accuracy: 16 of 20 cells are empty; isolaw left them out" in notes


@pytest.mark.parametrize(("percent", "value"), [("true", 0.1), ("false", 10.0)])
def test_percent_is_as_it_is_said(tmp_path: Path, percent: str, value: float) -> None:
    text = MAPPING.replace('"eval_acc"', f'{{ column = "eval_acc", percent = {percent} }}')
    points = isolaw.read(told(wide(tmp_path), text)).points
    assert points.loc[points["metric"] == "accuracy", "value"].min() == value


def test_steps_are_numbered_before_cells_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "compute,r,acc\n" + "".join(f"{s * 10},0.1,{'' if s % 3 else 0.5}\n" for s in range(1, 7)),
    )
    text = '[set]\nproblems_per_batch = 1\nrollouts_per_problem = 2\n[metrics]\nr = "r"\nacc = "acc"\n'
    points = isolaw.read(told(path, text)).points
    assert points.loc[points["metric"] == "acc", "step"].tolist() == [3, 6]


def test_options_go_before_the_file(tmp_path: Path) -> None:
    table = told(wide(tmp_path), MAPPING)
    runs = isolaw.read(table, set=["B_p=3", "seed=4"])
    assert set(runs.points["problems_per_batch"]) == {3}
    assert set(runs.points["seed"]) == {4}
    runs = isolaw.read(table, columns={"B_p": "group*2", "reward": "eval_acc/100"})
    assert set(runs.points["problems_per_batch"]) == {8, 16}
    assert runs.points.loc[runs.points["metric"] == "reward", "value"].max() == 0.4


def test_a_directory_of_tables(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        wide(tmp_path / name)
    write(tmp_path / "other.csv", "x,y\n1,2\n")
    write(tmp_path / "isolaw.toml", MAPPING)
    reading = survey([tmp_path], HowToRead.of(set=["*/a/*:seed=0", "*/b/*:seed=1"]))
    assert len(reading.runs) == 4
    assert f"isolaw reads only tables that have the named columns, not {tmp_path}/other.csv" in reading.notes
    match = "expected a table with the columns eval_acc, group, nowhere, reward_avg"
    with pytest.raises(DataError, match=match):
        survey([tmp_path], HowToRead.of(columns={"step": "nowhere"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[columns]\nstep = 3\n", [":2: columns.step", "a string"]),
        ("[set]\nx = [1]\n", [":2: set.x", "a text, a number, true or false"]),
        ('[metrics]\nr = { colum = "x" }\n', ["metrics.r.colum", "unknown key"]),
        ('[metrics]\nr = { column = "x", percent = "yes!" }\n', ["metrics.r.percent"]),
        ("[columns\n", ["not valid TOML", "line 1"]),
        ("x = 1\n", ["x: unknown key", "columns, metrics"]),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path / "isolaw.toml", text)
    with pytest.raises(InputError) as error:
        _read_reading_file(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_a_column_is_the_simplest_arithmetic(tmp_path: Path) -> None:
    """A name that is a column wins, whatever characters it has."""
    rows = "".join(f"{s},{s * 32},{s},{s / 10},8\n" for s in range(1, 4))
    path = write(tmp_path / "t.csv", "it,it*2,val/acc,my score (%),k\n" + rows)
    given = {"step": "it", "n": "k", "B_p": "k/2 + 0*it", "C": "it*2", "lr": "0.5"}
    with pytest.raises(DataError, match=r"no column 'val/acc/4'; did you mean 'val/acc'\?"):
        isolaw.read(path, columns={**given, "avg@1": "val/acc/4"})
    runs = isolaw.read(path, columns={**given, "avg@1": "my score (%)"})
    assert runs.points["compute"].tolist() == [32, 64, 96]
    np.testing.assert_allclose(runs.points["value"], [0.001, 0.002, 0.003])  # in percent, as its name says
    assert set(runs.points["problems_per_batch"]) == {4}
    assert runs.attributes[runs.points["run_id"].iloc[0]] == {"lr": 0.5}
    assert isolaw.read(path, columns={**given, "reward": "val/acc"}).points["value"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({'"eval_acc"': '"eval_ac"'}, ["metric 'accuracy': no column 'eval_ac'", "'eval_acc'"]),
        ({'"group"': '"grp"'}, ["n (rollouts_per_problem): no column 'grp'"]),
        ({"problems_per_batch = 16": ""}, ["B_p (problems_per_batch)", 'set={"B_p": <number>}']),
    ],
)
def test_mistakes_in_the_columns(tmp_path: Path, change: dict[str, str], words: list[str]) -> None:
    text = MAPPING
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(DataError) as error:
        isolaw.read(told(wide(tmp_path), text))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("high", ["metric 'accuracy': eval_acc is not a number in line 3: 'high'"]),
        ("inf", ["metric 'accuracy': eval_acc is not a number in line 3"]),
    ],
)
def test_cells_that_are_no_number(tmp_path: Path, cell: str, words: list[str]) -> None:
    path = write(tmp_path / "t.csv", f"it,group,reward_avg,eval_acc\n1,4,0.5,0.1\n2,4,0.5,{cell}\n")
    with pytest.raises(DataError) as error:
        isolaw.read(told(path, MAPPING))
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1,4,0.5,0.1\n1,4,0.6,0.2\n", ["repeated (run, step)", "line 3"]),
        ("1,4,0.5,0.1\n2,0,0.6,0.2\n", ["rollouts_per_problem must be at least 1", "line 3 (roll"]),
        ("1,4,0.5,0.1\n2,few,0.6,0.2\n", ["rollouts_per_problem", "'few'"]),
        ("1,4,0.5,\n2,4,,\n", []),
        ("1,4,,\n2,4,,\n", ["the metrics' columns are empty: eval_acc, reward_avg"]),
    ],
)
def test_lines_are_named_once_for_all_their_metrics(tmp_path: Path, rows: str, words: list[str]) -> None:
    path = write(tmp_path / "t.csv", "it,group,reward_avg,eval_acc\n" + rows)
    told(path, MAPPING)
    if not words:
        assert len(isolaw.read(path).points) == 1
        return
    with pytest.raises(DataError) as error:
        isolaw.read(path)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_over_hours(tmp_path: Path) -> None:
    """ScaleRL's x axis is GPU hours: rollouts are what the user says one hour makes."""
    rows = "".join(f"{h},{0.3 + 0.01 * h}\n" for h in range(1, 21))
    path = write(tmp_path / "scalerl.csv", "gpu_hours,mean@16\n" + rows)
    text = (
        '[columns]\ncompute = "gpu_hours*12800"\n[set]\nproblems_per_batch = 48\n'
        'rollouts_per_problem = 16\n[metrics]\n"avg@16" = "mean@16"\n'
    )
    runs = isolaw.read(told(path, text))
    assert runs.points["compute"].tolist() == [12800 * h for h in range(1, 21)]
    assert runs.metrics("validation") == ["avg@16"]


# Rows of JSON


def test_json_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "iter": s,
            "cfg": {"n": n, "prompts": 4},
            "scores": {"train": s / 10, "val": s * n / 100 if s % 2 else None},
        }
        for n in (2, 4)
        for s in (1, 2, 3)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"iter": 4, "cfg"'
    path = write(tmp_path / "rows.jsonl", text)
    assert columns_of(path, text.encode()) == ["iter", "cfg.n", "cfg.prompts", "scores.train", "scores.val"]
    told(
        path,
        '[columns]\nstep = "iter"\nrollouts_per_problem = "cfg.n"\nproblems_per_batch = "cfg.prompts"\n'
        '[metrics]\nreward = { column = "scores.train", eval_set = "train" }\n"avg@1" = "scores.val"\n',
    )
    runs = isolaw.read(path)
    assert len(runs) == 2
    assert len(runs.points) == 6 + 4
    assert "isolaw left out 1 torn last line" in runs.notes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1\n', ["found no JSON object"]),
        ('{"a": ' + "[" * 200_000 + "\n", ["found no JSON object"]),
        ("{" + '"a": {' * 500 + "}" * 500 + "}\n", ["line 1", "nested deeper"]),
        ("{}\n", ["a header but no rows"]),
    ],
)
def test_rows_that_are_none(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path / "rows.jsonl", text)
    with pytest.raises(DataError) as error:
        load(path)
    for word in [str(path), *words]:
        assert word in str(error.value)
