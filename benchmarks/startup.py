"""Start-up of the command line against Python's own: python benchmarks/startup.py"""

import subprocess
import sys
import time
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("isolaw"))
WORDS = {"python": [sys.executable, "-c", ""], "isolaw --help": [COMMAND, "--help"]}
WORDS |= {"import isolaw": [sys.executable, "-c", "import isolaw"]}


def seconds(words: list[str]) -> float:
    """Return the shortest of ten runs."""
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    base = seconds(WORDS["python"])
    for name, words in WORDS.items():
        took = seconds(words)
        print(f"{name:<16} {took:.3f} s   {took / base:.1f} x")
