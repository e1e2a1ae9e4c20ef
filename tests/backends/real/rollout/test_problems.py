"""Problem sets: what a set is depends on its content alone; everything wrong is found at once."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.backends.real.rollout.problems import Problem, ProblemSet, read_pool, write_set
from isolaw.errors import DataError, Issue, SpecError

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]
GOOD = '{"prompt": "3+3=", "answer": 6}\n'


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(prompt: Any = "1+1=", answer: Any = "2", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good problem set of one training and one validation problem."""
    made = tmp_path / "sums"
    made.mkdir()
    (made / "train.jsonl").write_text(lines(row("1+1=", 2)))
    (made / "validation.jsonl").write_text(GOOD)
    return made


def check_set(folder: str | Path) -> list[Issue]:
    try:
        ProblemSet.read(folder)
    except SpecError as error:
        return error.issues
    return []


def found(folder: Path) -> list[str]:
    """What is wrong with a set, without the folder's own path."""
    return [str(problem).replace(f"{folder}/", "") for problem in check_set(folder)]


# Content


def test_parts_by_the_names_of_their_files(folder: Path) -> None:
    (folder / "aime24.jsonl").write_text(lines(row("2+2=", 4), row(CHAT, 4, id="chat")))
    (folder / "README.md").write_text("no problems here")
    (folder / ".train.jsonl").write_text("an editor's")
    stored = ProblemSet.read(folder)
    assert stored.name == "sums"
    assert list(stored.parts) == ["train", "validation", "aime24"]
    assert Problem("chat", CHAT, "4") in stored.parts["aime24"]
    assert found(folder) == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [(42, "42"), (42.0, "42"), (-0.5, "-0.5"), ("042", "042"), (" x ", " x "), (2**70, str(2**70))],
)
def test_numbers_and_text_are_answers(folder: Path, answer: Any, text: str) -> None:
    (folder / "train.jsonl").write_text(lines(row(answer=answer)))
    assert ProblemSet.read(folder).parts["train"][0].answer == text


def test_digests_know_neither_path_nor_format_nor_order(folder: Path, tmp_path: Path) -> None:
    rows = [row(f"{i}+{i}+0=", 2 * i, id=str(i)) for i in range(50)]
    (folder / "train.jsonl").write_text(lines(*rows))
    other = tmp_path / "elsewhere" / "renamed"
    other.mkdir(parents=True)
    random.Random(0).shuffle(rows)
    pq.write_table(
        pa.Table.from_pylist([r | {"level": 3, "answer": float(r["answer"])} for r in rows]),
        other / "train.parquet",
    )
    (other / "validation.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD.strip().encode() + b"\r\n\r\n")
    a, b = ProblemSet.read(folder), ProblemSet.read(other)
    assert a.parts == b.parts
    assert [a.digest(part) for part in a.parts] == [b.digest(part) for part in b.parts]


@pytest.mark.parametrize("change", [{"answer": "3"}, {"prompt": "1+1 ="}, {"id": "other"}])
def test_digests_know_the_content(folder: Path, change: dict[str, str]) -> None:
    (folder / "train.jsonl").write_text(lines(row(id="one")))
    before = ProblemSet.read(folder).digest("train")
    (folder / "train.jsonl").write_text(lines(row(id="one") | change))
    assert ProblemSet.read(folder).digest("train") != before


def test_chats_in_parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist([row(CHAT, "4")]), folder / "chats.parquet")
    assert ProblemSet.read(folder).parts["chats"][0].prompt == CHAT


def test_the_first_ones_are_any_and_the_same_ones(folder: Path) -> None:
    rows = [row(f"{i}+{i}+0=", 2 * i, id=str(i)) for i in range(400)]
    (folder / "train.jsonl").write_text(lines(*rows))
    stored = ProblemSet.read(folder)
    first = [int(q.id) for q in stored.first_problems("train", 100)]
    assert 150 < sum(first) / 100 < 250  # not the first lines
    assert first == [int(q.id) for q in stored.first_problems("train", 200)][:100]
    assert len(stored.first_problems("train")) == 400
    with pytest.raises(DataError, match="sums/train: found 400 problems; expected 401"):
        stored.first_problems("train", 401)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(texts, texts), min_size=1, unique_by=lambda pair: " ".join(pair[0].split())))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, pairs: Sequence[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("set")
    questions = [Problem(str(i), prompt, answer) for i, (prompt, answer) in enumerate(pairs)]
    write_set(folder, {"pool": questions})
    assert sorted(read_pool(folder / "pool.jsonl"), key=lambda q: int(q.id)) == questions


# Faults


ANSWER, PROMPT, ID = (
    f"{name}: found %s; expected {accepted}"
    for name, accepted in (
        ("answer", "text or a number"),
        ("prompt", "text, or messages with a role and a content"),
        ("id", "text or a number"),
    )
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": the file is empty; expected problems"),
        ("\n \n", ": the file is empty; expected problems"),
        (lines({"prompt": "1+1=", "answr": 2}), ": no 'answer' anywhere; found ['prompt', 'answr']"),
        (lines({"question": "1+1=", "answer": 2}), ": no 'prompt' anywhere; found ['question', 'answer']"),
        (GOOD + lines({"prompt": "1+1="}), ":2: " + ANSWER % None),
        (lines(row(answer=True)), ":1: " + ANSWER % True),
        (lines(row(answer=[2])), ":1: " + ANSWER % "[2]"),
        (lines(row(answer=" ")), ":1: " + ANSWER % "' '"),
        (lines(row(answer=float("nan"))), ":1: " + ANSWER % "nan"),
        (lines(row(id=[1])), ":1: " + ID % "[1]"),
        (lines(row("")), ":1: " + PROMPT % "''"),
        (lines(row([])), ":1: " + PROMPT % "[]"),
        (lines(row("\ud800")), ":1: " + PROMPT % r"'\ud800'"),
        (lines(row([{"role": "user"}])), ":1: " + PROMPT % "[{'role': 'user'}]"),
        ("\n" + GOOD + '{"prompt": "1', ":3: not valid JSON: Unterminated string starting at: "),
        ("[" * 10**5, ":1: not valid JSON: maximum recursion depth exceeded"),
        ("7\n", ':1: not an object; found 7; expected {"prompt": …, "answer": …}'),
        (lines(row("a", id="x"), row("b"), row("c", id="x")), ":3: the same id 'x' as on line 1"),
        (lines(row("a", id=7), row("b", id="7")), ":2: the same id '7' as on line 1"),
        (lines(row("a"), row("b"), row("a")), ":3: the same prompt, and no id, as on line 1"),
    ],
)
def test_faults_of_a_line(folder: Path, text: str, problem: str) -> None:
    (folder / "train.jsonl").write_text(text)
    (folder / "validation.jsonl").write_text(lines(row("other")))
    (said,) = found(folder)
    assert said.startswith(f"train.jsonl{problem}")


def test_not_utf8(folder: Path) -> None:
    (folder / "train.jsonl").write_bytes(GOOD.encode() + b'{"prompt": "\xff", "answer": 1}\n')
    (problem,) = [p for p in found(folder) if ":2:" in p]
    assert problem.startswith("train.jsonl:2: not valid JSON: 'utf-8' codec can't decode byte 0xff")


def test_everything_at_once(folder: Path) -> None:
    (folder / "train.jsonl").write_text(lines(row(answer=None), row(prompt=3)) + "{")
    (folder / "validation.jsonl").write_text("")
    (folder / "extra.jsonl").write_text(lines({"prompt": "2+2="}))
    assert [re.match(r"[^:]+(:\d)?", problem)[0] for problem in found(folder)] == [
        "train.jsonl:3",
        "train.jsonl:1",
        "train.jsonl:2",
        "validation.jsonl",
        "extra.jsonl",
    ]
    with pytest.raises(SpecError, match="5 issues"):
        ProblemSet.read(folder)


def test_of_many_alike_three_are_shown(folder: Path) -> None:
    (folder / "train.jsonl").write_text(GOOD + lines(*[row(f"{i}", answer=None) for i in range(2000)]))
    (folder / "validation.jsonl").write_text(lines(row("other")))
    problems = found(folder)
    assert len(problems) == 4
    assert problems[3] == "train.jsonl: 1,997 more such (answer), to line 2001"


@pytest.mark.parametrize("prompt", ["1+1=", " 1+1=\n", [{"role": "user", "content": "1+1="}]])
@pytest.mark.parametrize("part", ["validation", "aime24"])
def test_evaluation_problems_that_are_trained_on(folder: Path, part: str, prompt: Any) -> None:
    (folder / "train.jsonl").write_text(lines(row(id="a"), row("5+5=", 10)))
    (folder / f"{part}.jsonl").write_text(lines(row("9+9=", 18), row(prompt, 2, id="b")))
    assert found(folder) == [f"{part}.jsonl: 1 of its problems also occur in training: 'b' (there 'a')"]


def test_many_that_are_trained_on(folder: Path) -> None:
    rows = lines(*[row(f"{i}=", i, id=i) for i in range(1005)])
    (folder / "train.jsonl").write_text(rows)
    (folder / "validation.jsonl").write_text(rows)
    (problem,) = found(folder)
    assert problem.startswith("validation.jsonl: 1,005 of its problems also occur in training: '")
    assert problem.endswith("and 1,002 more")


def test_a_folder_that_is_not_one(folder: Path) -> None:
    accepted = "expected a folder with train.jsonl and validation.jsonl (or .parquet)"
    (near,) = check_set(folder.parent / "sms")
    assert str(near) == f"{folder.parent}/sms: no such folder; {accepted} (did you mean 'sums'?)"
    (file,) = check_set(folder / "train.jsonl")
    assert str(file) == f"{folder}/train.jsonl: found a file; {accepted}"


def test_missing_parts(folder: Path) -> None:
    (folder / "validation.jsonl").rename(folder / "validate.jsonl")
    (problem,) = check_set(folder)
    names = "found 'train.jsonl, validate.jsonl' (did you mean 'validate'?)"
    assert str(problem) == f"{folder}: no validation.jsonl or validation.parquet; {names}"


def test_two_files_of_one_part(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist([row("x")]), folder / "train.parquet")
    (problem,) = found(folder)
    assert problem == "train.parquet: found train.jsonl as well; expected only one of the two files"


def test_faults_of_parquet(folder: Path) -> None:
    (folder / "train.jsonl").unlink()
    pq.write_table(
        pa.Table.from_pylist([row("a", None), row("b", "2"), row("b", "2")]), folder / "train.parquet"
    )
    assert found(folder) == [
        "train.parquet, row 1: answer: found None; expected text or a number",
        "train.parquet, row 3: the same prompt, and no id, as on row 2",
    ]
    (folder / "train.parquet").write_bytes(b"PAR1 but no more than that")
    (problem,) = found(folder)
    assert problem.startswith("train.parquet: not a Parquet file: ")


@pytest.mark.parametrize(
    ("name", "said"), [("none.jsonl", "no such file"), ("", "a folder"), ("a.csv", ".csv")]
)
def test_a_pool_that_is_no_file_of_problems(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a.csv").touch()
    with pytest.raises(SpecError, match=rf"found '{said}'; expected a .jsonl or .parquet file"):
        read_pool(tmp_path / name)


def test_checks_load_nothing_heavy(folder: Path) -> None:
    (folder / "train.jsonl").write_text(lines(row("x", None)))
    code = (
        "import sys\nfrom isolaw.backends.real.rollout import problems, rewards\n"
        f"try: problems.ProblemSet.read({str(folder)!r})\n"
        "except Exception as error: assert len(error.issues) == 1\n"
        "assert rewards.check('mth') and not rewards.check('exact') and not rewards.check('os.path:join')\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "isolaw.backends.real.rollout.problems" in loaded.split()
    heavy = {
        "torch",
        "transformers",
        "tokenizers",
        "vllm",
        "deepspeed",
        "pyarrow",
        "pandas",
        "math_verify",
        "sympy",
    }
    assert set(loaded.split()) & heavy == set()


def test_a_number_of_any_size_is_an_answer(folder: Path) -> None:
    (folder / "train.jsonl").write_text(lines(row("10^401=", 10**401)))
    assert ProblemSet.read(folder).parts["train"][0].answer == str(10**401)


def test_a_long_value_is_shown_in_part(folder: Path) -> None:
    (folder / "train.jsonl").write_text(lines(row(answer=["7" * 10_000]), row(prompt="2?", id={})))
    assert f'found "[\'{"7" * 198}…"' in found(folder)[0]
    assert "found {}" in found(folder)[1]


def test_other_columns_are_not_read(folder: Path) -> None:
    (folder / "train.jsonl").unlink()
    never = pa.array([2**62], pa.timestamp("us"))  # no Python datetime holds it
    table = {"prompt": ["1+1="], "answer": [2], "when": never}
    pq.write_table(pa.table(table), folder / "train.parquet")
    assert found(folder) == []
    pq.write_table(pa.table({**table, "answer": never}), folder / "train.parquet")
    (told,) = found(folder)
    assert told.startswith("train.parquet: ")
