"""A pytest plugin that records the processor time of each test, with that of the processes it starts.

    PYTHONPATH=scripts python -m pytest -p cpu_times --cpu-times FILE …    appends a line of JSON a test
    python scripts/cpu_times.py FILE                                       prints the sum, and what takes most

Processor time is user plus system time in seconds: of pytest's process, of its children that have ended, and
of all descendants still running. A process that outlives its parent is not counted. The work of a shared
fixture counts for the first test that requests it, its end for the last one.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, its ended children and its running descendants; 0 if it is gone."""
    try:
        own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return 0.0
    return sum(map(int, own)) / _TICKS + sum(map(cpu_seconds, children))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="append the processor time of each test to FILE")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = cpu_seconds(os.getpid())
    result = yield
    if file := item.config.getoption("cpu_times"):
        spent = round(max(cpu_seconds(os.getpid()) - before, 0.0), 2)
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"test": item.nodeid, "seconds": spent}) + "\n")
    return result


def main(files: list[str]) -> None:
    rows: list[dict[str, Any]] = [
        json.loads(line) for file in files for line in Path(file).read_text().splitlines()
    ]
    tests, by_file = Counter[str](), Counter[str]()
    for row in rows:
        tests[row["test"]] += row["seconds"]
        by_file[row["test"].partition("::")[0]] += row["seconds"]
    print(f"{sum(tests.values()):.0f} s of processor time in {len(tests)} tests of {len(by_file)} files")
    for counts in (by_file, tests):
        print()
        for name, seconds in counts.most_common(40):
            print(f"{seconds:8.1f}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
