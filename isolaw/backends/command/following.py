"""`Following`: a training's log, read while it grows, as the readers read it when it is whole.

A text log is read in the pieces by which it grows; what is rewritten as a whole (a trainer's state) or is a
folder (TensorBoard) is read again when it changes, at most a tenth of the time.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.readers import frameworks, limits
from isolaw.readers.assemble import assemble
from isolaw.readers.containers import candidates
from isolaw.readers.frameworks.base import Fact, Framework, Target
from isolaw.readers.raw_log import HEAD, RawLog, finite
from isolaw.readers.sources import natural
from isolaw.readers.stitch import RunCurves, stitch

_PIECE = 32 * 2**20  # bytes that are read at a time
_SHARE = 0.1  # of the time that reading may take
_LONGEST_LINE = 2**20
# Containers that make sense of a file as a whole; `_PRINTED` of what was printed since the start.
_PRINTED = "stdout-dicts"
_WHOLE = {"trainer-state", "tensorboard", "json", "wandb-offline", "mlflow", _PRINTED}
_STEP = ("step", "global_step", "training_step", "iteration")
_EVALUATION = re.compile(r"(?:eval|val|valid|validation|test)[/_.](.+)", re.S)

# What a script of one's own may log of the run, beside its metrics.
_OWN_FACTS = {
    "rollouts_per_problem": {"n", "rollouts_per_problem"},
    "problems_per_batch": {"B_p", "problems_per_batch"},
    "rollouts_per_step": {"B", "rollouts_per_step"},
    "seed": {"seed"},
}
_NO_METRICS = {*_STEP, "time", *(key for keys in _OWN_FACTS.values() for key in keys)}

Values = dict[Target, float]


def plain(evaluation_set: str) -> Framework:
    """Return the names of a script of one's own: JSON lines with ``step``; ``eval/x`` is an evaluation's.

    >>> plain("validation").metric("eval_acc"), plain("aime24").metric("val/acc"), plain("v").metric("reward")
    (('validation', 'acc'), ('aime24', 'acc'), ('train', 'reward'))
    """

    def metric(key: str) -> Target | None:
        if found := _EVALUATION.fullmatch(key):
            return evaluation_set, found[1]
        name = key.removeprefix("train/")
        return None if name in _NO_METRICS else ("train", name)

    return Framework("none", metric, step_keys=_STEP)


class Following:
    """The log of one training. ``pattern`` names its files; of several, all belong to it.

    What is there already is of an earlier start of the training, which then continued after ``step`` updates:
    of it, `read` gives the steps up to there, and of the training itself those after.
    """

    def __init__(self, pattern: str, framework: Framework | None, step: int) -> None:
        self.pattern, self.framework = pattern, framework
        self.name = Path(pattern).name
        self._known = framework is not None and framework.name == "none"
        self._old = self._new = RawLog(pattern, "", "run")
        self._places: dict[str, int] = {}  # of each file: how much of it was read
        self._seen: dict[str, tuple[int, int]] = {}  # of each file that is read as a whole
        self._whole: dict[str, list[RawLog]] = {}
        self._containers: dict[str, Any] = {}
        self._starts: dict[str, int] = {}  # of each file: its size when the training began
        self._due = 0.0
        self.step = step
        self.facts: dict[str, Fact] = {}
        self._gather(final=True)
        self._old, self._new = self._new, RawLog(pattern, "", "run")
        self._before = dict(self._whole)
        self._starts = {name: size for name, (_, size) in self._seen.items()}

    def read(self, final: bool = False) -> dict[int, Values]:
        """Return the values of all steps so far; ``final``: also of a last line without an end."""
        if not final and time.monotonic() < self._due:
            return {}
        began = time.monotonic()
        changed = self._gather(final)
        out = self._values() if changed or final else {}
        self._due = time.monotonic() + (time.monotonic() - began) / _SHARE
        return out

    def _gather(self, final: bool) -> bool:
        changed = False
        for name in sorted(glob.glob(self.pattern, recursive=True), key=natural):
            path = Path(name)
            if not path.exists() or (path.is_file() and not path.stat().st_size):
                continue
            if name not in self._containers and not self._known:
                head = path.open("rb").read(HEAD) if path.is_file() else b""
                found = next((own for own in candidates("auto") if own.file(path, head)), None)
                if found is None:
                    continue
                self._containers[name] = found
            container = self._containers.get(name)
            if container is not None and container.name in _WHOLE:
                changed |= self._again(path, container)
            else:
                changed |= self._grown(path, container, final)
        return changed

    def _again(self, path: Path, container: Any) -> bool:
        """Read a file that is rewritten as a whole."""
        status = path.stat()
        mark = status.st_mtime_ns, status.st_size
        if self._seen.get(str(path)) == mark:
            return False
        try:
            if container.name == _PRINTED and (before := self._starts.get(str(path), 0)):
                with path.open("rb") as file:
                    file.seek(before)
                    logs = list(_read_piece(container, path, file.read(limits.LARGEST_LOG)))
            else:
                logs = list(container.read(path))
        except DataError:  # it is being written
            return False
        self._whole[str(path)] = logs
        self._seen[str(path)] = mark
        return True

    def _grown(self, path: Path, container: Any, final: bool) -> bool:
        """Read what was appended to a text."""
        name, changed = str(path), False
        size = path.stat().st_size
        at = self._places.get(name, 0)
        if size < at:  # written again
            at = 0
        with path.open("rb") as file:
            while at < size:
                file.seek(at)
                piece = file.read(_PIECE)
                whole = piece if final and at + len(piece) >= size else piece[: piece.rfind(b"\n") + 1]
                if not whole:
                    if len(piece) < _LONGEST_LINE:
                        break
                    whole = piece  # a line without an end: not one of a log
                self._take(path, container, whole)
                at += len(whole)
                changed = True
        self._places[name] = at
        return changed

    def _take(self, path: Path, container: Any, text: bytes) -> None:
        if container is None:
            for line in text.splitlines():
                if len(line) <= _LONGEST_LINE and line.lstrip()[:1] == b"{":
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        continue
                    step = next((finite(record[key]) for key in _STEP if key in record), math.nan)
                    self._new.add(record, step)
            return
        with contextlib.suppress(DataError):  # lines without a record
            for log in _read_piece(container, path, text):
                _append(self._new, log)

    def _values(self) -> dict[int, Values]:
        new = [
            log for name, logs in self._whole.items() if logs is not self._before.get(name) for log in logs
        ]
        new += [self._new] if len(self._new.step) else []
        old = [log for logs in self._before.values() for log in logs]
        old += [self._old] if len(self._old.step) else []
        framework = self.framework or _found([*old, *new])
        if framework is None:
            return {}
        self.framework = framework
        out = {step: own for step, own in _by_step(stitch(old, framework)).items() if step <= self.step}
        if new:
            # Read together: whether a log counts from 0 shows at its beginning.
            last = max(_by_step(stitch(new, framework)), default=-1)
            both = _by_step(stitch([*old, *new], framework))
            out |= {step: own for step, own in both.items() if self.step < step <= last}
        return out

    @property
    def not_finite(self) -> int:
        """How many values of the training itself are NaN or infinite."""
        return self._new.dropped["values that are not finite"]

    def check(self) -> dict[str, Fact]:
        """Return what the log and the configuration beside it say of the run, by our names."""
        found: dict[str, Fact] = {}
        for name, keys in _OWN_FACTS.items():
            for key in keys & self._new.series.keys() if self._known else ():
                found[name] = Fact(self._new.series[key].value[-1], key)
        for name, container in self._containers.items():
            try:
                logs = list(container.read(Path(name)))
            except DataError:
                continue
            for run in assemble(logs)[0]:
                found |= {key: fact for key, fact in run.facts.items() if fact.value is not None}
        return found


def _read_piece(container: Any, path: Path, text: bytes) -> list[RawLog]:
    """Read a part of a file."""
    with tempfile.TemporaryDirectory(prefix="isolaw-") as folder:
        piece = Path(folder) / path.name
        piece.write_bytes(text)
        return list(container.read(piece))


def _append(log: RawLog, more: RawLog) -> None:
    """Add a piece's records to those before."""
    rows: list[dict[str, float]] = [{} for _ in more.step]
    for key, series in more.series.items():
        for record, value in zip(series.record, series.value, strict=True):
            rows[record][key] = value
    for values, step, wall_s in zip(rows, more.step, more.wall_s, strict=True):
        log.add(values, step, wall_s)
    log.container = more.container
    log.config = log.config or more.config


def _found(logs: Iterable[RawLog]) -> Framework | None:
    keys = {key for log in logs for key in log.series}
    config: Mapping[str, Any] = {key: value for log in logs for key, value in log.config.items()}
    return frameworks.find(keys, config)


def _by_step(curves: RunCurves) -> dict[int, Values]:
    out: dict[int, Values] = {}
    for target, curve in curves.of.items():
        for step, value in zip(curve.step.tolist(), curve.value.tolist(), strict=True):
            out.setdefault(step, {})[target] = value
    return dict(sorted(out.items()))
