"""Foreign tables: mapped, or refused with what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.table_files import load
from isolaw.readers.tables import read_table
from isolaw.runs import Runs

FIXED = {"problems_per_batch": 4, "rollouts_per_problem": 8}
WIDE = "step,score,extra\n1,0.1,7\n2,0.2,8\n3,0.3,9\n"


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str | bytes, metric: str | None = "score", **mapping: Any) -> Runs:
    return read_table(write(folder, text), HowToRead.of(**{"set": FIXED, **mapping}, metric=metric))


# What is read


def test_wide(tmp_path: Path) -> None:
    runs = read(tmp_path, WIDE)
    points = runs.points
    assert points["value"].tolist() == [0.1, 0.2, 0.3]
    assert points["step"].tolist() == [1, 2, 3]
    assert points["compute"].tolist() == [32, 64, 96]
    assert set(points["metric"]) == {"score"}
    assert set(points["eval_set"]) == {"validation"}
    assert runs.source == str(tmp_path / "t.csv")
    assert any("compute = problems_per_batch" in note for note in runs.notes)


def test_long(tmp_path: Path) -> None:
    text = "step,metric,value,eval_set,n_samples\n" + "".join(
        f"{s},{m},{s / 10},{e},4\n" for s in (0, 1) for m in ("avg@4", "kl") for e in ("validation", "aime24")
    )
    runs = read(tmp_path, text, metric=None)
    assert runs.metrics("validation") == runs.metrics("aime24") == ["avg@4", "kl"]
    assert len(runs) == 1
    assert set(runs.points["n_samples"]) == {4}
    assert runs.points["compute"].drop_duplicates().tolist() == [0, 32]


def test_wide_and_long_are_the_same_table(tmp_path: Path) -> None:
    long = "step,metric,value\n" + "".join(f"{s},score,0.{s}\n" for s in (1, 2, 3))
    pd.testing.assert_frame_equal(read(tmp_path, WIDE).points, read(tmp_path, long, metric=None).points)


def test_columns_derive_and_constants(tmp_path: Path) -> None:
    text = "prompts,group,name,r,it\n" + "".join(
        f"{16 * i},{n},x{n},0.{n}{i},{i}\n" for n in (2, 4) for i in (1, 2)
    )
    runs = read(
        tmp_path,
        text,
        columns={
            "rollouts_per_problem": "group",
            "step": "it",
            "model": "name",
            "compute": "prompts*rollouts_per_problem",
        },
        set={"problems_per_batch": 16, "problem_set": "math", "lr": 0.5},
        metric="r",
    )
    points = runs.points
    assert len(runs) == 2
    assert points["compute"].tolist() == [32, 64, 64, 128]
    assert set(points["problem_set"]) == {"math"}
    assert runs.notes == ()


def test_names_of_the_users_own_are_attributes_and_tell_runs_apart(tmp_path: Path) -> None:
    text = "step,score,eta\n1,0.1,0.5\n2,0.2,0.5\n1,0.3,2\n2,0.4,2\n"
    runs = read(tmp_path, text, columns={"lr": "eta"})
    assert len(runs) == 2
    assert sorted(a["lr"] for a in runs.attributes.values()) == [0.5, 2]
    assert any("lr=0.5" in run_id for run_id in runs.attributes)


@pytest.mark.parametrize(("name", "least"), [("acc", 0.3), ("score", 30)])
def test_an_accuracy_in_percent_is_divided_whoever_names_it(tmp_path: Path, name: str, least: float) -> None:
    runs = read(tmp_path, f"step,{name}\n1,30\n2,50\n", metric=name)
    assert runs.points["value"].min() == least
    assert any("was in percent (up to 50)" in note for note in runs.notes) == (name == "acc")


@pytest.mark.parametrize("name", ["acc_pct", "percent_solved", "acc%"])
def test_a_name_says_percent_however_low_the_values(tmp_path: Path, name: str) -> None:
    text = f"step,{name}\n1,0.3\n2,0.8\n"
    for metrics in ({}, {name: name}, {"avg@1": name}):
        runs = read(tmp_path, text, metric=None if metrics else name, metrics=metrics)
        assert runs.points["value"].tolist() == pytest.approx([0.003, 0.008])
        assert any("was in percent (up to 0.8): divided by 100" in note for note in runs.notes)
    said = {"avg@1": {"column": name, "percent": False}}
    assert read(tmp_path, text, metric=None, metrics=said).points["value"].max() == 0.8


def test_seeds_by_a_column(tmp_path: Path) -> None:
    text = "step,score,trial\n1,0.1,0\n1,0.2,1\n"
    assert len(read(tmp_path, text, columns={"seed": "trial"})) == 2


def test_parquet_in(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"  # told apart by content, not by name
    pd.DataFrame({"step": [1, 2, 3], "score": [0.1, 0.2, 0.3]}).to_parquet(path)
    runs = read_table(path, HowToRead.of(set=FIXED, metric="score"))
    pd.testing.assert_frame_equal(runs.points, read(tmp_path, WIDE).points)


@pytest.mark.parametrize("name", ["points.csv", "points.txt", "points.parquet", "points"])
def test_our_own_table_comes_back_whatever_its_name(tmp_path: Path, name: str) -> None:
    runs = read(tmp_path, WIDE)
    runs.points.to_csv(tmp_path / name, index=False)
    pd.testing.assert_frame_equal(isolaw.read(tmp_path / name).points, runs.points)
    runs = Runs(runs.points, {run_id: {"lr": 0.5} for run_id in runs.points["run_id"]})
    runs.to_parquet(tmp_path / name)
    again = isolaw.read(tmp_path / name)
    pd.testing.assert_frame_equal(again.points, runs.points)
    assert again.attributes == runs.attributes


def test_steps_are_numbered_where_there_are_none(tmp_path: Path) -> None:
    runs = read(tmp_path, "compute,score\n100,0.1\n300,0.2\n")
    assert runs.points["step"].tolist() == [1, 2]
    assert any("no step column" in note for note in runs.notes)
    runs = read(tmp_path, "compute,score\n0,0.1\n300,0.2\n")
    assert runs.points["step"].tolist() == [0, 1]


def test_byte_order_mark_quotes_and_line_ends(tmp_path: Path) -> None:
    text = '\ufeff"step","score"\r\n1,0.1\r\n2,"0.2"\r\n3,0.3\r\n'
    assert read(tmp_path, text).points["value"].tolist() == [0.1, 0.2, 0.3]


def test_a_sweep_directory_and_its_table(tmp_path: Path, tiny, same) -> None:
    made = isolaw.sweep(tiny(), tmp_path)
    same(isolaw.read(tmp_path), made)
    table = isolaw.read(tmp_path / "points.parquet")
    same(table, made)
    assert table.attributes == made.attributes
    with pytest.raises(DataError, match="needs no columns"):
        isolaw.read(tmp_path, columns={"seed": "x"})


def test_the_real_table(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "data" / "tan_rollout_n_base.csv"
    runs = isolaw.read(
        path,
        columns={"rollouts_per_problem": "rollout_n", "compute": "prompts_seen*rollout_n"},
        set={"problems_per_batch": 512},
        metric="holdout_acc_raw",
    )
    frame = pd.read_csv(path)
    assert len(runs) == 4
    assert len(runs.points) == len(frame)
    assert runs.points["value"].sum() == pytest.approx(frame["holdout_acc_raw"].sum(), rel=1e-12)
    np.testing.assert_array_equal(
        np.sort(runs.points["compute"]), np.sort(frame["prompts_seen"] * frame["rollout_n"])
    )


# What is refused


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["the file is empty"]),
        (b" \n\n\t\n", ["the file is empty"]),
        (b"step,score\n", ["a header but no rows", "step, score"]),
        (bytes(range(256)) * 4, ["a binary file", "CSV, Parquet"]),
        (b"\x89PNG\r\n\x1a\n\0\0\0", ["a binary file"]),
        ("step,score\n1,é\n".encode("latin-1"), ["not a text file", "UTF-8"]),
        (b"PAR1 and then nothing", ["not a readable Parquet file"]),
        (b"step,score\n1,0.1\n2,0.2,0.3\n", ["not a CSV table", "line 3"]),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, content: bytes, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, content)
    for word in [str(tmp_path / "t.csv"), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("extra", ["9,", "9,9,"])
def test_rows_longer_than_the_header_are_not_shifted(tmp_path: Path, extra: str) -> None:
    path = write(tmp_path, f"step,score\n{extra}1,0.1\n{extra}2,0.2\n")
    with pytest.raises(DataError, match=r"t\.csv"):
        load(path)


@pytest.mark.parametrize("path", ["nowhere.csv", "."])
def test_no_such_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        isolaw.read(tmp_path / path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,score\n1,nan\n2,NaN\n", ["2 values are not finite", "2 (value nan"]),
        ("step,score\n1,\n2,\n", ["the metrics' columns are empty: score"]),
        ("step,score\n1,0.1\n2,inf\n", ["not finite", "3 (value inf"]),
        ("step,score\n1,0.1\n2,good\n", ["value is not a number", "3 has 'good'"]),
        (
            "step,score\n1,0.1\n2,0.2\n2,0.3\n",
            ["repeated (run, step)", "4 (step 2", 'columns={"seed": "<column>"}'],
        ),
        ("step,compute,score\n1,64,0.1\n2,32,0.2\n", ["compute must grow", "3 (step 2)", "32 after 64"]),
        (
            "compute,score\n64,0.1\n32,0.2\n",
            ["compute must grow", "32 after 64", 'columns={"seed": "<column>"}'],
        ),
        ("compute,score\n64,0.1\n64,0.2\n", ["compute must grow", "64 after 64"]),
        ("step,compute,score\n1,-5,0.1\n", ["compute must be at least 0"]),
        ("step,score\n-1,0.1\n", ["step must be at least 0"]),
        ("step,score,rollouts_per_problem\n1,0.1,0\n", ["rollouts_per_problem must be at least 1", "2 ("]),
        ("step,score,rollouts_per_problem\n1,0.1,\n", ["rollouts_per_problem is empty", "2"]),
        ("step,score,problems_per_batch\n1,0.1,many\n", ["problems_per_batch", "'many'"]),
    ],
)
def test_content_that_cannot_be_used(tmp_path: Path, text: str, words: list[str]) -> None:
    header = text.split("\n", 1)[0].split(",")
    constants = {name: value for name, value in FIXED.items() if name not in header}
    with pytest.raises(DataError) as error:
        read(tmp_path, text, set=constants)
    for word in [str(tmp_path / "t.csv"), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": "scores"}, ["no column 'scores'", "'score'", "step, score, extra"]),
        ({"metric": None}, ["no column 'avg@4'", "nearest: 'score'", "step, score, extra"]),
        ({"columns": {"seed": "xtra"}}, ["seed: no column 'xtra'", "'extra'", "step, score, extra"]),
        ({"columns": {"compute": "steps*8"}}, ["no column 'steps*8'", "'step'"]),
        ({"columns": {"compute": "step**2"}}, ["'step ** 2' is not arithmetic"]),
    ],
    ids=str,
)
def test_a_mapping_that_names_nothing(tmp_path: Path, arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, WIDE, **arguments)
    for word in words:
        assert word in str(error.value)


def test_rows_are_named_by_their_line_also_after_blank_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5 \(value inf"):
        read(tmp_path, "step,score\n\n1,0.1\n\n2,inf\n")


def test_a_blank_cell_is_no_measurement(tmp_path: Path) -> None:
    """The usual form of a validation that is made at some steps alone."""
    runs = read(tmp_path, "step,score,loss\n0,0.1,2\n1,,1\n2,,1\n3,0.4,1\n")
    assert runs.points["step"].tolist() == [0, 3]
    assert runs.points["value"].tolist() == [0.1, 0.4]
    assert "2 of 4 rows have no score, so it was not measured there" in runs.notes


@pytest.mark.parametrize(("name", "eval_set"), [("critic/score/mean", "train"), ("score", "validation")])
def test_a_metric_of_training_is_not_called_validation(tmp_path: Path, name: str, eval_set: str) -> None:
    (tmp_path / "t.csv").write_text(f"step,{name}\n1,0.1\n2,0.2\n")
    runs = read_table(tmp_path / "t.csv", HowToRead.of(set=FIXED, metric=name))
    assert set(runs.points["eval_set"]) == {eval_set}


@pytest.mark.parametrize(
    "form", ["step {i}: lr=0.1 acc={r}", '{{"step": {i}, "acc": {r}}}', "document", "csv"]
)
@pytest.mark.parametrize("diverges", [True, False])
def test_a_curve_that_ends_in_nan_diverges_but_nan_can_stand_for_missing(
    tmp_path: Path, form: str, diverges: bool
) -> None:
    """In JSON and a console; in a CSV, an empty cell stands for a missing value."""
    values = ["0.1", "0.2", *(["NaN"] * 3 if diverges else ["NaN", "0.3", "NaN"])]
    lines = [form.format(i=i, r=r) for i, r in enumerate(values, 1)]
    if form == "document":
        lines = [f'{{"step": [1, 2, 3, 4, 5],\n "acc": [{", ".join(values)}]}}']
    elif form == "csv":
        cells = values if diverges else ["" if value == "NaN" else value for value in values]
        lines = ["step,acc", *(f"{i},{cell}" for i, cell in enumerate(cells, 1))]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    runs = isolaw.read(tmp_path / "a.txt", set={"B_p": 8, "n": 4}, metric="acc")
    assert runs.points["value"].tolist() == ([0.1, 0.2] if diverges else [0.1, 0.2, 0.3])
    assert runs.to_pandas()["value"].isna().sum() == diverges


@pytest.mark.parametrize("form", ["{i},{r}", "step {i}: acc={r}"])
@pytest.mark.parametrize("end", ["0.", "-", "1e-", "0.4", "0.4\n", "4"])
def test_a_last_line_whose_number_cannot_be_whole_is_left_out(tmp_path: Path, form: str, end: str) -> None:
    lines = ["step,acc"] * form.startswith("{i},")
    lines += [form.format(i=i, r=r) for i, r in enumerate(["0.1", "0.2", "0.3", end], 1)]
    frame = load(write(tmp_path, "\n".join(lines)))
    is_torn = end[-1] in ".-"
    assert frame["acc"].tolist() == [0.1, 0.2, 0.3, *([] if is_torn else [float(end)])]
    assert ("isolaw left out 1 torn last line" in frame.attrs.get("notes", ())) == is_torn
