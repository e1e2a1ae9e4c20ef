"""Write to TensorBoard files: ``<directory>/tensorboard/<name>/events.out.tfevents.*``.

Values are written as 32-bit ``simple_value``, because TensorBoard's data server does not show 64-bit values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from isolaw.readers.containers.tensorboard import CONTAINER
from isolaw.trackers.base import TrackedRun, Tracker


class _Writer:
    """Writes one event per checkpoint, so that no checkpoint is written partially."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(str(_folder(run)))
        self._config = json.dumps(dict(run.config), indent=1)

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary import text_pb

        if self._config:  # not in __init__, because TensorBoard's relative time starts at the first event
            text = text_pb("config/text_summary", self._config)
            self._file.add_event(Event(step=compute, wall_time=at, summary=text))
            self._config = ""
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._file.add_event(Event(step=compute, wall_time=at, summary=Summary(value=scalars)))
        self._file.flush()

    def close(self, finished: bool) -> None:
        self._file.close()


def _folder(run: TrackedRun) -> Path:
    return run.directory / "tensorboard" / run.name


def _reached(run: TrackedRun) -> int:
    logs = (log for file in _folder(run).glob("events.out.tfevents.*") for log in CONTAINER.read(file))
    return max((int(step) for log in logs for step in log.step), default=-1)


TRACKER = Tracker("tensorboard", reached=_reached, open=_Writer)
