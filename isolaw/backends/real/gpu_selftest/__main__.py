"""Run one stage in a process: ``python -m isolaw.backends.real.gpu_selftest NAME FOLDER DEVICE``."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload
from isolaw.errors import IsolawError


def main(name: str, folder: str, device: str) -> None:
    """Run a stage and end the process, with exit status 1 if the stage raised an error."""
    # Exit on SIGTERM, so that the processes that the stage has started end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    environment.prepare()
    record = Record.of(Path(folder), name)
    status = 0
    try:
        stage = importlib.import_module(f"isolaw.backends.real.gpu_selftest.{name}")
        stage.run(Workload(Path(folder), device), record)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        record.fail(first if isinstance(error, IsolawError) else f"{type(error).__name__}: {first}")
        sys.excepthook(*sys.exc_info())
        status = 1
    environment.leave(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
