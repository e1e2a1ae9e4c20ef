"""`Terminal` runs a command on a terminal of its own."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import subprocess
import time

import pytest


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(command, stdout=theirs, stdin=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.text = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end inside a character

    def until(self, pattern: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text
            if select.select([self.ours], [], [], 0.2)[0]:
                self.text += self.decoder.decode(os.read(self.ours, 65536))

    def end(self) -> int:
        """The exit code, once what was still said is read."""
        while True:
            try:
                said = os.read(self.ours, 65536)
            except OSError:  # the other side was closed
                break
            self.text += self.decoder.decode(said)
        os.close(self.ours)
        return self.process.wait(timeout=120)


@pytest.fixture
def terminal() -> type[Terminal]:
    """Start a command on a terminal of its own."""
    return Terminal
