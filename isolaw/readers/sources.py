"""The search for logs in files, globs and directories.

A directory can be an isolaw sweep or one log (an MLflow run, an offline W&B run); isolaw searches all others.
It counts and lists files that are not logs, but does not read them, since runs share folders with checkpoints
and code. It follows links last, and only to places in the directory that are not searched yet.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isolaw import commands
from isolaw.errors import DataError, Wording, shown
from isolaw.files import Walk, is_utf8, natural, open_file
from isolaw.metrics import is_reward
from isolaw.readers import limits
from isolaw.readers.console_table import is_console
from isolaw.readers.containers import CONTAINERS, candidates, wandb_csv
from isolaw.readers.how_to_read import READING_FILE, HowToRead, is_reading_file
from isolaw.readers.names import RUN_NAMES, guess
from isolaw.readers.raw_log import HEAD, Container, is_text
from isolaw.readers.table_columns import columns_needed
from isolaw.readers.table_files import columns_of
from isolaw.runs import COLUMNS, listed
from isolaw.store import SweepStore

_LOG_SUFFIXES = {".wandb", ".jsonl", ".log", ".out", ".csv"}
_CONSOLE_SUFFIXES = {".log", ".out", ".txt", ".err", ".stdout", ""}
# Lines that veRL prints before its first step.
_VERL_START_LINES = (b"Checkpoint tracker file does not exist", b"Training Progress:")


def _no_history_reason(path: Path, head: bytes) -> tuple[str, str] | None:
    """Return why a file that no container reads is a run without history, and the framework of the run.

    Returns None for any other file. ``head`` is the beginning of the file.
    """
    if not head.strip():
        names = "tfevents" in path.name or path.name == "trainer_state.json"
        is_log = names or path.suffix.lower() in _LOG_SUFFIXES
        return ("the file is empty", "") if is_log else None
    if path.suffix.lower() not in _CONSOLE_SUFFIXES or not is_text(head):
        return None
    if all(sign in head for sign in _VERL_START_LINES):
        return "training began, but no step was logged", "veRL"
    return None


_TEXT_SUFFIXES = {".log", ".out", ".txt"}
_LAW = re.compile(rb'\s*\{\s*"format":\s*"isolaw\.law/')
_MAX_LISTED = 1_000  # files that are not logs
_MAX_NAMED = 3


@dataclass(frozen=True)
class LogSource:
    """A source to read: a log (if it has a container), a sweep's directory, or else a table.

    ``is_ours`` marks a table with the data model's own columns. ``no_history`` is the reason why a run has no
    log.
    """

    path: Path
    container: Container | None = None
    is_sweep: bool = False
    is_ours: bool = False
    no_history: str = ""
    framework: str = ""  # of a run without history


@dataclass
class Search:
    """The result of a search: the logs, tables and sweeps that were found, and counts of all other files."""

    options: HowToRead = field(default_factory=HowToRead)  # how to read the source that is searched
    containers: list[Container] = field(default_factory=list)
    sources: list[LogSource] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)  # tables of runs, not written by a framework
    incomplete_tables: list[Path] = field(default_factory=list)  # tables with a reward but without a step
    reading_files: list[Path] = field(default_factory=list)  # each ``isolaw.toml`` in the directories
    skipped: Counter[str] = field(default_factory=Counter)  # number of files that are not logs, by extension
    skipped_paths: list[str] = field(default_factory=list)  # paths of the first such files
    notes: list[str] = field(default_factory=list)

    def add_directory(self, top: Path) -> None:
        """Search a directory; raise `DataError` if it is too large."""
        walk = Walk(top, lambda path: not self._add_whole_directory(path), limits.MOST_FILES)
        for path in walk:
            self._add_file(path)
            if len(self.sources) > limits.MOST_LOGS:
                raise DataError(
                    f"{top}: over {limits.MOST_LOGS:,} logs; name the logs to read, e.g. "
                    f"'{top}/**/metrics.jsonl'"
                )
        self.notes += walk.notes

    def _add_whole_directory(self, path: Path) -> bool:
        """Add a directory that is one log or a sweep, and return whether it is."""
        is_sweep = SweepStore(path).exists
        containers = () if is_sweep else self.containers
        container = next((container for container in containers if container.directory(path)), None)
        if is_sweep or container:
            self.sources.append(LogSource(path, container, is_sweep))
        return is_sweep or container is not None

    def _add_file(self, path: Path) -> None:
        if path.name == READING_FILE:
            self.reading_files.append(path)
            return
        try:
            head = limits.start(path, HEAD)
            source = _classify(path, head, self.containers)
            is_usable: object = source.container or source.is_ours or source.no_history
            if self.options.names_columns:
                columns = columns_of(path, head)
                is_usable = columns and not columns_needed(self.options, columns)
            elif not is_usable and not _LAW.match(head):
                columns = columns_of(path, head)
                if _has_runs(columns) or (path.suffix in _TEXT_SUFFIXES and is_console(head)):
                    self.tables.append(path)
                elif len(columns) > 1 and any(map(is_reward, columns)):
                    self.incomplete_tables.append(path)
        except DataError as error:
            self.notes.append(f"isolaw did not read this file: {error}")
            return
        if is_usable:
            self.sources.append(source)
        else:
            self.skipped[path.suffix or path.name] += 1
            if len(self.skipped_paths) < _MAX_LISTED:
                self.skipped_paths.append(str(path))

    def use_tables(self) -> None:
        """Use the tables as sources, since no log was found next to them.

        If no table is complete, use the incomplete ones, so that the error states what they lack.
        """
        used_tables = self.tables or self.incomplete_tables
        self.sources += [LogSource(path) for path in used_tables]
        for path in used_tables:
            self.skipped[path.suffix or path.name] -= 1
        self.skipped = +self.skipped
        self.skipped_paths = [path for path in self.skipped_paths if path not in set(map(str, used_tables))]
        self.tables, self.incomplete_tables = [], []

    def notes_for(self, used_files: Sequence[Path]) -> list[str]:
        """Return the notes about what the search met, and about reading files that are not ``used_files``."""
        used_paths = {path.resolve() for path in used_files}
        unused_notes = [
            f"isolaw ignores {path}: it applies only if {path.parent} is named as a source"
            for path in self.reading_files
            if path.resolve() not in used_paths and is_reading_file(path)
        ]
        return [*unused_notes, *self.notes, *([note] if (note := self._skipped_note()) else [])]

    def _skipped_note(self) -> str:
        """Describe the files that are not logs, by name or number per extension; empty if there are none."""
        total = self.skipped.total()
        kinds = [f"{number:,} {suffix}" for suffix, number in self.skipped.most_common()]
        files = listed(self.skipped_paths if total <= _MAX_NAMED else kinds, 6)
        if total and self.options.names_columns:
            return f"isolaw reads only tables that have the named columns, not {files}"
        text = f"{total:,} of the files found {'is no log' if total == 1 else 'are not logs'}"
        return f"{text} ({files}); isolaw reads a configuration with its log" if total else ""


def search(sources: Sequence[str | Path], option_sets: Sequence[HowToRead] = ()) -> Search:
    """Find the sources in files, directories and globs, in natural order (``step-50``, ``step-100``).

    ``option_sets`` is how to read each of them. If it names columns of a table, every named file is read as a
    table, and directories are searched for tables with these columns. Raises `DataError` if a source is
    missing, or if none contains a log.
    """
    result = Search()
    misses: list[str] = []
    for source, options in zip(sources, option_sets or [HowToRead()] * len(sources), strict=True):
        result.options = options
        result.containers = [] if options.names_columns else list(candidates(options.format))
        source_count, skipped_before = len(result.sources), result.skipped.total()
        result.tables, result.incomplete_tables = [], []
        for path in _expand(source, result.notes):
            if path.is_dir():
                result.add_directory(path)
            else:
                if law := _law_hint(path):
                    raise DataError(law)
                result.sources.append(_source_of_file(path, result.containers, options.format != "auto"))
        if len(result.sources) == source_count and (result.tables or result.incomplete_tables):
            result.use_tables()
        if len(result.sources) == source_count:
            skipped = result.skipped.total() - skipped_before
            columns = ", ".join(sorted(columns_needed(options)))
            expected = f"a table with the columns {columns}" if options.names_columns else expected_formats()
            misses.append(
                f"{source}: found no log and no sweep.json ({skipped:,} file{'' if skipped == 1 else 's'} "
                f"searched); expected {expected}"
            )
            misses += [law] if (law := _law_hint(Path(source) / "law.json")) else []
    if not result.sources:
        raise DataError(Wording(misses[0], *("  " + text for text in misses[1:])))
    result.notes += [text.partition("; expected")[0] for text in misses]
    return result


def expected_formats() -> str:
    """Return the formats that isolaw reads, in words."""
    return (
        f"a sweep's directory, CSV or Parquet tables, logs ({', '.join(CONTAINERS)}); "
        "--column names the columns of any other CSV, JSONL or Parquet file"
    )


def is_ours(path: Path, head: bytes) -> bool:
    """Return whether a file is a table with the data model's own columns."""
    return set(COLUMNS) <= set(columns_of(path, head))


def _expand(source: str | Path, notes: list[str]) -> list[Path]:
    if not str(source).strip():  # an unset variable; as a path it would be the current directory
        raise DataError(f"source: found {shown(str(source))}; expected a file, a directory or a glob")
    if not is_utf8(str(source)):
        raise DataError(f"{source}: found a name that is not UTF-8; expected UTF-8, as in files. Rename it")
    if os.path.lexists(source) or not glob.has_magic(str(source)):
        return [Path(source)]
    prefix, stars, pattern = str(source).partition("**")
    if stars and (not prefix or prefix.endswith("/")) and pattern[:1] in ("", "/"):
        paths = [path for top in glob.glob(prefix or ".") for path in _paths_below(Path(top), pattern, notes)]
    else:
        paths = [Path(name) for name in glob.glob(str(source))]
    if not paths:
        raise DataError(f"{source}: no file matches this glob")
    return sorted(dict.fromkeys(paths), key=lambda path: natural(str(path)))


def _paths_below(top: Path, pattern: str, notes: list[str]) -> Iterator[Path]:
    """Yield what matches ``**`` and the ``pattern`` of a glob below a folder, without leaving the folder."""
    folders: list[Path] = []

    def enters(path: Path) -> bool:
        folders.append(path)
        return True

    walk = Walk(top, enters, limits.MOST_FILES)
    files = list(walk)
    notes += walk.notes
    pattern = pattern.strip("/")
    yield from (path for path in (*folders, *files) if not pattern or path.relative_to(top).match(pattern))


def _source_of_file(path: Path, containers: Sequence[Container], is_forced: bool) -> LogSource:
    with limits.os_errors(path), open_file(path) as file:
        head = file.read(HEAD)
    if is_forced:
        return LogSource(path, containers[0])
    return _classify(path, head, containers)


def _law_hint(path: Path) -> str:
    """Return that a file is a law, with the command that predicts from it; empty for any other path."""
    if not (path.is_file() and _LAW.match(limits.start(path, HEAD))):
        return ""
    return f"{path}: a law, which has no runs; to predict from it: {commands.predict(str(path), '2x')}"


def _has_runs(columns: list[str]) -> bool:
    """Return whether a table's columns count steps, or name runs next to a reward."""
    counts_steps = len(columns) > 1 and not {"step", "compute"}.isdisjoint(guess(columns))
    run_columns = guess(columns, RUN_NAMES)
    return counts_steps or (bool(run_columns) and any(map(is_reward, columns)))


def _classify(path: Path, head: bytes, containers: Sequence[Container]) -> LogSource:
    if is_ours(path, head):
        return LogSource(path, is_ours=True)
    container = next((candidate for candidate in containers if candidate.file(path, head)), None)
    if container is wandb_csv.CONTAINER and wandb_csv.is_of_own_metrics(head):
        return LogSource(path)  # a table with a column of run names
    reason = _no_history_reason(path, head) if container is None and containers else None
    no_history, framework = reason or ("", "")
    return LogSource(path, container, no_history=no_history, framework=framework)
