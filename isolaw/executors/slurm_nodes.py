"""Coordinate the machines of a SLURM job with several nodes: the first task starts the work on the others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

from submitit.slurm.slurm import SlurmJobEnvironment

from isolaw.errors import RunError
from isolaw.executors import launcher
from isolaw.store import Folder
from isolaw.store.run import MEETING

_LOOK_S = 1.0


class SlurmNodes:
    """The `Nodes` of a SLURM job; the first task calls the other tasks through a file in the run's folder."""

    def __init__(self, folder: Folder) -> None:
        job = SlurmJobEnvironment()
        self.count, self.number = job.num_nodes, job.node
        self.address = _address(*job.hostnames[:2]) if self.number == 0 else ""
        self.folder = folder
        # A job that SLURM has restarted must ignore the file of its previous attempt.
        self.job = f"{job.raw_job_id}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
        self.calls = 0

    def call(self, meeting: dict[str, Any]) -> None:
        self.calls += 1
        self._write(meeting)

    def dismiss(self) -> None:
        self._write(None)

    def _write(self, meeting: dict[str, Any] | None) -> None:
        text = json.dumps({"job": self.job, "call": self.calls, "meeting": meeting})
        self.folder.write(MEETING, text.encode(), sync=False, mode=0o600)  # the message holds a secret

    def follow(self) -> None:
        """Execute this machine's part of each call by the first task, until the first task dismisses it."""
        while True:
            message: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                message = json.loads(self.folder.read(MEETING) or b"{}")
            if message.get("job") != self.job or (message["call"] == self.calls and message["meeting"]):
                time.sleep(_LOOK_S)
            elif message["meeting"] is None:
                return
            else:
                self.calls = message["call"]
                launcher.join(message["meeting"], self.number)


def _address(node: str, *others: str) -> str:
    """Return the address at which other machines reach this machine.

    ``node`` is SLURM's name for this machine, and ``others`` are names of other machines of the job.
    """
    for name in (*others, node, socket.gethostname()):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 9))  # sends nothing
            return str(probe.getsockname()[0])
    raise RunError(f"neither SLURM's name of this machine, {node!r}, nor its own resolves to an address")
