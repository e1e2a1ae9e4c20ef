"""The command ``isolaw doctor``: check this machine for backends and readers, with a fix for each fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import interruptible, json_option, note, print_result, progress_bar
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination

if TYPE_CHECKING:
    from isolaw.machine import Machine

_STATE_TEXTS = {"ready": "ready", "missing": "not installed", "faulty": "does not work"}
_GIB = 2**30


@click.command(cls=ShortHelp)
@click.option(
    "--gpu", "checkup", is_flag=True,
    help="Sample and train with a model of random weights: about 4 minutes.",
)  # fmt: skip
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]),
    help="With --gpu: cpu runs the stages on the CPU with a tiny model.  [default: cuda]",
)  # fmt: skip
@click.option(
    "--out", type=Destination(path_type=Path),
    help="With --gpu: write the report to this file.  [default: isolaw-gpu-report.json]",
)  # fmt: skip
@json_option
@interruptible()
def doctor(checkup: bool, device: str | None, out: Path | None) -> int:
    """Check this machine for each backend, and for the readers of logs.

    isolaw prints the command that fixes each fault; run this command in isolaw's own folder. The exit code is
    1 if there is a fault or, with --gpu, a failed check. A missing real backend is only a note.
    """
    from isolaw.doctor import diagnose, examine, readers, states, to_dict

    if checkup:
        return _checkup(device or "cuda", out)
    if device or out:
        raise click.UsageError(f"{'--device' if device else '--out'} requires --gpu")
    machine = examine()
    findings = diagnose(machine)
    lines = [*_machine_lines(machine), ""]
    lines += [f"{backend:<7} {_STATE_TEXTS[state]}" for backend, state in states(machine, findings).items()]
    missing_readers = {name: command for name, command in readers().items() if command}
    lines.append(f"readers {', '.join(name for name in readers() if name not in missing_readers)}: ready")
    lines += [f"        {name}: not installed: {command}" for name, command in missing_readers.items()]
    for finding in findings:
        lines += ["", f"{'fault' if finding.fault else 'note'}: {finding.backend}: {finding.what}"]
        lines += [f"  fix: {finding.mend}"] if finding.mend else []
    print_result(to_dict(machine, findings), lines)
    return 1 if any(finding.fault for finding in findings) else 0


def _checkup(device: str, out: Path | None) -> int:
    """Run the self-test, print and write its report, and return 1 if a check failed."""
    from isolaw.backends.real import gpu_selftest
    from isolaw.doctor import diagnose, examine, to_dict

    out = out or Path(gpu_selftest.OUT)
    gpu_selftest.check_device(device)
    gpu_selftest.check_out(out)
    machine = examine()
    with progress_bar("") as update:
        stages = [*gpu_selftest.STAGES]

        def notify(stage: str, status: str | None, seconds: float) -> None:
            done_count = stages.index(stage) + (status is not None)
            update(description=stage, total=len(stages), completed=done_count)
            if status:
                note(f"{done_count}/{len(stages)} {stage}: {status} after {seconds:.0f} s")

        report = gpu_selftest.run(device, to_dict(machine, diagnose(machine)), out, notify)
    print_result(report, _report_lines(report))
    note(f"Report: {out}")
    return 0 if report["passed"] else 1


def _machine_lines(machine: Machine) -> list[str]:
    from isolaw import __version__
    from isolaw.doctor import SHOWN

    extensions = f" with {' and '.join(machine.vector)}" if machine.vector else ""
    lines = [
        f"isolaw {__version__}, Python {machine.python}, {machine.system} {machine.machine}",
        f"{machine.cores} cores{extensions}, {machine.memory_bytes / _GIB:.1f} GiB of memory, "
        f"{machine.free_disk_bytes / _GIB:.1f} GiB free on this disk",
    ]
    for index, gpu in enumerate(machine.gpus):
        lines.append(f"GPU {index}: {gpu.name}, {gpu.memory_bytes / _GIB:.1f} GiB, driver {gpu.driver}")
    if not machine.gpus:
        lines.append("no GPU")
    elif machine.visible_gpus != len(machine.gpus):
        lines.append(f"CUDA_VISIBLE_DEVICES names {machine.visible_gpus}")
    return [
        *lines,
        ", ".join(f"{name} {machine.packages[name]}" for name in SHOWN if name in machine.packages),
    ]


def _report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a report as lines of text, to paste into an issue."""
    machine = report["machine"]
    versions = [f"{name} {version}" for name, version in machine["packages"].items() if version]
    failed_stages = [stage["stage"] for stage in report["stages"] if stage["status"] != "passed"]
    outcome = f"failed: {', '.join(failed_stages)}" if failed_stages else "passed"
    yield f"isolaw doctor --gpu, device {report['device']}: {outcome}"
    yield f"{report['began']}, {report['seconds']:.0f} s"
    yield f"Python {machine['python']}, {machine['system']} {machine['machine']}, {machine['cores']} cores"
    for index, gpu in enumerate(machine["gpus"]):
        yield f"GPU {index}: {gpu['name']}, {gpu['memory_bytes'] / _GIB:.1f} GiB, driver {gpu['driver']}"
    yield ", ".join(versions)
    for stage in report["stages"]:
        reason = f": {stage['why']}" if stage["why"] else ""
        yield f"\n{stage['stage']:<11}{stage['status']}, {stage['seconds']:.0f} s{reason}"
        for check in stage["checks"]:
            verdict = "ok" if check["passed"] else "FAILED"
            yield f"  {verdict:<7}{check['what']}: {_value_text(check['found'])} ({check['accepted']})"
        for name, value in stage["measured"].items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping):
                yield f"  {name}:"
                yield from _table_lines(value)
            else:
                yield f"  {name}: {_value_text(value)}"
        if stage["log"]:
            yield "  last lines of the log:"
            yield from (f"    {line}" for line in stage["log"])


def _table_lines(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    names = [name for name in rows[0] if not isinstance(rows[0][name], Mapping)]
    cells = [names, *([_value_text(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    for row in cells:
        yield "    " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _value_text(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool) or not isinstance(value, float):
        return ", ".join(map(_value_text, value)) if isinstance(value, list) else str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
