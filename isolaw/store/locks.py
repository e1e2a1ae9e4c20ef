"""Lock folders of a sweep, which several hosts can share.

The first check is the kernel's lock (`flock`). It always ends with its process, so the same command can start
immediately after ``kill -9``. Linux forwards the lock over NFS, and over Lustre if mounted with ``flock``.
Not every mount supports it, so the holder also has a heartbeat: it touches the file every ``BEAT_S`` seconds.
Even if a process gets the kernel's lock, it is rejected if another host touched the file within the last
``STALE_S`` seconds, by the file server's clock.

isolaw assumes that a holder without a heartbeat for ``STALE_S`` seconds has ended or has lost the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator

from isolaw.errors import InUse
from isolaw.store.folder import Folder

NAME, CLOCK = "lock", "clock"

BEAT_S = 10.0
STALE_S = 60.0
# If the kernel has no locks, the last of two concurrent holders to write within this time wins.
_SETTLES_S = 1.0
_LONGEST = 4096  # maximum bytes of a lock's message
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def locked(folder: Folder, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a folder exclusively inside the block; the folder's file ``lock`` names the holder.

    Raise `InUse` if another process still holds the lock after ``wait_s`` seconds, and `OSError` for a
    read-only disk.
    """
    until = time.monotonic() + wait_s
    with _opened(folder, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
        while (holder := _other_holder(folder, file, has := _take(file, fcntl.LOCK_EX))) is not None:
            if has:
                fcntl.flock(file, fcntl.LOCK_UN)
            if time.monotonic() >= until:
                raise InUse(f"{folder.path} is in use by {holder}")
            time.sleep(0.05)
        signature = f"process {os.getpid()} on {socket.gethostname()}\n{secrets.token_hex(8)}\n"
        _write(file, signature)
        if has is None:
            time.sleep(_SETTLES_S)
            if not _content(file).endswith(signature):
                raise InUse(f"{folder.path} is in use by {_first_line(_content(file))}")
            _write(file, signature)
        _HEARTBEAT.begin(file)
        try:
            yield
        finally:
            _HEARTBEAT.end(file)
            with contextlib.suppress(OSError):  # the disk is no longer writable
                if _content(file) == signature:
                    _write(file, "")


def holder(folder: Folder) -> str | None:
    """Return a description of the process that has locked a folder, or None if it is not locked."""
    with contextlib.suppress(FileNotFoundError), _opened(folder, os.O_RDONLY) as file:
        return _other_holder(folder, file, _take(file, fcntl.LOCK_SH))
    return None


def message(folder: Folder) -> str:
    """Return the unique message in a folder's lock; "" if the folder is not locked."""
    with contextlib.suppress(FileNotFoundError), _opened(folder, os.O_RDONLY) as file:
        return _content(file)
    return ""


@contextlib.contextmanager
def _opened(folder: Folder, flags: int) -> Iterator[int]:
    file = folder.open(NAME, flags)
    try:
        yield file
    finally:
        os.close(file)


def _take(file: int, kind: int) -> bool | None:
    """Try to get the kernel's lock; return whether that succeeded, or None if the mount has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _other_holder(folder: Folder, file: int, taken: bool | None) -> str | None:
    """Return the other process that holds a lock, or None; ``taken`` is the result of `_take`."""
    name = _first_line(_content(file))
    if taken is False:
        return name or "another process"
    process, _, host = name.removeprefix("process ").partition(" on ")
    if not host or not process.isdecimal():
        return None  # no process holds the lock
    if host == socket.gethostname() and (taken or not _is_alive(int(process))):
        return None  # the holder has ended
    age = _now(folder) - os.fstat(file).st_mtime
    if abs(age) > STALE_S:  # a heartbeat in the future is also invalid, because a clock was wrong
        return None
    return f"{name}, last heartbeat {max(age, 0):.0f} s ago; treated as dead after {STALE_S:.0f} s"


def _content(file: int) -> str:
    return os.pread(file, _LONGEST, 0).decode(errors="replace")


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()


def _now(folder: Folder) -> float:
    """Return the current time by the clock of the folder's file server."""
    name = f".{CLOCK}.{secrets.token_hex(8)}.tmp"
    try:
        file = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError:  # the disk is not writable
        return time.time()
    try:
        return os.fstat(file).st_mtime
    finally:
        os.close(file)
        folder.remove(name)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _write(file: int, text: str) -> None:
    if os.fstat(file).st_size:
        os.truncate(file, 0)
    os.write(file, text.encode())


class _Heartbeat:
    """The thread that regularly touches all locks held by this process."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def begin(self, descriptor: int) -> None:
        with self.lock:
            self.held.add(descriptor)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._beat, daemon=True)
                self.thread.start()

    def end(self, descriptor: int) -> None:
        with self.lock:
            self.held.discard(descriptor)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self.lock:
                for descriptor in self.held:
                    with contextlib.suppress(OSError):
                        os.utime(descriptor)


_HEARTBEAT = _Heartbeat()
