"""What each process of a run of several does; `launcher` is the engine's side.

``python -m isolaw.backends.real.ranks ADDRESS PORT``, as torchrun starts it: connect to the engine, get the
job, and execute `loop.train`. Whether a checkpoint's state is written is the engine's decision, told to the
first process and passed on to all. When the engine is gone, so is the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from isolaw.backends.real import environment
from isolaw.errors import RunError
from isolaw.parsing import parse_section
from isolaw.spec import RunSpec

SECRET = "ISOLAW_SECRET"
_CONNECTING_S = 30.0


def main(address: str, port: int) -> None:
    """Execute the job that is told at ``address``, as one of its processes."""
    environment.prepare()
    first = os.environ["RANK"] == "0"
    line = _Line(address, port)
    job = line.hear()
    spec = parse_section(RunSpec, job["spec"], source="the job")
    state = Path(job["state"]) if job["state"] else None
    try:
        _choose_gpu()
        from isolaw.backends.real import loop

        for checkpoint in loop.train(spec, state, line.asked_to_stop.is_set):
            if first:
                told = {
                    "step": checkpoint.step,
                    "compute": checkpoint.compute,
                    "tokens": checkpoint.tokens,
                    "final": checkpoint.final,
                    "seconds": checkpoint.seconds,
                    "rows": [asdict(row) for row in checkpoint.rows],
                    "counts": [asdict(count) for count in checkpoint.counts],
                }
                line.tell(told)
            while (asked := _share(line.hear() if first else None)).get("save"):
                checkpoint.save(Path(asked["save"]))
                if first:
                    line.tell({})
        line.end({"done": True})
    except RunError as error:
        # Any process may find the fault; the others then only see that it has gone.
        line.end({"failed": str(error)})
        raise
    # Past the destructors of libraries that disagree about who leaves first.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Line:
    """A process's line to the engine; when the engine is gone, so is the run."""

    def __init__(self, address: str, port: int) -> None:
        connection = socket.create_connection((address, port), timeout=_CONNECTING_S)
        connection.settimeout(None)
        keep_alive(connection)
        self.lines, self.writes = ends(connection)
        self.asked_to_stop = threading.Event()
        self.ended = threading.Event()
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.tell({"secret": os.environ.pop(SECRET), "rank": int(os.environ["RANK"])})
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # reset, where the engine had not read all
            for line in self.lines:
                told = json.loads(line)
                if "stop" in told:
                    self.asked_to_stop.set()
                else:
                    self.told.put(told)
        if not self.ended.is_set():
            os._exit(1)

    def tell(self, value: dict[str, Any]) -> None:
        write(self.writes, value)

    def end(self, value: dict[str, Any]) -> None:
        """Say the last word."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self.tell(value)

    def hear(self) -> dict[str, Any]:
        return self.told.get()


def _share(value: dict[str, Any] | None) -> dict[str, Any]:
    """Return the first process's value in every process."""
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=0)
    assert values[0] is not None
    return values[0]


def _choose_gpu() -> None:
    """One GPU for each process, chosen before torch looks.

    vLLM's other ways to sum over the ranks of a sampler look for the peers' GPUs among the visible ones, too.
    """
    if not environment.gpus():
        return
    visible, place = environment.visible(), int(os.environ["LOCAL_RANK"])
    if place >= len(visible):
        found = f"{', '.join(visible)} (CUDA_VISIBLE_DEVICES or nvidia-smi)"
        raise RunError(f"process {place} of this machine has no GPU of its own; visible: {found}")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[place]
    os.environ["LOCAL_RANK"] = "0"
    for name in ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER"):
        os.environ.setdefault(name, "0")
    environment.gpus.cache_clear()


def keep_alive(connection: socket.socket) -> None:
    """See the end of a machine that has no time to say so within about a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def ends(connection: socket.socket) -> tuple[TextIO, TextIO]:
    """A file to read from and another to write to: one for both would lose what is read ahead."""
    return connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8")


def write(lines: TextIO, value: dict[str, Any]) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
