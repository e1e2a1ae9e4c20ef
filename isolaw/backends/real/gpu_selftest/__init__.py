"""Implement ``isolaw doctor --gpu``: sample and train on this machine with random weights.

Each of the `STAGES` runs in its own process (`stages`) with a time limit, so that a crash or a hang loses no
other stage.

======= =============================================================================
model   random models, a tokenizer for characters, and sums as problems
devices driver, libraries, and a matrix product on each GPU
speed   runs of the real backend: tokens per second of sampling and training, and MFU
======= =============================================================================

Importing this module does not load torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from isolaw import children, commands
from isolaw.backends.real import environment
from isolaw.documents.reading import read_json
from isolaw.errors import InputError, IsolawError
from isolaw.files import check_replaceable, replacing
from isolaw.machine import visible_gpus

FORMAT = "isolaw.checkup/1"
OUT = "isolaw-gpu-report.json"
STAGES = {"model": 120.0, "devices": 120.0, "speed": 360.0}  # time limits in seconds
_LOG_LINES = 30  # number of log lines to report for a failed stage
_STOPPING_S = 5.0


def parity(prompt: Any, response: str, answer: str) -> float:
    """Return 1 for a response with an even number of characters, else 0.

    A model with random weights earns it for about half of its responses, so that advantages are not 0.
    """
    return float(len(response) % 2 == 0)


@dataclass
class Record:
    """The measurements and checks of a stage, in a file that is written as they occur: a crash loses none."""

    path: Path
    # Each check has the keys `what` (the condition), `found`, `accepted` and `passed`.
    checks: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)  # values by name; names include the unit
    error: str = ""  # the error that ended the stage

    @classmethod
    def of(cls, folder: Path, stage: str) -> Record:
        """Return the current record of a stage, which can be empty."""
        record = cls(folder / f"{stage}.json")
        if record.path.is_file():
            vars(record).update(read_json(record.path))
        return record

    def check(self, what: str, found: Any, accepted: str, passed: bool) -> None:
        """Add a check and its result."""
        one = {"what": what, "found": found, "accepted": accepted, "passed": bool(passed)}
        self._write(checks=[*self.checks, one])

    def measure(self, **values: Any) -> None:
        """Add measurements by name."""
        self._write(measured=self.measured | values)

    def fail(self, error: str) -> None:
        """Record the error that ended the stage."""
        self._write(error=error)

    def _write(self, **values: Any) -> None:
        vars(self).update(values)
        _write_json(self.path, {k: v for k, v in asdict(self).items() if k != "path"})


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    text = to_json(document, indent=1, inf_nan_mode="null")  # JSON has no NaN
    with replacing(path) as temporary:
        temporary.write_bytes(text + b"\n")


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
    device: str, facts: Mapping[str, Any], out: Path | None, notify: Callable[[str, str | None, float], None]
) -> dict[str, Any]:
    """Run all stages, write the report to ``out`` after each of them, and return it.

    ``device`` is ``cuda`` or ``cpu``, and ``facts`` is the result of `isolaw.doctor.to_dict`. ``notify`` gets
    the name of a stage with its status (None at its start) and its seconds. A failed model stage is the last.
    """
    began, started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    report: dict[str, Any] = {"format": FORMAT, "device": device, "passed": False, "began": began}
    report |= {"seconds": 0.0, "machine": dict(facts), "stages": []}
    with tempfile.TemporaryDirectory(prefix="isolaw-checkup-", ignore_cleanup_errors=True) as folder:
        for name in STAGES:
            notify(name, None, 0.0)
            report["stages"].append(stage := _stage(name, Path(folder), device))
            notify(name, stage["status"], stage["seconds"])
            report["seconds"] = round(time.monotonic() - started, 1)
            statuses = [each["status"] for each in report["stages"]]
            report["passed"] = statuses == ["passed"] * len(STAGES)
            if out:
                check_out(out)
                _write_json(out, report)
            if statuses[0] != "passed":
                break
    return report


def _stage(name: str, folder: Path, device: str) -> dict[str, Any]:
    """Run a stage in its own process, and return its part of the report."""
    started, log = time.monotonic(), folder / f"{name}.log"
    status, why = _execute(name, folder, device, log)
    record = Record.of(folder, name)
    lines = [] if status == "passed" else log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        "stage": name,
        "status": status,
        "why": why or None,
        "seconds": round(time.monotonic() - started, 1),
        "checks": record.checks,
        "measured": record.measured,
        "log": lines[-_LOG_LINES:],
    }


def _execute(name: str, folder: Path, device: str, log: Path) -> tuple[str, str]:
    """Return the status of a stage, and the reason if it ended badly."""
    gpus = visible_gpus() if device == "cuda" else []
    visible = ",".join(gpus if name == "devices" else gpus[:1])
    with log.open("wb") as output:
        process = children.start(
            _command(name, folder, device),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        )
        try:
            code = process.wait(STAGES[name])
        except subprocess.TimeoutExpired:
            return "timed out", f"the stage did not end within {STAGES[name]:.0f} s"
        finally:
            children.end(process, grace=_STOPPING_S)
    record = Record.of(folder, name)
    if code:
        ending = f"exit status {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        return "crashed", record.error or ending
    return ("passed" if all(check["passed"] for check in record.checks) else "failed"), ""


def _command(name: str, folder: Path, device: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"{__name__}.stages", name, str(folder), device]


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a report as lines of text, to paste into an issue."""
    machine = report["machine"]
    versions = [f"{name} {version}" for name, version in machine["packages"].items() if version]
    wrong = [stage["stage"] for stage in report["stages"] if stage["status"] != "passed"]
    outcome = f"failed: {', '.join(wrong)}" if wrong else "passed"
    yield f"isolaw doctor --gpu, device {report['device']}: {outcome}"
    yield f"{report['began']}, {report['seconds']:.0f} s"
    yield f"Python {machine['python']}, {machine['system']} {machine['machine']}, {machine['cores']} cores"
    for index, gpu in enumerate(machine["gpus"]):
        yield f"GPU {index}: {gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB, driver {gpu['driver']}"
    yield ", ".join(versions)
    for stage in report["stages"]:
        why = f": {stage['why']}" if stage["why"] else ""
        yield f"\n{stage['stage']:<11}{stage['status']}, {stage['seconds']:.0f} s{why}"
        for check in stage["checks"]:
            mark = "ok" if check["passed"] else "FAILED"
            yield f"  {mark:<7}{check['what']}: {_short(check['found'])} ({check['accepted']})"
        for name, value in stage["measured"].items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping):
                yield f"  {name}:"
                yield from _table(value)
            else:
                yield f"  {name}: {_short(value)}"
        if stage["log"]:
            yield "  last lines of the log:"
            yield from (f"    {line}" for line in stage["log"])


def _table(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    names = [name for name in rows[0] if not isinstance(rows[0][name], Mapping)]
    cells = [names, *([_short(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    for row in cells:
        yield "    " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _short(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool) or not isinstance(value, float):
        return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
