"""The command ``isolaw``, also as ``python -m isolaw``.

Ctrl-C ends it with one line and exit code 130, at once: as an exception it would be lost, or end in a
traceback, where it meets an import or a library's callback. Files of isolaw bear that at any instant.
Commands that have more to end than themselves put handlers of their own in its place. ``scripts/isolaw``
answers while Python gets here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


def main() -> None:
    """Run the command line and exit with its code."""
    for number in range(3):  # a stream that is closed leaves its number to the next file that is opened
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if callable(signal.getsignal(signal.SIGINT)):  # in the background it is ignored
        signal.signal(signal.SIGINT, _interrupted)
    from isolaw.cli import run

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, and Python only clears up
    sys.exit(code)


def _interrupted(_number: int, _frame: Any) -> None:
    cursor = _SHOW_CURSOR if os.isatty(2) else b""
    os.write(2, cursor + b"isolaw: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
