"""CSV as W&B's panels and its API give it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.wandb_csv import CONTAINER
from isolaw.readers.raw_log import RawLog
from isolaw.readers.survey import survey

HELD_OUT = "val-core/aime24/acc/mean@8"
# A panel's export: every field quoted, no newline at the end, runs evaluated at different steps.
WIDE = f'''\
"Step","qwen-n8 - {HELD_OUT}","qwen-n8 - {HELD_OUT}__MIN","qwen-n8 - {HELD_OUT}__MAX",\
"qwen - n16 - {HELD_OUT}","qwen - n16 - {HELD_OUT}__MIN","qwen - n16 - {HELD_OUT}__MAX"
"0","0.25","0.25","0.25","","",""
"10","0.3125","0.3","0.35","0.28","0.28","0.28"
"20","","","","0.35","0.35","0.35"
"30","NaN","NaN","NaN","0.4","0.4","0.4"'''
WIDE_TABLE = {
    "qwen-n8": {HELD_OUT: {0: 0.25, 10: 0.3125}},
    "qwen - n16": {HELD_OUT: {10: 0.28, 20: 0.35, 30: 0.4}},
}
LONG = """\
run_name,metric,step,value
a,reward,1,0.5
a,reward,2,0.625
a,kl,2,0.01
b,reward,1,0.25
a,reward,2,0.75
b,reward,2,
"""
# run.history().to_csv(): pandas numbers the rows.
HISTORY = """\
,_step,_runtime,_timestamp,trainer/global_step,reward/avg_raw_reward,eval/all/avg_score,best
0,3,60.5,1720000060.5,1,0.5,,"{'a': 1}"
1,6,121.0,1720000121.0,2,0.625,0.31,
"""


def read(tmp_path: Path, text: str, name: str = "export.csv") -> dict[str, RawLog]:
    path = tmp_path / name
    path.write_text(text)
    assert CONTAINER.file(path, path.read_bytes()[:65_536])
    logs = list(CONTAINER.read(path))
    assert len({log.run for log in logs}) == len(logs)
    return {log.run: log for log in logs}


def table(log: RawLog) -> dict[str, dict[float, float]]:
    return {
        key: {log.step[r]: v for r, v in zip(curve.record, curve.value, strict=True)}
        for key, curve in log.series.items()
    }


@pytest.mark.parametrize("text", [WIDE, WIDE + "\n", WIDE.replace("\n", "\r\n"), "\ufeff" + WIDE])
def test_wide(text: str, tmp_path: Path) -> None:
    logs = read(tmp_path, text)
    assert {run: table(log) for run, log in logs.items()} == WIDE_TABLE
    assert logs["qwen-n8"].dropped == {"values that are not finite": 1}
    assert logs["qwen - n16"].dropped == {}
    for log in logs.values():
        assert log.container == "wandb-csv"
        assert log.config == {}
        assert any("sample of the run's history" in note for note in log.notes)


def test_wide_becomes_runs(tmp_path: Path) -> None:
    (tmp_path / "export.csv").write_text(WIDE)
    settings = {"B_p": 32, "qwen-n8:n": 8, "qwen - n16:n": 16}
    points = isolaw.read(tmp_path / "export.csv", set=settings).points
    assert set(points["eval_set"] + " " + points["metric"]) == {"aime24 avg@8"}
    found = zip(points["rollouts_per_problem"], points["compute"], points["value"], strict=True)
    assert sorted(found) == [
        (8, 0, 0.25), (8, 2560, 0.3125), (16, 5120, 0.28), (16, 10240, 0.35), (16, 15360, 0.4)
    ]  # fmt: skip


def test_long(tmp_path: Path) -> None:
    logs = read(tmp_path, LONG)
    assert list(logs) == ["a", "b"]
    assert list(logs["a"].series["reward"].value) == [0.5, 0.625, 0.75]  # what was repeated stays apart
    assert table(logs["a"]) == {"reward": {1: 0.5, 2: 0.75}, "kl": {2: 0.01}}
    assert table(logs["b"]) == {"reward": {1: 0.25}}


def test_a_history_of_the_api(tmp_path: Path) -> None:
    (log,) = read(tmp_path, HISTORY).values()
    assert log.run == str(tmp_path / "export.csv")
    assert table(log) == {
        "trainer/global_step": {3: 1, 6: 2},
        "reward/avg_raw_reward": {3: 0.5, 6: 0.625},
        "eval/all/avg_score": {6: 0.31},
    }
    assert list(log.wall_s) == [60.5, 121.0]


def test_histories_of_several_runs(tmp_path: Path) -> None:
    text = "run_name,_step,_timestamp,reward\na,1,5,0.5\nb,1,6,0.25\na,2,7,0.75\n"
    logs = read(tmp_path, text)
    assert {run: table(log)["reward"] for run, log in logs.items()} == {
        "a": {1: 0.5, 2: 0.75},
        "b": {1: 0.25},
    }


def test_x_may_be_the_metric_that_counts_updates(tmp_path: Path) -> None:
    """Then W&B's own step, its number of calls to ``log``, is beside it for each run."""
    (log,) = read(
        tmp_path,
        '"train/global_step","a - _step","a - _step__MIN","a - _step__MAX","a - train/reward",'
        '"a - train/reward__MIN","a - train/reward__MAX"\n'
        '"1","7","7","7","0.5","0.5","0.5"\n"2","9","9","9","0.75","0.75","0.75"\n',
    ).values()
    assert table(log) == {"train/global_step": {1: 1, 2: 2}, "train/reward": {1: 0.5, 2: 0.75}}


@pytest.mark.parametrize("x", ["epoch", "Relative Time (Process)"])
def test_another_x_needs_the_step_beside_it(x: str, tmp_path: Path) -> None:
    (log,) = read(
        tmp_path, f"{x},a - _step,a - reward,a - reward__MIN,a - reward__MAX\n0.25,7,0.5,0.5,0.5\n"
    ).values()
    assert table(log)["reward"] == {7: 0.5}
    assert "_step" not in log.series
    assert ("epoch" in log.series) == (x == "epoch")  # a metric that was logged; a time is not


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ("Relative Time (Process)", "is a time"),
        ("Relative Time (Wall)", "is a time"),
        ("Wall Time", "is a time"),
        ("_runtime", "is a time"),
        ("num_tokens", "is not a count of steps"),
    ],
)
def test_an_x_that_is_no_step_is_refused(x: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"export\.csv: the x axis") as error:
        read(tmp_path, WIDE.replace('"Step"', f'"{x}"'))
    assert f"{x!r} {said}" in str(error.value)
    assert "expected Step, or the metric that counts update steps" in str(error.value)


def test_a_header_longer_than_the_head(tmp_path: Path) -> None:
    runs = [f"a-run-with-quite-a-long-name-{i:03}" for i in range(800)]
    header = ",".join(f'"{run} - critic/score/mean","{run} - critic/score/mean__MIN"' for run in runs)
    logs = read(tmp_path, f'"Step",{header}\n"1"{",0.5,0.5" * 800}\n')
    assert len(header) > 65_536
    assert list(logs) == runs


def test_two_runs_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two columns are called 'a - reward'"):
        read(tmp_path, "Step,a - reward,a - reward\n1,0.5,0.25\n")


def test_more_runs_than_there_can_be(tmp_path: Path) -> None:
    rows = "".join(f"{i},reward,1,0.5\n" for i in range(10_001))
    with pytest.raises(DataError, match="more than 10,000 runs"):
        read(tmp_path, "run_name,metric,step,value\n" + rows)


def test_half_a_last_line(tmp_path: Path) -> None:
    logs = read(tmp_path, WIDE[: WIDE.rindex('"0.4"') - 5])
    assert table(logs["qwen - n16"]) == {HELD_OUT: {10: 0.28, 20: 0.35}}
    assert {log.dropped["torn lines"] for log in logs.values()} == {1}


def test_columns_that_only_look_like_a_range_are_metrics(tmp_path: Path) -> None:
    (log,) = read(tmp_path, "Step,a - reward__MIN\n1,0.5\n").values()
    assert table(log) == {"reward__MIN": {1: 0.5}}


@pytest.mark.parametrize(
    "text",
    [
        "step,reward\n1,0.5\n",
        "Step,reward\n1,0.5\n",
        "x,a - b\n1,2\n",
        '{"_step": 1, "_runtime": 2}\n',
        "run_name,metric,value\na,b,1\n",
        "_step\n1\n",
        "Step\n1\n",
        "",
        "\0\0\0",
        '"unclosed',
    ],
)
def test_other_files_are_not_taken(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wandb_export.csv"
    path.write_text(text)
    assert not CONTAINER.file(path, path.read_bytes())
    assert not CONTAINER.directory(tmp_path)
    with pytest.raises(DataError, match=r"wandb_export\.csv: not a W&B export"):
        list(CONTAINER.read(path))


def test_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no values"):
        read(tmp_path, WIDE.splitlines()[0])


def test_a_field_beyond_all_bounds_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 3: not CSV"):
        read(tmp_path, f"Step,a - reward\n1,0.5\n2,{'9' * 200_000}\n")


@given(st.binary(max_size=400), st.sampled_from([WIDE, LONG, HISTORY]), st.integers(0, 600))
def test_any_bytes_are_survived(tmp_path_factory, content: bytes, text: str, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(text.encode()[:at] + content + text.encode()[at:])
    CONTAINER.file(path, path.read_bytes())
    try:
        said = [log.source for log in CONTAINER.read(path)]
    except DataError as error:
        said = [str(error)]
    assert all(str(path) in one for one in said)


# A panel's export where the x axis is the Trainer's step, and its option "min and max" is off.
GLOBAL_STEP = """\
"train/global_step","grpo-n8 - train/reward","grpo-n16 - train/reward"
"20","0.25","0.5"
"40","0.375",""
"""


def test_one_column_a_run(tmp_path: Path) -> None:
    logs = read(tmp_path, GLOBAL_STEP)
    assert {run: table(log)["train/reward"] for run, log in logs.items()} == {
        "grpo-n8": {20: 0.25, 40: 0.375},
        "grpo-n16": {20: 0.5},
    }
    settings = {"B_p": 4, "grpo-n8:n": 8, "grpo-n16:n": 16, "framework": "TRL"}
    points = isolaw.read(tmp_path / "export.csv", set=settings).points
    assert sorted(points["compute"]) == [20 * 4 * 8, 20 * 4 * 16, 40 * 4 * 8]


def test_trls_names_as_the_api_gives_them(tmp_path: Path) -> None:
    """Without W&B's own clocks; W&B's step counts the calls to log, not updates."""
    text = "_step,train/global_step,train/reward,train/rewards/acc/mean\n0,20,0.25,0.5\n1,40,0.5,0.75\n"
    read(tmp_path, text)
    points = isolaw.read(tmp_path / "export.csv", set={"B_p": 4, "n": 8}).points
    assert points["step"].unique().tolist() == [20, 40]


@pytest.mark.parametrize("axis", ["Step", "train/global_step", "trainer/global_step"])
def test_metrics_of_no_framework_on_any_axis_of_steps(axis: str, tmp_path: Path) -> None:
    read(tmp_path, f'"{axis}","g4_s0 - eval/exact_match"\n"20","0.25"\n"40","0.375"\n')
    points = isolaw.read(tmp_path / "export.csv", set={"B_p": 4, "n": 8}).points
    assert points[["eval_set", "step"]].values.tolist() == [["validation", 20], ["validation", 40]]


def test_calls_to_log_are_no_steps(tmp_path: Path) -> None:
    text = '"Step","a - train/reward","a - train/completions/mean_length"\n"0","0.25","9"\n"1","0.5","9"\n'
    read(tmp_path, text)
    with pytest.raises(DataError, match="logging_steps"):
        isolaw.read(tmp_path / "export.csv", set={"B_p": 4, "n": 8})
    settings = {"B_p": 4, "n": 8, "logging_steps": 20}
    points = isolaw.read(tmp_path / "export.csv", set=settings).points
    assert points["step"].unique().tolist() == [20, 40]


def test_a_panel_grouped_by_settings(tmp_path: Path) -> None:
    runs = [f"actor_rollout_ref.rollout.n: {n}, data.train_batch_size: 32" for n in (4, 8)]
    header = ["Step", *(f"{run} - critic/score/mean" for run in runs)]
    lines = [header, *([k, k / 8, k / 16] for k in (1, 2, 3))]
    path = tmp_path / "panel.csv"
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in lines))
    found = survey([path]).candidates
    assert [(result.n, result.facts["problems_per_batch"].value) for result in found] == [(4, 32), (8, 32)]
    assert all(any("means of the group's runs" in note for note in result.notes) for result in found)
