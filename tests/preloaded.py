"""A Python that has its imports behind it: a server imports modules once, and forks for each command.

To import what a real sweep needs takes a process 8 s of processor time, and the tests start a hundred.
The fixture `preload` makes programs, ``python`` and ``isolaw``, in whose place a fork of the server runs
the command. What the command sees is its own: arguments, environment, folder, standard streams; so do the
processes that it starts (``sys.executable``). The program forwards signals, ends as the command ends, and
takes it along where it is killed. By process id, parent and group they are two: what looks at these starts
a real Python.

    preloaded.py serve SOCKET PYTHON CODE   the server, until nobody holds its standard input, a named pipe;
                                            then it removes the socket's folder. CODE imports
    preloaded.py SOCKET ARGUMENT…           the program: as python ARGUMENT…
"""

import array
import json
import os
import signal
import socket
import sys
from pathlib import Path

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FLAGS = ("-P", "-u")
# Of Arrow's allocator, which starts it again in a fork.
_THREADS = {"jemalloc_bg_thd"}


def program(address, arguments):
    """Have the server run a command, and end as it does."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    job = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "masked": list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "ignored": [int(number) for number in _FORWARDED if signal.getsignal(number) is signal.SIG_IGN],
    }
    text = json.dumps(job).encode()
    streams = [number if _is_open(number) else os.open(os.devnull, os.O_RDWR) for number in range(3)]
    passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams).tobytes())
    server.sendmsg([len(text).to_bytes(8, "big")], [passed])
    server.sendall(text)
    for number in _FORWARDED:
        if int(number) not in job["ignored"]:
            signal.signal(number, lambda number, _: server.send(bytes([number])))
    os.closerange(0, 3)  # a pipe ends with the command that writes to it
    status = int.from_bytes(server.recv(4), "big", signed=True)
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def locked(folder):
    """Make a server's folder if it is not there, and return the open file that holds its lock."""
    import fcntl

    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            file = open(os.path.join(folder, "lock"), "w")  # noqa: SIM115 - the caller closes it
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                return file
        except FileNotFoundError:  # the server has removed it
            continue


class Command:
    """A fork: its process, and the connection of the program that stands for it."""

    def __init__(self, pid, connection):
        self.pid, self.connection, self.process = pid, connection, os.pidfd_open(pid)

    def hear(self):
        """Send the process a signal that the program got; SIGKILL if the program is gone."""
        try:
            told = self.connection.recv(1)
        except OSError:
            told = b""
        signal.pidfd_send_signal(self.process, told[0] if told else signal.SIGKILL)
        return bool(told)

    def end(self):
        """Wait for the process, and tell the program how it has ended."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        try:
            self.connection.sendall(status.to_bytes(4, "big", signed=True))
        finally:
            self.close()

    def close(self):
        self.connection.close()
        os.close(self.process)


def serve(address, code):
    """Fork for each command; return, in the fork, what the program has sent."""
    import contextlib
    import gc
    import selectors
    import shutil

    gc.disable()
    exec(code, {})
    gc.enable()
    gc.freeze()
    threads = {task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")}
    own = Path("/proc/self/comm").read_text().strip()
    assert threads <= {own, *_THREADS}, f"threads that a fork would not have: {threads}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}.new")
    listening.listen(100)
    os.rename(f"{address}.new", address)
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    running = set()
    while True:
        waiting.register(listening, selectors.EVENT_READ)
        ready = {key.fd: key.data for key, _ in waiting.select()}
        if 0 in ready:
            with locked(os.path.dirname(address)):
                if any(key.fd == 0 for key, _ in waiting.select(0)):  # nobody has come meanwhile
                    shutil.rmtree(os.path.dirname(address), ignore_errors=True)
                    os._exit(0)
            waiting.unregister(listening)
            continue
        # What was killed is gone before the next command begins.
        for command in {command for command in ready.values() if command}:
            if command.process not in ready and command.hear():
                continue
            waiting.unregister(command.process)
            waiting.unregister(command.connection)
            running.remove(command)
            with contextlib.suppress(OSError):
                command.end()
        waiting.unregister(listening)
        if listening.fileno() not in ready:
            continue
        connection, _ = listening.accept()
        try:
            head, streams, _, _ = socket.recv_fds(connection, 8, 3)
            with connection.makefile("rb") as sent:
                job = json.loads(sent.read(int.from_bytes(head, "big")))
        except (OSError, ValueError):  # it was killed
            connection.close()
            continue
        pid = os.fork()
        if pid == 0:
            for command in running:
                command.close()
            for value in (waiting, listening, connection):
                value.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        if pid == 0:
            return job
        running.add(command := Command(pid, connection))
        for part in (command.process, command.connection):
            waiting.register(part, selectors.EVENT_READ, command)


def become(job, python):
    """Be the process of a command; return a function that runs it."""
    import runpy
    import types

    os.setsid()
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    for number in job["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, job["masked"])
    sys.executable = python
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if environment := sys.modules.get("isolaw.backends.real.environment"):
        environment._clear_caches()
    arguments, flags = list(job["arguments"]), []
    while arguments[0] in _FLAGS:
        flags.append(arguments.pop(0))
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through="-u" in flags)
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind = arguments.pop(0)
    what = arguments.pop(0) if kind in ("-m", "-c") else kind
    assert not what.startswith("-"), f"python {what}: known are {', '.join((*_FLAGS, '-m', '-c'))}"
    sys.argv = [kind, *arguments]
    if "-P" not in flags:
        folders = {"-m": os.getcwd(), "-c": ""}
        sys.path.insert(0, folders.get(kind, os.path.dirname(os.path.abspath(what))))
    if kind == "-m":
        return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)
    if kind == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        return lambda: exec(compile(what, "<string>", "exec"), vars(main))
    return lambda: runpy.run_path(what, run_name="__main__")


def leave(command):
    """Run a command and end as Python does, but without taking the modules apart, which takes a second."""
    import atexit
    import threading
    import traceback

    status = 0
    try:
        command()
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _, _, _address, _python, _code = sys.argv
        sys.path.pop(0)  # this folder
        leave(become(serve(_address, _code), _python))
    else:
        program(sys.argv[1], sys.argv[2:])
