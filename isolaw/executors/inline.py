"""Implement the executor `inline`, which executes one run after another in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.executors.base import execute
from isolaw.executors.event import Event
from isolaw.executors.waiting import Waiting
from isolaw.store import SweepStore


def run(directory: Path, waiting: Waiting, *_: Any) -> Iterator[Event]:
    """Execute the runs one after another in this process, and yield their events."""
    store = SweepStore(directory)
    while not waiting.halted and (run_id := waiting.next()):
        store.run(run_id).proceed()
        for event in execute(directory, run_id, asked=waiting.stop):
            yield from waiting.settle(event)
