"""``isolaw doctor``: what this machine has for the backends, and what mends what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from isolaw.cli.common import note, print_json, shown

if TYPE_CHECKING:
    from isolaw.machine import Machine

_STATES = {"ready": "ready", "missing": "not installed", "faulty": "does not work"}


@click.command()
@click.option("--import", "imports", is_flag=True, help="Also import the real backend's libraries (slow).")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def doctor(imports: bool, as_json: bool) -> int:
    """Say what this machine has for each backend, what does not fit, and the command that mends it.

    The commands are for isolaw's own folder. Exit code 1 where something is broken; that the real backend
    is not installed is only noted.
    """
    from isolaw.doctor import diagnose, examine, states, to_dict, try_imports

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
