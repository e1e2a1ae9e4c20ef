"""Are the estimator's intervals right, over many truths and designs? ``python -m benchmarks.designs COMMAND``

    simulate  the simulator's own runs (ten minutes; only the cells named …-simulator need them)
    fit       sample sweeps from each cell, fit them, keep the answers of isolaw and its rivals; about five
              seconds for each sweep; needs scikit-learn
    tables    judge the answers: benchmarks/designs.json, and the tables in docs/statistics.md

All results are kept in ``benchmarks/.designs``, by the versions of estimator and simulator, and computed
once: another ``fit`` with more ``--sweeps`` adds to them.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # python benchmarks/designs
    sys.path[0] = str(Path(__file__).parents[2])

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from typing import Any

from benchmarks.designs import simulated, tables
from benchmarks.designs.cells import Cell, cells, sweeps
from benchmarks.designs.judge import answer
from isolaw import fits

CHUNK = 5  # sweeps that a process fits before it is asked again
VERSION = f"estimator-{getattr(fits, 'ESTIMATOR', 1)}-simulator-{simulated.VERSION}"


def file_of(version: str, cell: Cell, method: str) -> Path:
    """Return the file of a cell's answers."""
    return simulated.KEPT / version / f"{cell.name}{'' if method == 'surface' else '.' + method}.jsonl"


def load(version: str, cell: Cell, method: str = "surface") -> dict[int, dict[str, Any]]:
    """Return the kept answers of a cell, by sweep; torn lines are ignored."""
    path, found = file_of(version, cell, method), {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        found[entry["index"]] = entry
    return dict(sorted(found.items()))


def _chunk(cell: Cell, method: str, indices: list[int]) -> list[dict[str, Any]]:
    return [answer(cell, index, method) for index in indices]


def _tasks(chosen: list[Cell], options: argparse.Namespace) -> Iterator[tuple[Cell, str, list[int]]]:
    """Return the missing sweeps, the first ones of every cell before later ones of any."""
    wanted = {"surface": options.sweeps, "paper": min(options.paper, options.sweeps)}
    missing = {}
    for cell in chosen:
        for method, number in wanted.items():
            there = load(options.version, cell, method)
            missing[cell, method] = [i for i in range(sweeps(cell, number)) if i not in there]
    for start in range(0, options.sweeps, CHUNK):
        for (cell, method), indices in missing.items():
            now = [i for i in indices if start <= i < start + CHUNK]
            if now:
                yield cell, method, now


def _keep(path: Path, entries: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        lines = "\n" + lines
    with path.open("a") as file:
        file.write(lines)


def fit(chosen: list[Cell], options: argparse.Namespace) -> None:
    """Fit the missing sweeps, and report progress."""
    if find_spec("sklearn") is None:
        raise SystemExit("one of the rivals is scikit-learn's: pip install scikit-learn")
    tasks = list(_tasks(chosen, options))
    total, done, started = sum(len(indices) for _, _, indices in tasks), 0, time.monotonic()

    def finished(task: tuple[Cell, str, list[int]], entries: list[dict[str, Any]]) -> None:
        nonlocal done
        _keep(file_of(options.version, *task[:2]), entries)
        done += len(entries)
        left = (time.monotonic() - started) / done * (total - done) / 60
        print(f"{done} of {total}, {left:.0f} minutes left: {task[0].name}", file=sys.stderr, flush=True)

    if options.jobs == 1:
        for task in tasks:
            finished(task, _chunk(*task))
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        running = {pool.submit(_chunk, *task): task for task in tasks}
        for future in as_completed(running):
            finished(running[future], future.result())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.designs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["simulate", "list", "fit", "tables"])
    parser.add_argument("--cell", default="*", help="cells by a shell pattern of their name")
    parser.add_argument("--half", default="", choices=["tuning", "judging"])
    parser.add_argument("--all", action="store_true", help="the longer list of cells")
    parser.add_argument("--sweeps", type=int, default=100, help="of each cell (%(default)s)")
    parser.add_argument(
        "--paper", type=int, default=20, help="how many to fit with method paper, too (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--version", default=VERSION, help="folder of the answers (%(default)s)")
    parser.add_argument("--out", type=Path, default=tables.SUMMARY, help="tables: the summary to write")
    parser.add_argument("--docs", type=Path, default=tables.DOCS, help="tables: the page to write them into")
    parser.add_argument(
        "--keep", action="store_true", help="tables: keep what an earlier version measured of other cells"
    )
    parser.add_argument("--against", type=Path, help="tables: compare widths with another summary's")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    chosen = cells(options.cell, options.half, options.all)
    if options.command == "simulate":
        for said in simulated.make():
            print(said, file=sys.stderr, flush=True)
    elif options.command == "list":
        for cell in chosen:
            print(f"{cell.name:40} {cell.half}")
    elif options.command == "fit":
        fit(chosen, options)
    else:
        kept = [(c, load(options.version, c), load(options.version, c, "paper")) for c in chosen]
        tables.write([k for k in kept if k[1]], options)


if __name__ == "__main__":
    main()
