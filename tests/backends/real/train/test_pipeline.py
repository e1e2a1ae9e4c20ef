"""Asynchronous generation: its numbers, its ages, and that it survives the death of any process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

torch = pytest.importorskip("torch")

from isolaw import children, engine, guard
from isolaw.backends.real.rollout import remote_sampler
from isolaw.backends.real.rollout.sampler_group import SamplerGroup
from isolaw.backends.real.rollout.samplers import SamplerSettings, stored_weights
from isolaw.backends.real.train import loop
from isolaw.backends.real.train.batch import RankGroup
from isolaw.errors import RunError
from isolaw.store import SweepStore

pytestmark = [pytest.mark.real, pytest.mark.slow]

EVERY_STEP = {"points": 10_000}  # on a log scale
# Of a run whose processes are killed: ISOLAW_KILLS=40 for more. With ISOLAW_KILLS_SAMPLER=vllm each takes
# longer, since vLLM takes its time to start. A killed trainer is also in test_resume.py.
KILLS = int(os.environ.get("ISOLAW_KILLS", "1"))
KILLS_SAMPLER = os.environ.get("ISOLAW_KILLS_SAMPLER", "transformers")
STEPS, K = 12 + 6 * KILLS, 2


DAPO = {"algorithm": "dapo", "no_positive_resampling": 0.9}


@pytest.fixture
def forked(preloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samplers that begin with their imports behind them; their process is not a descendant of this one."""
    monkeypatch.setattr(sys, "executable", str(preloaded / "python"))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("sampler", "recipe"),
    [
        pytest.param("vllm", DAPO, marks=pytest.mark.nightly),
        ("transformers", DAPO),
        pytest.param("transformers", {"epochs": 2, "minibatches": 2}, marks=pytest.mark.nightly),
    ],
)
def test_without_staleness_it_is_the_synchronous_run(
    train, resolved, sampler: str, recipe: dict[str, Any]
) -> None:
    more = {"evaluation": EVERY_STEP, "recipe": recipe}
    ours, theirs = ({"real": {"sampler": sampler, "generation": kind}} for kind in ("async", "colocated"))
    assert resolved(**more, **ours).run_id == resolved(**more, **theirs).run_id
    synchronous = train(**more, **theirs).lines()
    assert len(synchronous) > 3
    assert train(**more, **ours).lines() == synchronous


@pytest.mark.nightly
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("sampler", "zero_stage", "ages"),
    [("transformers", 0, [1]), pytest.param("vllm", 3, [1, 4], marks=pytest.mark.nightly)],
)
def test_two_ranks_with_a_sampler_each(
    sections: Callable[..., Any], sampler: str, zero_stage: int, ages: list[int], tmp_path: Path
) -> None:
    """Without staleness the synchronous run of two ranks, to the last bit; else no token is older than k."""

    def lines(generation: str, k: int, steps: int = 5) -> list[dict[str, Any]]:
        out = tmp_path / f"{generation}-{k}"
        real = {"sampler": sampler, "processes": 2, "zero_stage": zero_stage, "generation": generation}
        own = sections(
            sweep={"compute": 28 * steps},
            grid={"problems_per_batch": [7]},
            recipe={"staleness": k},
            real=real,
            evaluation=EVERY_STEP,
        )
        engine.sweep(own, out)
        (path,) = out.glob("runs/*/points.jsonl")
        kept = ("step", "compute", "tokens", "rows", "counts", "responses")
        return [{key: json.loads(line).get(key) for key in kept} for line in path.read_text().splitlines()]

    synchronous = lines("colocated", 0)
    assert len(synchronous) == 6
    assert lines("async", 0) == synchronous
    for k in ages:
        rows = [row for line in lines("async", k, steps=2 * k + 3) for row in line["rows"]]
        oldest = [row["value"] for row in rows if row["metric"] == "age_max"]
        assert len(oldest) == 2 * k + 3
        assert set(oldest) <= set(range(k + 1))
        assert max(oldest) >= 1  # or nothing was asynchronous


@pytest.mark.parametrize("streaming", [1, 3, 7])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_batch_is_dealt_over_all_samplers(world: int, streaming: int) -> None:
    """Every row once; a rank has as many as its samplers draw, and may have none."""
    ranks = [RankGroup(rank, world, torch.device("cpu"), streaming) for rank in range(world)]
    assert [sampler for rank in ranks for sampler in rank.own_samplers] == list(range(streaming))
    shares = [rank.share(6, 7) for rank in ranks]
    assert sorted(row for share in shares for row in share) == list(range(42))
    for rank, share in zip(ranks, shares, strict=True):
        assert abs(len(share) - 42 * len(rank.own_samplers) / streaming) < max(1, len(rank.own_samplers))


@pytest.mark.usefixtures("forked")
def test_a_group_of_samplers_draws_what_one_sampler_draws(made, transformers_sampler: Any) -> None:
    """In its order, whatever number of processes it has; also fewer rollouts than processes."""
    group = SamplerGroup(SamplerSettings("transformers", str(made.model), "float32", 32, processes=3))
    asked = {"temperature": 1.0, "top_p": 1.0, "max_tokens": [3, 5, 2, 6]}
    prompts = [[1, 4, 10, 13, 5, 8, 16], [1, 5, 13, 6, 16]]
    try:
        group.version = 7
        group.load(stored_weights(str(made.model)))
        drawn = group.generate(prompts, [[3, 4], [5, 6]], **asked)
        expected = transformers_sampler.generate(prompts, [[3, 4], [5, 6]], **asked)
        assert (drawn.prompts, drawn.tokens) == (expected.prompts, expected.tokens)
        assert drawn.versions == [[7] * len(row) for row in drawn.tokens]
        for ours, theirs in zip(drawn.logprobs, expected.logprobs, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5)
        one = group.generate(prompts[:1], [[3]], temperature=1.0, top_p=1.0, max_tokens=3)
        assert one.tokens == drawn.tokens[:1]
        assert len(group.generate([], [], temperature=1.0, top_p=1.0, max_tokens=3)) == 0
    finally:
        group.close()
    nobody = SamplerGroup(SamplerSettings("transformers", str(made.model), "float32", 32, processes=0))
    gathered = iter(stored_weights(str(made.model)))
    nobody.load(gathered)
    assert next(gathered, None) is None  # as the others, which need its part
    assert len(nobody.generate([], [], temperature=1.0, top_p=1.0, max_tokens=3)) == 0
    nobody.close()


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("sampler", [pytest.param("vllm", marks=pytest.mark.nightly), "transformers"])
def test_no_token_is_older_than_k(resolved, sampler: str) -> None:
    spec = resolved(
        sweep={"compute": 32 * 12},
        real={"generation": "async", "sampler": sampler},
        recipe={"staleness": K, "dynamic_sampling": True},
    )
    run = loop.Run(spec)
    found, old = [], []
    update = run.learner.update

    def watched(batch: Any, step: int) -> dict[str, float]:
        versions = batch.rollouts.versions
        assert [len(row) for row in versions] == [len(row) for row in batch.rollouts.tokens]
        assert all(row == sorted(row) for row in versions)
        found.extend(step - 1 - version for row in versions for version in row)
        # What the loss divides by is what the sampler has recorded.
        assert [row.tolist() for row in batch.old_logprobs] == batch.rollouts.logprobs
        measured = update(batch, step)
        old.append(measured["ratio_max"])
        assert "mismatch" not in measured
        return measured

    run.learner.update = watched
    try:
        run.evaluate()
        for _ in range(12):
            run.advance()
        rows = {row.metric: row.value for row in run.evaluate()[0] if row.eval_set == "train"}
        assert len(run.pipeline.requests) == K
    finally:
        run.close()
    assert set(found) <= set(range(K + 1))
    assert rows["age_max"] == max(found) >= 1  # or nothing was asynchronous
    assert 0 < rows["age"] <= K
    assert old[0] == pytest.approx(1, abs=1e-4)  # drawn by the policy that it updates
    assert max(old) > 1.01


@pytest.mark.usefixtures("forked")
def test_a_sampler_that_dies_is_noticed(resolved, tmp_path: Path) -> None:
    """The run fails, and goes on from its state with a new one."""
    spec = resolved(real={"generation": "async", "sampler": "transformers"})
    run = loop.Run(spec)
    try:
        run.advance()
        run.save(tmp_path)
        run.worker.sampler.members[0].process.kill()
        with pytest.raises(RunError, match="the sampler's process ended: SIGKILL"):  # noqa: PT012
            for _ in range(3):  # the first may have been sampled ahead, and a signal takes its time
                run.advance()
    finally:
        run.close()
    steps = [checkpoint.step for checkpoint in loop.train(spec, tmp_path)]
    assert (min(steps) > 1, max(steps)) == (True, 5)


def processes_of(process: subprocess.Popen[bytes], trainer: str) -> list[psutil.Process]:
    """The trainers of a sweep's run, by their module, and then its samplers."""
    found: dict[str, list[psutil.Process]] = {trainer: [], remote_sampler._MODULE: []}
    for pid in guard.descendants(process.pid):
        with contextlib.suppress(psutil.Error):
            words = psutil.Process(pid).cmdline()
            for name, result in found.items():
                if name in words and guard.__file__ not in words:
                    result.append(psutil.Process(pid))
    return [one for result in found.values() for one in result]


def of_ranks(count: int, made, sections: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    return sections(
        sweep={"compute": STEPS * 64},
        grid={"problems_per_batch": [16]},
        recipe={"staleness": K},
        problems={"set": str(made.sums), "n_train": 100, "n_validation": 4},
        evaluation=EVERY_STEP,
        real={
            "checkpoint_minutes": 1e-6,
            "generation": "async",
            "sampler": KILLS_SAMPLER,
            "processes": count,
        },
        executor={"kind": "processes", "jobs": 1},
    )


def state(out: Path) -> dict[str, Any]:
    """The state in which the sweep's single run has ended, as far as time does not decide it."""
    (run_id,) = SweepStore(out).run_ids()
    run = SweepStore(out).run(run_id)
    found = json.loads((run.states.folder(run.last_state) / "loop.json").read_text())
    return {key: found[key] for key in ("step", "round", "compute", "order", "asked")}


@pytest.mark.nightly  # test_resume.py kills a trainer; a sampler that dies is above
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_processes(
    ranks: int,
    made,
    sections: Callable[..., Any],
    sweep_file: Callable[..., Path],
    ended: Callable[[int], bool],
    command: str,
    preloaded: Path,
    tmp_path: Path,
) -> None:
    """SIGKILL of any trainer or sampler, at random moments; then the same command again."""
    data = of_ranks(ranks, made, sections)
    trainer = "isolaw.executors.worker" if ranks == 1 else "isolaw.backends.real.train.ranks"
    whole = tmp_path / "whole"
    engine.sweep({**data, "executor": {"kind": "inline"}}, whole)
    out = tmp_path / "out"
    words = [command, "sweep", str(sweep_file(tmp_path / "sweep.toml", data)), "--out", str(out)]
    rng = random.Random(2510)
    reached, order = 0, [(ranks + kill) % (2 * ranks) for kill in range(KILLS)]
    rng.shuffle(order)
    for kill, victim in enumerate(order):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = max(reached, (STEPS - 6) * (kill + 1) // (KILLS + 1))
        # To look for processes takes much longer than to look into the file, and comes second.
        while recorded(out) <= until or len(found := processes_of(process, trainer)) < 2 * ranks:
            assert process.poll() is None, "the sweep ended before it could be killed"
            time.sleep(0.02)
        everything = guard.descendants(process.pid)
        time.sleep(rng.uniform(0, 0.1))
        found[victim].kill()
        _, told = process.communicate(timeout=300)
        assert process.returncode in (1, 3), told.decode()
        wanted = r"the sampler's process ended: SIGKILL"
        if victim < ranks:
            wanted = "the worker process died" if ranks == 1 else r"process [01] of the run ended \(SIGKILL\)"
        (cause,) = re.findall(r"[^:\n]*\b(?:ended|died)\b.*", told.decode())  # and no traceback
        print(f"kill {kill + 1} of {KILLS}, at step {recorded(out)}:{cause.partition(' (details')[0]}")
        assert re.search(wanted, cause), told.decode()
        patience = time.monotonic() + 300
        while not all(ended(pid) for pid in everything):
            assert time.monotonic() < patience, "a process outlives the run"
            time.sleep(0.05)
        reached = recorded(out)
    subprocess.run([preloaded / "isolaw", *words[1:]], check=True, capture_output=True, timeout=600)
    assert state(out) == state(whole)
    table = pd.read_parquet(out / "points.parquet")
    assert table["step"].unique().tolist() == list(range(STEPS + 1))
    assert (table["compute"] == 64 * table["step"]).all()
    training = table[table["eval_set"] == "train"].pivot(index="step", columns="metric", values="value")
    assert training["age_max"].between(0, K).all()
    assert (training["age"] <= training["age_max"]).all()
    assert (training["generated_rollouts"] == 64).all()
    assert ((training["reward"] * 64) % 1 == 0).all()
    tokens = table.groupby("step")["tokens"].first().diff().iloc[1:]
    assert tokens.tolist() == pytest.approx((64 * training["response_length"]).tolist())


def recorded(out: Path) -> int:
    """How many checkpoints are on disk."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/points.jsonl"))


@pytest.mark.nightly  # also when any process is killed, above
def test_a_trainer_that_dies_takes_its_sampler_along(
    ended: Callable[[int], bool], made, tmp_path: Path
) -> None:
    """Also while the sampler is still starting."""
    code = (
        "import sys, threading, time\n"
        "from isolaw.backends.real.rollout import sampler_group, samplers\n"
        "threading.Timer(1, lambda: print('starting', flush=True)).start()\n"
        f"own = samplers.SamplerSettings('transformers', {str(made.model)!r}, 'float32', 32, processes=1)\n"
        "sampler_group.open_sampler(own)\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    for moment in ("starting", "open"):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        while process.stdout.readline().strip() != moment:
            assert process.poll() is None
        (sampler,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        process.wait()
        patience = time.monotonic() + 300
        while not ended(sampler.pid):
            assert time.monotonic() < patience, "the sampler outlives its trainer"
            time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("asked", [False, True])
def test_a_stopped_sampler_is_not_waited_for(asked: bool, made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after a while, at once where the run is asked to end, and with what it has started."""
    monkeypatch.setattr(children, "STOPPED_S", 600.0 if asked else 2.0)
    settings = SamplerSettings("transformers", str(made.model), "float32", 32, processes=1)
    sampler = SamplerGroup(settings)
    (pid,) = guard.descendants(sampler.members[0].process.pid)
    sampler.watch(lambda: asked)
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    # More than its socket holds.
    ticket = sampler.draw([[1] * 500_000], [[1]], temperature=1.0, top_p=1.0, max_tokens=4)
    with pytest.raises(RunError, match="asked to end" if asked else f"{pid} has been suspended for 2 s"):
        sampler.take(ticket)
    assert time.monotonic() - begun < 60
    assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


@pytest.mark.usefixtures("forked")
def test_of_a_sampler_that_says_nothing_the_user_hears_before_the_run_fails(
    made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote_sampler, "_CHECK_S", 0.1)
    settings = SamplerSettings("transformers", str(made.model), "float32", 32, processes=1)
    sampler = SamplerGroup(settings)
    sampler.members[0]._patience_s = 2.0
    with pytest.raises(RunError, match="has been silent for"):
        sampler.members[0]._receive()  # it was asked for nothing
    (message,) = caplog.messages
    assert "real.timeout_hours" in message
