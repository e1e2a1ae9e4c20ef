"""What a sweep starts listens on loopback alone: the sockets of the whole tree, looked at while it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from marked_processes import MARK, is_loopback, listeners, marked, seen, started


def test_it_would_be_seen() -> None:
    code = (
        "import socket, time; s = socket.create_server(('', 0));"
        "t = socket.create_server(('127.0.0.1', 0)); time.sleep(60)"
    )
    with started(sys.executable, "-c", code) as (_, mark):
        until = time.monotonic() + 120
        while len(found := listeners(marked(mark))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
    assert sorted(is_loopback(address) for _, address in found) == [False, True]
    assert [is_loopback(value) for value in ("::1", "::ffff:127.0.0.1", "::", "192.0.2.2")] == [
        True,
        True,
        False,
        False,
    ]


SIMULATED = {
    "sweep": {"compute": 20_000_000, "seeds": 1},
    "grid": {"rollouts_per_problem": [2, 4]},
    "problems": {"n_train": 64, "n_validation": 50},
    "evaluation": {"points": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["processes", *(pytest.param(k, marks=pytest.mark.nightly) for k in ("ray", "slurm"))]
)
def test_simulated_runs(kind: str, tmp_path: Path) -> None:
    if importlib.util.find_spec({"slurm": "submitit"}.get(kind, kind)) is None and kind != "processes":
        pytest.skip(f"needs the extra {kind}")
    more = {"cluster": "local", "time": 10} if kind == "slurm" else {}
    found, most = seen({**SIMULATED, "executor": {"kind": kind, **more}}, tmp_path)
    assert most >= 3
    assert bool(found) == (kind == "ray")
    assert [result for result in found if not is_loopback(result[1])] == []


@pytest.mark.real
@pytest.mark.slow
def test_a_stranger_learns_nothing_and_changes_nothing(tmp_path: Path) -> None:
    """torch's store, through which torchrun took pickles from anyone, is not served on one machine at all."""
    pytest.importorskip("torch")
    code = (
        "import os, socket, sys\n"
        "from isolaw.backends.real.train import process_group\n"
        "process_group.start(0.01)\n"
        "import torch, torch.distributed as dist\n"
        "value = torch.ones(1); dist.all_reduce(value); assert value.item() == 2\n"
        "print('met', flush=True); sys.stdin.read()\n"
        "dist.all_reduce(value); assert value.item() == 4\n"
        "from isolaw.backends.real import environment; environment.leave(0)\n"  # as a process of a run ends
    )
    group = {"RANK": "0", "WORLD_SIZE": "2", "ISOLAW_GROUP": f'{{"file": "{tmp_path / "store"}"}}'}
    mark = uuid.uuid4().hex
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank), MARK: mark},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        assert [rank.stdout.readline() for rank in ranks] == [b"met\n"] * 2
        ports = [
            connection.laddr.port
            for process in marked(mark)
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert ports  # gloo's, on loopback
        outside = {
            option.address
            for every in psutil.net_if_addrs().values()
            for option in every
            if option.family == socket.AF_INET and not is_loopback(option.address)
        }
        for port in ports:
            for address in outside:
                with pytest.raises(OSError):  # noqa: PT011 - refused, or no route
                    socket.create_connection((address, port), timeout=2)
            # Another user of this machine: no store answers, and rubbish does no harm.
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=2) as line,
            ):
                line.sendall(b"\x3c\x85\xf7\x07" * 64)
                line.settimeout(0.5)
                assert line.recv(64) == b""
    finally:
        for rank in ranks:
            rank.stdin.close()
        for rank in ranks:
            rank.stdout.close()
            rank.wait(300)
    # Both ends of standard input close one after the other: the second sum takes both.
    assert [rank.returncode for rank in ranks] == [0, 0]
