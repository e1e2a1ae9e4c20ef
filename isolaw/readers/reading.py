"""`Reading`: the logs, tables and sweeps that were found, and the runs that can be fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from isolaw.errors import DataError, Wording
from isolaw.evidence import Simulated
from isolaw.readers.found_logs import FoundLog, LogStatus, grouped, groups
from isolaw.readers.proposals import proposed
from isolaw.runs import Runs, listed

_MAX_LISTED = 8
# Logs that are fitted together share these facts and their framework.
_SHARED_FACTS = ("algorithm", "problem_set", "model")


@dataclass
class Reading:
    """All logs that were found, and the runs of the logs that are ready.

    ``notes`` are about the search; ``runs.notes`` contains all other notes.
    """

    candidates: list[FoundLog]
    tables: list[Runs]  # from tables and sweeps
    logged: Runs | None = None
    notes: list[str] = field(default_factory=list)
    no_logs: list[str] = field(default_factory=list)  # other files in the folders, at most 1,000
    sources: tuple[str, ...] = ()  # as the user named them
    read_as: list[str] = field(default_factory=list)  # the ``notes`` about isolaw.toml files

    @property
    def ready(self) -> list[FoundLog]:
        """The logs that can be fitted."""
        return [candidate for candidate in self.candidates if candidate.status is LogStatus.READY]

    @property
    def simulated(self) -> Simulated:
        """Label that states whether a simulator made any of the runs that were found."""
        known_facts = [candidate.facts for candidate in self.candidates if candidate.facts]
        return Simulated.of({name: fact.value for name, fact in facts.items()} for facts in known_facts)

    @property
    def left_out(self) -> list[FoundLog]:
        """The logs that cannot be fitted, with their reasons."""
        return [candidate for candidate in self.candidates if candidate.status is not LogStatus.READY]

    @property
    def table_notes(self) -> list[str]:
        """The distinct notes about tables and sweeps."""
        return list(dict.fromkeys(note for table in self.tables for note in table.notes))

    @cached_property
    def runs(self) -> Runs:
        """The runs that are ready. Raises a `DataError` that lists what the logs need if none is ready."""
        all_runs = [*self.tables, *([self.logged] if self.logged else [])]
        if not all_runs:
            raise DataError(self.none_ready())
        runs = Runs.concat(all_runs)
        runs.left_out = tuple(self.left_out)
        return runs

    @property
    def warnings(self) -> list[str]:
        """One sentence for each reason why logs were left out."""
        warnings = [
            f"isolaw left out ({len(logs)}): {listed([log.run for log in logs], 4)}: " + logs[0].message
            for logs in groups(self.candidates)
            if not logs[0].status.settled
        ]
        settled_counts = Counter(
            candidate.status for candidate in self.candidates if candidate.status is not LogStatus.READY
        )
        settled_texts = [
            f"{number} {status.value.replace('_', ' ')}"
            for status, number in settled_counts.items()
            if status.settled
        ]
        return [*warnings, *([f"isolaw left out {', '.join(settled_texts)}"] if settled_texts else [])]

    def together(self) -> Reading:
        """Return the reading restricted to the group of logs with the most distinct n.

        A group shares framework, algorithm, problem set and model; all other logs are left out. Tables and
        sweeps are unchanged.
        """

        def shared_facts(log: FoundLog) -> tuple[Any, ...]:
            facts = (log.facts.get(name) for name in _SHARED_FACTS)
            return log.framework, *(fact and fact.value for fact in facts)

        logs_of_group = grouped(self.ready if self.logged and not self.tables else (), shared_facts)
        if len(logs_of_group) < 2 or self.logged is None:
            return self
        fact_names = ("framework", *_SHARED_FACTS)
        used_logs = max(logs_of_group.values(), key=lambda logs: (len({log.n for log in logs}), len(logs)))
        used_group = shared_facts(used_logs[0])
        group_of_run = {log.run: shared_facts(log) for log in self.ready}
        candidates = []
        for log in self.candidates:
            group = group_of_run.get(log.run, used_group)
            if group != used_group:
                differences = [
                    tuple(f"no {name}" if value is None else f"{name} {value}" for value in values)
                    for name, *values in zip(fact_names, group, used_group, strict=True)
                    if values[0] != values[1]
                ]
                own_values, used_values = (", ".join(texts) for texts in zip(*differences, strict=True))
                message = f"{own_values}, while the {len(used_logs)} runs that are used have {used_values}"
                message += "; choose others with only"
                log = replace(log, status=LogStatus.APART, message=message)
            candidates.append(log)
        used_runs = self.logged.select(log.run for log in used_logs)
        used_runs.notes = shared_notes(used_logs)
        return Reading(candidates, [], used_runs, self.notes, self.no_logs, self.sources, self.read_as)

    def none_ready(self) -> str:
        """Return the error message for the case that no log is ready, with the needs common to all logs."""
        problems = groups(self.candidates)
        texts = [f"{listed([log.run for log in logs], _MAX_LISTED)}: " + logs[0].message for logs in problems]
        options, left_out = proposed(self.candidates, self.sources)
        if options.options():
            texts[-1] = Wording(
                texts[-1], "  Add " + options.spelling, *([f"  {left_out}"] if left_out else [])
            )
        if len(problems) == 1:
            return texts[0]
        summary = f"none of {len(self.candidates)} logs can be fitted"
        return Wording(summary, *("  - " + text for text in texts))


def shared_notes(ready: Sequence[FoundLog]) -> tuple[str, ...]:
    """Return each distinct note, with the runs that it applies to."""
    runs_of_note: dict[str, list[str]] = {}
    for run in ready:
        for note in run.notes:
            runs_of_note.setdefault(note, []).append(run.run)
    for_all = f" (all {len(ready)} runs)" if len(ready) > 1 else ""
    return tuple(
        f"{note}{for_all}" if len(runs) >= len(ready) else f"{listed(runs, 4)}: {note}"
        for note, runs in runs_of_note.items()
    )
