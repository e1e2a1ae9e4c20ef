"""Tables that say B_p, n, B or C in several places: what agrees is read, what does not is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.runs import Runs

SET = {"B_p": 4, "n": 8}


def read(folder: Path, text: str, **keywords: Any) -> Runs:
    (folder / "t.csv").write_text(text)
    return isolaw.read(folder / "t.csv", **{"metric": "acc", **keywords})


def rows(*shapes: tuple[range, str]) -> str:
    return "".join(f"{step},{rest},0.{step + 10}\n" for steps, rest in shapes for step in steps)


def test_an_evaluation_has_an_n_of_its_own(tmp_path: Path) -> None:
    text = "step,split,n,B_p,acc\n" + rows((range(3), "train,8,32"), (range(0, 3, 2), "val,1,500"))
    runs = read(tmp_path, text)
    assert len(runs) == 1
    assert set(runs.points["eval_set"]) == {"train", "validation"}
    assert runs.points["compute"].max() == 2 * 8 * 32


@pytest.mark.parametrize("shape", ["16,4", "8,16"])
def test_a_run_whose_shape_changes_is_asked(tmp_path: Path, shape: str) -> None:
    text = "step,n,B_p,acc\n" + rows((range(1, 5), "8,4"), (range(5, 9), shape))
    with pytest.raises(DataError, match=r"changes within .* from line 2 on \(step 1\) .* 6 on \(step 5\)"):
        read(tmp_path, text)
    named = "step,run,n,B_p,acc\n" + rows((range(1, 5), "a,8,4"), (range(5, 9), f"b,{shape}"))
    assert len(read(tmp_path, named, columns={"run_id": "run"})) == 2


@pytest.mark.parametrize(
    "shapes",
    [
        [(range(1, 5), "8,4"), (range(1, 9), "16,4")],
        [(range(5, 61, 5), "64,4"), (range(40, 81, 40), "8,4"), (range(70, 281, 70), "4,4")],
        [(range(40, 41), "16,4"), (range(80, 81), "8,4")],  # ends of runs
    ],
)
def test_runs_of_several_shapes_are_no_change(tmp_path: Path, shapes: list[tuple[range, str]]) -> None:
    assert len(read(tmp_path, "step,n,B_p,acc\n" + rows(*shapes))) == len(shapes)


@pytest.mark.parametrize(
    ("header", "line", "given", "words", "column"),
    [
        ("n,B_p,B", "8,32,128", {}, "B = 128 is not B_p · n = 32 · 8", None),
        ("num_generations,x", "4,1", SET, "n is set to 8, but the column num_generations says 4", "n"),
        ("n,B_p,rollout_n", "8,4,16", {}, "n is 8, but the column rollout_n says 16", "n"),
        (
            "prompts_per_step,x",
            "16,1",
            SET,
            "B_p is set to 4, but the column prompts_per_step says 16",
            "B_p",
        ),
        ("rollouts_per_problem,x", "4,1", SET, "n is set to 8, but the column rollouts_per_problem", None),
    ],
)
def test_a_column_that_contradicts(
    tmp_path: Path, header: str, line: str, given: dict[str, int], words: str, column: str | None
) -> None:
    text = f"step,{header},acc\n" + rows((range(1, 4), line))
    with pytest.raises(DataError, match=words.replace("(", r"\(")) as error:
        read(tmp_path, text, set=given)
    assert "line 2" in str(error.value)
    if column:
        said = header.split(",")[0 if line[0] != "8" else 2]
        assert f'columns={{"{column}": "{said}"}}' in str(error.value)
        constants = {name: value for name, value in given.items() if name != column}
        assert len(read(tmp_path, text, columns={column: said}, set=constants)) == 1


def test_cumulative_rollouts(tmp_path: Path) -> None:
    same = "step,total_rollouts,acc\n" + "".join(f"{m},{32 * (m + 1)},0.1\n" for m in range(4))
    assert len(read(tmp_path, same, set=SET)) == 1
    other = "step,total_rollouts,acc\n" + "".join(f"{m},{64 * m},0.1\n" for m in range(4))
    with pytest.raises(
        DataError,
        match=r"total_rollouts counts 64 a step from line 2 on, but B_p = 4 and n = 8 make 32",
    ):
        read(tmp_path, other, set=SET)
    runs = read(tmp_path, other, columns={"compute": "total_rollouts"}, set=SET)
    assert runs.points["compute"].max() == 192


def test_compute_in_tokens(tmp_path: Path) -> None:
    text = "step,compute,acc\n" + "".join(f"{m},{5_000_000 * m},0.1\n" for m in range(4))
    with pytest.raises(DataError, match=r"line 3: compute is 5e\+06, over 100 times .* = 4 · 8 · 1 = 32"):
        read(tmp_path, text, set=SET)
    given = {"compute": "problems_per_batch*rollouts_per_problem*step"}
    assert read(tmp_path, text, columns=given, set=SET).points["compute"].max() == 96


COUNTED = "step,{name},response_length,acc\n"


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("total_episodes", 64),
        ("rollouts_so_far", 16),
        ("prompts_seen", 8),
        ("samples", 16),
    ],
)
def test_a_counter_that_contradicts(tmp_path: Path, name: str, each: int) -> None:
    """B_p · n = 4 · 8 = 32 rollouts of 10 tokens a step."""
    text = COUNTED.format(name=name) + "".join(f"{t},{each * t},10,0.5{t}\n" for t in range(1, 7))
    with pytest.raises(
        DataError, match=rf"{name} counts {each} a step from line 2 on, but B_p = 4 and n = 8 "
    ):
        read(tmp_path, text, set=SET)
    read(tmp_path, text, columns={"C": "problems_per_batch*rollouts_per_problem*step"}, set=SET)


@pytest.mark.parametrize(
    ("name", "each"),
    [("total_episodes", 32), ("episode", 1), ("prompts_seen", 4), ("samples", 4), ("samples_seen", 32),
     ("num_tokens", 500), ("episode_reward", 7)],
)  # fmt: skip
def test_a_counter_that_agrees_or_counts_something_else(tmp_path: Path, name: str, each: int) -> None:
    for offset in (0, 1_000):
        text = COUNTED.format(name=name) + "".join(
            f"{t},{offset + each * t},10,0.5{t}\n" for t in range(1, 7)
        )
        assert read(tmp_path, text, set=SET).points["compute"].max() == 192


def test_steps_that_may_count_rollouts_are_said(tmp_path: Path) -> None:
    runs = read(tmp_path, "step,acc\n" + "".join(f"{32 * t},0.{t + 1}\n" for t in range(6)), set=SET)
    assert any("steps rise by 32, which is B_p · n" in note for note in runs.notes)
    runs = read(tmp_path, "step,acc\n" + "".join(f"{10 * t},0.{t + 1}\n" for t in range(6)), set=SET)
    assert not any("steps rise" in note for note in runs.notes)
