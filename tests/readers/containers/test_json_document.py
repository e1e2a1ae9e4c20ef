"""Metrics as one JSON document, in its forms.

Histories that scripts leave with ``json.dump(trainer.state.log_history, f, indent=2)``, as in many
repositories of github.com (IMJONEZZ/UnslothGRPO is one), and records over several lines.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import DataError, NoHistory
from isolaw.readers.containers import candidates
from isolaw.readers.containers.json_document import CONTAINER
from isolaw.readers.raw_log import RawLog

RECORDS: list[dict[str, Any]] = [
    {"loss": 0.0, "reward": step / 64, "reward_std": 0.25, "completion_length": 100.0 + step, "step": step}
    for step in (5, 10, 15, 20)
]
COLUMNS = {key: [record[key] for record in RECORDS] for key in RECORDS[0]}
ARGUMENTS = {"num_generations": 8, "per_device_train_batch_size": 4, "seed": 3}


def write(folder: Path, text: str, name: str = "history.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(path: Path) -> RawLog:
    found = next(candidate for candidate in candidates() if candidate.file(path, path.read_bytes()[:65_536]))
    assert found.name == "json"
    (log,) = CONTAINER.read(path)
    return log


def rewards(log: RawLog) -> dict[float, float]:
    own = log.series["reward"]
    return {log.step[r]: v for r, v in zip(own.record, own.value, strict=True)}


EXPECTED = {record["step"]: record["reward"] for record in RECORDS}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "document",
    [
        RECORDS,
        COLUMNS,
        {"history": RECORDS},
        {"config": ARGUMENTS, "log_history": RECORDS, "eval": [0.5, 0.25]},
        {"args": ARGUMENTS, "results": {"metrics": COLUMNS}},
    ],
)
def test_its_forms(document: Any, indent: int | None, tmp_path: Path) -> None:
    log = read(write(tmp_path, json.dumps(document, indent=indent)))
    assert rewards(log) == EXPECTED
    if isinstance(document, dict) and {"config", "args"} & set(document):
        assert log.config == ARGUMENTS
        assert log.config_source == "history.json"


def test_objects_over_several_lines(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(record, indent=2) for record in RECORDS)
    assert rewards(read(write(tmp_path, text))) == EXPECTED


def test_torn(tmp_path: Path) -> None:
    text = json.dumps(RECORDS, indent=2)
    log = read(write(tmp_path, text[: text.rindex("completion_length")]))
    assert rewards(log) == {step: EXPECTED[step] for step in (5, 10, 15)}
    assert log.dropped == {"incomplete end of the file": 1}


def test_it_becomes_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "n8"
    folder.mkdir()
    write(folder, json.dumps({"config": ARGUMENTS, "history": RECORDS}, indent=1))
    runs = isolaw.read(tmp_path, set={"B_p": 16})
    assert runs.points["compute"].unique().tolist() == [128 * step for step in EXPECTED]
    assert runs.points["seed"].unique().tolist() == [3]


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        [1, 2, 3],
        {"accuracy": 0.5, "samples": [{"prompt": "a", "score": 1.0}] * 3},
        ARGUMENTS,
        RECORDS[0],  # one record is no curve
        {"a": {"b": {"c": {"d": [{"e": 1}]}}}},
        {"vocab": {"a": 1, "b": 2}, "merges": ["a b"]},
    ],
)
def test_what_it_is_not(document: Any, tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(document, indent=2))
    assert not CONTAINER.file(path, path.read_bytes())
    with pytest.raises(NoHistory, match="found no list of records"):
        list(CONTAINER.read(path))


def test_values_that_are_none(tmp_path: Path) -> None:
    odd = json.dumps(RECORDS, indent=2).replace("0.15625", "NaN")
    log = read(write(tmp_path, odd))
    assert 10 not in rewards(log)
    assert log.dropped == {"values that are not finite": 1}


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(50_000_001)
    with pytest.raises(DataError, match="more than 50 MB; write it as JSON lines"):
        list(CONTAINER.read(path))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '[{"reward": 1}, ' + "[" * 100_000])
def test_nested_deeply(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    CONTAINER.file(path, path.read_bytes()[:65_536])
    with suppress(DataError):
        list(CONTAINER.read(path))


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, garbage: bytes, at: int) -> None:
    content = json.dumps({"history": RECORDS}).encode()
    path = tmp_path_factory.mktemp("json") / "h.json"
    path.write_bytes(content[:at] + garbage + content[at:])
    CONTAINER.file(path, path.read_bytes())
    with suppress(DataError):
        list(CONTAINER.read(path))
