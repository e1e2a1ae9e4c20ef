"""The executor `inline`: one run after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from isolaw.executors.base import Event, execute


def run(directory: Path, run_ids: Sequence[str]) -> Iterator[Event]:
    """Execute the runs here, in order."""
    for run_id in run_ids:
        yield from execute(directory, run_id)
