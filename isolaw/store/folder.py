"""`Folder`: an open folder of a sweep, below which no link is ever followed.

The kernel resolves a path anew at each use, so its target can change: a link in place of ``state`` once made
isolaw remove old states in a user's own folder. Below a sweep's directory isolaw therefore opens every name
relative to a descriptor of its folder (``openat(2)``) with ``O_NOFOLLOW``, and requires the kind of entry
that it creates there. The path of the directory itself is the user's, including links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from isolaw.errors import Damaged, NotOurs

EntryKind = Literal["file", "folder", "symbolic link", "device, pipe or socket"]
_KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link"}

LINKS_HINT = (
    "isolaw follows no links below a sweep's directory, and changed nothing. Restore the entry that isolaw "
    "wrote (for a link: rm LINK && mv TARGET LINK). If you remove the entry, the sweep computes it again"
)
_LARGEST_BYTES = 2**32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Opening a pipe would wait for its other end.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK


class SweepFolders(Protocol):
    """A sweep's directory, as the folders of its runs use it."""

    directory: Path

    @property
    def exists(self) -> bool:
        """Whether the directory holds a sweep."""

    def runs(self, make: bool = False) -> Folder:
        """Open the folder of all runs."""

    def states(self) -> Folder | None:
        """Open the folder of all runs' states; None if they are in the runs' own folders."""


class Folder:
    """An open folder; messages use its ``path``, and deleting it closes its ``descriptor``.

    Methods that open, read or replace a name raise `NotOurs` if they find a link or another kind of entry,
    and FileNotFoundError with the whole path if they find nothing.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    @classmethod
    def at(cls, path: Path) -> Folder:
        """Open a folder that the user named, following the user's links on the way. Raises OSError."""
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
            return Folder(self.path / name, os.open(_single(name), _FOLDER, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self.not_ours(name, "folder") from None
            raise self._named(error, name) from None

    def new_folder(self, name: str) -> Folder:
        """Create a folder that does not exist yet, and open it."""
        self._mkdir(name)
        return self.folder(name)

    def _mkdir(self, name: str) -> None:
        try:
            os.mkdir(name, dir_fd=self.descriptor)
        except OSError as error:
            raise self._named(error, name) from None

    def _named(self, error: OSError, name: str) -> OSError:
        """Return an error about a name in this folder, with the whole path."""
        error.filename = str(self.path / name)
        return error

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open a file in this folder and return its descriptor."""
        try:
            descriptor = os.open(_single(name), flags | _FILE, mode, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                raise self.not_ours(name, "file") from None
            raise self._named(error, name) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self.not_ours(name, "file")
        return descriptor

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if there is no such file; raise `Damaged` above 4 GiB."""
        try:
            descriptor = self.open(name)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if (size := os.fstat(descriptor).st_size) > _LARGEST_BYTES:
                raise Damaged(f"{self.path / name}: {size:,} bytes; isolaw writes no file of that size")
            return file.read()

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of an entry (of a link itself); None if there is no such entry."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def entries(self) -> dict[str, EntryKind]:
        """Return the kind of each entry, by name."""
        with os.scandir(self.descriptor) as found:
            return {entry.name: _kind(entry) for entry in found}

    def files(self, above: str = "") -> Iterator[tuple[str, Folder, str]]:
        """Yield all files below: the path from the top, the folder that holds the file, and its name there.

        Raises `NotOurs` for an entry that is neither file nor folder.
        """
        for name, kind in self.entries().items():
            if kind == "folder":
                yield from self.folder(name).files(f"{above}{name}/")
            elif kind == "file":
                yield f"{above}{name}", self, name
            else:
                raise self.not_ours(name, "file")

    def write(self, name: str, content: bytes, sync: bool = True, mode: int = 0o666) -> None:
        """Write a file atomically: under a temporary name, which is then renamed."""
        with self.replacing(name, mode) as descriptor:
            try:
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(content)
            except OSError as error:
                raise self._named(error, name) from None
            if sync:
                os.fsync(descriptor)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o666) -> Iterator[int]:
        """Yield the descriptor of a new file that then takes that name; a failure leaves nothing behind."""
        temporary = f".{name}.{os.getpid()}.tmp"
        self.remove(temporary)  # left by a killed process with the same id
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

    def remove_leftovers(self, own: Iterable[str]) -> None:
        """Remove the temporary files of these names that a killed writer left."""
        for name, kind in self.entries().items():
            if kind == "file" and is_leftover(name, own):
                self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Rename an entry of this folder."""
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file if it exists; of a link, only the link itself."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with its content, if it exists."""
        if self._expect(name, "folder"):
            shutil.rmtree(name, dir_fd=self.descriptor)  # follows no links either

    def sync(self) -> None:
        """Make renames in this folder survive a power cut."""
        os.fsync(self.descriptor)

    def _expect(self, name: str, kind: EntryKind) -> bool:
        """Return whether an entry of this name exists; raise `NotOurs` if it is of another kind."""
        found = self._kind(name)
        if found not in (None, kind):
            raise self.not_ours(name, kind)
        return found is not None

    def _kind(self, name: str) -> EntryKind | None:
        status = self.status(name)
        return _KINDS.get(stat.S_IFMT(status.st_mode), "device, pipe or socket") if status else None

    def not_ours(self, name: str, expected: EntryKind) -> NotOurs:
        """Return the error for an entry of another kind."""
        found = self._kind(name)
        article = f"a {found}" if found else "nothing"
        target = f" to {os.readlink(name, dir_fd=self.descriptor)}" if found == "symbolic link" else ""
        return NotOurs(f"{self.path / name}: found {article}{target}; expected a {expected}", LINKS_HINT)


def is_leftover(name: str, own: Iterable[str]) -> bool:
    """Return whether `Folder.replacing` gives this name to a temporary file for files of these names."""
    stem, _, token = name.removesuffix(".tmp").rpartition(".")
    return name.endswith(".tmp") and stem.removeprefix(".") in own and stem[:1] == "." and token.isalnum()


def _single(name: str) -> str:
    """Refuse anything but a single name, since `O_NOFOLLOW` covers only the last part of a path."""
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file")
    return name


def _kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_symlink():
        return "symbolic link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "device, pipe or socket"
