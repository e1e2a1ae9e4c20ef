"""The search for logs in files, globs and directories.

A directory can be an isolaw sweep or one log (an MLflow run, an offline W&B run); isolaw searches all others.
It counts and lists files that are not logs, but does not read them, since runs share folders with checkpoints
and code. It follows links last, and only to places in the directory that are not searched yet.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isolaw.errors import DataError, Wording, shown
from isolaw.files import Walk, is_utf8, natural, open_file
from isolaw.metrics import is_reward
from isolaw.readers import configs, frameworks, limits
from isolaw.readers.console_table import is_console
from isolaw.readers.containers import CONTAINERS, candidates, wandb_csv
from isolaw.readers.containers.printed_config import PrintedArguments, PrintedConfig
from isolaw.readers.how_to_read import READING_FILE, HowToRead, is_reading_file
from isolaw.readers.names import RUN_NAMES, guess
from isolaw.readers.raw_log import HEAD, Container, clean, is_text, unprefixed
from isolaw.readers.table_columns import columns_needed
from isolaw.readers.table_files import columns_of
from isolaw.runs import COLUMNS, listed
from isolaw.store import SweepStore

_LOGS = {".wandb", ".jsonl", ".log", ".out", ".csv"}
_WITHOUT_HISTORY = {".log", ".out", ".txt", ".err", ".stdout", ""}
# Lines that veRL prints before its first step.
_VERL_BEGINS = (b"Checkpoint tracker file does not exist", b"Training Progress:")
# Words that only printed configurations contain, in any of their forms.
_SIGNS = (b"actor_rollout_ref", b"num_generations=", b"- arguments -", b"worker")


def _reason(path: Path, head: bytes) -> tuple[str, str] | None:
    """Return why a file that no container reads is a run without history, and the framework of the run.

    Returns None for any other file. ``head`` is the beginning of the file.
    """
    if not head:
        empty = path.suffix.lower() in _LOGS or "tfevents" in path.name or path.name == "trainer_state.json"
        return ("the file is empty", "") if empty else None
    if path.suffix.lower() not in _WITHOUT_HISTORY or not is_text(head):
        return None
    if all(sign in head for sign in _VERL_BEGINS):
        return "training began, but no step was logged", "veRL"
    if not any(sign in head for sign in _SIGNS):
        return None
    printed, arguments = PrintedConfig(), PrintedArguments()
    head = limits.start(path, limits.MB)  # a progress bar can be printed inside a configuration
    for line in head.replace(b"\r", b"\n").split(b"\n"):
        worker, text = unprefixed(clean(line))
        printed.add(worker, text)
        arguments.add(text)
    printed.close()
    framework = frameworks.find((), {**printed.command, **printed.config, **arguments.config})
    if framework is None:
        return None
    return "it has a configuration, but logged no step", framework.name


_SETTINGS = {".yaml", ".yml", ".toml", ".json", ".sh", ".bash", ".sbatch", ".slurm", ".args", ""}
_CONSOLES = {".log", ".out", ".txt"}
_MOST_NAMED = 1_000  # files that are not logs
_FEW = 3


@dataclass(frozen=True)
class Place:
    """A source to read: a log (if it has a container), a sweep's directory, or else a table.

    ``ours`` marks a table with the data model's own columns. ``no_history`` is the reason why a run has no
    log.
    """

    path: Path
    container: Container | None = None
    sweep: bool = False
    ours: bool = False
    no_history: str = ""
    framework: str = ""  # of a run without history, or of a configuration
    config: Mapping[str, Any] = field(default_factory=dict)  # of a configuration that was named without a log


@dataclass
class Search:
    """The result of a search: the logs, tables and sweeps that were found, and counts of all other files."""

    how: HowToRead = field(default_factory=HowToRead)  # how to read the source that is searched
    containers: list[Container] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)  # tables of runs, not written by a framework
    incomplete: list[Path] = field(default_factory=list)  # tables with a reward but without a step
    reading_files: list[Path] = field(default_factory=list)  # each ``isolaw.toml`` in the directories
    passed: Counter[str] = field(default_factory=Counter)  # number of files that are not logs, by extension
    no_logs: list[str] = field(default_factory=list)  # paths of the first such files
    notes: list[str] = field(default_factory=list)

    def add_directory(self, top: Path) -> None:
        """Search a directory; raise `DataError` if it is too large."""
        walk = Walk(top, lambda path: not self._is_whole(path), limits.MOST_FILES)
        for path in walk:
            self._add_file(path)
            if len(self.places) > limits.MOST_LOGS:
                raise DataError(
                    f"{top}: over {limits.MOST_LOGS:,} logs; name the logs to read, e.g. "
                    f"'{top}/**/metrics.jsonl'"
                )
        self.notes += walk.notes

    def _is_whole(self, path: Path) -> bool:
        """Add a directory that is one log or a sweep, and return whether it is."""
        sweep = SweepStore(path).exists
        whole = None if sweep else next((each for each in self.containers if each.directory(path)), None)
        if sweep or whole:
            self.places.append(Place(path, whole, sweep))
        return sweep or whole is not None

    def _add_file(self, path: Path) -> None:
        if path.name == READING_FILE:
            self.reading_files.append(path)
            return
        try:
            head = limits.start(path, HEAD)
            place = _classified(path, head, self.containers)
            wanted: object = place.container or place.ours or place.no_history
            if self.how.names_columns:
                there = columns_of(path, head)
                wanted = there and not columns_needed(self.how, there)
            elif not wanted:
                names = columns_of(path, head)
                if _of_runs(names) or (path.suffix in _CONSOLES and is_console(head)):
                    self.tables.append(path)
                elif len(names) > 1 and any(map(is_reward, names)):
                    self.incomplete.append(path)
        except DataError as error:
            self.notes.append(f"isolaw did not read this file: {error}")
            return
        if wanted:
            self.places.append(place)
        else:
            self.passed[path.suffix or path.name] += 1
            if len(self.no_logs) < _MOST_NAMED:
                self.no_logs.append(str(path))

    def take_tables(self) -> None:
        """Use the tables as sources, since no log was found next to them.

        If no table is complete, use the incomplete ones, so that the error states what they lack.
        """
        taken = self.tables or self.incomplete
        self.places += [Place(path) for path in taken]
        for path in taken:
            self.passed[path.suffix or path.name] -= 1
        self.passed = +self.passed
        self.no_logs = [path for path in self.no_logs if path not in set(map(str, taken))]
        self.tables, self.incomplete = [], []

    def notes_next_to(self, used: Sequence[Path]) -> list[str]:
        """Return the notes about what the search met, and about each reading file that is not ``used``."""
        known = {path.resolve() for path in used}
        unused = [
            f"isolaw ignores {path}: it applies only if {path.parent} is named as a source"
            for path in self.reading_files
            if path.resolve() not in known and is_reading_file(path)
        ]
        return [*unused, *self.notes, *([passed] if (passed := self._passed_over()) else [])]

    def _passed_over(self) -> str:
        """Describe the files that are not logs, by name or number per extension; empty if there are none."""
        total = self.passed.total()
        kinds = [f"{number:,} {suffix}" for suffix, number in self.passed.most_common()]
        if total <= _FEW:
            kinds = self.no_logs
        if total and self.how.names_columns:
            return f"isolaw reads only tables that have the named columns, not {listed(kinds, 6)}"
        text = f"{total:,} of the files found {'is no log' if total == 1 else 'are not logs'}"
        return f"{text} ({listed(kinds, 6)}); isolaw reads a configuration with its log" if total else ""


def search(sources: Sequence[str | Path], ways: Sequence[HowToRead] = ()) -> Search:
    """Find the sources in files, directories and globs, in natural order (``step-50``, ``step-100``).

    ``ways`` is how to read each of them. If it names columns of a table, every named file is read as a table,
    and directories are searched for tables with these columns. Raises `DataError` if a source is missing, or
    if none contains a log.
    """
    out = Search()
    without: list[str] = []
    for source, out.how in zip(sources, ways or [HowToRead()] * len(sources), strict=True):
        out.containers = [] if out.how.names_columns else list(candidates(out.how.format))
        before, passed = len(out.places), out.passed.total()
        out.tables, out.incomplete = [], []
        for path in _expanded(source, out.notes):
            if path.is_dir():
                out.add_directory(path)
            else:
                out.places.append(_named_file(path, out.containers, forced=out.how.format != "auto"))
        if len(out.places) == before and (out.tables or out.incomplete):
            out.take_tables()
        if len(out.places) == before:
            files = out.passed.total() - passed
            columns = ", ".join(sorted(columns_needed(out.how)))
            expected = f"a table with the columns {columns}" if out.how.names_columns else expected_formats()
            without.append(
                f"{source}: found no log and no sweep.json ({files:,} file{'' if files == 1 else 's'} "
                f"searched); expected {expected}"
            )
    if not out.places:
        raise DataError(Wording(without[0], *("  " + text for text in without[1:])))
    out.notes += [text.partition("; expected")[0] for text in without]
    return out


def expected_formats() -> str:
    """Return the formats that isolaw reads, in words."""
    return (
        f"a sweep's directory, CSV or Parquet tables, logs ({', '.join(CONTAINERS)}); "
        "isolaw read --save drafts the columns of any other CSV, JSONL or Parquet file"
    )


def is_ours(path: Path, head: bytes) -> bool:
    """Return whether a file is a table with the data model's own columns."""
    return set(COLUMNS) <= set(columns_of(path, head))


def is_table(source: str | Path) -> bool:
    """Return whether a source is a table file or does not exist, and is no log, directory or glob."""
    path = Path(source)
    if not path.is_file():
        return not path.is_dir() and not glob.has_magic(str(source))
    head = limits.start(path, HEAD)
    mapped = {"problems_per_batch", "rollouts_per_problem"} <= set(columns_of(path, head))
    return mapped or _classified(path, head, list(candidates())).container is None


def _expanded(source: str | Path, notes: list[str]) -> list[Path]:
    if not str(source).strip():  # an unset variable; as a path it would be the current directory
        raise DataError(f"source: found {shown(str(source))}; expected a file, a directory or a glob")
    if not is_utf8(str(source)):
        raise DataError(f"{source}: found a name that is not UTF-8; expected UTF-8, as in files. Rename it")
    if os.path.lexists(source) or not glob.has_magic(str(source)):
        return [Path(source)]
    before, stars, after = str(source).partition("**")
    if stars and (not before or before.endswith("/")) and after[:1] in ("", "/"):
        paths = [path for top in glob.glob(before or ".") for path in _below(Path(top), after, notes)]
    else:
        paths = [Path(name) for name in glob.glob(str(source))]
    if not paths:
        raise DataError(f"{source}: no file matches this glob")
    return sorted(dict.fromkeys(paths), key=lambda path: natural(str(path)))


def _below(top: Path, rest: str, notes: list[str]) -> Iterator[Path]:
    """Yield what matches ``**`` and the ``rest`` of a glob below a folder, without leaving the folder."""
    folders: list[Path] = []

    def enters(path: Path) -> bool:
        folders.append(path)
        return True

    walk = Walk(top, enters, limits.MOST_FILES)
    files = list(walk)
    notes += walk.notes
    rest = rest.strip("/")
    yield from (path for path in (*folders, *files) if not rest or path.relative_to(top).match(rest))


def _named_file(path: Path, containers: Sequence[Container], forced: bool) -> Place:
    with limits.os_errors(path), open_file(path) as file:
        head = file.read(HEAD)
    if forced:
        return Place(path, containers[0])
    place = _classified(path, head, containers)
    if place.container or place.ours or not containers or path.suffix.lower() not in _SETTINGS:
        return place
    with contextlib.suppress(DataError):  # then it is a table, or no format that isolaw knows
        config = configs.read_settings(path)
        if framework := frameworks.find((), config):
            return replace(place, config=config, framework=framework.name, no_history="")
    return place


def _of_runs(columns: list[str]) -> bool:
    """Return whether a table's columns count steps, or name runs next to a reward."""
    counts = len(columns) > 1 and not {"step", "compute"}.isdisjoint(guess(columns))
    names = guess(columns, RUN_NAMES)
    return counts or (bool(names) and any(map(is_reward, columns)))


def _classified(path: Path, head: bytes, containers: Sequence[Container]) -> Place:
    if is_ours(path, head):
        return Place(path, ours=True)
    container = next((each for each in containers if each.file(path, head)), None)
    if container is wandb_csv.CONTAINER and wandb_csv.is_of_own_metrics(head):
        return Place(path)  # a table with a column of run names
    reason, framework = (_reason(path, head) or ("", "")) if container is None and containers else ("", "")
    return Place(path, container, no_history=reason, framework=framework)
