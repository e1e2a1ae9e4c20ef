"""``isolaw sweep`` and ``isolaw status`` from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from isolaw import engine
from isolaw.store import SweepStore

TOML = """\
# a small one
[sweep]
compute = 20_000
seeds = 2
[grid]
problems_per_batch = [8]
rollouts_per_problem = [4, 16]
[problems]
n_train = 50
n_validation = 40
[evaluation]
points = 8
[executor]
kind = "inline"
"""
LONG = ("sweep.compute=8e6", "sweep.seeds=4", "grid.rollouts_per_problem=2", 'executor.kind="processes"')


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    return path


def test_a_sweep_and_the_same_again(isolaw, tiny, same, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, notes = isolaw("sweep", file, "--out", out)
    assert code == 0
    assert "4 of 4 runs are done (4 now" in said
    assert "The last avg@4 on validation: 0." in said
    assert "no law" not in said
    assert "4 remain," in notes
    assert (out / "sweep.toml").read_text() == TOML
    same(pd.read_parquet(out / "points.parquet"), engine.sweep(tiny()))
    code, said, _ = isolaw("sweep", file, "--out", out)
    assert (code, said.splitlines()[0]) == (
        0,
        f"Simulated runs. Nothing is left to do: 4 runs are done in {out}.",
    )


def test_continuing_needs_no_file(isolaw, tiny, same, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with closing(engine.execute(engine.resolve_sweep(tiny(), out), out)) as events:
        next(events)
    assert isolaw("sweep", "--out", out)[0] == 0
    same(pd.read_parquet(out / "points.parquet"), engine.sweep(tiny()))


def test_continuing_finishes_every_run_of_the_directory(isolaw, tiny, tmp_path: Path) -> None:
    """Also the ones that were left unfinished before other seeds were added: `status` promises it."""
    out = tmp_path / "out"
    with closing(engine.execute(engine.resolve_sweep(tiny(), out), out)) as events:
        next(events)
    isolaw("sweep", "--out", out, "--set", "sweep.seeds=[7]")
    assert f"Continue: isolaw sweep --out {out}" in isolaw("status", out)[1]
    assert isolaw("sweep", "--out", out)[0] == 0
    state = engine.status(out)
    assert state["done"] == state["runs"] == 6


def test_a_command_for_a_part_leaves_the_sweep_as_it_is(isolaw, file: Path, tmp_path: Path) -> None:
    """isolaw prints such commands as the next step."""
    out = tmp_path / "out"
    grid, seed = ("--set", "grid.rollouts_per_problem=[16]"), ("--set", "sweep.seeds=[2]")

    def reached() -> dict[tuple[int, int], int]:
        points = pd.read_parquet(out / "points.parquet")
        ends = points.groupby(["rollouts_per_problem", "seed"])["compute"].max()
        return {key: int(end) for key, end in ends.items()}

    isolaw("sweep", file, "--out", out)
    stored = (out / "sweep.json").read_text()
    assert isolaw("sweep", "--out", out, *grid, *seed, "--set", "sweep.compute=4e4")[0] == 0
    assert isolaw("sweep", "--out", out, *grid, "--set", "sweep.compute=3e4")[0] == 0
    assert (out / "sweep.json").read_text() == stored
    ends = {(4, 0): 20_000, (4, 1): 20_000, (16, 0): 30_000, (16, 1): 30_000, (16, 2): 40_000}
    assert reached() == {(n, s): end // (8 * n) * 8 * n for (n, s), end in ends.items()}
    assert "0 remain" in isolaw("sweep", "--out", out)[2]
    isolaw("sweep", "--out", out, "--set", "sweep.compute=5e4")
    ends = dict.fromkeys(ends, 50_000)
    assert reached() == {(n, s): end // (8 * n) * 8 * n for (n, s), end in ends.items()}


def test_an_interrupted_part_continues_with_the_sweep(isolaw, tiny, tmp_path: Path) -> None:
    engine.sweep(tiny(), tmp_path)
    longer = tiny(sweep={"compute": 40_000, "seeds": [0]}, grid={"rollouts_per_problem": [4]})
    part = engine.resolve_sweep(longer, tmp_path, continued=True)
    with closing(engine.execute(part, tmp_path)) as events:
        next(events)
    assert isolaw("sweep", "--out", tmp_path)[0] == 0
    points = SweepStore(tmp_path).collect().points
    ends = points.groupby(["rollouts_per_problem", "seed"])["compute"].max()
    assert ends[4, 0] == 40_000 // 32 * 32
    assert (ends.drop((4, 0)) <= 20_000).all()


def test_extending(isolaw, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    isolaw("sweep", file, "--out", out)
    code, _, notes = isolaw("sweep", file, "--out", out, "--set", "sweep.compute=6e4")
    assert code == 0
    assert "4 remain" in notes
    assert pd.read_parquet(out / "points.parquet")["compute"].max() == 60_000


def test_dry_run_writes_nothing(isolaw, tree, file: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    code, said, notes = isolaw("sweep", file, "--out", tmp_path / "out", "--dry-run")
    assert (code, said) == (0, "Simulated runs.\n")
    assert "Simulated runs. bandit: 4 runs (2 configurations, 2 seeds)" in notes
    assert 'recipe defaults: lr = 0.04, advantage = "group_std", kl = 0.25, entropy = 0\n' in notes
    code, said, _ = isolaw("sweep", file, "--out", tmp_path / "out", "--dry-run", "--json")
    planned = json.loads(said)
    assert (code, planned["runs"], planned["todo"], planned["dry_run"]) == (0, 4, 4, True)
    assert planned["rollouts"] == planned["remaining_rollouts"] == 2 * (20_000 + 20_000 // 128 * 128)
    assert planned["configurations"] == [[8, 4], [8, 16]]
    assert planned["defaults"] == {"lr": [0.04], "advantage": ["group_std"], "kl": [0.25], "entropy": [0.0]}
    assert tree(tmp_path) == before


def test_dry_run_on_a_finished_sweep_changes_nothing(isolaw, tree, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    isolaw("sweep", file, "--out", out)
    before = tree(tmp_path)
    code, said, _ = isolaw("sweep", file, "--out", out, "--set", "sweep.seeds=3", "--dry-run", "--json")
    assert (code, json.loads(said)["todo"]) == (0, 2)
    assert tree(tmp_path) == before


def test_json(isolaw, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = json.loads(isolaw("sweep", file, "--out", out, "--json")[1])
    assert (result["runs"], result["done"], result["failed"]) == (4, 4, 0)
    assert result["points"] == str(out / "points.parquet")
    state = json.loads(isolaw("status", out, "--json")[1])
    assert (state["done"], state["running"], state["backend"]) == (4, False, "bandit")
    assert state["rollouts"] == state["rollouts_planned"] == result["rollouts"]


def test_some_runs_fail(isolaw, file: Path, tmp_path: Path) -> None:
    arguments = ("sweep", file, "--out", tmp_path / "out", "--set", "grid.lr=[0.02, 1e200]", "--json")
    for _ in range(2):  # the same command again tries the failed ones again
        code, said, notes = isolaw(*arguments)
        assert code == 3
        result = json.loads(said)
        assert (result["done"], result["failed"], len(result["failures"])) == (4, 4, 4)
        for failure in result["failures"]:
            report = tmp_path / "out" / "runs" / failure["run_id"] / "FAILED.json"
            assert json.loads(report.read_text())["cause"] == failure["cause"]
            assert f"failed: {failure['run_id'][:8]}" in notes
            assert f"(details: {tmp_path / 'out'}/runs/{failure['run_id'][:8]}" in notes
    assert "4 done" in isolaw("status", tmp_path / "out")[1]
    assert "4 failed" in isolaw("status", tmp_path / "out")[1]


def test_every_run_fails(isolaw, file: Path, tmp_path: Path) -> None:
    code, said, notes = isolaw("sweep", file, "--out", tmp_path / "out", "--set", "recipe.lr=1e200")
    assert code == 1
    assert "Traceback" not in notes
    assert notes.count("(B_p = 8, n = ") == 4
    assert "0 of 4 runs are done" in said


def test_what_follows_sweeps_of_one_n(isolaw, file: Path, tmp_path: Path) -> None:
    """No law, but the best lr, or the reward of a single run."""
    words = ["sweep", file, "--set", "grid.rollouts_per_problem=[4]", "--out"]
    code, said, _ = isolaw(*words, tmp_path / "lr", "--set", "grid.lr=[0.02, 0.04]")
    best = said.splitlines()[-1]
    assert (code, best) == (0, f"Next: isolaw fit {tmp_path / 'lr'} --retune lr")
    assert "the best lr is 0.0" in isolaw(*best.split()[2:])[1]
    said = isolaw(*words, tmp_path / "one", "--set", "sweep.seeds=1")[1]
    points = SweepStore(tmp_path / "one").collect().points
    reward = points.query("metric == 'avg@4' and eval_set == 'validation'")["value"].iloc[-1]
    assert said.splitlines()[-1] == f"The last avg@4 on validation: {reward:.3g} at B_p = 8, n = 4"


def test_a_single_run_is_described_in_the_singular(isolaw, file: Path, tmp_path: Path) -> None:
    one = ["--set", "grid.rollouts_per_problem=[4]", "--set", "sweep.seeds=1"]
    code, said, notes = isolaw("sweep", file, "--out", tmp_path / "one", *one)
    assert (code, "1 of 1 run is done (1 now" in said) == (0, True)
    assert "1 run (1 configuration, 1 seed) to C = 20,000 rollouts\n" in notes
    assert "0 runs are done; 1 remains, with 20,000 rollouts" in notes


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def wait_for_checkpoints(out: Path, engine_process: subprocess.Popen[bytes]) -> None:
    """Wait until a run has made its first steps."""
    while not any(path.read_bytes().count(b"\n") > 1 for path in out.glob("runs/*/points.jsonl")):
        assert engine_process.poll() is None
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.mark.slow
def test_two_engines_on_one_directory(isolaw, command: str, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["sweep", str(file), "--out", str(out), *settings(*LONG), "--jobs", "1"]
    first = subprocess.Popen([command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_checkpoints(out, first)
        code, said, notes = isolaw(*arguments)
        assert (code, said) == (2, "")
        assert f"{out} is in use by process {first.pid} on " in notes
        state = json.loads(isolaw("status", out, "--json")[1])
        assert state["running"]
        assert state["rollouts"] > 0
        assert "an engine is running" in isolaw("status", out)[1]
        assert first.poll() is None
        assert len(SweepStore(out).collect()) >= 1
    finally:
        end(first)
    assert not json.loads(isolaw("status", out, "--json")[1])["running"]


@pytest.mark.slow
def test_interrupted_and_continued(isolaw, command: str, same, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["sweep", str(file), *settings(*LONG, "sweep.seeds=3"), "--jobs", "2"]
    process = subprocess.Popen(
        [command, *arguments, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_checkpoints(out, process)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    said, notes = process.communicate(timeout=100)
    assert process.returncode == 130
    assert said == ""
    assert "interrupted; run the same command to continue" in notes
    assert "Traceback" not in notes
    assert not list(out.glob("runs/*/FAILED.json"))
    assert engine.status(out)["done"] < 3

    assert isolaw(*arguments, "--out", out)[0] == 0
    assert isolaw(*arguments, "--executor", "inline", "--out", tmp_path / "whole")[0] == 0
    same(*(pd.read_parquet(d / "points.parquet") for d in (out, tmp_path / "whole")))


@pytest.mark.nightly
@pytest.mark.slow
def test_interrupted_twice_it_ends_at_once(command: str, file: Path, tmp_path: Path, ended) -> None:
    """Its runs are minutes from their next checkpoint."""
    out, far = tmp_path / "out", ("sweep.compute=1e10", "evaluation.points=2")
    words = [command, "sweep", str(file), *settings(*LONG, *far), "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoints(out, process)
    workers: list[int] = []
    while len(workers) < 2:
        locks = [path.read_text().split() for path in out.glob("runs/*/lock")]
        workers = [int(words[1]) for words in locks if len(words) > 1]
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    os.kill(process.pid, signal.SIGINT)
    _, notes = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Ctrl-C again to end them at once" in notes
    assert "Traceback" not in notes
    assert len(workers) == 2
    until = time.monotonic() + 120
    while not all(map(ended, workers)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_default_sweep_is_small(isolaw, tmp_path: Path) -> None:
    planned = json.loads(isolaw("sweep", "--out", tmp_path / "out", "--dry-run", "--json")[1])
    assert planned["runs"] == 21
    assert {n for _, n in planned["configurations"]} == {8, 16, 32, 64, 128, 256, 512}


@pytest.mark.slow
def test_nothing_but_the_answer_off_a_terminal(command: str, file: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [command, "sweep", str(file), "--out", str(tmp_path / "out"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    json.loads(done.stdout)
    assert "\x1b" not in done.stderr
    assert "%" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4


def test_machine_is_for_our_own_trainer_and_names_the_key_of_others(isolaw, tmp_path: Path) -> None:
    words = ("--backend", "command", "--set", "command.run=true", "--dry-run", "--machine", "h100-80g:8")
    code, said, notes = isolaw("sweep", "--out", tmp_path / "out", *words)
    assert (code, said) == (2, "")
    assert "command.gpus sets the GPUs of a command" in notes
