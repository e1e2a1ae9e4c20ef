"""Format the report of ``isolaw doctor --gpu`` as text, to paste into an issue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MARKS = {True: "ok", False: "FAILED"}


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a report (`isolaw.backends.real.gpu_selftest.run`)."""
    machine = report["machine"]
    versions = [f"{name} {version}" for name, version in machine["packages"].items() if version]
    wrong = [stage["stage"] for stage in report["stages"] if stage["status"] not in ("passed", "skipped")]
    outcome = f"failed: {', '.join(wrong)}" if wrong else "passed"
    yield f"isolaw doctor --gpu, device {report['device']}: {outcome}"
    yield f"{report['began']}, {report['seconds']:.0f} s"
    yield f"Python {machine['python']}, {machine['system']} {machine['machine']}, {machine['cores']} cores"
    for index, gpu in enumerate(machine["gpus"]):
        yield f"GPU {index}: {gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB, driver {gpu['driver']}"
    yield ", ".join(versions)
    for stage in report["stages"]:
        yield ""
        yield from _stage(stage)


def _stage(stage: Mapping[str, Any]) -> Iterator[str]:
    why = f": {stage['why']}" if stage["why"] else ""
    yield f"{stage['stage']:<11}{stage['status']}, {stage['seconds']:.0f} s{why}"
    for check in stage["checks"]:
        yield f"  {_MARKS[check['passed']]:<7}{check['what']}: {_short(check['found'])} ({check['accepted']})"
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
