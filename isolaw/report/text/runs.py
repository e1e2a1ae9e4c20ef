"""Plain words for runs: what a sweep would do, how it stands, and how healthy its runs are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isolaw.report.text.words import count, number

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.health import Health


def sweep_state(state: Mapping[str, Any]) -> list[str]:
    """Return how a sweep stands, line by line."""
    planned = state["rollouts_planned"]
    share = state["rollouts"] / planned if planned else 1.0
    who = [f"{count(state['at_work'], 'run')} being made"] if state["at_work"] else []
    who += ["an engine is at work"] if state["running"] else []
    lines = [
        f"{state['directory']}: {state['runs']} runs of {state['backend']} to "
        f"C = {number(state['compute'])}: {state['done']} done, {state['started']} begun, "
        f"{state['waiting']} waiting, {state['failed']} failed",
        "; ".join([f"{number(state['rollouts'])} of {number(planned)} rollouts ({share:.0%})", *who]),
    ]
    lines += [
        f"failed: B_p = {failure['problems_per_batch']}, n = {failure['rollouts_per_problem']}, "
        f"seed {failure['seed']}: {failure['cause']}"
        for failure in state["failures"]
    ]
    lines += [f"damaged: {own['cause']}" for own in state["damaged"]]
    if (state["done"] < state["runs"] or state["damaged"]) and not state["running"]:
        waits = ", and wait for what is being made" if state["at_work"] else ""
        lines.append(f"Continue{waits}: isolaw sweep --out {state['directory']}")
    return lines


def duration(seconds: float) -> str:
    """Return a time as a person would say it.

    >>> duration(42), duration(600), duration(9000), duration(200_000)
    ('42 s', '10 min', '2 h 30 min', '2 d 8 h')
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def health(judged: Sequence[Health], failed: int, document: LawDocument | None) -> list[str]:
    """Return how the runs are, and the smallest B_p that trains stably."""
    states = Counter(h.status for h in judged)
    parts = [f"{states[name]:,} {name}" for name in ("healthy", "unhealthy", "unknown") if states[name]]
    parts += [f"{failed:,} failed"] if failed else []
    by = sorted({name for h in judged for name in h.judged_by})
    lines = [f"{', '.join(parts)}" + (f"; judged by {', '.join(by)}." if by else ": nothing to judge by.")]
    batches = [] if document is None else document.health.batches
    if len(batches) > 1:
        shares = ", ".join(f"{own.problems_per_batch}: {own.healthy} of {own.judged}" for own in batches)
        lines.append(f"Healthy runs by B_p: {shares}. At least nine in ten make a B_p stable.")
    return lines


def plan_summary(plan: Mapping[str, Any], backend: str) -> list[str]:
    """Return what a sweep would do, line by line."""
    b = sorted({c[0] for c in plan["configurations"]})
    n = sorted({c[1] for c in plan["configurations"]})
    done = plan["runs"] - plan["todo"]
    axes = "".join(f" × {name} = {', '.join(map(str, values))}" for name, values in plan["axes"].items())
    defaults = ", ".join(
        f"{name} = {' or '.join(map(_value, values))}" for name, values in plan["defaults"].items()
    )
    begun = f" ({plan['begun']} of them begun)" if plan["begun"] else ""
    return [
        f"{backend}: {count(plan['runs'], 'run')} ({count(len(plan['configurations']), 'configuration')}, "
        f"{count(len(plan['seeds']), 'seed')}{axes}) to C = {number(plan['compute'])} rollouts each",
        f"B_p = {', '.join(map(str, b))}; n = {', '.join(map(str, n))}",
        *([f"recipe defaults: {defaults}"] if defaults else []),
        f"{count(done, 'run')} {'is' if done == 1 else 'are'} done, {plan['todo']} to do{begun}: "
        f"{number(plan['remaining_rollouts'])} rollouts",
        *plan["notes"],
    ]


def memory_table(table: Mapping[str, Any]) -> str:
    """Return what runs take of each GPU, phase by phase, in GiB, and what was chosen for that."""
    phases = table["phases"]
    parts = list(dict.fromkeys(part for phase in phases.values() for part in phase))
    rows = [["GiB of each GPU", *phases]]
    rows += [[part, *(_gib(phase.get(part)) for phase in phases.values())] for part in parts]
    rows.append(["total", *(_gib(sum(phase.values())) for phase in phases.values())])
    rows.append(["the GPU has", *[_gib(table["gpu_bytes"])] * len(phases)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(phases) + 1)]
    lines = [
        row[0].ljust(widths[0])
        + "".join(cell.rjust(w + 2) for cell, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    shown = ", ".join(f"{name} = {str(table[name]).lower()}" for name in _PLACED)
    host = f", and {_gib(table['host_bytes'])} GiB of host memory" if table["host_bytes"] else ""
    gpus = f"{count(table['processes'], 'GPU')} each"
    about = (
        f"{count(table['runs'], 'run')}, {gpus}{host}, rows of up to {number(table['row_tokens'])} tokens:"
    )
    return "\n".join(["memory:", *(f"  {line.rstrip()}" for line in (*lines, about, f"  {shown}"))])


_PLACED = (
    "zero_stage", "micro_batch_tokens", "gradient_checkpointing", "offload_optimizer", "tensor_parallel",
    "gpu_memory",
)  # fmt: skip


def _gib(size: float | None) -> str:
    return f"{size / 2**30:.1f}" if size else ""


def _value(value: Any) -> str:
    """A value as a sweep file has it.

    >>> _value(1e-06), _value(0.0), _value("loss"), _value(False), _value(None)
    ('1e-06', '0', '"loss"', 'false', 'none')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def place_summary(place: Mapping[str, Any]) -> str:
    """Return where runs would execute.

    >>> place_summary({"kind": "ray", "nodes": 1, "cpus": 2, "gpus": 0, "runs": None, "options": {}})
    'ray: 2 cores for each run; as many runs at a time as there is room for'
    """
    gpus = f", {count(place['gpus'], 'GPU')}" if place["gpus"] else ""
    nodes = f" on each of {place['nodes']} machines" if place["nodes"] > 1 else ""
    options = "".join(f"; {key} {value}" for key, value in place["options"].items())
    room = (
        f"at most {count(place['runs'], 'run')} at a time"
        if place["runs"]
        else "as many runs at a time as there is room for"
    )
    return f"{place['kind']}: {count(place['cpus'], 'core')}{gpus}{nodes} for each run; {room}{options}"
