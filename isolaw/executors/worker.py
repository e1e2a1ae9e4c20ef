"""A worker process: ``python -m isolaw.executors.worker DIR``.

Reads run ids, one a line, from standard input; writes an event a line to standard output. When its
input ends, the engine is gone or has no more work, and the worker stops at once: the store is safe
against that at any instant.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from isolaw.executors.base import execute


def main(directory: str) -> None:
    """Serve until the input ends."""
    # Events keep the original standard output; whatever a library prints goes to standard error.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    waiting: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line.strip())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        for event in execute(Path(directory), waiting.get()):
            try:
                events.write(json.dumps(asdict(event)) + "\n")
                events.flush()
            except BrokenPipeError:  # the engine is gone
                os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
