"""Count the calls between rooms on the way to a function: python scripts/trips.py FILE[:FUNCTION] COMMAND …

Executes ``isolaw COMMAND …`` in this process, and stops at the first call of the function (without FUNCTION:
of any function in FILE). Prints the functions of isolaw on the stack, the number of calls from one room to
another among them, and how often the most visited room occurs. A room is a folder, or a module directly in
``isolaw/``.

    python scripts/trips.py simulators/interference.py:create sweep examples/bandit-easy.toml --out OUT \\
        --set executor.kind=inline
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import isolaw

ROOT = f"{Path(isolaw.__file__).parent}/"


class Arrived(BaseException):
    """The function was called; no handler of an `Exception` sees this."""


def stops(frame: FrameType | None) -> list[str]:
    """Return FILE:FUNCTION of the functions of isolaw on the stack, the outermost first."""
    out = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            out.append(f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}")
        frame = frame.f_back
    return out[::-1]


def main(target: str, command: list[str]) -> None:
    found: list[str] = []

    def follow(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name.startswith("<") or found:
            return
        if f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}".startswith(target):
            found.extend(stops(frame))
            raise Arrived

    from isolaw.cli import run

    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        run(command)
    except Arrived:
        pass
    finally:
        sys.setprofile(None)
    rooms = [room for room, _ in groupby(stop.partition("/")[0].partition(".py")[0] for stop in found)]
    print(*found, sep="\n")
    print(f"{len(rooms) - 1} calls between rooms: {' > '.join(rooms)}")
    print(f"visits to one room: at most {max(Counter(rooms).values(), default=0)}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
