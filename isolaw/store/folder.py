"""Define `Folder`, an open folder of a sweep, below which isolaw follows no links.

The kernel resolves a path at each use, so the target of a path can change. For example, a link in place of
``state`` once made isolaw remove old states in a user's own folder. Below a sweep's directory, isolaw
therefore opens every name relative to a descriptor of its folder (``openat(2)``) with ``O_NOFOLLOW``. It also
requires that the entry has the kind that isolaw creates there. The path of the sweep's directory itself can
contain links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from isolaw.errors import Damaged, NotOurs, Wording

EntryKind = Literal["file", "folder", "symbolic link", "device, pipe or socket"]
_KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link"}

LINKS_HINT = (
    "isolaw follows no links below a sweep's directory, and changed nothing. Restore the entry that isolaw "
    "wrote (for a link: rm LINK && mv TARGET LINK). If you remove the entry, the sweep computes it again"
)
_MOST_BYTES = 2**32
_ENTRIES_SHOWN = 8  # number of wrong entries in a message
_MOST_LEVELS = 20
# Names in a sweep's directory; `RECORDED` has the runs that a sweep replays.
POINTS, PROBLEMS, RECORDED = "points.parquet", "problems.parquet", "recorded.parquet"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# O_NONBLOCK, because opening a pipe would otherwise wait for its other end.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


class SweepFolders(Protocol):
    """Protocol of the parts of a sweep's directory that the stores of its runs use."""

    directory: Path

    @property
    def exists(self) -> bool:
        """True if the directory contains a sweep."""

    def runs(self, make: bool = False) -> Folder:
        """Open the folder of all runs; ``make`` creates it if it does not exist."""


class Folder:
    """An open folder with a ``descriptor``; its ``path`` is used only in messages.

    The descriptor is closed when the object is deleted. Methods that open, read or replace a name raise
    `NotOurs` if the entry is a link or of another kind. They raise `FileNotFoundError` with the whole path if
    the entry does not exist.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    @classmethod
    def at(cls, path: Path) -> Folder:
        """Open a folder that the user has named, and follow links in its path; raise `OSError` on failure."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)

    def folder(self, name: str, make: bool = False) -> Folder:
        """Open a folder in this one; ``make`` creates it if it does not exist."""
        if make:
            with contextlib.suppress(FileExistsError):
                self._mkdir(name)
        try:
            return Folder(self.path / name, os.open(_checked_name(name), _FOLDER, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self.not_ours(name, "folder") from None
            raise self._with_path(error, name) from None

    def new_folder(self, name: str) -> Folder:
        """Create a folder that does not exist yet, and open it."""
        self._mkdir(name)
        return self.folder(name)

    def _mkdir(self, name: str) -> None:
        try:
            os.mkdir(name, dir_fd=self.descriptor)
        except OSError as error:
            raise self._with_path(error, name) from None

    def _with_path(self, error: OSError, name: str) -> OSError:
        """Set the whole path of a name in this folder as the error's file name; return the error."""
        error.filename = str(self.path / name)
        return error

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open a file in this folder and return its descriptor."""
        try:
            descriptor = os.open(_checked_name(name), flags | _FILE_FLAGS, mode, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                raise self.not_ours(name, "file") from None
            raise self._with_path(error, name) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self.not_ours(name, "file")
        return descriptor

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None if it does not exist; raise `Damaged` if it exceeds 4 GiB."""
        try:
            descriptor = self.open(name)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if (size := os.fstat(descriptor).st_size) > _MOST_BYTES:
                raise Damaged(f"{self.path / name}: {size:,} bytes; isolaw writes no file of that size")
            return file.read()

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of an entry (for a link, of the link itself), or None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def entries(self) -> dict[str, EntryKind]:
        """Return the kind of each entry, by name."""
        with os.scandir(self.descriptor) as listing:
            return {entry.name: _kind(entry) for entry in listing}

    def files(self, prefix: str = "") -> Iterator[tuple[str, Folder, str]]:
        """Yield all files below this folder, each as (relative path, folder that contains it, name).

        ``prefix`` is a prefix for the paths. Raise `NotOurs` for an entry that is neither file nor folder.
        """
        for name, kind in self.entries().items():
            if kind == "folder":
                yield from self.folder(name).files(f"{prefix}{name}/")
            elif kind == "file":
                yield f"{prefix}{name}", self, name
            else:
                raise self.not_ours(name, "file")

    def write(self, name: str, content: bytes, sync: bool = True, mode: int = 0o666) -> None:
        """Write a file atomically: write it under a temporary name, and then rename it."""
        with self.replacing(name, mode) as descriptor:
            try:
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(content)
            except OSError as error:
                raise self._with_path(error, name) from None
            if sync:
                os.fsync(descriptor)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o666) -> Iterator[int]:
        """Yield the descriptor of a temporary file, and rename it to ``name`` at the end of the block.

        If the block fails, the temporary file is removed.
        """
        temporary = f".{name}.{os.getpid()}.tmp"
        self.remove(temporary)  # a killed process with the same process id can have left it
        descriptor = self.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            yield descriptor
            self._expect(name, "file")
            self.rename(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        finally:
            os.close(descriptor)

    def remove_leftovers(self, names: Iterable[str]) -> None:
        """Remove temporary files for the names ``own`` that a killed process has left."""
        for name, kind in self.entries().items():
            if kind == "file" and is_leftover(name, names):
                self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Rename an entry of this folder."""
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file if it exists; if it is a link, remove only the link itself."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with its content, if it exists."""
        if self._expect(name, "folder"):
            shutil.rmtree(name, dir_fd=self.descriptor)  # also follows no links

    def sync(self) -> None:
        """Sync this folder, so that renames in it survive a power failure."""
        os.fsync(self.descriptor)

    def _expect(self, name: str, kind: EntryKind) -> bool:
        """Return whether an entry with this name exists; raise `NotOurs` if it has another kind."""
        actual = self._kind(name)
        if actual not in (None, kind):
            raise self.not_ours(name, kind)
        return actual is not None

    def _kind(self, name: str) -> EntryKind | None:
        status = self.status(name)
        return _KINDS.get(stat.S_IFMT(status.st_mode), "device, pipe or socket") if status else None

    def not_ours(self, name: str, expected: EntryKind) -> NotOurs:
        """Return the error for an entry that does not have the expected kind."""
        actual = self._kind(name)
        entry = f"a {actual}" if actual else "nothing"
        target = f" to {os.readlink(name, dir_fd=self.descriptor)}" if actual == "symbolic link" else ""
        return NotOurs(f"{self.path / name}: found {entry}{target}; expected a {expected}", LINKS_HINT)

    def check(self, kinds: Callable[..., tuple[EntryKind, ...]]) -> None:
        """Raise `NotOurs` if entries of isolaw are links or of the wrong kind; the error lists all of them.

        ``kinds`` returns the accepted kinds of an entry with these names from this folder on, or () for an
        entry of the user.
        """
        wrong = list(self._wrong(kinds))
        if len(wrong) == 1:
            raise wrong[0]
        if wrong:
            lines = [f"  - {error.what}" for error in wrong[:_ENTRIES_SHOWN]]
            remainder = [f"  - and {len(wrong) - _ENTRIES_SHOWN} more"] if len(wrong) > _ENTRIES_SHOWN else []
            summary = f"{self.path}: {len(wrong)} entries differ from what isolaw wrote. {LINKS_HINT}"
            raise NotOurs(Wording(summary, *lines, *remainder))

    def _wrong(self, kinds: Callable[..., tuple[EntryKind, ...]], *parents: str) -> Iterator[NotOurs]:
        for name, kind in sorted(self.entries().items()):
            accepted = kinds(*parents, name)
            if accepted and kind not in accepted:
                yield self.not_ours(name, accepted[0])
            elif accepted and kind == "folder" and len(parents) == _MOST_LEVELS:
                what = f"more than {_MOST_LEVELS} nested folders, but no state has so many"
                yield NotOurs(f"{self.path / name}: {what}", LINKS_HINT)
            elif accepted and kind == "folder":
                yield from self.folder(name)._wrong(kinds, *parents, name)


def is_leftover(name: str, names: Iterable[str]) -> bool:
    """Return whether this is the name of a temporary file of `Folder.replacing` in ``names``."""
    stem, _, token = name.removesuffix(".tmp").rpartition(".")
    return name.endswith(".tmp") and stem.removeprefix(".") in names and stem[:1] == "." and token.isalnum()


def _checked_name(name: str) -> str:
    """Return the name; raise `ValueError` for a path, because `O_NOFOLLOW` covers only its last part."""
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file")
    return name


def _kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_symlink():
        return "symbolic link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "device, pipe or socket"
