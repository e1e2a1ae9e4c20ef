"""Lines in bounded memory, and what a console adds to them."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.errors import DataError
from isolaw.readers.limits import LONGEST_LINE as LONGEST
from isolaw.readers.raw_log import RawLog, clean, lines, unprefixed


def read(path: Path, returns: bool = False) -> tuple[list[tuple[int, bytes]], dict[str, int]]:
    log = RawLog(str(path), "test", "run")
    return list(lines(path, log, returns)), log.dropped


def test_lines_are_numbered_and_the_last_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n\nthree\r\nfour")
    assert read(path) == ([(1, b"one"), (3, b"three\r"), (4, b"four")], {})
    path.write_bytes(b"")
    assert read(path) == ([], {})


def test_a_progress_bar_is_lines_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\rTraining:  1%|\rTraining:  2%|\rstep:3 - a/b:1\r\nnext\n")
    texts = [line for _, line in read(path, returns=True)[0]]
    assert texts == [b"Training:  1%|", b"Training:  2%|", b"step:3 - a/b:1", b"next"]


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, 3 * LONGEST, (1 << 20) + 7])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_longer_line_is_dropped_and_counted(tmp_path: Path, length: int, end: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n" + b"x" * length + b"\nafter" + end)
    found, dropped = read(path)
    kept = length <= LONGEST
    assert [number for number, _ in found] == ([1, 2, 3] if kept else [1, 3])
    assert found[-1] == (3, b"after")
    assert dropped == ({} if kept else {"lines longer than 1 MB": 1})


def test_memory_is_bounded_by_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\nlast\n")
    log = RawLog(str(path), "test", "run")
    tracemalloc.start()
    assert [line for _, line in lines(path, log)] == [b"last"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=30))
def test_lines_are_those_of_the_file(written: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(b"\n".join(written))
        found, dropped = read(path)
    assert found == [(i, line) for i, line in enumerate(written, 1) if line]
    assert not dropped


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: No such file"):
        read(tmp_path / "nowhere")


def test_clean() -> None:
    assert clean(b"\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07text\x1b[2K") == "green text"
    assert clean(b"lost [36mescape[0m, and [3] stays") == "lost escape, and [3] stays"
    assert clean(b"a\x00\x00b\x08\tc\r") == "ab\tc"
    assert clean(b"half a \xe2\x86 letter") == "half a  letter"
    assert clean("τ ↔ 0.5".encode()) == "τ ↔ 0.5"


@pytest.mark.parametrize(
    ("line", "worker", "text"),
    [
        ("(TaskRunner pid=12) step:1", "(TaskRunner pid=12)", "step:1"),
        ("(main_task pid=12, ip=10.0.0.7)  {'a':", "(main_task pid=12, ip=10.0.0.7)", " {'a':"),
        ("(pid=12) text", "", "(pid=12) text"),
        ("(a) text", "", "(a) text"),
        ("(WorkerDict pid=9) x [repeated 7x across cluster]", "(WorkerDict pid=9)", "x"),
        ("0: {'loss': 0.1}", "0: ", "{'loss': 0.1}"),  # srun --label
        (
            " 3:   1%|#| 17/2264 [01:22<2:55:16,  4.68s/it]",
            " 3: ",
            "  1%|#| 17/2264 [01:22<2:55:16,  4.68s/it]",
        ),
        ("1: (TaskRunner pid=12) step:1", "1: (TaskRunner pid=12)", "step:1"),
        ("12:30:01 text", "", "12:30:01 text"),
        ("no worker [repeated 7x across cluster]", "", "no worker [repeated 7x across cluster]"),
    ],
)
def test_unprefixed(line: str, worker: str, text: str) -> None:
    assert unprefixed(line) == (worker, text)


@pytest.mark.parametrize(
    "piece", [b"\x1b[", b"\x1b]", b"(a", b"(a ", b"[1;", b"\x1b[0", b"(a pid=1", b"[36", b" "]
)
def test_every_line_is_cleaned_in_linear_time(piece: bytes) -> None:
    line = (piece * LONGEST)[:LONGEST]
    started = time.process_time()
    unprefixed(clean(line))
    assert time.process_time() - started < 10


def test_what_precedes_a_hole_of_nul_bytes_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one:0.1" + bytes(4096) + b"5\n" + bytes(512) + b"two\n")
    assert read(path) == ([(1, b"5"), (2, b"two")], {"lines cut off by NUL bytes": 1})
