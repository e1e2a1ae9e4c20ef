"""The process of one stage: ``python -m isolaw.backends.real.checkup.stage NAME FOLDER DEVICE``."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

from isolaw.backends.real import environment
from isolaw.backends.real.checkup import record
from isolaw.backends.real.checkup.workplace import Workplace
from isolaw.errors import IsolawError


def main(name: str, folder: str, device: str) -> None:
    """Run the stage; its exit status says whether it came to its end, its record what it found."""
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # what it started ends with it
    environment.prepare()
    noted = record.of(Path(folder), name)
    status = 0
    try:
        stage = importlib.import_module(f"isolaw.backends.real.checkup.{name}")
        stage.run(Workplace(Path(folder), device), noted)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        noted.fail(first if isinstance(error, IsolawError) else f"{type(error).__name__}: {first}")
        sys.excepthook(*sys.exc_info())
        status = 1
    # Past the destructors of libraries that disagree about who leaves first.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
