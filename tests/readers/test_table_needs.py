"""What a table lacks is said once, with the call or the command that would read it."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.cli import run
from isolaw.errors import DataError

TAN = Path(__file__).parents[2] / "examples" / "data" / "tan_rollout_n_base.csv"


def message(table: Any, **how: Any) -> str:
    with pytest.raises(DataError) as error:
        isolaw.read(table, **how)
    return str(error.value)


def test_all_that_is_missing_at_once() -> None:
    text = message(pd.read_csv(TAN).rename(columns={"step": "global_step"}))
    assert "4 columns or values are missing" in text
    for line in (
        "B_p (problems_per_batch): found no column and no value",
        "n (rollouts_per_problem): found no column and no value; nearest: 'rollout_n'",
        "step or compute: found no column; nearest: 'global_step'",
        "the reward: found no column 'avg@4'; nearest: 'holdout_acc_raw'",
        "columns: model, rollout_n, global_step",
    ):
        assert line in text
    add = 'columns={"n": "rollout_n", "step": "global_step"}, set={"B_p": <number>}, metric="holdout_acc_raw"'
    assert text.endswith(f"\n  Add {add}")


def reads(table: pd.DataFrame, text: str) -> isolaw.Runs:
    added = text.splitlines()[-1].removeprefix("  Add ").replace("<number>", "512")
    return eval(f"isolaw.read(df, {added})", {"isolaw": isolaw, "df": table})


def test_what_the_message_adds_reads_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.read_csv(TAN)
    assert len(reads(table, message(table))) == 4
    assert run(["read", str(TAN)]) == 2
    text = capsys.readouterr().err
    assert text.endswith("  Add --column n=rollout_n --set 'B_p=<number>' --metric holdout_acc_raw\n")
    assert run(["read", str(TAN), *shlex.split(text.splitlines()[-1].replace("<number>", "512"))[1:]]) == 0


def test_answer_prints_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["answer", str(TAN), "--compute", "1M"]) == 2
    said = capsys.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if "--column" in line]
    assert len(lines) == 1
    assert "--column n=rollout_n --set 'B_p=<number>' --metric holdout_acc_raw" in lines[0]


def test_columns_that_may_be_n_and_the_batch_are_offered() -> None:
    rows = [(i, n, 32, 0.3 + i / 100) for n in (4, 16, 64) for i in range(10)]
    table = pd.DataFrame(rows, columns=["iter", "group", "batch", "acc"])
    text = message(table)
    assert "n (rollouts_per_problem): found no column and no value; nearest: 'group'" in text
    assert "nearest: 'batch'; if it counts rollouts: " in text
    assert len(reads(table, text)) == 3
    index = pd.DataFrame({"iter": range(20), "batch": range(20), "acc": 0.5})
    assert '"B_p": <number>' in message(index)  # it rises with each row: the number of a batch


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("current_steps", "nearest: 'current_steps'"),
        ("round", "state what 'round' counts: "),
        ("episode_num", "state what 'episode_num' counts: "),
        ("epoch", 'if an epoch has 400 steps: columns={"step": "epoch*400"}'),
    ],
)
def test_columns_that_may_count_steps_are_offered(column: str, words: str) -> None:
    table = pd.DataFrame({column: range(1, 7), "acc": 0.5})
    assert f"step or compute: found no column; {words}" in message(table)


def test_the_problems_of_a_benchmark_are_not_offered_as_n() -> None:
    rows = [(run, step, name, 0.3) for run in "ab" for name in (40, 30) for step in range(8)]
    table = pd.DataFrame(rows, columns=["run_id", "step", "n_samples", "pass_at_1"])
    assert 'set={"B_p": <number>, "n": <number>}' in message(table)
    assert '"n": "n_samples"' in message(table.assign(loss=0.1).rename(columns={"pass_at_1": "reward"}))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {
                "columns": {"n": "rolout", "step": "stepp", "C": "prompt_seen*n"},
                "metric": "holdout",
            },
            [
                "4 columns or values are missing",
                "n (rollouts_per_problem): no column 'rolout'; did you mean 'rollout_n'?",
                "step: no column 'stepp'; did you mean 'step'?",
                "compute: 'prompt_seen*n': no column 'prompt_seen'; did you mean 'prompts_seen'?",
                "the reward: found no column 'holdout'; did you mean 'holdout_acc",
            ],
        ),
        (
            {"columns": {"avg@4": "holdout_raw", "n": "rollout_n"}},
            ["metric 'avg@4': no column 'holdout_raw'; did you mean 'holdout_acc_raw'?"],
        ),
    ],
    ids=["columns", "metric"],
)
def test_wrong_names(how: dict[str, Any], words: list[str]) -> None:
    text = message(pd.read_csv(TAN), set={"B_p": 512}, **how)
    for word in words:
        assert word in text


def test_what_isolaw_toml_says_is_not_repeated(tmp_path: Path) -> None:
    table = Path(shutil.copy(TAN, tmp_path))
    text = '[columns]\nn = "rollout_n"\n[metrics]\nacc = "holdout_acc_raw"\n'
    (tmp_path / "isolaw.toml").write_text(text)
    assert message(table).endswith('\n  Add set={"B_p": <number>}')


def test_a_wide_table_is_not_listed_whole() -> None:
    assert "and 141 more" in message(pd.DataFrame({f"c{i}": [i] for i in range(201)}))
