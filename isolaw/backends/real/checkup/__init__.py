"""``isolaw doctor --gpu``: run every part of the real backend on this machine, on a model of random weights.

Each stage is a process of its own with a time limit: a crash or a hang loses that stage and no other. A
stage writes what it has measured as it goes (`record`), so that a crash keeps the measurements before it.

========== ===================================================================================
devices    driver, libraries, a matrix product on each GPU
collective all-reduce over all GPUs (NCCL) or two processes (gloo): sums and bandwidth
gradients  the trainer in bfloat16 at ZeRO 0 to 3 against float32 on the CPU
cycles     20 × sample, sleep, update, reload, wake: mismatch of log-probabilities, memory
peaks      planned against measured memory
speed      tokens per second of sampling and training, MFU
resume     a sweep that is killed and resumed, against one that is not
========== ===================================================================================

This module imports nothing heavy; the stages do, in their processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isolaw.backends.real import environment
from isolaw.backends.real.checkup.record import read, write_json
from isolaw.errors import DataError, IsolawError

FORMAT = "isolaw.checkup/1"
OUT = "isolaw-gpu-report.json"
LIMIT_S = 600.0  # of everything
_SHOWN_LINES = 30  # of the log of a stage that failed
_STOPPING_S = 5.0


@dataclass(frozen=True)
class Stage:
    """One stage: its most seconds, and those it may be expected to take on a GPU and on a CPU.

    The latter were measured on two busy cores, those on GPUs are guesses.
    """

    name: str
    limit_s: float
    gpu_s: float
    cpu_s: float
    all_gpus: bool = False

    def about_s(self, device: str) -> float:
        """Return the seconds it may be expected to take."""
        return self.cpu_s if device == "cpu" else self.gpu_s


_MODEL = Stage("model", 120, 20, 6)
_STAGES = (
    Stage("devices", 120, 30, 16, all_gpus=True),
    Stage("collective", 120, 20, 8, all_gpus=True),
    Stage("gradients", 180, 60, 26),
    Stage("cycles", 240, 120, 21),
    Stage("peaks", 120, 40, 1),
    Stage("speed", 180, 100, 36),
    Stage("resume", 300, 140, 96, all_gpus=True),
)
NAMES = tuple(stage.name for stage in _STAGES)


@dataclass(frozen=True)
class Progress:
    """A stage that begins (``status`` is None) or has ended, and about how many seconds are left."""

    stage: str
    number: int
    count: int
    left_s: float
    status: str | None = None
    seconds: float = 0.0


def check_out(path: Path) -> None:
    """Raise `DataError` unless a report can be written to ``path``, over an older report or nothing."""
    if path.is_dir():
        raise DataError(f"{path}: is a directory; accepted: a file's name, as {path / OUT}")
    if path.exists() and not _is_ours(path):
        raise DataError(
            f"{path}: exists and is not a report of isolaw doctor --gpu; nothing was written over"
        )
    if not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise DataError(f"{path}: cannot be written: no such directory, or no permission to write in it")


def _is_ours(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def check_device(device: str) -> None:
    """Raise `IsolawError` where ``device`` is ``cuda`` and there is no GPU to use."""
    if device == "cpu" or environment.gpus():
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "nvidia-smi lists none" if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}"
    raise IsolawError(
        f"no GPU: {why}; `isolaw doctor --gpu --device cpu` runs the same stages on the CPU with a tiny model"
    )


def run(
    device: str, only: Sequence[str], facts: Mapping[str, Any], tell: Callable[[Progress], None]
) -> dict[str, Any]:
    """Run stages, all unless ``only`` names some, and return the report.

    Parameters
    ----------
    device
        ``cuda`` or ``cpu``.
    only
        names of stages.
    facts
        of the machine, as `isolaw.doctor.to_dict` has them.
    tell
        called when a stage begins and when it ends.
    """
    began, started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    chosen = [stage for stage in _STAGES if not only or stage.name in only]
    with tempfile.TemporaryDirectory(prefix="isolaw-checkup-", ignore_cleanup_errors=True) as folder:
        stages = list(_in_turn([_MODEL, *chosen], Path(folder), device, started + LIMIT_S, tell))
    return {
        "format": FORMAT,
        "device": device,
        "passed": all(stage["status"] in ("passed", "skipped") for stage in stages),
        "began": began,
        "seconds": round(time.monotonic() - started, 1),
        "machine": dict(facts),
        "stages": stages,
    }


def _in_turn(
    stages: Sequence[Stage], folder: Path, device: str, until: float, tell: Callable[[Progress], None]
) -> Iterator[dict[str, Any]]:
    """Yield each stage's result; without a model there is nothing to run the others on."""
    for number, stage in enumerate(stages):
        left = sum(later.about_s(device) for later in stages[number:])
        tell(Progress(stage.name, number, len(stages), left))
        seconds = until - time.monotonic()
        if seconds < 1:
            result = _unrun(stage, f"the stages before it took the {LIMIT_S:.0f} s that all may take")
        else:
            result = _execute(stage, folder, device, min(stage.limit_s, seconds))
        yield result
        left -= stage.about_s(device)
        tell(Progress(stage.name, number, len(stages), left, result["status"], result["seconds"]))
        if stage is _MODEL and result["status"] != "passed":
            return


def _unrun(stage: Stage, why: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"checks": [], "measured": {}, "log": []}
    return {"stage": stage.name, "status": "timed out", "why": why, "seconds": 0.0, **empty}


def _execute(stage: Stage, folder: Path, device: str, limit_s: float) -> dict[str, Any]:
    """Run a stage in a process of its own and return what came of it, whatever becomes of the process."""
    started = time.monotonic()
    log = folder / f"{stage.name}.log"
    why = ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(stage, folder, device),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **_place(stage, device)},
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = f"not done after {limit_s:.0f} s"
        finally:
            _stop(process)
    record = read(folder, stage.name)
    status = "timed out" if why else "passed"
    if not why and process.returncode:
        status, why = "crashed", record.error or _ending(process.returncode)
    elif not why and record.skipped:
        status, why = "skipped", record.skipped
    elif not why and not all(check.passed for check in record.checks):
        status = "failed"
    return {
        "stage": stage.name,
        "status": status,
        "why": why or None,
        "seconds": round(time.monotonic() - started, 1),
        "checks": [asdict(check) for check in record.checks],
        "measured": record.measured,
        "log": [] if status in ("passed", "skipped") else _last_lines(log),
    }


def _command(stage: Stage, folder: Path, device: str) -> list[str]:
    return [sys.executable, "-m", f"{__name__}.stage", stage.name, str(folder), device]


def _place(stage: Stage, device: str) -> dict[str, str]:
    """The environment of a stage: no GPU, the first one, or all."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {} if stage.all_gpus else {"CUDA_VISIBLE_DEVICES": environment.visible()[0]}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a stage's process and all that it started in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOPPING_S)


def _ending(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _last_lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write a report, in one step, where `check_out` finds nothing wrong."""
    check_out(path)
    write_json(path, report)
