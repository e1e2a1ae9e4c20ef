"""Runs of several processes: torchrun starts them, and the first one talks to the engine.

`launch` is the engine's side: it starts ``torchrun … -m isolaw.backends.real.ranks SOCKET`` and yields what
the first process reports over a socket, a line of JSON each. `main` is every process's side: all execute
`loop.train`; whether a checkpoint's state is written is the engine's decision, passed on to all.

All processes are on one machine: ``real.torchrun`` passes on torchrun's other options.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isolaw.backends.base import Checkpoint, Counts, DamagedState, Row
from isolaw.backends.real import environment, settings
from isolaw.errors import RunError
from isolaw.parsing import parse_section
from isolaw.spec import RunSpec

_STARTING_S = 600.0
_STOPPING_S = 30.0


def launch(spec: RunSpec, state: Path | None) -> Iterator[Checkpoint]:
    """Make a run in processes of its own, or what is left of it after ``state``."""
    options = settings.of(spec)
    with tempfile.TemporaryDirectory(prefix="isolaw-") as folder, socket.socket(socket.AF_UNIX) as listening:
        address = str(Path(folder) / "s")
        listening.bind(address)
        listening.listen()
        listening.settimeout(1.0)
        job = {"spec": spec.model_dump(mode="json"), "state": str(state) if state else None}
        (Path(folder) / "job.json").write_text(json.dumps(job), encoding="utf-8")
        where = options.torchrun or ("--standalone",)
        command = [sys.executable, "-m", "torch.distributed.run", *where]
        command += ["--nproc-per-node", str(options.processes), "-m", "isolaw.backends.real.ranks", folder]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            with _accept(listening, process) as lines:
                yield from _checkpoints(lines, process, Path(folder))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOPPING_S)
        finally:
            _stop(process)


def _accept(listening: socket.socket, process: subprocess.Popen[bytes]) -> Any:
    waited = 0.0
    while True:
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            waited += 1.0
            if process.poll() is not None:
                raise RunError(
                    f"torchrun ended before the run began (exit status {process.returncode})"
                ) from None
            if waited > _STARTING_S:
                raise RunError(f"the processes did not start within {_STARTING_S:.0f} s") from None
            continue
        connection.settimeout(None)
        return connection.makefile("rw", encoding="utf-8")


def _checkpoints(lines: Any, process: subprocess.Popen[bytes], folder: Path) -> Iterator[Checkpoint]:
    def ask(value: Any) -> None:
        lines.write(json.dumps(value) + "\n")
        lines.flush()

    def hear() -> dict[str, Any]:
        line = lines.readline()
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOPPING_S)
            told = folder / "failed.json"
            if told.is_file():
                failure = json.loads(told.read_text(encoding="utf-8"))
                raise (DamagedState if failure["damaged"] else RunError)(failure["cause"])
            raise RunError(f"a process of the run ended (torchrun's exit status {process.returncode})")
        return json.loads(line)

    def save(folder: Path) -> None:
        ask({"save": str(folder.resolve())})
        hear()

    while True:
        told = hear()
        if "done" in told:
            return
        rows = [Row(**row) for row in told.pop("rows")]
        counts = [Counts(**count) for count in told.pop("counts")]
        yield Checkpoint(rows=rows, counts=counts, save=save, **told)
        ask({})


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the processes that were started here, and no other."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOPPING_S)


def main(folder: str) -> None:
    """Execute the job of ``folder`` as one of its processes."""
    environment.prepare()
    _choose_gpu()
    job = json.loads((Path(folder) / "job.json").read_text(encoding="utf-8"))
    spec = parse_section(RunSpec, job["spec"], source="job.json")
    first = os.environ["RANK"] == "0"
    connection = _connect(folder) if first else None
    try:
        from isolaw.backends.real import loop

        for checkpoint in loop.train(spec, Path(job["state"]) if job["state"] else None):
            if connection:
                told = {
                    "step": checkpoint.step,
                    "compute": checkpoint.compute,
                    "tokens": checkpoint.tokens,
                    "final": checkpoint.final,
                    "seconds": checkpoint.seconds,
                    "rows": [asdict(row) for row in checkpoint.rows],
                    "counts": [asdict(count) for count in checkpoint.counts],
                }
                connection.tell(told)
            while (asked := _share(connection.hear() if connection else None)).get("save"):
                checkpoint.save(Path(asked["save"]))
                if connection:
                    connection.tell({})
        if connection:
            connection.done.set()
            connection.tell({"done": True})
    except (RunError, DamagedState) as error:
        # Any process may find the fault; the others then only see that it has gone.
        failure = {"cause": str(error), "damaged": isinstance(error, DamagedState)}
        with contextlib.suppress(FileExistsError), (Path(folder) / "failed.json").open("x") as file:
            json.dump(failure, file)
        raise
    # Past the destructors of libraries that disagree about who leaves first.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Connection:
    """The first process's line to the engine; when the engine is gone, so is the run."""

    def __init__(self, connection: socket.socket) -> None:
        self.lines = connection.makefile("rw", encoding="utf-8")
        self.done = threading.Event()
        threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def _watch(self, connection: socket.socket) -> None:
        # A closed engine is seen here also while the run computes: looking takes nothing from the line.
        with contextlib.suppress(OSError):  # reset, where the engine had not read all
            while connection.recv(1, socket.MSG_PEEK):
                self.done.wait(1.0)
        if not self.done.is_set():
            os._exit(1)

    def tell(self, value: dict[str, Any]) -> None:
        self.lines.write(json.dumps(value) + "\n")
        self.lines.flush()

    def hear(self) -> dict[str, Any]:
        line = self.lines.readline()
        if not line:
            os._exit(0)
        return json.loads(line)


def _connect(folder: str) -> _Connection:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(Path(folder) / "s"))
    return _Connection(connection)


def _share(value: dict[str, Any] | None) -> dict[str, Any]:
    """Return the first process's value in every process."""
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=0)
    assert values[0] is not None
    return values[0]


def _choose_gpu() -> None:
    """One GPU for each process, chosen before torch looks."""
    if environment.gpus():
        os.environ["CUDA_VISIBLE_DEVICES"] = environment.visible()[int(os.environ["LOCAL_RANK"])]
        os.environ["LOCAL_RANK"] = "0"


if __name__ == "__main__":
    main(sys.argv[1])
