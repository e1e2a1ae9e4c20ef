"""The mapping file: drafted, edited, used; Tan- and ScaleRL-style tables and rows of one's own."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.readers.mapping import read_mapping
from isolaw.readers.read import survey
from isolaw.readers.reading_draft import draft_mapping
from isolaw.readers.table_files import columns_of, load

ROOT = Path(__file__).parents[2]
TAN = ROOT / "examples" / "data" / "tan_rollout_n_base.csv"
LOGS = ROOT.parent / "shared" / "data" / "logs"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
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
[constants]
problems_per_batch = 16
[metrics]
reward = { column = "reward_avg", eval_set = "train" }
accuracy = "eval_acc"
"""


def test_a_mapping_is_used(tmp_path: Path) -> None:
    runs = isolaw.read(wide(tmp_path), mapping=write(tmp_path / "m.toml", MAPPING))
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
    notes = isolaw.read(wide(tmp_path), mapping=write(tmp_path / "m.toml", MAPPING)).notes
    assert "accuracy was in percent (up to 40): divided by 100" in notes
    assert "accuracy: 16 of 20 cells are empty; isolaw left them out" in notes


@pytest.mark.parametrize(("percent", "value"), [("true", 0.1), ("false", 10.0)])
def test_percent_is_as_it_is_said(tmp_path: Path, percent: str, value: float) -> None:
    text = MAPPING.replace('"eval_acc"', f'{{ column = "eval_acc", percent = {percent} }}')
    points = isolaw.read(wide(tmp_path), mapping=write(tmp_path / "m.toml", text)).points
    assert points.loc[points["metric"] == "accuracy", "value"].min() == value


def test_steps_are_numbered_before_cells_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "compute,r,acc\n" + "".join(f"{s * 10},0.1,{'' if s % 3 else 0.5}\n" for s in range(1, 7)),
    )
    text = '[constants]\nproblems_per_batch = 1\nrollouts_per_problem = 2\n[metrics]\nr = "r"\nacc = "acc"\n'
    points = isolaw.read(path, mapping=write(tmp_path / "m.toml", text)).points
    assert points.loc[points["metric"] == "acc", "step"].tolist() == [3, 6]


def test_options_go_before_the_file(tmp_path: Path) -> None:
    mapping = write(tmp_path / "m.toml", MAPPING)
    runs = isolaw.read(wide(tmp_path), mapping=mapping, constants={"problems_per_batch": 2})
    assert set(runs.points["problems_per_batch"]) == {2}
    runs = isolaw.read(wide(tmp_path), mapping=mapping, settings=["B_p=3", "seed=4"])
    assert set(runs.points["problems_per_batch"]) == {3}
    assert set(runs.points["seed"]) == {4}


def test_a_directory_of_tables(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        wide(tmp_path / name)
    write(tmp_path / "other.csv", "x,y\n1,2\n")
    mapping = write(tmp_path / "m.toml", MAPPING)
    reading = survey([tmp_path], mapping=mapping, settings=["*/a/*:seed=0", "*/b/*:seed=1"])
    assert len(reading.runs) == 4
    assert reading.notes == [
        f"isolaw reads only tables that have the mapped columns, not {tmp_path}/m.toml, {tmp_path}/other.csv"
    ]
    with pytest.raises(
        DataError, match=r"mapped columns nowhere; .*csv has no column 'nowhere'; its columns"
    ):
        survey([tmp_path], mapping=write(tmp_path / "n.toml", '[columns]\nstep = "nowhere"\n'))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[colums]\n", ["[colums]", "did you mean 'columns'?"]),
        ("[columns]\nstep = 3\n", [":2: columns.step", "a string"]),
        ("[constants]\nx = [1]\n", ["constants.x", "a text, a number, true or false"]),
        ('[metrics]\nr = { colum = "x" }\n', ["metrics.r.colum", "unknown key"]),
        ('[metrics]\nr = { column = "x", percent = "yes!" }\n', ["metrics.r.percent"]),
        ("[columns\n", ["not valid TOML", "line 1"]),
        ("x = 1\n", ["x: unknown key", "columns, derive, constants, metrics"]),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path / "m.toml", text)
    with pytest.raises(InputError) as error:
        read_mapping(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({'"eval_acc"': '"eval_ac"'}, ["metric 'accuracy': no column 'eval_ac'", "'eval_acc'"]),
        ({'"group"': '"grp"'}, ["n (rollouts_per_problem): no column 'grp'"]),
        ({"problems_per_batch = 16": ""}, ["B_p (problems_per_batch)", 'constants={"B_p": <number>}']),
    ],
)
def test_mistakes_in_the_mapping(tmp_path: Path, change: dict[str, str], words: list[str]) -> None:
    text = MAPPING
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(DataError) as error:
        isolaw.read(wide(tmp_path), mapping=write(tmp_path / "m.toml", text))
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
        isolaw.read(path, mapping=write(tmp_path / "m.toml", MAPPING))
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
    mapping = write(tmp_path / "m.toml", MAPPING)
    if not words:
        assert len(isolaw.read(path, mapping=mapping).points) == 1
        return
    with pytest.raises(DataError) as error:
        isolaw.read(path, mapping=mapping)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


# Drafts


def test_the_draft_of_a_published_table_needs_one_number(tmp_path: Path) -> None:
    text = draft_mapping(TAN)
    with pytest.raises(DataError, match=r"B_p \(problems_per_batch\): found no column and no value"):
        isolaw.read(TAN, mapping=write(tmp_path / "m.toml", text))
    edited = text.replace("# problems_per_batch", "problems_per_batch").replace("# compute", "compute")
    runs = isolaw.read(TAN, mapping=write(tmp_path / "m.toml", edited))
    by_hand = isolaw.read(
        TAN,
        metric="holdout_acc_raw",
        columns={"rollouts_per_problem": "rollout_n"},
        derive={"compute": "prompts_seen*rollout_n"},
        constants={"problems_per_batch": 512},
    )
    pd.testing.assert_frame_equal(runs.points, by_hand.points)


def test_a_draft_guesses_by_name(tmp_path: Path) -> None:
    header = (
        "run_name,global_step,num_generations,num_prompts_per_step,random_seed,train/reward,val_acc,loss,note"
    )
    path = write(tmp_path / "t.csv", header + "\n" + "a,1,8,16,0,0.5,12.5,3.0,x\na,2,8,16,0,0.6,25.0,2.0,y\n")
    found = tomllib.loads(draft_mapping(path))
    assert found["columns"] == {
        "run_id": "run_name",
        "step": "global_step",
        "rollouts_per_problem": "num_generations",
        "problems_per_batch": "num_prompts_per_step",
        "seed": "random_seed",
    }
    assert found["metrics"] == {
        "reward": {"column": "train/reward", "eval_set": "train"},
        "val_acc": {"column": "val_acc", "eval_set": "validation", "percent": True},
    }
    points = isolaw.read(path, mapping=write(tmp_path / "m.toml", draft_mapping(path))).points
    assert points[points["metric"] == "val_acc"]["value"].tolist() == [0.125, 0.25]
    assert points["compute"].max() == 2 * 8 * 16


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "ü\u2028", "a\tb", "del\x7f", "[x]", "#", "a=b", "'", '"""', "\x01", "a" * 500]
)
def test_a_draft_is_toml_whatever_the_columns_are_called(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"step": [1, 2], name: [0.5, 0.6], f"{name} acc": [0.1, 0.2]})
    frame.to_parquet(tmp_path / "t.parquet")
    found = tomllib.loads(draft_mapping(tmp_path / "t.parquet"))
    assert found["metrics"] == {f"{name} acc": {"column": f"{name} acc", "eval_set": "validation"}}


def test_a_long_table_needs_no_metrics(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "step,metric,value,n,b_p\n1,avg@4,0.5,8,4\n2,avg@4,0.6,8,4\n")
    found = tomllib.loads(draft_mapping(path))
    assert "metrics" not in found
    runs = isolaw.read(path, mapping=write(tmp_path / "m.toml", draft_mapping(path)))
    assert runs.points["value"].tolist() == [0.5, 0.6]


def test_a_table_over_hours(tmp_path: Path) -> None:
    """ScaleRL's x axis is GPU hours: rollouts are what the user says one hour makes."""
    rows = "".join(f"{h},{0.3 + 0.01 * h}\n" for h in range(1, 21))
    path = write(tmp_path / "scalerl.csv", "gpu_hours,mean@16\n" + rows)
    text = (
        '[derive]\ncompute = "gpu_hours*12800"\n[constants]\nproblems_per_batch = 48\n'
        'rollouts_per_problem = 16\n[metrics]\n"avg@16" = "mean@16"\n'
    )
    runs = isolaw.read(path, mapping=write(tmp_path / "m.toml", text))
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
    mapping = write(
        tmp_path / "m.toml",
        '[columns]\nstep = "iter"\nrollouts_per_problem = "cfg.n"\nproblems_per_batch = "cfg.prompts"\n'
        '[metrics]\nreward = { column = "scores.train", eval_set = "train" }\n"avg@1" = "scores.val"\n',
    )
    runs = isolaw.read(path, mapping=mapping)
    assert len(runs) == 2
    assert len(runs.points) == 6 + 4
    assert "isolaw left out an incomplete last line" in runs.notes
    assert tomllib.loads(draft_mapping(path))["columns"]["step"] == "iter"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}\nnot json\n{"a": 2}\n', ["line 2 is not a JSON object"]),
        ('{"a": 1}\n[1]\n', ["line 2 is not a JSON object"]),
        ('{"a": 1\n', ["line 1 is not a JSON object"]),
        ('{"a": ' + "[" * 200_000 + "\n", ["line 1 is not a JSON object"]),
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


@pytest.mark.skipif(not LOGS.is_dir(), reason="the shared sample logs are not here")
@pytest.mark.parametrize(
    ("name", "seeds"), [("7_3_plus_tracking_metrics.csv", 2), ("7_5_plus_kl_metrics.csv", 1)]
)
def test_the_real_tables_of_a_trainer_of_ones_own(tmp_path: Path, name: str, seeds: int) -> None:
    """n = 8 (their README); evaluation in percent; the first holds an aborted run before the whole one."""
    path = LOGS / "csv" / name
    text = draft_mapping(path)
    if seeds == 2:
        text = text.replace("[columns]", '[columns]\nseed = "total_steps"')
    mapping = write(tmp_path / "m.toml", text)
    with pytest.raises(DataError, match="2 columns or values are missing"):
        isolaw.read(path, mapping=mapping)
    runs = isolaw.read(path, mapping=mapping, settings=["n=8", "B_p=1"])
    frame = pd.read_csv(path)
    assert len(runs) == seeds
    points = runs.points
    accuracy = points[points["metric"] == "eval_acc"]
    expected = frame.dropna(subset="eval_acc")
    assert len(accuracy) == len(expected)
    np.testing.assert_allclose(np.sort(accuracy["value"]), np.sort(expected["eval_acc"]) / 100)
    assert set(points["rollouts_per_problem"]) == {8}
    assert points["compute"].max() == 8 * frame["step"].max()
