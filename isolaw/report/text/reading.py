"""The table of the logs that were found, and the values that their runs still need."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from isolaw import commands
from isolaw.errors import Refused
from isolaw.evidence import columns, count, number
from isolaw.fits.fit_options import fit_options
from isolaw.metrics import is_mean_accuracy, is_reward
from isolaw.readers.found_logs import FoundLog, LogStatus, groups
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.how_to_read import place
from isolaw.readers.names import ALIASES, ASSUMED
from isolaw.readers.proposals import proposed
from isolaw.readers.reading import Reading
from isolaw.runs import Runs, full_names, listed

_METRICS_SHOWN = 2
_NAMES_SHOWN = 4
# For each status: the text in the table, the text after "1", and the text after a larger number.
_STATUSES = {
    LogStatus.READY: ("ready", "is ready", "are ready"),
    LogStatus.NOT_INSTALLED: ("needs a package", "requires a package", "require a package"),
    LogStatus.OFF_POLICY: ("off-policy", "is off-policy", "are off-policy"),
    LogStatus.ON_POLICY: ("on-policy", "is on-policy", "are on-policy"),
    LogStatus.UNKNOWN_FORMAT: ("unknown format", "has an unknown format", "have an unknown format"),
    LogStatus.DAMAGED: ("damaged", "is damaged", "are damaged"),
    LogStatus.NO_HISTORY: ("no history", "has no history", "have no history"),
    LogStatus.DUPLICATE: ("duplicate", "is a duplicate", "are duplicates"),
}


def _status(candidate: FoundLog, folder: str = "") -> str:
    """Return in a few words whether a log can be fitted. Names are shown without ``folder``."""
    if candidate.needs:
        return f"needs {', '.join(candidate.needs)}"
    if candidate.duplicate_of:
        return f"duplicate of {candidate.duplicate_of.removeprefix(folder)}"
    return _STATUSES[candidate.status][0]


def _log_lines(candidates: Sequence[FoundLog]) -> list[str]:
    """Return the table of logs, and the values that the other logs need to become ready.

    The first line is the folder common to all names, if there is one.
    """
    folder = _common_folder([candidate.run for candidate in candidates])
    lines = [*_table(candidates, folder), ""]
    for logs in groups(candidates):
        names = [log.run.removeprefix(folder) for log in logs]
        if logs[0].status is not LogStatus.DUPLICATE:  # the table already names the logs
            lines.append(f"{listed(names, _NAMES_SHOWN)}: " + logs[0].message)
    return lines


def none_fitted(reading: Reading) -> str:
    """Return the message for sources without any log that is ready."""
    logs = len(reading.candidates)
    return "the log cannot be fitted" if logs == 1 else f"none of {logs} logs can be fitted"


def _table(candidates: Sequence[FoundLog], folder: str) -> list[str]:
    rows = [["run", "framework", "B_p", "n", "seed", "steps", "C", "metrics", "status"]]
    for candidate in candidates:
        facts = {name: str(fact.value) for name, fact in candidate.facts.items()}
        if "seed" in facts and candidate.facts["seed"].origin == ASSUMED:
            facts["seed"] = f"({facts['seed']})"
        known = [facts.get(name, "") for name in ("problems_per_batch", "rollouts_per_problem", "seed")]
        steps = f"{candidate.steps[1]:,}" if candidate.steps else ""
        compute = number(candidate.compute[1]) if candidate.compute else ""
        name, framework = candidate.run.removeprefix(folder), candidate.framework or candidate.container
        measured = steps, compute, _metrics(candidate)
        rows.append([name, framework, *known, *measured, _status(candidate, folder)])
    lines = columns(rows, "<<>>>>><")
    return [f"{folder}:", *lines] if folder else lines


def _summary(candidates: Sequence[FoundLog], fit: str) -> str:
    """Return how many logs are ready, the ``fit`` command for them if given, and the status of the others."""
    counts = Counter(candidate.status for candidate in candidates)
    ready = counts.pop(LogStatus.READY, 0)
    counts.pop(LogStatus.NEEDS, 0)
    needs = Counter(", ".join(candidate.needs) for candidate in candidates if candidate.needs)
    others = [f"{times} need{'s' * (times == 1)} {needed}" for needed, times in needs.most_common()]
    others += [f"{times} {_STATUSES[status][1 + (times > 1)]}" for status, times in counts.items()]
    logs = f"{len(candidates)} log{'s' * (len(candidates) != 1)}"
    ready_text = f"{ready} of {logs} {_STATUSES[LogStatus.READY][1 + (len(candidates) > 1)]}"
    ready_text += f": {fit}" if fit else ""
    return f"{ready_text}{'; ' if others else ''}{', '.join(others)}"


def _how_to_settle(reading: Reading, words: Sequence[str]) -> list[str]:
    """Return the command that supplies the missing values, built from the ``words`` of the user's command.

    A value that it supplies replaces the user's. It saves the values next to the logs, unless there is a file
    already or no one place for it. A second line names the placeholders that the user must fill in.
    """
    options, left_out = proposed(reading.candidates, reading.sources)
    if not options.options():
        return []  # isolaw's own runs need no settings: --only selects among them
    asked = full_names(options.row_values, ALIASES)
    names = [ALIASES.get(name := word.partition("=")[0], name) for word in words]
    again = {i for i, name in enumerate(names) if words[i - 1] == "--set" and name in asked}
    words = [word for i, word in enumerate(words) if again.isdisjoint({i, i + 1})]
    file, _ = place(reading.sources) or (None, [])
    saves = file is not None and not os.path.lexists(file) and not left_out
    command = commands.read_again(words, [*options.options(), *(["--save"] if saves else [])])
    lines = [f"To read these logs: {command}", *([f"  {left_out}."] if left_out else [])]
    if command.placeholders:
        lines.append(f"  Fill in {listed(command.placeholders, _NAMES_SHOWN)} there.")
        lines[-1] += f" --save writes the options to {file}, which all commands find." if saves else ""
    return lines


def _configurations(ready: Sequence[FoundLog]) -> str:
    """Return the B_p and n of the runs that are ready."""
    problems, rollouts = (
        ", ".join(str(value) for value in sorted({run.facts[name].value for run in ready}))
        for name in ("problems_per_batch", "rollouts_per_problem")
    )
    return f"{count(len(ready), 'run')}: B_p = {problems}; n = {rollouts}"


def _ordered_metrics(candidate: FoundLog) -> list[tuple[str, str]]:
    """Return (evaluation set, metric) pairs: held-out rewards first, then other rewards, then the rest."""
    pairs = [(name, metric) for name in sorted(candidate.metrics) for metric in candidate.metrics[name]]
    return sorted(pairs, key=lambda pair: _rank(*pair))


def _rank(eval_set: str, metric: str) -> tuple[bool, bool, bool]:
    return not is_reward(metric), eval_set == "train", metric != "reward" and not is_mean_accuracy(metric)


def _metrics(candidate: FoundLog) -> str:
    names = [f"{metric} on {eval_set}" for eval_set, metric in _ordered_metrics(candidate)]
    remaining = f", {len(names) - _METRICS_SHOWN} more" if len(names) > _METRICS_SHOWN else ""
    return ", ".join(names[:_METRICS_SHOWN]) + remaining


def _common_folder(names: Sequence[str]) -> str:
    """Return the directory common to all paths among the names, with a final slash, or an empty string."""
    folders = {name[: name.rfind("/")] for name in names if "/" in name}
    if len(names) < 2 or not folders or len({folder[:1] == "/" for folder in folders}) > 1:
        return ""
    common = os.path.commonpath(folders)
    return f"{common.rstrip('/')}/" if common else ""


def log_rows(run: FoundLog) -> list[tuple[str, str]]:
    """Return a log as rows of a label and a text, with the origin of each value."""
    facts = dict(run.facts)
    policy = facts.pop("on_policy", None)
    unknown = Fact("unknown", run.message)
    shape = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")
    b, n, batch = (facts.pop(name, unknown) for name in shape)
    other_sources = f" and {len(run.sources) - 1} more" if len(run.sources) > 1 else ""
    rows = [
        ("from", run.sources[0] + other_sources),
        ("B_p", f"{b.value:<8} {b.origin}"),
        ("n", f"{n.value:<8} {n.origin}"),
        ("rollouts/step", f"{batch.value:<8} {batch.origin}"),
    ]
    if run.steps and run.compute:
        rows.append(("steps", f"{run.steps[0]} to {run.steps[1]}, C to {number(run.compute[1])}"))
    ordered = _ordered_metrics(run)
    for shown_set in sorted(run.metrics, key=lambda name: (name == "train", name)):
        sizes = run.metrics[shown_set]
        texts = (f"{metric} ({sizes[metric]})" for eval_set, metric in ordered if eval_set == shown_set)
        rows.append((shown_set, ", ".join(texts)))
    if policy:
        rows.append(("on-policy", f"{'yes' if policy.value else 'no':<8} {policy.origin}"))
    elif run.framework not in ("", "isolaw"):
        rows.append(("on-policy", "not known"))
    by_origin: dict[str, list[str]] = {}
    for name, fact in facts.items():
        by_origin.setdefault(fact.origin, []).append(f"{name} {fact.value}")
    rows += [("also", f"{', '.join(texts)} ({origin})") for origin, texts in by_origin.items()]
    rows += [("left out", f"{reason}: {count:,}") for reason, count in run.left_out.items()]
    rows += [("note", text) for text in run.notes]
    return rows


def found_lines(reading: Reading, words: list[str], metric: str | None) -> list[str]:
    """Return the table of all logs, the values that logs still need, and the next command.

    ``words`` are the sources and options of the user's command. ``metric`` is the reward that it names, if
    any.
    """
    lines = _log_lines(reading.candidates)
    if any(candidate.status is LogStatus.NEEDS for candidate in reading.candidates):
        lines += _how_to_settle(reading, words)
    if lines[-1]:
        lines.append("")
    fit = reason = ""
    if reading.ready:
        lines.append(_configurations(reading.ready))
        fit, reason = fit_command(reading.together().runs, words, metric)
    lines.append(_summary(reading.candidates, fit))
    return [*lines, *([f"There is no law yet: {reason}"] if reason else [])]


def fit_command(runs: Runs, words: list[str], metric: str | None, out: str = "") -> tuple[str, str]:
    """Return the command that fits these runs and an empty reason, or no command and the reason."""
    try:
        return str(commands.fit(words, fit_options(runs, metric), out)), ""
    except Refused as error:
        return "", str(error)
