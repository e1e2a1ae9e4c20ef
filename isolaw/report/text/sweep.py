"""The text of a sweep and its runs: the resolved sweep, the progress and the health of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isolaw import commands
from isolaw.allocation import Cell
from isolaw.errors import Refused
from isolaw.evidence import columns, count, number
from isolaw.executors.waiting import kind_of_failure
from isolaw.fits.fit_options import choose_reward, fit_options
from isolaw.fits.selection import differing, measured_points
from isolaw.report.text import costs, race
from isolaw.store import SweepStore
from isolaw.store.folder import POINTS

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.health import Health
    from isolaw.preview import Preview
    from isolaw.resolve import ResolvedSweep

_HASH_DIGITS = 64  # digits of a run id, which is a SHA-256 hash
_LEAST_DIGITS = 8
_SHAPE = ["problems_per_batch", "rollouts_per_problem"]
_NOTES_SHOWN = 3  # notes of each kind in a text
_MEMORY_SETTINGS = (
    "zero_stage", "micro_batch_tokens", "gradient_checkpointing", "offload_optimizer", "gpu_memory"
)  # fmt: skip


def short_ids(run_ids: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique prefix of each run id, at least 8 digits long. Other names stay whole.

    >>> short_ids(["0123456789abcdef" * 4, "01234567" * 8, "n8"]).values()
    dict_values(['012345678', '012345670', 'n8'])
    """
    ids = list(dict.fromkeys(run_ids))
    hashes = {name for name in ids if len(name) == _HASH_DIGITS and set(name) <= set("0123456789abcdef")}
    lengths = range(_LEAST_DIGITS, _HASH_DIGITS + 1)
    length = next(k for k in lengths if len({digest[:k] for digest in hashes}) == len(hashes))
    return {name: name[:length] if name in hashes else name for name in ids}


def failure_lines(
    failures: Iterable[Mapping[str, Any]], names: Mapping[str, str], directory: str = ""
) -> list[str]:
    """Return a line about each failed run, from `isolaw.engine.status`, with the cause.

    The last lines of a trainer follow the first failure of each kind. With ``directory``, each line names the
    file with the details.
    """
    lines, kinds_shown = [], set()
    for failure in failures:
        name, kind = names[failure["run_id"]], kind_of_failure(failure["cause"])
        b, n, seed = (failure[key] for key in ("problems_per_batch", "rollouts_per_problem", "seed"))
        cause, *output = failure["cause"].split("\n")
        file_hint = f" (details: {directory}/runs/{name}*/FAILED.json)" if directory else ""
        trainer_lines = () if kind in kinds_shown else map(_quoted, output)
        lines += [f"failed: {name} (B_p = {b}, n = {n}, seed {seed}): {cause}{file_hint}", *trainer_lines]
        kinds_shown.add(kind)
    return lines


def _quoted(line: str) -> str:
    """Return a line of a cause after its first, marked as what a trainer printed."""
    return line if line == "  its last lines:" else f"  | {line.removeprefix('  | ')}"


def diverged(state: Mapping[str, Any]) -> list[str]:
    """Return a warning about done runs that ended in NaN, from `isolaw.engine.status`."""
    alike, done = state["diverged"], count(state["done"], "done run")
    return [f"warning: {alike} of {done} diverged: the last values are NaN"] if alike else []


def note_lines(notes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the notes about runs, from `isolaw.engine.status`: the first of each kind, and their number."""
    notes_of_code: dict[str, list[Mapping[str, Any]]] = {}
    for note in notes:
        notes_of_code.setdefault(note["code"], []).append(note)
    names = short_ids(note["run_id"] for alike in notes_of_code.values() for note in alike)
    lines = []
    for alike in notes_of_code.values():
        for note in alike[:_NOTES_SHOWN]:
            b, n, seed = (note[key] for key in ("problems_per_batch", "rollouts_per_problem", "seed"))
            lines.append(f"note: {names[note['run_id']]} (B_p = {b}, n = {n}, seed {seed}): {note['text']}")
        if remaining := max(len(alike) - _NOTES_SHOWN, 0):
            lines.append(f"note: {remaining:,} more such notes (status --json lists them)")
    return lines


def sweep_state(state: Mapping[str, Any]) -> list[str]:
    """Return the progress of a sweep, line by line."""
    planned = state["rollouts_planned"]
    share = state["rollouts"] / planned if planned else 1.0
    activity = [f"{count(state['at_work'], 'run')} in progress"] if state["at_work"] else []
    activity += ["an engine is running"] if state["running"] else []
    names = short_ids(failure["run_id"] for failure in state["failures"])
    lines = [
        f"{state['directory']}: {count(state['runs'], 'run')} of {state['backend']} to "
        f"C = {number(state['compute'])}: {state['done']} done, {state['started']} started, "
        f"{state['waiting']} waiting, {state['failed']} failed",
        "; ".join(
            [f"{number(state['rollouts'])} of {number(planned)} rollouts ({100 * share:.0f} %)", *activity]
        ),
        *diverged(state),
        *note_lines(state["run_notes"]),
        *([race.state(state["race"])] if state["race"] else []),
        *([hours] if (hours := costs.hours_so_far(state)) else []),
        *failure_lines(state["failures"], names),
        *(f"damaged: {damage['cause']}" for damage in state["damaged"]),
    ]
    can_continue = state["done"] < state["runs"] or (state["race"] and not state["race"]["ending"])
    if (can_continue or state["damaged"]) and not state["running"]:
        when = " when the runs in progress end" if state["at_work"] else ""
        lines.append(f"Continue{when}: {commands.continue_sweep(state['directory'])}")
    return lines


def health(run_healths: Sequence[Health], failed: int, document: LawDocument | None) -> list[str]:
    """Return how many runs are healthy, in total and for each B_p."""
    states = Counter(run.status for run in run_healths)
    parts = [f"{states[name]:,} {name}" for name in ("healthy", "unhealthy", "unknown") if states[name]]
    parts += [f"{failed:,} failed"] if failed else []
    judges = sorted({name for run in run_healths for name in run.judged_by})
    judged_by = f"judged by {', '.join(judges)}" if judges else "no metric to judge by"
    lines = [f"{', '.join(parts)}; {judged_by}."]
    batches = () if document is None else document.health
    if len(batches) > 1:
        shares = ", ".join(
            f"{batch.healthy} of {batch.judged} at B_p = {batch.problems_per_batch}" for batch in batches
        )
        lines.append(f"Healthy runs: {shares}. A B_p is stable if at least 90 % of its runs are healthy.")
    return lines


def sweep_summary(sweep: Mapping[str, Any], backend: str) -> list[str]:
    """Return the lines that describe a sweep before its execution."""
    design = sweep.get("design")
    configurations = design["cells"] if design else sweep["configurations"]
    b, n = (", ".join(map(str, sorted({shape[index] for shape in configurations}))) for index in (0, 1))
    axes = "".join(f" × {name} = {', '.join(map(_bare, values))}" for name, values in sweep["axes"].items())
    defaults = ", ".join(
        f"{name} = {' or '.join(map(_value, values))}" for name, values in sweep["defaults"].items()
    )
    started = f" ({sweep['begun']} of them started)" if sweep["begun"] else ""
    subject, todo = "a race" if design else count(sweep["runs"], "run"), sweep["todo"]
    return [
        f"{backend}: {subject} ({count(len(configurations), 'configuration')}, "
        f"{count(len(sweep['seeds']), 'seed')}{axes}) to C = {number(sweep['compute'])} rollouts"
        f"{'' if subject == '1 run' else ' each'}",
        f"B_p = {b}; n = {n}",
        *([f"recipe defaults: {defaults}"] if defaults else []),
        *(race.summary(design, sweep["runs"]) if design else []),
        f"{done_runs(sweep['runs'] - todo)}; {todo} remain{'s' if todo == 1 else ''}{started}, with "
        f"{number(sweep['remaining_rollouts'])} rollouts",
        *sweep["notes"],
    ]


def _memory_table(table: Mapping[str, Any]) -> list[str]:
    """Return the memory per GPU that runs need in each phase, in GiB, and the settings chosen to fit."""
    phases = table["phases"].values()
    parts = dict.fromkeys(part for phase in phases for part in phase)
    rows = [["GiB of each GPU", *table["phases"]]]
    rows += [[part, *(_gib(phase.get(part)) for phase in phases)] for part in parts]
    rows.append(["total", *(_gib(sum(phase.values())) for phase in phases)])
    rows.append(["capacity", *[_gib(table["gpu_bytes"])] * len(phases)])
    gpus = count(table["processes"] + table.get("samplers", 0), "GPU")
    if samplers := table.get("samplers"):  # these GPUs only take part in the phase "sample"
        gpus += f" ({table['processes']} train, {samplers} sample)"
    tokens = number(table["row_tokens"])
    use = (
        f"{count(table['runs'], 'run')} with {gpus} each and {_gib(table['host_bytes'])} GiB of host memory; "
        f"rows have up to {tokens} tokens. Settings chosen to fit:"
    )
    chosen = ", ".join(f"{name} = {str(table[name]).lower()}" for name in _MEMORY_SETTINGS)
    return ["memory:", *(f"  {line}" for line in (*columns(rows, "<>"), use, f"  {chosen}"))]


def dry_run(preview: Preview) -> list[str]:
    """Return the needs of a sweep's execution, line by line."""
    lines: list[str] = []
    if (adaptive := preview.resolved.adaptive) is not None:
        lines.append(race.decision(adaptive.history[-1], len(adaptive.history)))
    lines += [line for table in preview.outlook.memory for line in _memory_table(table)]
    lines += costs.estimated(preview.estimates)
    lines += [line for script in preview.executor.get("scripts", ()) for line in script.split("\n")]
    return lines + [
        line for command in preview.commands for line in ("", f"# {command['run']}", command["line"])
    ]


def _gib(size: float | None) -> str:
    return f"{size / 2**30:.1f}" if size else ""


def _value(value: Any) -> str:
    """Return a value as written in a sweep file.

    >>> _value(1e-06), _value(0.0), _value("loss"), _value(False), _value(None)
    ('1e-06', '0', '"loss"', 'false', 'none')
    >>> _value(()), _value(("cispo",)), _value((4, 6))
    ('[]', '["cispo"]', '[4, 6]')
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _bare(value: Any) -> str:
    """Return a value of a grid axis as text, without quotes around strings."""
    return _value(value) if isinstance(value, list | tuple) else str(value)


def place_summary(place: Mapping[str, Any]) -> str:
    """Return the place where runs would execute, with its limits.

    >>> place = {"kind": "ray", "nodes": 1, "cpus": 2, "gpus": 0, "alike": True, "runs": None, "options": {}}
    >>> place_summary(place)
    'ray: 2 cores for each run; as many runs as fit at a time'
    """
    gpus_text = f", {count(place['gpus'], 'GPU')}" if place["gpus"] else ""
    nodes_text = f" on each of {place['nodes']} machines" if place["nodes"] > 1 else ""
    options = "".join(f"; {key} {value}" for key, value in place["options"].items())
    limit = f"at most {count(place['runs'], 'run')}" if place["runs"] else "as many runs as fit"
    bound = "" if place["alike"] else "up to "
    needs = f"{bound}{count(place['cpus'], 'core')}{gpus_text}{nodes_text} for each run"
    return f"{place['kind']}: {needs}; {limit} at a time{options}"


def done_runs(done: int, runs: int | None = None) -> str:
    """Return how many ``runs`` are done.

    >>> done_runs(1), done_runs(1, 1), done_runs(0, 8)
    ('1 run is done', '1 of 1 run is done', '0 of 8 runs are done')
    """
    subject = count(done, "run") if runs is None else f"{done} of {count(runs, 'run')}"
    return f"{subject} {'is' if 1 in (done, runs) else 'are'} done"


def result(resolved: ResolvedSweep, state: Mapping[str, Any], new_count: int, seconds: float) -> list[str]:
    """Return the result of a sweep of which ``new_count`` runs have just ended, and the next command."""
    directory, done = state["directory"], done_runs(state["done"], state["runs"])
    table = f": {state['points']}" if SweepStore(directory).root.status(POINTS) else ""
    if resolved.adaptive is not None:
        history = resolved.adaptive.history
        lines = [
            *(["", *race.standings(history[-1])] if history[-1].standings else []),
            f"{done} (in {seconds:.1f} s){table}",
            *race.result(history, resolved.adaptive.whole, resolved.adaptive.race.cells),
        ]
    elif not new_count and not state["todo"]:
        lines = [f"Nothing is left to do: {done_runs(state['done'])} in {directory}."]
    else:
        made = f"{new_count} now, in {seconds:.1f} s"
        lines = [f"{done} ({made}), with {number(state['rollouts'])} rollouts{table}"]
    return [*lines, *_next_step(directory)] if state["done"] else lines


def _next_step(directory: str) -> list[str]:
    """Return the command that fits the runs, or without three n or B_p the best lr's or the last rewards."""
    runs, sources = SweepStore(directory).collect(), [commands.path(directory)]
    table = runs.table()
    try:
        if table[_SHAPE].nunique().max() > 2:
            return [f"Next: {commands.fit(sources, fit_options(runs), f'{directory}/law.json')}"]
        metric, eval_set, options = choose_reward(runs)
    except Refused as error:
        return [f"There is no law yet: {error}"]
    if (varying := differing(table)) == ["lr"]:
        return [f"Next: {commands.fit(sources, [*options, '--retune', 'lr'])}"]
    ends = measured_points(runs, metric, eval_set).sort_values("step").groupby("run_id").last()
    rewards = ends.groupby(_SHAPE)["value"].mean().items()
    texts = [f"{number(reward)} at {Cell(*shape).label}" for shape, reward in rewards]
    return [] if varying else [f"The last {metric} on {eval_set}: {'; '.join(texts)}"]
