"""`Folder`: a folder of a sweep, held open, below which no link is ever followed.

A path is looked up anew at each use, so what it leads to can change: a link in the place of ``state`` once
led the removal of old states into a user's own folder. Below a sweep's directory every name is therefore
looked up in a descriptor of the folder that holds it (``openat(2)``), with ``O_NOFOLLOW``, and what is found
must be of the kind that isolaw makes there. The directory itself is the user's to name, links included.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from isolaw.errors import Damaged, NotOurs

Kind = Literal["file", "folder", "symbolic link", "device, pipe or socket"]

LINKS_HINT = (
    "isolaw follows no links below a sweep's directory, and changed nothing. Put back what isolaw made (for "
    "a link: rm LINK && mv TARGET LINK). If you remove the entry instead, the same sweep computes it again"
)
_LARGEST_BYTES = 2**32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Opening a pipe would wait for its other end.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK


class Folder:
    """A folder that is held open.

    Parameters
    ----------
    path
        what messages call it.
    descriptor
        of the open folder, which is closed with this object.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    @classmethod
    def at(cls, path: Path) -> Folder:
        """Open a folder that the user named; links on the way to it are the user's.

        Raises
        ------
        OSError
            there is none, or it cannot be opened.
        """
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)

    def folder(self, name: str, make: bool = False) -> Folder:
        """Open a folder in this one; with ``make`` one that need not exist yet.

        Raises
        ------
        NotOurs
            a link, or no folder.
        FileNotFoundError
            nothing of that name.
        """
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
        """Make a folder that does not exist yet, and open it."""
        self._mkdir(name)
        return self.folder(name)

    def _mkdir(self, name: str) -> None:
        try:
            os.mkdir(name, dir_fd=self.descriptor)
        except OSError as error:
            raise self._named(error, name) from None

    def _named(self, error: OSError, name: str) -> OSError:
        """Return an error with the whole path: of one that was looked up here, it knows the last part."""
        error.filename = str(self.path / name)
        return error

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open a file in this folder and return its descriptor.

        Raises
        ------
        NotOurs
            a link, or no file.
        FileNotFoundError
            nothing of that name, and ``flags`` do not create it.
        """
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
        """Return a file's content, None where there is no such file.

        Raises
        ------
        NotOurs
            a link, or no file.
        Damaged
            of more than 4 GiB.
        """
        try:
            descriptor = self.open(name)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if (size := os.fstat(descriptor).st_size) > _LARGEST_BYTES:
                raise Damaged(f"{self.path / name}: {size:,} bytes; isolaw writes no file of that size")
            return file.read()

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of what has that name, a link's own; None where there is nothing."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def entries(self) -> dict[str, Kind]:
        """Return what the folder holds, by name."""
        with os.scandir(self.descriptor) as found:
            return {entry.name: _kind(entry) for entry in found}

    def write(self, name: str, content: bytes, sync: bool = True, mode: int = 0o666) -> None:
        """Write a file that is whole or not there: under a temporary name, which is then renamed."""
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
        """Yield the descriptor of a new file that then takes that name; of a failure nothing is left."""
        temporary = f".{name}.{os.getpid()}.tmp"
        self.remove(temporary)  # of a process of this number that was killed
        descriptor = self.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            yield descriptor
            if (there := self.status(name)) is not None and not stat.S_ISREG(there.st_mode):
                raise self.not_ours(name, "file")
            self.rename(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        finally:
            os.close(descriptor)

    def remove_leftovers(self, own: Iterable[str]) -> None:
        """Remove temporary files that a killed writer of files of these names has left."""
        for name, kind in self.entries().items():
            if kind == "file" and is_leftover(name, own):
                self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Rename within this folder."""
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one; a link is removed, not what it leads to."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it, if there is one.

        Raises
        ------
        NotOurs
            a link, or no folder.
        """
        there = self.status(name)
        if there is None:
            return
        if not stat.S_ISDIR(there.st_mode):
            raise self.not_ours(name, "folder")
        shutil.rmtree(name, dir_fd=self.descriptor)  # which follows no links either

    def sync(self) -> None:
        """Let what was renamed here survive a power cut."""
        os.fsync(self.descriptor)

    def not_ours(self, name: str, expected: Kind) -> NotOurs:
        """Return the error for a name at which something else was found."""
        return NotOurs(f"{self.path / name}: {self.found(name)}; expected a {expected}", LINKS_HINT)

    def found(self, name: str) -> str:
        """Return what has a name, in words."""
        there = self.status(name)
        if there is None:
            return "found nothing"
        if stat.S_ISLNK(there.st_mode):
            return f"found a symbolic link to {os.readlink(name, dir_fd=self.descriptor)}"
        if stat.S_ISREG(there.st_mode):
            return "found a file"
        return "found a folder" if stat.S_ISDIR(there.st_mode) else "found a device, pipe or socket"


def is_leftover(name: str, own: Iterable[str]) -> bool:
    """Return whether a name is that of a temporary file, of `Folder.replacing` for files of these names."""
    stem, _, token = name.removesuffix(".tmp").rpartition(".")
    return name.endswith(".tmp") and stem.removeprefix(".") in own and stem[:1] == "." and token.isalnum()


def _single(name: str) -> str:
    """Refuse what is more than a name: `O_NOFOLLOW` is for the last part of a path alone."""
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a single name")
    return name


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "symbolic link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "device, pipe or socket"
