"""Processes by a mark in their environment, and the sockets at which they listen."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from isolaw.documents.reading import toml_text

MARK = "ISOLAW_TEST_MARK"  # in the environment of all that is started, also of what left the tree


def marked(mark: str, others: set[psutil.Process] | None = None) -> Iterator[psutil.Process]:
    """Yield the processes with a mark; those without it join ``others``, which are not looked at again.

    What a marked process starts has the mark from the start.
    """
    others = set() if others is None else others
    for process in psutil.process_iter():
        if process in others:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                yield process
            else:
                others.add(process)


def listeners(processes: Iterable[psutil.Process]) -> set[tuple[str, str]]:
    """(program, address) of each TCP socket that listens."""
    out = set()
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    out.add((" ".join(process.cmdline())[:80], connection.laddr.ip))
    return out


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return found.is_loopback or bool(getattr(found, "ipv4_mapped", None) and found.ipv4_mapped.is_loopback)


@contextlib.contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        words, env={**os.environ, MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield process, mark
    finally:
        process.kill()
        process.communicate()
        for item in marked(mark):
            item.kill()


def seen(data: dict[str, Any], folder: Path) -> tuple[set[tuple[str, str]], int]:
    """Make a sweep; return what listened meanwhile, and how many processes there were at most."""
    file, found, most = folder / "sweep.toml", set(), 0
    file.write_text(toml_text(data))
    words = [sys.executable, "-m", "isolaw", "sweep", str(file), "--out", str(folder / "out")]
    with started(*words) as (process, mark):
        until = time.monotonic() + 900  # Ray takes 9 s, and 200 s at a load of 10
        others: set[psutil.Process] = set()
        while process.poll() is None and time.monotonic() < until:
            now = list(marked(mark, others))
            found |= listeners(now)
            most = max(most, len(now))
            time.sleep(0.05)  # this loop must not slow down what it watches
        assert process.wait(120) == 0, process.stderr.read().decode()[-2000:]
        until = time.monotonic() + 120
        while left := [item for item in marked(mark) if item.is_running()]:  # nothing is left
            assert time.monotonic() < until, left
            time.sleep(0.1)
    return found, most
