"""Search folders, open files of unknown origin, and write files for the user, never over a user's file.

`open_file` opens regular files only, so that a device or a pipe cannot make a reader wait or read forever.

Every function that writes files calls `check_destination`, directly or through `check_replaceable` and
`replacing`. Users can add files to a sweep's folder (``law.json``, ``figures/``, ``report.html``). isolaw
refuses to write only the sweep's own entries (`SWEEP_ENTRIES`) and everything below them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice, pairwise
from pathlib import Path

from isolaw.errors import DataError

# Entries of a sweep's directory that belong to the sweep (`isolaw.store`). Trackers create the last three.
SWEEP_ENTRIES = frozenset(
    {
        *("sweep.json", "sweep.toml", "points.parquet", "problems.parquet", "recorded.parquet"),
        *("decisions.jsonl", "lock", "clock", "runs", "slurm", "scripts"),
        *("tensorboard", "wandb", "mlruns"),
    }
)
_SPEC_NAME, _RUNS_FOLDER, _RUN_ID = "sweep.json", "runs", re.compile(r"[0-9a-f]{64}")
_SWEEP_MARK = b'"isolaw.sweep/'
_MOST_LEVELS = 24  # levels of folders
_SKIPPED = {"__pycache__", "node_modules"}
_LINKS_OUT, _SPECIAL_FILES = "links that lead out of the folder", "devices, pipes and sockets"
_UNUSUAL_NAMES = "files whose names are not UTF-8"
_PATHS_SHOWN = 5
_KIND_OF_MODE = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_MARKED_WITHIN = 1 << 20  # number of bytes at the beginning of a file that must contain its mark


@dataclass
class Walk:
    """The regular files of a folder and all folders below it, each once; hidden ones are left out.

    A folder can come from anyone, so the walk stays in it. It follows a link last, and only to a place in the
    folder. ``should_enter`` returns whether to look into a folder. Raises `DataError` if there are more than
    ``limit`` files and folders.
    """

    top: Path
    should_enter: Callable[[Path], bool] = lambda _: True
    limit: int = 1_000_000
    left_out: dict[str, list[str]] = field(default_factory=dict)  # reason → paths

    def __iter__(self) -> Iterator[Path]:
        seen: set[tuple[int, int]] = set()
        skipped: set[Path] = set()  # folders that ``should_enter`` excluded: links do not lead into them
        paths, links = [(self.top, 0)], list[tuple[Path, int]]()
        while paths or links:
            path, depth = paths.pop() if paths else links.pop(0)
            try:
                status = path.stat()
            except OSError:  # a dangling link
                continue
            if (status.st_dev, status.st_ino) in seen:
                continue
            if depth and path.is_symlink():
                if leads_out(path, self.top):
                    self._leave_out(_LINKS_OUT, path)
                    continue
                target = path.resolve()
                if not skipped.isdisjoint([target, *target.parents]):
                    continue
            seen.add((status.st_dev, status.st_ino))
            if not is_utf8(path.name) and depth:
                self._leave_out(_UNUSUAL_NAMES, path)
            elif stat.S_ISREG(status.st_mode):
                yield path
            elif not stat.S_ISDIR(status.st_mode):  # opening a pipe could block forever
                self._leave_out(_SPECIAL_FILES, path)
            elif depth > _MOST_LEVELS:
                self._leave_out(f"directories deeper than {_MOST_LEVELS} levels", path)
            elif not self.should_enter(path):
                skipped.add(path.resolve())
            else:
                entries = self._entries(path)
                links += [(Path(item.path), depth + 1) for item in entries if item.is_symlink()]
                paths += [(Path(item.path), depth + 1) for item in reversed(entries) if not item.is_symlink()]
            if len(seen) + len(paths) + len(links) > self.limit:
                raise DataError(
                    f"{self.top}: over {self.limit:,} files and directories; name the files with the logs, "
                    f"e.g. '{self.top}/**/*.jsonl'"
                )

    @property
    def notes(self) -> list[str]:
        """What the walk did not read, with the names."""
        return [
            f"isolaw did not read {reason}: {', '.join(paths[:_PATHS_SHOWN])}"
            + (f" and {len(paths) - _PATHS_SHOWN:,} more" if len(paths) > _PATHS_SHOWN else "")
            + ("; name them to read them" if reason == _LINKS_OUT else "")
            for reason, paths in self.left_out.items()
        ]

    def _leave_out(self, reason: str, path: Path) -> None:
        self.left_out.setdefault(reason, []).append(str(path))

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as scan:
                entries = list(islice(scan, self.limit + 1))
        except OSError as error:
            self._leave_out(f"directories ({error.strerror or error})", folder)
            return []
        visible = [entry for entry in entries if entry.name[0] != "." and entry.name not in _SKIPPED]
        return sorted(visible, key=lambda entry: natural(entry.name))


def leads_out(path: str | Path, folder: str | Path) -> bool:
    """Return whether a path in a folder leads out of it by a link."""
    top = Path(folder).resolve()
    for child, parent in pairwise([top, *top.parents]):  # the Hub's cache: the files are links to blobs
        if child.name == "snapshots" and parent.name.startswith(("datasets--", "models--")):
            top = parent
    return not Path(path).resolve().is_relative_to(top)


def is_utf8(text: str) -> bool:
    """Return whether a text can be written to a file; Python also has texts for names that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in names by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def open_file(path: str | Path) -> BufferedReader:
    """Open a regular file for reading.

    Raise `OSError` for a folder, a device, a pipe or a socket, without waiting for its content.
    """
    return os.fdopen(descriptor(path), "rb")


def descriptor(path: str | Path) -> int:
    """Return a descriptor of a regular file for reading; raise `OSError` as `open_file` does."""
    # The kind is examined first too: opening a device can have effects, and a socket cannot be opened.
    _require_file(os.stat(path).st_mode, path)
    # Without O_NONBLOCK, opening a pipe waits for a writer. It has no effect on regular files.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _require_file(os.fstat(opened).st_mode, path)
    except OSError:
        os.close(opened)
        raise
    return opened


def _require_file(mode: int, path: str | Path) -> None:
    if not stat.S_ISREG(mode):
        kind = _KIND_OF_MODE.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"found {kind}; expected a file", str(path))


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a regular file; raise `OSError` as `open_file` does."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_destination(path: str | Path) -> Path:
    """Return the resolved path of a destination.

    Raises `DataError` if it would be part of a sweep, or is a link to a file that does not exist.

    Links and ``..`` are resolved. Neither the path nor its parent folders need to exist.
    """
    try:
        target = Path(path).resolve()
        paths = (Path(path), *Path(path).parents)
        broken_links = [ancestor for ancestor in paths if not ancestor.exists() and ancestor.is_symlink()]
        sweep = next((parent for parent in target.parents if _belongs_to_sweep(parent, target)), None)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a zero byte, or a name too long
        raise DataError(f"{str(path)[:80]!r}: {getattr(error, 'strerror', None) or error}") from None
    if broken_links:
        link = f"{broken_links[-1]}: found a link to {broken_links[-1].resolve()}, which does not exist"
        raise DataError(f"{link}; expected a file or no link")
    if sweep is not None:
        entry = target.relative_to(sweep).parts[0]
        raise DataError(
            f"{path}: the path is inside the sweep {sweep}, where {entry} belongs to the sweep; expected "
            f"another place, e.g. {sweep.parent / target.name}"
        )
    return target


def _belongs_to_sweep(folder: Path, target: Path) -> bool:
    """Return whether ``target``, which is below ``folder``, would belong to a sweep in that folder."""
    entry = target.relative_to(folder).parts[0].casefold()  # some file systems ignore case
    return entry in SWEEP_ENTRIES and _contains_sweep(folder)


def _contains_sweep(folder: Path) -> bool:
    """Return whether a folder contains a sweep, even if its ``sweep.json`` is missing."""
    with contextlib.suppress(OSError), open_file(folder / _SPEC_NAME) as file:
        if _SWEEP_MARK in file.read(_MARKED_WITHIN):
            return True
    with contextlib.suppress(OSError):
        return any(_RUN_ID.fullmatch(name) for name in os.listdir(folder / _RUNS_FOLDER))
    return False


def check_replaceable(path: Path, what: str, example: str, is_ours: Callable[[Path], bool]) -> None:
    """Raise `DataError` unless ``path`` is new, or an existing file of the same kind.

    ``what`` is the name of this kind of file with its article, and ``example`` is a typical file name.
    ``is_ours`` returns whether an existing file is of this kind.
    """
    check_destination(path)
    if path.is_dir():
        raise DataError(f"{path}: found a directory; expected a file name, e.g. {path / example}")
    if path.exists() and not (path.is_file() and is_ours(path)):  # opening a pipe would wait
        raise DataError(f"{path}: exists and is not {what}; it is left unchanged")
    _check_suffix(path, what, example)
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", suffix=".tmp"):
            pass
    except OSError as error:
        raise DataError(f"{path}: cannot write in {folder} ({error.strerror or error})") from None


def _check_suffix(path: str | Path, what: str, example: str) -> None:
    """Raise `DataError` unless a path has the suffix of the kind of file that isolaw will write.

    >>> _check_suffix("runs.csv", "a table of runs", "points.parquet")
    Traceback (most recent call last):
    isolaw.errors.DataError: runs.csv: found the suffix '.csv'; expected .parquet for a table of runs, e.g. \
runs.parquet
    """
    suffix, expected = Path(path).suffix, Path(example).suffix
    if suffix.lower() != expected:
        actual = f"the suffix {suffix!r}" if suffix else "no suffix"
        suggestion = Path(path).with_suffix(expected)
        raise DataError(f"{path}: found {actual}; expected {expected} for {what}, e.g. {suggestion}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``path`` at the end. Raise `DataError` if writing fails."""
    target = check_destination(path)  # resolved, so that a link stays a link
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def give_usual_modes(folder: Path) -> None:
    """Set the modes of all files in a new folder to the modes that the umask allows.

    Some libraries write a private temporary file and then rename it (safetensors: mode 0600). The umask is
    known from the mode of the new folder, which is 0777 without the bits of the umask.
    """
    mode = folder.stat().st_mode & 0o666
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, mode)
