"""Run the command ``isolaw``, or ``python -m isolaw``.

Ctrl-C ends the process immediately, with one line of output and exit code 130. An exception could be lost, or
end in a traceback, inside an import or a library's callback. isolaw's files tolerate such an end at any time.
Commands that must also end other processes install their own handlers. ``scripts/isolaw`` handles Ctrl-C
while Python starts.
"""

from __future__ import annotations

import os
import sys

# ``python -m`` puts the working directory first on the path, where files would shadow modules of libraries.
_ADDS_DIRECTORY = __name__ == "__main__" and not sys.flags.safe_path and os.path.isdir(sys.path[0])
if _ADDS_DIRECTORY and os.path.samefile(sys.path[0], "."):
    del sys.path[0]

import contextlib  # noqa: E402
import signal  # noqa: E402
from typing import Any  # noqa: E402

_CLEAR_LINE = b"\r\x1b[2K\x1b[?25h"  # clears the line of a progress bar, and shows the cursor again


def main() -> None:
    """Run the command line, and exit with its code."""
    for descriptor in range(3):  # open /dev/null for closed streams, or the next file gets their number
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if callable(signal.getsignal(signal.SIGINT)):  # background processes ignore SIGINT
        signal.signal(signal.SIGINT, _interrupted)
    from isolaw.cli import run

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only Python's own clean-up remains
    sys.exit(code)


def _interrupted(_number: int, _frame: Any) -> None:
    prefix = _CLEAR_LINE if os.isatty(2) else b""
    os.write(2, prefix + b"isolaw: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
