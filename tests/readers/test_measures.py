"""Tables that are read as what they are of: rows and columns of training, and those of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

import isolaw
from isolaw.errors import DataError

FIXED = {"B_p": 4, "n": 8}


def read(folder: Path, text: str, metric: str, **keywords: object) -> dict[str, list[int]]:
    """Return each evaluation set → the steps that a table has of it."""
    (folder / "t.csv").write_text(text)
    runs = isolaw.read(folder / "t.csv", set={**FIXED, **keywords}, metric=metric)
    return {str(item): rows["step"].tolist() for item, rows in runs.points.groupby("eval_set")}


@pytest.mark.parametrize(
    ("column", "train", "evaluation"),
    [
        ("is_eval", "0", "1"),
        ("eval", "False", "True"),
        ("validation", "no", "yes"),
        ("do_eval", "", "True"),
        ("is_train", "1", "0"),
        ("event", "update", "eval"),
        ("job", "optimize", "evaluate"),
        ("tag", "step", "val"),
        ("whatever", "trn", "val"),
    ],
)
def test_rows_of_training_and_of_an_evaluation(
    tmp_path: Path, column: str, train: str, evaluation: str
) -> None:
    rows = [(1, train, 0.1), (2, train, 0.2), (2, evaluation, 0.5), (3, train, 0.3), (4, evaluation, 0.6)]
    text = f"step,{column},reward\n" + "".join(f"{step},{row},{value}\n" for step, row, value in rows)
    assert read(tmp_path, text, "reward") == {"train": [1, 2, 3], "validation": [2, 4]}


def test_a_row_that_measures_nothing_may_be_of_anything(tmp_path: Path) -> None:
    text = "step,event,reward\n1,update,0.1\n1,checkpoint,\n2,eval,0.2\n"
    assert read(tmp_path, text, "reward") == {"train": [1], "validation": [2]}


def test_rows_of_which_one_word_is_unclear_are_asked_and_the_answer_reads_them(tmp_path: Path) -> None:
    text = "step,event,reward\n1,train,0.1\n2,aime24,0.2\n"
    with pytest.raises(DataError, match=r"column event is 'train' in .* 2, .* 'aime24' in .* 3") as error:
        read(tmp_path, text, "reward")
    assert 'columns={"eval_set": "event"}' in str(error.value)
    runs = isolaw.read(tmp_path / "t.csv", columns={"eval_set": "event"}, set=FIXED, metric="reward")
    assert set(runs.points["eval_set"]) == {"train", "aime24"}


def test_a_setting_of_the_trainer_says_nothing_of_its_rows(tmp_path: Path) -> None:
    assert read(tmp_path, "step,do_eval,reward\n1,True,0.1\n2,True,0.2\n", "reward") == {"validation": [1, 2]}


@pytest.mark.parametrize(
    ("metric", "beside", "expected"),
    [
        ("reward", "val_acc", "train"),
        ("acc", "eval_acc", "train"),
        ("acc", "grad_norm", "train"),
        ("solve_rate", "kl", "train"),
        ("mean_reward", "response_length", "train"),
        ("val_acc", "loss", "validation"),
        ("aime24_acc", "loss", "validation"),
        ("avg@4", "loss", "validation"),
        ("acc", "seconds", "validation"),
    ],
)
def test_a_column_is_of_training_by_those_beside_it(
    tmp_path: Path, metric: str, beside: str, expected: str
) -> None:
    text = f"step,{metric},{beside}\n1,0.1,0.2\n2,0.2,0.3\n"
    assert set(read(tmp_path, text, metric)) == {expected}
    assert set(read(tmp_path, text, metric, eval_set="aime24")) == {"aime24"}


def test_a_reward_alone_is_called_an_evaluation_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"Step {step}: Mean Reward=0.{step}\n" for step in range(1, 7)))
    runs = isolaw.read(path, set=FIXED, metric="Reward")
    assert set(runs.points["eval_set"]) == {"validation"}
    assert any("isolaw assumes the evaluation set validation" in note for note in runs.notes)


@pytest.mark.parametrize(
    ("columns", "asked"),
    [
        ("score,reward,format_accuracy,kl", "reward"),
        ("loss,reward,mean_token_accuracy", "reward"),
        ("loss,frac_correct,val_reward", "val_reward"),
        ("loss,policy_reward,reward_mean", "reward_mean"),
        ("loss,reward.correctness,reward.total", "reward.total"),
    ],
)
def test_an_accuracy_of_form_or_of_training_replaces_no_reward(
    tmp_path: Path, columns: str, asked: str
) -> None:
    rows = [",".join([str(step), *[f"0.{step}"] * (columns.count(",") + 1)]) for step in range(1, 7)]
    (tmp_path / "t.csv").write_text("\n".join([f"step,{columns}", *rows]) + "\n")
    with pytest.raises(DataError, match=f"nearest: '{asked}'"):
        isolaw.read(tmp_path / "t.csv", set=FIXED)


def test_a_column_that_numbers_the_rows_of_a_step_may_number_rollouts(tmp_path: Path) -> None:
    rows = [f"{step},{k},0.{step + k}" for step in range(1, 7) for k in (1, 2)]
    (tmp_path / "t.csv").write_text("\n".join(["step,batch_index,reward", *rows]) + "\n")
    with pytest.raises(DataError, match="rollouts of a step") as error:
        isolaw.read(tmp_path / "t.csv", set=FIXED, metric="reward")
    assert "batch_index" in str(error.value)


@pytest.mark.parametrize(
    ("column", "values", "metric", "is_set"),
    [
        ("dataset", ("gsm8k_test", "math500"), "accuracy", True),
        ("k", (1, 4), "pass_at_k", True),
        ("k", (1, 4), "accuracy", False),
        ("variant", ("a", "b"), "accuracy", False),
    ],
)
def test_a_column_that_distinguishes_evaluations_is_not_taken_for_runs(
    tmp_path: Path, column: str, values: tuple[object, object], metric: str, is_set: bool
) -> None:
    rows = [f"{step},{value},0.{step}{i}" for step in range(1, 7) for i, value in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join([f"step,{column},{metric}", *rows]) + "\n")
    with pytest.raises(DataError, match=f"differ in {column}") as error:
        isolaw.read(tmp_path / "t.csv", set=FIXED, metric=metric)
    assert (f'different evaluations, use columns={{"eval_set": "{column}"}}' in str(error.value)) is is_set
    assert f'different runs, map it, as in columns={{"{column}": "{column}"}}' in str(error.value)


def test_a_text_without_steps_is_told_what_a_console_has(tmp_path: Path) -> None:
    (tmp_path / "t.log").write_text("[Logger] output\n" + "Epoch 1 | loss=0.1 | reward=6.1\n" * 4)
    with pytest.raises(DataError, match="no console with lines such as"):
        isolaw.read(tmp_path / "t.log", set=FIXED, metric="reward")
