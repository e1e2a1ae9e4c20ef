"""Which runs should a sweep make? The race against fixed designs.

``python -m benchmarks.designs.race COMMAND``

    simulate  runs of jittered presets of the simulator, from which all designs draw (an hour)
    play      designs on these presets, with their losses (some seconds for a repetition of one preset)
    tables    benchmarks/designs/race.json, and the tables in docs/race.md

Truths are presets around the shipped one, every constant times its own 2^U, U uniform in [−1, 1]
(`benchmarks.replication.jitter`): 7 on the easy and 7 on the hard set on which the rule was developed, and 4
of each that judge it. Runs are simulated, each with its own course and the noise of 300 validation problems
with 4 answers each; seeds share their problems. The true reward of a cell at the target is the mean over all
simulated seeds, `SEEDS` of them, with exact pass rates.

Loss is that of the recommended cell against the best of the grid. All results are kept in
``benchmarks/.designs`` and computed once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import isolaw
from benchmarks.designs.simulated import KEPT
from benchmarks.replication.jitter import constants_of, jittered
from isolaw.allocation import BatchShape
from isolaw.backends.bandit import _Bandit
from isolaw.design.cell_rewards import compare
from isolaw.design.decisions import Decision, DecisionStage, Ending, Request, RunKey, cost_of, horizons
from isolaw.design.race import Race
from isolaw.fits import SURFACE
from isolaw.fits.selection import Configuration

RUNS = KEPT / f"presets-{_Bandit.version}"
ANSWERS = KEPT / f"design-surface-{SURFACE}-simulator-{_Bandit.version}.jsonl"
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[2] / "docs" / "race.md"
TARGET = 3_000_000
LEVELS = tuple(2**k for k in range(3, 12))
BATCHES = (8, 32, 128)
SETS = ("easy", "hard")
TUNING, JUDGING = range(7), range(100, 104)
SEEDS = {8: 32, 32: 96, 128: 32}
CHUNK = 32
ANSWERED = 300 * 4  # validation answers of an evaluation
GRID = len(LEVELS) * 3 * TARGET
# Names of designs, and of what they may spend as a share of 9 n × 3 seeds.
DESIGNS = ("grid", "one seed", "every second n", "race")
JOINT = ("B_p = 32 alone", "race over B_p")
SPEND = 0.35
WITHIN = 0.005


def _path(name: str, index: int, batch: int, first: int) -> Path:
    return RUNS / f"{name}-{index}-b{batch}-{first}.npz"


def simulate() -> None:
    """Make the missing simulated runs."""
    RUNS.mkdir(parents=True, exist_ok=True)
    missing = [
        (name, index, batch, first)
        for batch in (32, 8, 128)
        for first in range(0, SEEDS[batch], CHUNK)
        for index in (*TUNING, *JUDGING)
        for name in SETS
        if not _path(name, index, batch, first).exists()
    ]
    began = time.monotonic()
    for done, (name, index, batch, first) in enumerate(missing, 1):
        seeds = list(range(first, first + CHUNK))
        arrays = {}
        for n, runs in _simulated(name, index, batch, seeds, ["avg@64"]):
            table = runs.pivot_table(index="seed", columns="compute", values="value")
            arrays[f"c{n}"] = table.columns.to_numpy(np.int64)
            arrays[f"r{n}"] = table.to_numpy(np.float32)
        if first == 0:  # E[p (1 − p)] over problems, with the mean p of best@2 = 1 − E[(1 − p)²]
            for n, runs in _simulated(name, index, batch, [0, 1, 2], ["avg@64", "best@2"]):
                table = runs.pivot_table(index="compute", columns="metric", values="value")
                arrays[f"v{n}"] = np.maximum((table["best@2"] - table["avg@64"]).to_numpy(), 0)
        temporary = RUNS / ".new.npz"
        np.savez(temporary, **arrays)
        temporary.replace(_path(name, index, batch, first))
        left = (time.monotonic() - began) / done * (len(missing) - done) / 60
        print(f"{done} of {len(missing)}, {left:.0f} minutes left", file=sys.stderr, flush=True)


def _simulated(name: str, index: int, batch: int, seeds: list[int], metrics: list[str]) -> Iterator[Any]:
    constants = jittered("interference", constants_of("interference", "P", {}), index)
    spec = {
        "sweep": {"compute": TARGET, "seeds": seeds},
        "grid": {"problems_per_batch": [batch], "rollouts_per_problem": list(LEVELS)},
        "limits": {"max_batch_rollouts": batch * LEVELS[-1]},
        "bandit": {"model": "interference", "parameters": constants},
        "recipe": {"replacement": True},
        "problems": {"set": name, "n_validation": 300},
        "evaluation": {"samples": 64, "metrics": metrics, "start": 1024, "points": 40},
        "executor": {"kind": "inline"},
    }
    points = isolaw.sweep(spec).points
    points = points[points["metric"].isin(metrics) & (points["eval_set"] == "validation")]
    return iter(points.groupby("rollouts_per_problem"))


@cache
def _bank(name: str, index: int, batch: int) -> dict[str, Any]:
    """Compute ``c…``, rewards of all seeds ``r…`` and E[p (1 − p)] ``v…`` of each n."""
    parts = [np.load(_path(name, index, batch, first)) for first in range(0, SEEDS[batch], CHUNK)]
    rewards = {f"r{n}": np.concatenate([part[f"r{n}"] for part in parts]).astype(float) for n in LEVELS}
    return {**dict(parts[0]), **rewards}


class Preset:
    """A truth over some B_p: the runs of one repetition, with seeds that were simulated at all of them."""

    def __init__(self, name: str, index: int, repetition: int, batches: tuple[int, ...] = (32,)) -> None:
        self.name, self.index = name, index
        self.seeds = min(SEEDS[b] for b in batches)
        self.drawn = np.random.default_rng([index, SETS.index(name), repetition]).permutation(self.seeds)
        self.made: dict[RunKey, Any] = {}

    def run(self, key: RunKey) -> Any:
        """Return compute and measured reward of a run to the target."""
        if key not in self.made:
            b, n, seed = key
            bank, chosen = _bank(self.name, self.index, b), int(self.drawn[seed])
            rng = np.random.default_rng([self.index, SETS.index(self.name), b, n, chosen])
            reward = bank[f"r{n}"][chosen]
            noisy = reward + np.sqrt(bank[f"v{n}"] / ANSWERED) * rng.standard_normal(reward.size)
            self.made[key] = bank[f"c{n}"].astype(float), np.clip(np.round(noisy * ANSWERED) / ANSWERED, 0, 1)
        return self.made[key]

    def reward(self, problems_per_batch: int, rollouts_per_problem: int) -> float:
        """Return the mean reward over the seeds at the target."""
        rewards = _bank(self.name, self.index, problems_per_batch)[f"r{rollouts_per_problem}"]
        return float(rewards[: self.seeds, -1].mean())


@dataclass(frozen=True)
class Fixed:
    """A design that runs all ``seeds`` of all ``cells`` (B_p, n) to the target at once, like a grid."""

    cells: tuple[BatchShape, ...]
    seeds: tuple[int, ...]
    target: int
    compared: tuple[BatchShape, ...]  # the cells that it chooses from, measured or not
    seed: int = 0  # of the draws

    def next(self, history: Sequence[Decision], measured: Sequence[Configuration]) -> Decision:
        """Return the decision that follows ``history``, as `Race.next` does."""
        if not history:
            runs = tuple(Request(*key, seed, self.target) for key in self.cells for seed in self.seeds)
            return Decision(DecisionStage.RUNG, runs, cost=cost_of(runs, {}))
        result = compare(measured, self.compared, self.target, self.seed)
        return Decision(
            DecisionStage.STOP, spent=history[0].cost, ending=Ending.COMPLETE, compute=result.compute,
            best=result.cells[result.best], expected_loss=result.expected_loss,
        )  # fmt: skip


def play(design: Fixed | Race, truth: Preset) -> list[Decision]:
    """Return all decisions of a design whose runs are those of a truth."""
    history: list[Decision] = []
    while not history or history[-1].stage is not DecisionStage.STOP:
        history.append(design.next(history, _measured(truth, horizons(history))))
    return history


def _measured(truth: Preset, asked: Mapping[RunKey, int]) -> list[Configuration]:
    """Return the measurements of the runs ``asked`` up to their horizons."""
    cells: dict[BatchShape, dict[int, int]] = {}
    for (b, n, seed), end in sorted(asked.items()):
        cells.setdefault((b, n), {})[seed] = end
    out = []
    for (b, n), ends in cells.items():
        parts = []
        for i, (seed, end) in enumerate(ends.items()):
            compute, reward = truth.run((b, n, seed))
            inside = compute <= end
            parts.append((compute[inside], reward[inside], np.full(int(inside.sum()), i)))
        compute, reward, run = (np.concatenate(column) for column in zip(*parts, strict=True))
        out.append(Configuration(b, n, compute, reward, run, tuple(ends), float(b * n)))
    return out


def _designs(repetition: int) -> dict[str, Any]:
    line = tuple((32, n) for n in LEVELS)
    cells = tuple((b, n) for b in BATCHES for n in LEVELS)
    spend, seeds = int(SPEND * GRID), (0, 1, 2)
    return {
        "grid": Fixed(line, seeds, TARGET, line, repetition),
        "one seed": Fixed(line, seeds[:1], TARGET, line, repetition),
        "every second n": Fixed(line[::2], seeds, TARGET, line, repetition),
        "race": Race(line, 32, TARGET, seeds, spend, seed=repetition),
        "B_p = 32 alone": Race(line, 32, TARGET, seeds, 2 * spend, seed=repetition),
        "race over B_p": Race(cells, 32, TARGET, seeds, 2 * spend, seed=repetition),
    }


def answer(name: str, index: int, repetition: int, design: str) -> dict[str, Any]:
    """Play one design on one preset; return its spend, recommendation, expected loss and loss."""
    batches = BATCHES if design in JOINT else (32,)
    truth = Preset(name, index, repetition, batches)
    began = time.process_time()
    last = play(_designs(repetition)[design], truth)[-1]
    assert last.stage is DecisionStage.STOP
    assert last.best is not None
    every = [(b, n) for b in batches for n in LEVELS]
    top = max(truth.reward(*key) for key in every)
    return {
        "set": name, "index": index, "repetition": repetition, "design": design,
        "loss": top - truth.reward(*last.best), "expected": last.expected_loss,
        "spent": last.spent / GRID, "ending": last.ending, "cpu_s": time.process_time() - began,
    }  # fmt: skip


def _all(name: str, index: int, repetition: int, designs: tuple[str, ...]) -> list[dict[str, Any]]:
    return [answer(name, index, repetition, design) for design in designs]


def kept() -> list[dict[str, Any]]:
    """Return all kept answers, without repeats."""
    lines = ANSWERS.read_text().splitlines() if ANSWERS.exists() else []
    found = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # torn
            continue
        found[entry["set"], entry["index"], entry["repetition"], entry["design"]] = entry
    return [found[key] for key in sorted(found)]


def play_all(options: argparse.Namespace) -> None:
    """Play the missing repetitions, the first ones of all presets before later ones of any."""
    there = {(e["set"], e["index"], e["repetition"], e["design"]) for e in kept()}
    chosen = JOINT if options.joint else DESIGNS
    tasks = []
    for repetition in range(options.repetitions):
        for index in (*TUNING, *JUDGING):
            for name in SETS:
                missing = tuple(d for d in chosen if (name, index, repetition, d) not in there)
                tasks += [(name, index, repetition, missing)] if missing else []
    began = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        running = [pool.submit(_all, *task) for task in tasks]
        for done, future in enumerate(as_completed(running), 1):
            with ANSWERS.open("a") as file:
                file.write("".join(json.dumps(entry) + "\n" for entry in future.result()))
            left = (time.monotonic() - began) / done * (len(tasks) - done) / 60
            print(f"{done} of {len(tasks)}, {left:.0f} minutes left", file=sys.stderr, flush=True)


def summary() -> dict[str, Any]:
    """Return the tables: of each design and half the mean loss × 1000 with its error over truths, …"""
    entries = kept()
    out: dict[str, Any] = {"surface": SURFACE, "simulator": _Bandit.version, "rows": []}
    for half, indices in (("tuning", TUNING), ("judging", JUDGING)):
        for design in (*DESIGNS, *JOINT):
            own = [e for e in entries if e["design"] == design and e["index"] in indices]
            if not own:
                continue
            row: dict[str, Any] = {"half": half, "design": design}
            for group in (*SETS, "all"):
                mine = [e for e in own if group in (e["set"], "all")]
                truths = sorted({(e["set"], e["index"]) for e in mine})
                means = [
                    1e3 * np.mean([e["loss"] for e in mine if (e["set"], e["index"]) == truth])
                    for truth in truths
                ]
                row[group] = round(float(np.mean(means)), 2)
                row[f"{group} error"] = round(float(np.std(means, ddof=1) / np.sqrt(len(means))), 2)
            row["spent"] = round(float(np.mean([e["spent"] for e in own])), 3)
            row["most"] = round(float(np.max([e["spent"] for e in own])), 3)
            row["within"] = round(float(np.mean([e["loss"] <= WITHIN for e in own])), 3)
            row["expected"] = round(1e3 * float(np.mean([e["expected"] for e in own])), 2)
            row["repetitions"] = min(
                len([e for e in own if (e["set"], e["index"]) == t])
                for t in {(e["set"], e["index"]) for e in own}
            )
            out["rows"].append(row)
    return out


def lines(found: dict[str, Any], designs: tuple[str, ...]) -> list[str]:
    """Return the table of these designs on the presets that judge them, as Markdown."""
    out = [
        "| design | plays | spent (most) | easy | hard | all | within .005 | expected |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        if row["design"] in designs and row["half"] == "judging":
            cells = " | ".join(f"{row[g]:.2f} ± {row[f'{g} error']:.2f}" for g in (*SETS, "all"))
            out.append(
                f"| {row['design']} | {row['repetitions']} | {row['spent']:.0%} "
                f"({row['most']:.0%}) | {cells} | "
                f"{row['within']:.1%} | {row['expected']:.2f} |"
            )
    return out


def write(found: dict[str, Any]) -> None:
    """Write the summary, and the tables between the page's marks."""
    SUMMARY.write_text(json.dumps(found, indent=1) + "\n")
    text = DOCS.read_text()
    for name, designs in (("designs", DESIGNS), ("batches", JOINT)):
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = text.split(begin)
        text = before + "\n".join([begin, "", *lines(found, designs), "", end]) + rest.split(end)[1]
    DOCS.write_text(text)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.designs.race", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=["simulate", "play", "tables"])
    parser.add_argument("--repetitions", type=int, default=40, help="of each preset (%(default)s)")
    parser.add_argument("--joint", action="store_true", help="play: the designs in which B_p varies")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.command == "simulate":
        simulate()
    elif options.command == "play":
        play_all(options)
    else:
        write(summary())


if __name__ == "__main__":
    main()
