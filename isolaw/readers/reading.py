"""`Reading`: the logs, tables and sweeps that were found, and the runs that can be fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from isolaw import commands
from isolaw.errors import DataError, Wording
from isolaw.evidence import Simulated
from isolaw.readers.found_logs import FoundLog, LogStatus, groups
from isolaw.readers.how_to_read import place
from isolaw.readers.proposals import proposed
from isolaw.runs import Runs, listed

_SHOWN = 8
# Logs that are fitted together share these facts and their framework.
_TOGETHER = ("algorithm", "problem_set", "model")


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
        """Label that states whether a simulator made all, some or none of the runs that were found."""
        known = [candidate.facts for candidate in self.candidates if candidate.facts]
        return Simulated.of({name: fact.value for name, fact in facts.items()} for facts in known)

    @property
    def left_out(self) -> list[FoundLog]:
        """The logs that cannot be fitted, with their reasons."""
        return [candidate for candidate in self.candidates if candidate.status is not LogStatus.READY]

    @property
    def table_notes(self) -> list[str]:
        """The distinct notes about tables and sweeps."""
        return list(dict.fromkeys(note for part in self.tables for note in part.notes))

    @cached_property
    def runs(self) -> Runs:
        """The runs that are ready. Raises a `DataError` that lists what the logs need if none is ready."""
        parts = [*self.tables, *([self.logged] if self.logged else [])]
        if not parts:
            raise DataError(self.none_ready())
        runs = Runs.concat(parts)
        runs.left_out = tuple(self.left_out)
        return runs

    @property
    def warnings(self) -> list[str]:
        """One sentence for each reason why logs were left out."""
        out = [
            f"isolaw left out ({len(logs)}): {listed([log.run for log in logs], 4)}: {logs[0].message}"
            for logs in groups(self.candidates)
            if not logs[0].status.settled
        ]
        settled = Counter(
            candidate.status for candidate in self.candidates if candidate.status is not LogStatus.READY
        )
        inert = [
            f"{number} {status.value.replace('_', ' ')}"
            for status, number in settled.items()
            if status.settled
        ]
        return [*out, *([f"isolaw left out {', '.join(inert)}"] if inert else [])]

    def together(self) -> Reading:
        """Return the reading restricted to the group of logs with the most distinct n.

        A group shares framework, algorithm, problem set and model; all other logs are left out. Tables and
        sweeps are unchanged.
        """
        of: dict[tuple[Any, ...], list[FoundLog]] = {}
        for run in self.ready if self.logged and not self.tables else ():
            facts = (run.facts.get(name) for name in _TOGETHER)
            of.setdefault((run.framework, *(fact and fact.value for fact in facts)), []).append(run)
        if len(of) < 2 or self.logged is None:
            return self
        names = ("framework", *_TOGETHER)
        chosen = max(of, key=lambda key: (len({run.n for run in of[key]}), len(of[key])))
        group = {member.run: key for key, members in of.items() for member in members}
        candidates = []
        for run in self.candidates:
            key = group.get(run.run, chosen)
            if key != chosen:
                pairs = [
                    tuple(f"no {name}" if one is None else f"{name} {one}" for one in (value, other))
                    for name, value, other in zip(names, key, chosen, strict=True)
                    if value != other
                ]
                here, there = (", ".join(texts) for texts in zip(*pairs, strict=True))
                text = f"{here}, while the {len(of[chosen])} runs that are used have {there}"
                text += "; choose others with only"
                run = replace(run, status=LogStatus.APART, message=text)
            candidates.append(run)
        kept = self.logged.select(run.run for run in of[chosen])
        kept.notes = shared_notes(of[chosen])
        return Reading(candidates, [], kept, self.notes, self.no_logs, self.sources, self.read_as)

    def to_fill_in(self, words: Sequence[str]) -> str:
        """Return where to fill in missing values: the folder's file, or the command that drafts the file.

        ``words`` are the sources and options of the user's command. The result is empty if the sources share
        no folder.
        """
        if (file_and_names := place(self.sources)) is None:
            return ""
        file, _ = file_and_names
        drafts = f"This command drafts {file} with all missing values: {commands.draft_reading(words)}"
        return f"{file} can hold all missing values" if file.exists() else drafts

    def none_ready(self) -> str:
        """Return the error message for the case that no log is ready, with the needs common to all logs."""
        problems = groups(self.candidates)
        texts = [f"{listed([log.run for log in logs], _SHOWN)}: " + logs[0].message for logs in problems]
        how = proposed(self.candidates, self.sources)
        words = [commands.path(source) for source in self.sources]
        if how is None:
            texts[-1] = Wording(texts[-1], f"  {self.to_fill_in(words)}")
        elif how.options():
            texts[-1] = Wording(texts[-1], "  Add " + how.spelling)
        if len(problems) == 1:
            return texts[0]
        head = f"none of {len(self.candidates)} logs can be fitted"
        return Wording(head, *("  - " + text for text in texts))


def shared_notes(ready: Sequence[FoundLog]) -> tuple[str, ...]:
    """Return each distinct note, with the runs that it applies to."""
    about: dict[str, list[str]] = {}
    for run in ready:
        for note in run.notes:
            about.setdefault(note, []).append(run.run)
    every = f" (all {len(ready)} runs)" if len(ready) > 1 else ""
    return tuple(
        f"{note}{every}" if len(runs) >= len(ready) else f"{listed(runs, 4)}: {note}"
        for note, runs in about.items()
    )
