"""Consoles of one's own: a counter and ``key=value`` in a line, amid whatever else was printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import DataError
from isolaw.readers.console_table import is_console, read_console
from isolaw.readers.table_files import load

REWARDS = [0.1, 0.25, -0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("form", "column", "scale"),
    [
        ("[exp_s042]   {i}/5 | loss=-0.5 | reward={r} | lr=1e-05", "reward", 1),
        ("[step {i}/5] rewards=['0.8', '0.1'] mean_reward={r} wasted=0", "mean_reward", 1),
        ("\x1b[32m2026-01-02 10:00:00\x1b[0m iter {i} / 5: reward: {r}, note: none", "reward", 1),
        ("Epoch ({i}/5) - acc = {r}%", "acc", 100),
        ("Epoch:[1/1]({i}/5), Reward: {r}, Actor Loss: 0.5, Critic Loss: 0.1", "Reward", 1),
        ("iteration: {i}, reward={r} loss=0.1", "reward", 1),
        ("step: {i}, loss: 0.1, correct: 7/32, reward: {r}", "reward", 1),
        ("[rank 0/8] 03/15 12:01:01 step={i} mem 31/80 GB reward={r}", "reward", 1),
        (" [2026-01-02] iteration        {i}/    5 | loss: 1E-06 | reward:    {r} |", "reward", 1),
        ("{i}/5 | reward={r} | step 1 of the rest", "reward", 1),
        ("train  {i}/5 [00:12<01:00, 2.1it/s, reward={r}]", "reward", 1),
    ],
)
def test_lines_are_rows(tmp_path: Path, form: str, column: str, scale: float) -> None:
    chatter = "Step 1: we add 3/4 and x=2\nloading shards\n\n"
    lines = [form.format(i=i, r=r) for i, r in enumerate(REWARDS, 1)]
    path = tmp_path / "train.log"
    path.write_text(chatter + f"\n{chatter}".join(lines) + "\n")
    frame = load(path)
    assert frame[frame[column].notna()]["step"].tolist() == [1, 2, 3, 4, 5]
    assert (frame[column].dropna() * scale).tolist() == pytest.approx(REWARDS)
    runs = isolaw.read(path, set={"B_p": 8, "n": 4}, metric=column)
    assert runs.points["compute"].tolist() == [32, 64, 96, 128, 160]


def test_infinity_is_nan_and_the_rows_of_a_diverged_run_are_kept(tmp_path: Path) -> None:
    content = b"".join(
        b"step %d | loss: %s | kl: inf\n" % (i, b"0.5" if i < 3 else b"-inf") for i in range(6)
    )
    frame = read_console(tmp_path / "a.log", content)
    assert (frame["step"].tolist(), frame["loss"].notna().sum()) == (list(range(6)), 3)
    assert frame.attrs["written_nan"] == {"loss": {4, 5, 6}, "kl": {1, 2, 3, 4, 5, 6}}


def test_a_share_is_one(tmp_path: Path) -> None:
    content = b"".join(b"[step %d/4] correct=%d/4 lr=1e-5\n" % (i, i) for i in (1, 2, 3, 4))
    assert read_console(tmp_path / "a.log", content)["correct"].tolist() == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("step", ["Step {:,}/30,000", "step={:_}", "[{:,}/5,000]"])
def test_separators_in_numbers(tmp_path: Path, step: str) -> None:
    (tmp_path / "a.log").write_text(
        "".join(f"{step.format(i)} | reward={i} | tokens: {1500 * i:,} | lr=0.1\n" for i in (500, 1000, 1500))
    )
    frame = load(tmp_path / "a.log")
    assert (frame["step"].tolist(), [*frame]) == ([500, 1000, 1500], ["step", "reward", "lr"])
    assert frame.attrs["notes"] == ["a.log: isolaw left out values of tokens such as '750,000' in line 1"]


@pytest.mark.parametrize("text", ["0,025", "1,234.5", "1_000"])
def test_a_reward_with_a_separator_is_refused_rather_than_cut(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.log").write_text("".join(f"step {i}/9 loss: 0.1 reward: {text}\n" for i in (1, 2, 3)))
    with pytest.raises(DataError, match=rf"line 1: reward is '{text}'; expected a number such as 0\.025"):
        load(tmp_path / "a.log")


@pytest.mark.parametrize(
    "form",
    [
        "[eval] step {i}: reward={r}",
        "Validation step {i}: reward={r}",
        "  eval: step {i} | reward={r}",
        "test step={i} reward={r}",
        "step {i} eval: reward={r}",
        "step {i}: val reward={r}",
    ],
)
def test_lines_with_a_word_of_evaluation_are_of_validation(tmp_path: Path, form: str) -> None:
    lines = ["/data/eval/run.py: 1 file"]  # a path is no such word
    for i, r in enumerate(REWARDS, 1):
        lines += [f"step {i}: reward={r} loss=0.1", *([form.format(i=i, r=r + 1)] if i % 2 else [])]
    (tmp_path / "a.log").write_text("\n".join(lines))
    runs = isolaw.read(tmp_path / "a.log", set={"B_p": 8, "n": 4}, metric="reward")
    values = {name: rows["value"].tolist() for name, rows in runs.points.groupby("eval_set")}
    assert values == {"train": REWARDS, "validation": [r + 1 for r in REWARDS[::2]]}
    (tmp_path / "b.log").write_text("\n".join(line for line in lines if "loss" not in line))
    frame = load(tmp_path / "b.log")  # a word that all lines have may be the logger's
    assert "phase" not in frame


@pytest.mark.parametrize(
    ("training", "evaluation", "is_read"),
    [
        ("[train] step {i}/5 | loss: 0.1 | reward: {r}", "[eval] step {i} | reward: {r}", True),
        ("step {i}/5 loss=0.1 reward={r}", "Eval @ step {i}: reward={r}", True),
        ("step {i} | loss: 0.1 | reward: {r}", "[eval {i}/16] reward: {r}", False),  # of steps or of batches
        ("step 3{i}/500 loss=0.1 reward={r}", "Step {i}: test the score: 2", False),  # of model output
        ("Step {i}, loss: 0.1, reward: {r}", "Eval success rate: 0.14", False),
        ("Step {i}, loss: 0.1, reward: {r}", "  >> test accuracy: 0.14", False),
    ],
)
def test_evaluations_whose_lines_count_otherwise(
    tmp_path: Path, training: str, evaluation: str, is_read: bool
) -> None:
    forms = [form for _ in REWARDS for form in (training, evaluation)]
    (tmp_path / "a.log").write_text("".join(f.format(i=1 + k // 2, r=k) + "\n" for k, f in enumerate(forms)))
    frame = load(tmp_path / "a.log")
    assert frame["reward"].tolist() == (list(range(10)) if is_read else [0, 2, 4, 6, 8])
    assert ("phase" in frame) == is_read
    note = (
        "a.log: isolaw left out 5 lines of evaluations that have no step or count otherwise, such as line 2"
    )
    assert frame.attrs["notes"] == ([] if is_read else [note])


def test_a_counter_of_episodes_asks_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"episode {32 * i}/500 reward={r}\n" for i, r in enumerate(REWARDS, 1)))
    own: dict[str, Any] = {"set": {"B_p": 8, "n": 4}, "metric": "reward"}
    with pytest.raises(DataError, match=r"state what .episode. counts: "):
        isolaw.read(path, **own)
    points = isolaw.read(path, columns={"compute": "episode"}, **own).points
    assert points["compute"].tolist() == [32, 64, 96, 128, 160]
    path.write_text("".join(f"episode {32 * i}/500 step {i}: reward=0.1\n" for i in (1, 2, 3)))
    assert load(path)["step"].tolist() == [1, 2, 3]


def test_a_console_that_begins_with_a_bracket_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"[step {i}/500] loss: 0.1 acc: {i}%\n" for i in (1, 2, 3)))
    assert load(tmp_path / "a.log")["acc"].tolist() == [0.01, 0.02, 0.03]
    (tmp_path / "a.json").write_text('[{"step": 1, "text": "1/9 a=1\\n2/9 a=1"},\n{"step": 2}]')
    assert load(tmp_path / "a.json")["step"].tolist() == [1, 2]


def test_steps_that_start_again_with_each_epoch(tmp_path: Path) -> None:
    lines = [f"Epoch {e}/2 step {i}/3 reward={e + i / 10}\n" for e in (1, 2) for i in (1, 2, 3)]
    frame = read_console(tmp_path / "a.log", "".join(lines).encode())
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["reward"].tolist() == [1.1, 1.2, 1.3, 2.1, 2.2, 2.3]
    lines = [f"Epoch {(i + 2) // 3}/2 step {i}/6 reward={i}\n" for i in range(1, 7)]  # these go on
    assert read_console(tmp_path / "a.log", "".join(lines).encode())["step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_names_of_several_words_and_names_that_repeat(tmp_path: Path) -> None:
    lines = b"".join(
        b"(%d/3), Actor Loss: 0.5, Critic Loss: 0.1, lr 1e-5 kl: 0.2, kl: 0.3\n" % i for i in (1, 2, 3)
    )
    frame = read_console(tmp_path / "a.log", lines)
    assert frame.iloc[0].to_dict() == {
        "step": 1,
        "Actor Loss": 0.5,
        "Critic Loss": 0.1,
        "kl": 0.2,
        "kl#2": 0.3,
    }


def test_a_second_training_is_a_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"{i}/3 reward={i + j}\n" for j in (0, 9) for i in (1, 2, 3)))
    frame = load(tmp_path / "a.log")
    assert [name.removeprefix(str(tmp_path)) for name in frame["run"].unique()] == ["/a", "/a#2"]
    assert frame.attrs["notes"] == ["the steps start again at line 4, so other trainings begin there"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 99), st.floats(-9, 9), st.text(max_size=9)), min_size=3, max_size=9))
def test_a_csv_is_no_console(rows: list[tuple[int, float, str]]) -> None:
    lines = [f"{step},{value},{text!r}" for step, value, text in rows]
    assert not is_console("\n".join(["step,score,note", *lines]).encode())


@pytest.mark.slow
def test_any_bytes_end_soon() -> None:
    for piece in (b"1/9 a=", b"a" * 80 + b"=", b"1/1 ", b"x=1/0 1/2 ", b"=" * 9):
        is_console(piece * 5_000)
        is_console((piece * 150 + b"\n") * 200)


def test_a_folder_of_consoles_is_read_like_one_of_tables(tmp_path: Path) -> None:
    for n in (4, 8):
        lines = [f"[step {step}/9] reward={step / (10 * n)}" for step in range(1, 5)]
        (tmp_path / f"n{n}.log").write_text("\n".join(lines))
    (tmp_path / "notes.txt").write_text("reward = 1: that is what we want\n")
    runs = isolaw.read(tmp_path, set=["B_p=2"], metric="reward", name_pattern="n{n}")
    assert runs.table()["rollouts_per_problem"].tolist() == [4, 8]
    assert runs.points.groupby("run_id")["compute"].max().tolist() == [32, 64]


def test_steps_behind_an_epoch_count_steps(tmp_path: Path) -> None:
    """Without their number: each step is printed, or it is asked."""
    lines = [f"Epoch {1 + i // 3}/2 step {1 + i % 3}: reward={i / 10}\n".encode() for i in range(6)]
    assert read_console(tmp_path / "a.log", b"".join(lines))["step"].tolist() == [1, 2, 3, 4, 5, 6]
    zero = [f"epoch {i // 3} | step {i % 3} | reward={i / 10}\n".encode() for i in range(6)]
    assert read_console(tmp_path / "a.log", b"".join(zero))["step"].tolist() == [0, 1, 2, 3, 4, 5]
    told = [f"Epoch {i // 3} step {1 + i % 3}/3: reward={i / 10}\n".encode() for i in range(6)]
    assert read_console(tmp_path / "a.log", b"".join(told))["step"].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DataError, match="no line gives the number of steps per epoch"):
        read_console(tmp_path / "a.log", b"".join(line for i, line in enumerate(lines) if i != 1))


@pytest.mark.parametrize("form", [
    "step {i}: loss=0.5 reward={r} | eval: reward={v} acc=0.25",
    "[step {i}/9] train reward={r} val reward={v} acc=0.25",
    "{i}/9 | reward={r} | validation | reward={v}, acc=0.25",
])  # fmt: skip
def test_training_and_evaluation_in_one_line(tmp_path: Path, form: str) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(form.format(i=i, r=r, v=r / 2) + "\n" for i, r in enumerate(REWARDS, 1)))
    given: dict[str, Any] = {"set": {"B_p": 8, "n": 4}}
    points = isolaw.read(path, metric="val_reward", **given).points
    assert points["value"].tolist() == [r / 2 for r in REWARDS]
    assert set(points["eval_set"]) == {"validation"}
    (own,) = {"reward", "train reward"} & set(load(path).columns)
    train = isolaw.read(path, metric=own, **given).points
    assert (set(train["eval_set"]), train["value"].tolist()) == ({"train"}, REWARDS)


def test_lines_of_one_step_complete_each_other_or_are_of_several_runs(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {i}: loss=0.5\nstep {i}: reward={r}\n" for i, r in enumerate(REWARDS)))
    frame = load(path)
    assert (frame["reward"].tolist(), frame["loss"].tolist()) == (REWARDS, [0.5] * 5)
    lines = [f"[{k}] step {i}: reward={r + k}" for i, r in enumerate(REWARDS) for k in (0, 1)]
    path.write_bytes("\r\n".join(["starting", *lines]).encode())
    with pytest.raises(DataError, match=r"reward has several values at 5 steps, e.g. at step 0: 0.1 and 1.1"):
        load(path)
    bar = "Training: 10%|#  | {i}/9 [00:02<00:10, 2.1s/it, reward={r}]\r"
    path.write_text("".join(bar.format(i=i, r=r + k) for i, r in enumerate(REWARDS) for k in (0, 1)))
    assert load(path)["reward"].tolist() == [r + 1 for r in REWARDS]  # it is drawn again
