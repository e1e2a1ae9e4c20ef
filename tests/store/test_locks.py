"""Who may write: one process at a time, also where hosts do not see each other's locks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from isolaw.errors import InUse
from isolaw.store import locks
from isolaw.store.folder import Folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.at(tmp_path)


def held_elsewhere(path: Path, seconds_ago: float, host: str = "elsewhere", process: int = 7) -> None:
    """As another host leaves the file, whose kernel's lock is not seen here."""
    path.write_text(f"process {process} on {host}\nmark\n")
    os.utime(path, (time.time() - seconds_ago,) * 2)


def test_it_says_who_holds_it_and_is_empty_afterwards(path: Path, folder: Folder) -> None:
    with locks.locked(folder):
        first = locks.message(folder)
        assert first.startswith(f"process {os.getpid()} on {socket.gethostname()}\n")
        assert locks.holder(folder) is not None
    assert locks.message(folder) == ""
    assert locks.holder(folder) is None
    with locks.locked(folder):
        assert locks.message(folder) != first


def test_signs_of_life(path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    monkeypatch.setattr(locks, "_HEARTBEAT", locks._Heartbeat())
    with locks.locked(folder):
        os.utime(path, (0, 0))
        until = time.monotonic() + 5
        while time.time() - path.stat().st_mtime > 60:
            assert time.monotonic() < until
            time.sleep(0.01)
    os.utime(path, (0, 0))
    time.sleep(0.1)
    assert path.stat().st_mtime == 0  # nobody touches what is no longer held


@pytest.mark.parametrize("kernel_has_locks", [True, False])
def test_another_host_holds_it_while_it_shows_life(
    path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch, kernel_has_locks: bool
) -> None:
    if not kernel_has_locks:
        without_kernel_locks(monkeypatch)
    held_elsewhere(path, seconds_ago=20)
    before = path.stat().st_mtime
    for _ in range(2):  # a look does not renew it
        assert locks.holder(folder) is not None
        with (
            pytest.raises(InUse, match=r" is in use by process 7 on elsewhere, last heartbeat 2[01] s ago"),
            locks.locked(folder, wait_s=0.1),
        ):
            pass
    assert path.stat().st_mtime == before
    held_elsewhere(path, seconds_ago=locks.STALE_S + 1)
    assert locks.holder(folder) is None
    with locks.locked(folder):
        pass


def test_after_a_kill_on_this_host_it_is_free_at_once(path: Path, folder: Folder) -> None:
    held_elsewhere(path, seconds_ago=0, host=socket.gethostname())
    with locks.locked(folder):
        pass


def without_kernel_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(file: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)


@pytest.mark.slow
def test_where_the_kernel_has_no_locks(path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernel_locks(monkeypatch)
    with locks.locked(folder), pytest.raises(InUse), locks.locked(folder):
        pass
    held_elsewhere(path, seconds_ago=0, host=socket.gethostname(), process=2**22 + 1)  # above any process id
    with locks.locked(folder):
        pass


def test_two_that_come_together_where_the_kernel_has_no_locks(
    path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernel_locks(monkeypatch)
    entered: list[int] = []
    both = threading.Barrier(2)
    met: set[int] = set()
    write = locks._write

    def together(file: object, text: str) -> None:
        if threading.get_ident() not in met:  # the first time that each of them writes
            met.add(threading.get_ident())
            both.wait(5)
        write(file, text)  # type: ignore[arg-type]

    monkeypatch.setattr(locks, "_write", together)

    def come(number: int) -> None:
        try:
            with locks.locked(folder):
                entered.append(number)
                time.sleep(0.5)
        except InUse:
            pass

    threads = [threading.Thread(target=come, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == 1


def test_other_errors_are_not_hidden(path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: object, kind: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(OSError, match="Input/output"), locks.locked(folder):
        pass
