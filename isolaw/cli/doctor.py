"""``isolaw doctor``: what this machine has for the backends, and what mends what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from isolaw.cli.common import interruptible, note, print_json, shown

if TYPE_CHECKING:
    from isolaw.backends.real.checkup import Progress
    from isolaw.machine import Machine

_STATES = {"ready": "ready", "missing": "not installed", "faulty": "does not work"}
_OF_A_CHECKUP = ("device", "out", "only")


@click.command()
@click.option("--import", "imports", is_flag=True, help="Also import the real backend's libraries (slow).")
@click.option(
    "--gpu",
    "checkup",
    is_flag=True,
    help="Run every part of the real backend on a model of random weights: under 10 minutes.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="With --gpu: cpu runs the same on the CPU, with a tiny model.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("isolaw-gpu-report.json"),
    show_default=True,
    help="With --gpu: write the report here.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="STAGE",
    help="With --gpu: only this stage (may be repeated): devices, collective, gradients, cycles, peaks, "
    "speed, resume.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.pass_context
@interruptible()
def doctor(
    ctx: click.Context,
    imports: bool,
    checkup: bool,
    device: str,
    out: Path,
    only: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say what this machine has for each backend, what does not fit, and the command that mends it.

    The commands are for isolaw's own folder. Exit code 1 where something is broken; that the real backend
    is not installed is only noted. With --gpu, exit code 1 where a check fails.
    """
    from isolaw.doctor import diagnose, examine, states, to_dict, try_imports

    if checkup:
        return _checkup(device, out, only, as_json)
    for name in _OF_A_CHECKUP:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is an option of --gpu: isolaw doctor --gpu --{name} …")
    machine = examine()
    findings = diagnose(machine)
    if imports:
        if not as_json:
            note("importing the libraries of the real backend …")
        findings += try_imports(machine)
    if as_json:
        print_json(to_dict(machine, findings))
    else:
        for line in _facts(machine):
            click.echo(shown(line))
        click.echo()
        for backend, state in states(machine, findings).items():
            click.echo(f"{backend:<7} {_STATES[state]}")
        for finding in findings:
            kind = "broken" if finding.fault else "note"
            click.echo()
            click.echo(shown(f"{kind}: {finding.backend}: {finding.what}"))
            if finding.mend:
                click.echo(shown(f"  mend: {finding.mend}"))
    return 1 if any(finding.fault for finding in findings) else 0


def _checkup(device: str, out: Path, only: tuple[str, ...], as_json: bool) -> int:
    """Run the checkup, print and write its report; 1 where a check failed."""
    from isolaw.backends.real import checkup
    from isolaw.backends.real.checkup import page
    from isolaw.doctor import diagnose, examine, to_dict
    from isolaw.errors import unknown

    for name in only:
        if name not in checkup.NAMES:
            raise click.UsageError(f"--only: {unknown('stage', name, checkup.NAMES, 'accepted')}")
    checkup.check_device(device)
    checkup.check_out(out)
    machine = examine()
    with _progress() as tell:
        report = checkup.run(device, only, to_dict(machine, diagnose(machine)), tell)
    if as_json:
        print_json(report)
    else:
        for line in page.lines(report):
            click.echo(shown(line))
    checkup.write(report, out)
    note(f"Report: {out}")
    return 0 if report["passed"] else 1


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A line for each stage that has ended; on a terminal also a bar with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def tell(progress: Progress) -> None:
            place = f"{progress.number + 1}/{progress.count} {progress.stage}"
            left = f"about {max(progress.left_s, 0) / 60:.1f} min left"
            if progress.status is None:
                bar.update(
                    task, description=f"{place}, {left}", total=progress.count, completed=progress.number
                )
                return
            bar.update(task, completed=progress.number + 1)
            note(f"{place}: {progress.status} after {progress.seconds:.0f} s; {left}")

        yield tell


def _facts(machine: Machine) -> list[str]:
    from isolaw import __version__
    from isolaw.doctor import SHOWN

    gib = 2**30
    vector = f" with {' and '.join(machine.vector)}" if machine.vector else ""
    packages = [f"{name} {machine.packages[name]}" for name in SHOWN if name in machine.packages]
    lines = [
        f"isolaw {__version__}, Python {machine.python}, {machine.system} {machine.machine}",
        f"{machine.cores} cores{vector}, {machine.memory_bytes / gib:.1f} GiB of memory, "
        f"{machine.free_disk_bytes / gib:.1f} GiB free on this disk",
        *(
            f"GPU {i}: {gpu.name}, {gpu.memory_bytes / gib:.1f} GiB, driver {gpu.driver}"
            for i, gpu in enumerate(machine.gpus)
        ),
    ]
    if not machine.gpus:
        lines.append("no GPU")
    elif machine.visible_gpus != len(machine.gpus):
        lines.append(f"CUDA_VISIBLE_DEVICES names {machine.visible_gpus}")
    return [*lines, ", ".join(packages)]
