"""Data sets on disk and in the Hub's cache."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolaw.backends.real.rollout.split import _read_pool
from isolaw.errors import SpecError

SUMS = {"prompt": "question", "answer": "gold.answer"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, on a machine without a network."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("no network is to be used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def asked(name: object, part: str | None = None, columns: dict[str, str] = SUMS) -> dict[str, str]:
    return {str(p.prompt): p.answer for p in _read_pool(f"hf:{name}", part, columns)}


def refused(name: object, part: str | None = None, columns: dict[str, str] = SUMS) -> list[str]:
    with pytest.raises(SpecError) as raised:
        _read_pool(f"hf:{name}", part, columns)
    return [str(issue) for issue in raised.value.issues]


def snapshot(cache: Path, name: str, revision: str = "abc") -> Path:
    """As `hf download` lays it out: links to blobs."""
    folder = cache / "hub" / f"datasets--{name.replace('/', '--')}" / "snapshots" / revision
    blobs = folder.parents[1] / "blobs"
    (folder / "main").mkdir(parents=True)
    blobs.mkdir(exist_ok=True)
    for part, rows in {"train-00000-of-00002": (1, 2), "train-00001-of-00002": (3,), "test": (4,)}.items():
        table = {"question": [f"{i}+{i}=" for i in rows], "gold": [{"answer": 2 * i} for i in rows]}
        pq.write_table(pa.table(table), blobs / f"{revision}-{part}")
        (folder / "main" / f"{part}.parquet").symlink_to(blobs / f"{revision}-{part}")
    return folder


def test_a_snapshot_of_the_hub(cache: Path) -> None:
    snapshot(cache, "org/sums")
    assert asked("org/sums", "main/train") == {f"{i}+{i}=": str(2 * i) for i in (1, 2, 3)}
    assert asked("org/sums", "main/test") == {"4+4=": "8"}
    other = snapshot(cache, "org/sums", "def")
    (told,) = refused("org/sums", "main/train")
    assert "the cache has several revisions; found 'org/sums'; expected hf:" in told
    assert asked(other, "main/test") == {"4+4=": "8"}
    refs = other.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("def\n")
    assert asked("org/sums", "main/test") == {"4+4=": "8"}


def test_what_is_not_there_is_not_downloaded_and_what_is_there_is_named(cache: Path) -> None:
    (told,) = refused("org/smus")
    assert "isolaw downloads nothing; found 'org/smus'; expected a path: the cache holds no data set" in told
    snapshot(cache, "org/sums")
    snapshot(cache, "lab/primes")
    (told,) = refused("org/smus")
    assert f"not in the Hub's cache ({cache}/hub)" in told
    assert told.endswith("expected lab/primes, org/sums (did you mean 'org/sums'?)")


def test_columns(tmp_path: Path) -> None:
    """verl's layout: messages, and the answer in a field of a field; the same problem twice."""
    row = {
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"ground_truth": "2"},
        "big": [[0]],
    }
    (tmp_path / "verl").mkdir()
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "verl" / "train.parquet")
    found = _read_pool(f"hf:{tmp_path}/verl", None, {"answer": "reward_model.ground_truth"})
    assert [(p.prompt, p.answer) for p in found] == [([{"role": "user", "content": "1+1="}], "2")] * 2
    assert len({p.id for p in found}) == 2
    wrong = {"answer": "reward.ground_truth", "promt": "prompt"}
    told = refused(tmp_path / "verl", None, wrong)
    assert told[0] == "--column: found 'promt'; expected prompt, answer, id (did you mean 'prompt'?)"
    assert "no 'reward.ground_truth' anywhere; found ['prompt', 'reward_model', 'big']" in told[1]
    (told,) = refused(tmp_path / "verl", None, {"answer": "reward_model.truth"})[:1]
    assert "row 1: answer: found None; expected text or a number" in told


def test_a_pool_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text(json.dumps({"q": "1+1=", "answer": 2}) + "\n")
    for name in (f"{tmp_path}/pool.jsonl", f"hf:{tmp_path}/pool.jsonl", f"hf:{tmp_path}"):
        assert [p.answer for p in _read_pool(name, None, {"prompt": "q"})] == ["2"]
    with pytest.raises(SpecError, match="only a data set"):
        _read_pool(f"{tmp_path}/pool.jsonl", "train")
    (tmp_path / "empty").mkdir()
    (told,) = refused(tmp_path / "empty")
    assert told.startswith(
        f"--problems: {tmp_path}/empty: the folder has no data; expected .jsonl or .parquet files"
    )


@pytest.mark.real
def test_the_command(isolaw: Any, made: Any, tmp_path: Path, cache: Path) -> None:
    command = [
        "problems",
        "--model",
        made.model,
        "--max-response-tokens",
        6,
        "--out",
        tmp_path / "out",
        "--dry-run",
    ]
    snapshot(cache, "org/sums")
    data = ["--problems", "hf:org/sums", "--part", "main/train"]
    columns = ["--column", "prompt=question", "--column", "answer=gold.answer"]
    code, stdout, stderr = isolaw(*command, *data, *columns)
    assert (code, stderr) == (0, "")
    assert stdout.startswith("3 problems; 48 to 432 rollouts")
    code, _, stderr = isolaw(*command, *data)
    assert code == 2
    assert "no 'prompt' anywhere; found ['question', 'gold']" in stderr
