"""Implement ``isolaw doctor --gpu``: test every part of the real backend on this machine with random weights.

Each stage is a module of this package. It runs in its own process with a time limit (`__main__`), so that a
crash or a hang does not stop the other stages.

========== ===================================================================================
devices    driver, libraries, and a matrix product on each GPU
collective all-reduce over all GPUs (NCCL) or two processes (gloo): sums and bandwidth
gradients  the trainer in bfloat16 at ZeRO 0 to 3, compared with float32 on the CPU
cycles     20 × sample, sleep, update, reload, wake: mismatch of log-probabilities, memory
peaks      planned memory, compared with measured memory
speed      tokens per second of sampling and training, and MFU
resume     a sweep that is killed and resumed, compared with an uninterrupted sweep
========== ===================================================================================

Importing this module does not load torch. The stages load it in their processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolaw import children, commands
from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record, write_json
from isolaw.documents.reading import read_json
from isolaw.errors import InputError, IsolawError
from isolaw.files import check_replaceable
from isolaw.machine import visible_gpus

FORMAT = "isolaw.checkup/1"
OUT = "isolaw-gpu-report.json"
LIMIT_S = 900.0  # time limit for all stages together
_LOG_LINES = 30  # number of log lines to report for a failed stage
_STOPPING_S = 5.0
_GOOD = ("passed", "skipped")


@dataclass(frozen=True)
class SelftestStage:
    """A stage: its time limit, and its expected duration on one H200 and on two busy cores."""

    name: str
    limit_s: float
    gpu_s: float
    cpu_s: float
    all_gpus: bool = False

    def expected_s(self, device: str) -> float:
        """Return the expected duration on a device, in seconds."""
        return self.cpu_s if device == "cpu" else self.gpu_s


_MODEL = SelftestStage("model", 120, 24, 6)
_STAGES = (
    SelftestStage("devices", 120, 15, 16, all_gpus=True),
    SelftestStage("collective", 120, 5, 8, all_gpus=True),
    SelftestStage("gradients", 240, 98, 26),
    SelftestStage("cycles", 300, 125, 21),
    SelftestStage("peaks", 120, 57, 1),
    SelftestStage("speed", 240, 163, 36),
    SelftestStage("resume", 300, 160, 96, all_gpus=True),
)
NAMES = tuple(stage.name for stage in _STAGES)


@dataclass(frozen=True)
class StageProgress:
    """The start or end of a stage, with the expected remaining seconds; at the start, ``status`` is None."""

    stage: str
    number: int
    count: int
    left_s: float
    status: str | None = None
    seconds: float = 0.0


def check_out(path: Path) -> None:
    """Raise `DataError` unless a report can be written to ``path``, a new file or an older report."""
    check_replaceable(path, "a report of isolaw doctor --gpu", OUT, _is_report)


def _is_report(path: Path) -> bool:
    try:
        return bool(read_json(path).get("format") == FORMAT)
    except InputError:
        return False


def check_device(device: str) -> None:
    """Raise `IsolawError` if ``device`` is ``cuda`` and no GPU is visible."""
    if device == "cpu" or environment.gpus():
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "nvidia-smi lists no GPU" if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}"
    raise IsolawError(
        f"no GPU: {why}; `{commands.doctor_gpu('--device', 'cpu')}` runs the same stages on the CPU with a "
        "tiny model"
    )


def run(
    device: str,
    only: Sequence[str],
    facts: Mapping[str, Any],
    notify: Callable[[StageProgress], None],
    so_far: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run all stages, or only the stages named in ``only``, and return the report.

    ``device`` is ``cuda`` or ``cpu``, and ``facts`` is the result of `isolaw.doctor.to_dict`. ``notify`` is
    called when a stage starts and when it ends. ``so_far`` receives the report after every stage, so that at
    most one stage is lost if this process is killed.
    """
    began, started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    chosen = [stage for stage in _STAGES if not only or stage.name in only]
    with tempfile.TemporaryDirectory(prefix="isolaw-checkup-", ignore_cleanup_errors=True) as folder:
        stages = [_MODEL, *chosen]
        report: dict[str, Any] = {"format": FORMAT, "device": device, "passed": False, "began": began}
        report |= {"seconds": 0.0, "machine": dict(facts), "stages": []}
        for stage in _in_turn(stages, Path(folder), device, started + LIMIT_S, notify):
            report["stages"].append(stage)
            report["seconds"] = round(time.monotonic() - started, 1)
            so_far(report)
    report["passed"] = all(stage["status"] in _GOOD for stage in report["stages"])
    return report


def _in_turn(
    stages: Sequence[SelftestStage],
    folder: Path,
    device: str,
    until: float,
    notify: Callable[[StageProgress], None],
) -> Iterator[dict[str, Any]]:
    """Run the stages one after another and yield their results; stop if the model stage fails."""
    for number, stage in enumerate(stages):
        left = sum(later.expected_s(device) for later in stages[number:])
        notify(StageProgress(stage.name, number, len(stages), left))
        started = time.monotonic()
        log = folder / f"{stage.name}.log"
        log.touch()
        if (limit_s := min(stage.limit_s, until - started)) >= 1:
            status, why = _execute(stage, folder, device, limit_s, log)
        else:
            status, why = "timed out", f"the earlier stages used all of the {LIMIT_S:.0f} s for all stages"
        seconds = round(time.monotonic() - started, 1)
        record = Record.of(folder, stage.name)
        lines = [] if status in _GOOD else log.read_text(encoding="utf-8", errors="replace").splitlines()
        yield {
            "stage": stage.name,
            "status": status,
            "why": why or None,
            "seconds": seconds,
            "checks": record.checks,
            "measured": record.measured,
            "log": lines[-_LOG_LINES:],
        }
        left -= stage.expected_s(device)
        notify(StageProgress(stage.name, number, len(stages), left, status, seconds))
        if stage is _MODEL and status != "passed":
            return


def _execute(stage: SelftestStage, folder: Path, device: str, limit_s: float, log: Path) -> tuple[str, str]:
    """Run a stage in its own process; return its status, and the reason if it did not pass."""
    gpus = visible_gpus() if device == "cuda" else []
    visible = ",".join(gpus if stage.all_gpus else gpus[:1])
    with log.open("wb") as output:
        process = children.start(
            _command(stage, folder, device),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return "timed out", f"the stage did not end within {limit_s:.0f} s"
        finally:
            children.end(process, grace=_STOPPING_S)
    record = Record.of(folder, stage.name)
    if code:
        ending = f"exit status {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        return "crashed", record.error or ending
    if record.skipped:
        return "skipped", record.skipped
    return ("passed" if all(check["passed"] for check in record.checks) else "failed"), ""


def _command(stage: SelftestStage, folder: Path, device: str) -> list[str]:
    return [sys.executable, "-P", "-m", __name__, stage.name, str(folder), device]


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write a report atomically; raise `DataError` in the same cases as `check_out`."""
    check_out(path)
    write_json(path, report)
