"""Define the section ``[executor]``: where runs execute, and with which resources."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from isolaw.config.sections import Count, Index, Positive, Section, Text, listed


def _parse_minutes(value: Any) -> Any:
    """Return a time limit in minutes, given as a number or in a format of sbatch's --time.

    The formats (https://slurm.schedmd.com/sbatch.html) are minutes, minutes:seconds, hours:minutes:seconds
    and days-hours[:minutes[:seconds]].
    """
    if isinstance(value, str):
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::([0-5]\d))?(?::([0-5]\d))?", value.strip())
        if match is None:
            raise ValueError("minutes, or a time as sbatch reads it: 08:00:00, 1-12:00:00")
        days, first, second, third = (int(part or 0) for part in match.groups())
        if match[1] or match[4]:
            return 60 * (24 * days + first) + second + third / 60
        return first + second / 60
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _within_a_year(minutes: float) -> float:
    # SLURM interprets a limit of zero as no limit.
    if not 1 / 60 <= minutes <= 366 * 24 * 60:
        raise ValueError("from a second to a year")
    return minutes


# Options of sbatch that users cannot set, because isolaw or the given key sets them.
_OPTION_OWNER = {
    **dict.fromkeys(("job-name", "output", "error", "open-mode", "array", "signal", "wrap"), "isolaw"),
    **dict.fromkeys(("requeue", "no-requeue", "ntasks", "ntasks-per-node"), "isolaw"),
    **{name: f"executor.{name}" for name in ("nodes", "time", "partition")},
    "cpus-per-task": "executor.cpus",
    "gpus-per-node": "executor.gpus",
}


def _one_line(text: str) -> str:
    """Return the text; raise `ValueError` for line breaks, because a second line would leave the comment.

    The text becomes part of an ``#SBATCH`` comment in a job script.
    """
    if not text.isprintable():
        raise ValueError("text without line breaks or control characters")
    return text


def _printable(text: str) -> str:
    if not text.replace("\t", "").replace("\n", "").isprintable():
        raise ValueError("text without control characters")
    return text


def _check_sbatch(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
            raise ValueError(f"names of sbatch's options without leading dashes, not {name!r}")
        if name in _OPTION_OWNER:
            raise ValueError(f"options other than {name}, which {_OPTION_OWNER[name]} sets")
        if value is False:
            raise ValueError(f"{name} = true, or no {name}")
        if isinstance(value, str):
            _one_line(value)
    return options


class ExecutorSection(Section):
    """The place and resources for runs; by default, worker processes on this machine, one for each core.

    ``jobs``, ``max_rollouts`` and ``max_gpus`` limit the runs that execute at the same time: their number,
    the rollouts of their batches, and their GPUs. The sweep aborts after ``same_failures`` consecutive runs
    fail with the same cause. `ray` and `slurm` repeat a lost run, at most ``retries`` times without progress.

    A run takes ``nodes`` machines, with ``cpus`` and ``gpus`` on each (default: the needs of its processes on
    machines like this one). For Ray, ``address`` is the address of the cluster. For SLURM, ``time`` is the
    time limit in minutes, ``partition`` and ``sbatch`` are options of sbatch, and ``setup`` contains lines
    before the command. With ``cluster = "local"``, the same jobs run on this machine without SLURM. `scripts`
    writes scripts that the user executes.
    """

    kind: Literal["inline", "processes", "ray", "slurm", "scripts"] = "processes"
    jobs: Count | None = None
    max_rollouts: Count | None = None
    max_gpus: Count | None = None
    same_failures: Count = 5
    retries: Index = 3
    nodes: Count = 1
    cpus: Count | None = None
    gpus: Index | None = None
    address: Text | None = None
    cluster: Literal["slurm", "local"] = "slurm"
    time: Annotated[Positive, BeforeValidator(_parse_minutes), AfterValidator(_within_a_year)] = 60.0
    partition: Annotated[Text, AfterValidator(_one_line)] | None = None
    sbatch: Annotated[dict[str, str | int | bool], AfterValidator(_check_sbatch)] = {}
    setup: Annotated[tuple[Annotated[str, AfterValidator(_printable)], ...], BeforeValidator(listed)] = ()
