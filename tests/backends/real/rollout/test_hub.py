"""Data sets on disk and on the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolaw.backends.real.rollout.split import _read_pool
from isolaw.errors import SpecError

SUMS = {"prompt": "question", "answer": "gold.answer"}


def asked(name: object, part: str | None = None, columns: dict[str, str] = SUMS) -> dict[str, str]:
    return {str(p.prompt): p.answer for p in _read_pool(str(name), part, columns)}


def refused(name: object, part: str | None = None, columns: dict[str, str] = SUMS) -> list[str]:
    with pytest.raises(SpecError) as raised:
        _read_pool(str(name), part, columns)
    return [str(issue) for issue in raised.value.issues]


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data set org/sums in the Hub's cache: links to blobs."""
    cache = tmp_path / "hub" / "datasets--org--sums"
    folder, blobs = cache / "snapshots" / "abc", cache / "blobs"
    (folder / "main").mkdir(parents=True)
    blobs.mkdir()
    for part, rows in {"train-00000-of-00002": (1, 2), "train-00001-of-00002": (3,), "test": (4,)}.items():
        table = {"question": [f"{i}+{i}=" for i in rows], "gold": [{"answer": 2 * i} for i in rows]}
        pq.write_table(pa.table(table), blobs / part)
        (folder / "main" / f"{part}.parquet").symlink_to(blobs / part)

    def download(repo: str, **_: Any) -> str:
        if repo != "org/sums":
            raise OSError(f"404: no data set {repo}")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return folder


def test_a_data_set_of_the_hub(snapshot: Path) -> None:
    for name in (snapshot, "hf://datasets/org/sums"):
        assert asked(name, "main/train") == {f"{i}+{i}=": str(2 * i) for i in (1, 2, 3)}
        assert asked(name, "main/test") == {"4+4=": "8"}
    assert asked("hf://datasets/org/sums/main", "test") == {"4+4=": "8"}
    assert asked("hf://datasets/org/sums/main/test.parquet") == {"4+4=": "8"}
    (told,) = refused("hf://datasets/org/smus")
    assert told.startswith("--problems: hf://datasets/org/smus: not downloaded: OSError: 404: no data set")


def test_columns(tmp_path: Path) -> None:
    """verl's layout: messages, and the answer in a field of a field; the same problem twice."""
    row = {
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"ground_truth": "2"},
        "big": [[0]],
    }
    (tmp_path / "verl").mkdir()
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "verl" / "train.parquet")
    found = _read_pool(f"{tmp_path}/verl", None, {"answer": "reward_model.ground_truth"})
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
    for name in (f"{tmp_path}/pool.jsonl", str(tmp_path)):
        assert [p.answer for p in _read_pool(name, None, {"prompt": "q"})] == ["2"]
    with pytest.raises(SpecError, match="only a data set"):
        _read_pool(f"{tmp_path}/pool.jsonl", "train")
    (tmp_path / "empty").mkdir()
    (told,) = refused(tmp_path / "empty")
    assert told.startswith(
        f"--problems: {tmp_path}/empty: the folder has no data; expected .jsonl or .parquet files"
    )
