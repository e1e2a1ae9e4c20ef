"""The section `[executor]`: where runs execute."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from isolaw.config.values import Count, Index, Positive, Section, listed


def _minutes(value: Any) -> Any:
    """Accept a number of minutes, or a time as sbatch reads it.

    minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
    (https://slurm.schedmd.com/sbatch.html, --time)
    """
    if isinstance(value, str):
        found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::([0-5]\d))?(?::([0-5]\d))?", value.strip())
        if found is None:
            raise ValueError("minutes, or a time as sbatch reads it: 08:00:00, 1-12:00:00")
        days, first, second, third = (int(part or 0) for part in found.groups())
        if found[1] or found[4]:
            return 60 * (24 * days + first) + second + third / 60
        return first + second / 60
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _within_a_year(minutes: float) -> float:
    # SLURM takes a limit of zero for none at all.
    if not 1 / 60 <= minutes <= 366 * 24 * 60:
        raise ValueError("from a second to a year")
    return minutes


# What isolaw writes into a job's script itself, and finds its jobs again by.
_OWN_OPTIONS = {
    **dict.fromkeys(("job-name", "output", "error", "open-mode", "array", "signal"), "is isolaw's own"),
    **dict.fromkeys(("requeue", "no-requeue", "wrap", "ntasks-per-node", "ntasks"), "is isolaw's own"),
    **{name: f"is executor.{name}" for name in ("nodes", "time", "partition")},
    "cpus-per-task": "is executor.cpus",
    "gpus-per-node": "is executor.gpus",
}


def _one_line(text: str) -> str:
    """What goes into a script's comment must not leave it."""
    if not text.isprintable():
        raise ValueError("text without line breaks and control characters")
    return text


def _lines(text: str) -> str:
    if not text.translate({9: " ", 10: " "}).isprintable():
        raise ValueError("text without control characters")
    return text


def _sbatch(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
            raise ValueError(f"names of sbatch's options without dashes before them, not {name!r}")
        if name in _OWN_OPTIONS:
            raise ValueError(f"other options than {name}, which {_OWN_OPTIONS[name]}")
        if value is False:
            raise ValueError(f"{name} = true, or nothing of it")
        if isinstance(value, str):
            _one_line(value)
    return options


class ExecutorSection(Section):
    """Where runs execute. By default worker processes, one for each core.

    ``jobs``, ``max_rollouts`` and ``max_gpus`` bound what is at work at a time: runs, rollouts of their
    batches, GPUs. ``same_failures`` runs in a row that fail with one cause end the sweep; a run that is lost
    (`ray`, `slurm`) is made again, at most ``retries`` times without getting further.

    ``nodes`` machines make one run, with ``cpus`` and ``gpus`` on each: unless given, what its processes
    need on machines like this one. ``address`` and ``shared`` are Ray's: where its cluster is, and whether
    its machines see the sweep's directory (tried out unless given). The rest is SLURM's: ``time`` in minutes,
    ``partition``, further ``sbatch`` options, lines of ``setup`` before the command, and ``cluster =
    "local"`` to run the same jobs on this machine.
    """

    kind: Literal["inline", "processes", "ray", "slurm"] = "processes"
    jobs: Count | None = None
    max_rollouts: Count | None = None
    max_gpus: Count | None = None
    same_failures: Count = 5
    retries: Index = 3
    nodes: Count = 1
    cpus: Count | None = None
    gpus: Index | None = None
    address: Annotated[str, Field(min_length=1)] | None = None
    shared: bool | None = None
    cluster: Literal["slurm", "local"] = "slurm"
    time: Annotated[Positive, BeforeValidator(_minutes), AfterValidator(_within_a_year)] = 60.0
    partition: Annotated[str, Field(min_length=1), AfterValidator(_one_line)] | None = None
    sbatch: Annotated[dict[str, str | int | bool], AfterValidator(_sbatch)] = {}
    setup: Annotated[tuple[Annotated[str, AfterValidator(_lines)], ...], BeforeValidator(listed)] = ()
