"""Runs as jobs: through submitit's local executor, and through commands that stand in for SLURM's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isolaw import backends, engine, executors, preview
from isolaw.config import ExecutorSection, RunSpec, SweepSpec
from isolaw.errors import RunError, SpecError
from isolaw.executors import slurm
from isolaw.executors.waiting import Event
from isolaw.store import SweepStore

LOCAL = {"kind": "slurm", "cluster": "local"}


def test_the_scripts_that_would_be_submitted(isolaw, tree, tiny, tmp_path: Path) -> None:
    """Also where there is no SLURM; and nothing is written."""
    (tmp_path / "sweep.toml").write_text(
        '[sweep]\nseeds = 1\n[grid]\nrollouts_per_problem = [8, 16]\n[executor]\nkind = "slurm"\n'
        'nodes = 1\ncpus = 4\ngpus = 2\ntime = "1-02:30:00"\npartition = "long"\n'
        'setup = ["module load cuda"]\n[executor.sbatch]\naccount = "physics"\nexclusive = true\n'
    )
    before = tree(tmp_path)
    out = tmp_path / "a sweep"
    code, said, notes = isolaw("sweep", tmp_path / "sweep.toml", "--out", out, "--dry-run")
    assert code == 0
    assert tree(tmp_path) == before
    assert "slurm: 4 cores, 2 GPUs for each run; as many runs as fit at a time" in notes
    scripts = said.split("#!/bin/bash")[1:]
    assert len(scripts) == 2
    planned = engine.resolve_sweep(SweepSpec.read(tmp_path / "sweep.toml"), out)
    for script, run_id in zip(scripts, planned.todo, strict=True):
        lines = script.splitlines()
        for option in (
            "time=26:30:00", "partition=long", "cpus-per-task=4", "gpus-per-node=2", "nodes=1",
            "account=physics", "ntasks-per-node=1",
            "signal=USR2@120", "exclusive", "requeue", "open-mode=append",
        ):  # fmt: skip
            assert f"#SBATCH --{option}" in lines
        assert lines.index("module load cuda") < len(lines) - 2
        (command,) = [line for line in lines if line.startswith("srun ")]
        assert command.endswith(f"isolaw run-one '{out}/runs/{run_id}'")
    code, said, _ = isolaw("sweep", tmp_path / "sweep.toml", "--out", out, "--dry-run", "--json")
    told = json.loads(said)["executor"]
    assert [f"#!/bin/bash{script}".strip() for script in scripts] == [s.strip() for s in told["scripts"]]


def test_without_slurm(isolaw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said, notes = isolaw("sweep", "--out", tmp_path / "out", "--executor", "slurm")
    assert (code, said) == (2, "")
    assert (
        "executor.kind: not on this machine: sbatch, srun, squeue; found 'slurm'; expected a login node"
        in notes
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def killed_engine(wait_for) -> Callable[[SweepSpec, Path, Callable[[], bool]], None]:
    """Start a sweep in a process of its own, and kill that once something has come to pass."""
    script = (
        "import sys\nfrom isolaw import SweepSpec, engine\n"
        "spec = SweepSpec.model_validate_json(sys.argv[1])\n"
        "list(engine.execute(engine.resolve_sweep(spec, sys.argv[2]), sys.argv[2]))\n"
    )

    def kill(spec: SweepSpec, out: Path, when: Callable[[], bool]) -> None:
        with subprocess.Popen([sys.executable, "-c", script, spec.model_dump_json(), str(out)]) as process:
            wait_for(when)
            process.kill()

    return kill


# submitit's local executor


@pytest.mark.nightly
@pytest.mark.slow
def test_a_time_out(make, tmp_path: Path, long, same, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half way through its time a job is asked to keep its state; the next one goes on from there."""
    # Retries, because a job may have had no time for a step on a busy machine.
    executor = {**LOCAL, "time": "0:00:08", "retries": 50}
    spec = long(sweep={"compute": 2 * 10**8, "seeds": 1}, executor=executor)
    out = tmp_path / "out"
    events = make(spec, out)
    told = [e.cause for e in events if e.kind == "warning"]
    assert told
    steps = [int(cause.rpartition(" step ")[2]) for cause in told if "repeats the run from step" in cause]
    assert steps
    assert steps == sorted(steps)
    assert [e.kind for e in events if e.kind in ("done", "failed")] == ["done"]
    inline = spec.model_copy(update={"executor": spec.executor.model_copy(update={"kind": "inline"})})
    same(SweepStore(out).collect(), engine.sweep(inline, tmp_path / "inline"))


@pytest.mark.nightly  # test_real_slurm.py has it with SLURM's own commands
@pytest.mark.slow
def test_jobs_outlive_a_killed_engine_and_are_waited_for(
    isolaw, make, tmp_path: Path, long, holder, killed_engine, same
) -> None:
    spec, out = long(sweep={"seeds": 1}, executor=LOCAL), tmp_path / "out"
    (run_id,) = engine.resolve_sweep(spec, out).todo
    run = SweepStore(out).run(run_id)
    killed_engine(spec, out, lambda: run.last_state is not None)
    job = holder(out, run_id)
    said = isolaw("status", out)[1]
    assert "; 1 run in progress\n" in said
    assert f"Continue when the runs in progress end: isolaw sweep --out {out}" in said
    events = make(spec, out)
    assert [e.kind for e in events if e.kind != "checkpoint"] == ["warning", "done"]
    assert f"in use by process {job} on" in next(e.cause for e in events if e.kind == "warning")
    same(SweepStore(out).collect(), engine.sweep(long(sweep={"seeds": 1}), tmp_path / "inline"))


# SLURM's commands, as far as they are used: jobs are processes, their names and numbers a file each


COMMANDS = """\
#!{python}
import contextlib, os, pathlib, psutil, re, signal, subprocess, sys
name, jobs = pathlib.Path(sys.argv[0]).name, pathlib.Path({jobs!r})
if name == "sbatch":
    text = pathlib.Path(sys.argv[1]).read_text()
    output = re.search("--output=(.*)", text)[1]
    with open(output, "a") as log:
        words = ["bash", sys.argv[1]]
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    (jobs / str(process.pid)).write_text(re.search("--job-name=(.*)", text)[1])
    print("Submitted batch job", process.pid)
elif name == "srun":
    words = [word for word in sys.argv[1:] if not word.startswith("--") and not word.endswith(".out")]
    os.execvp(words[0], words)
elif name == "squeue":
    for job in jobs.iterdir():
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(int(job.name)).status() != psutil.STATUS_ZOMBIE:
                print(job.name, "None", job.read_text(), sep="|")
elif name == "sacct":
    print("NODE_FAIL")
elif name == "scancel":
    os.killpg(int(sys.argv[1]), signal.SIGTERM)
"""


@pytest.fixture
def slurm_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch, srun, squeue, sacct and scancel; the folder with a file for each job."""
    folder, jobs = tmp_path / "bin", tmp_path / "jobs"
    folder.mkdir()
    jobs.mkdir()
    for name in ("sbatch", "srun", "squeue", "sacct", "scancel"):
        (folder / name).write_text(COMMANDS.format(python=sys.executable, jobs=str(jobs)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_QUEUE_CHECK_S", 0.5)
    monkeypatch.setattr(slurm, "_FOLDER_CHECK_S", 0.1)
    return jobs


@pytest.mark.slow
def test_sbatch_squeue_and_a_machine_that_fails(
    make, tmp_path: Path, long, holder, with_a_state, same, slurm_commands: Path
) -> None:
    out, killed, one_run = tmp_path / "out", [], {"sweep": {"seeds": 1}}

    def kill(event: Event) -> None:
        if not killed and event.run_id in with_a_state(out):
            killed.append(event.run_id)
            os.kill(holder(out, event.run_id), signal.SIGKILL)

    events = make(long(**one_run, executor={"kind": "slurm"}), out, kill)
    (again,) = [e for e in events if e.kind == "warning"]
    assert again.run_id == killed[0]
    assert "ended (NODE_FAIL); isolaw repeats the run from step" in again.cause
    assert engine.status(out)["done"] == 1
    assert len(list(slurm_commands.iterdir())) == 2
    same(SweepStore(out).collect(), engine.sweep(long(**one_run), tmp_path / "inline"))


def test_what_sbatch_refuses_of_the_first_ends_the_sweep(
    make, tmp_path: Path, tiny, slurm_commands: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: no partition x\nsbatch: error: Submission failed' >&2\nexit 1\n"
    )
    with pytest.raises(RunError, match=r"^sbatch: no partition x; Submission failed$"):
        make(tiny(executor={"kind": "slurm"}), tmp_path / "out")
    assert capfd.readouterr() == ("", "")  # it is said once
    assert engine.status(tmp_path / "out")["waiting"] == 4


@pytest.mark.nightly
@pytest.mark.slow
def test_what_sbatch_refuses_of_others_is_asked_again(
    make, tmp_path: Path, tiny, slurm_commands: Path, same
) -> None:
    """Clusters bound how many jobs somebody may have in the queue."""
    sbatch, accepting = tmp_path / "bin" / "sbatch", tmp_path / "sbatch"
    sbatch.rename(accepting)
    sbatch.write_text(
        f'#!/bin/sh\n[ "$(squeue | wc -l)" = 0 ] && exec {accepting} "$@"\n'
        "echo 'sbatch: error: job submit limit' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    spec, out = tiny(executor={"kind": "slurm"}), tmp_path / "out"
    events = make(spec, out)
    told = [event.cause for event in events if event.kind == "warning"]
    assert told == ["sbatch: job submit limit; isolaw tries again later"]
    assert engine.status(out)["done"] == len(list(slurm_commands.iterdir())) == 4
    same(SweepStore(out).collect(), engine.sweep(tiny(), tmp_path / "inline"))


# One run


@pytest.fixture
def one(tmp_path: Path, long) -> Path:
    """The folder of a run that is planned and not begun."""
    spec = long(sweep={"seeds": 1})
    (run,) = engine.resolve_sweep(spec, tmp_path).runs
    store = SweepStore(tmp_path)
    store.write_spec(spec, None)
    store.run(run.run_id).create(run)
    return store.run(run.run_id).folder


@pytest.mark.slow
def test_run_one_keeps_its_state_when_told_to_end(command: str, isolaw, one: Path, wait_for) -> None:
    run = SweepStore(one.parent.parent).run(one.name)
    process = subprocess.Popen([command, "run-one", str(one)], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(run.recorded().checkpoints) > 3)
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "stopped; the same command continues" in said
    assert run.settled() == run.recorded().checkpoints
    code, out, _ = isolaw("run-one", one)
    assert (code, out.strip()) == (0, f"{one}: is done")
    assert engine.status(one.parent.parent)["done"] == 1


def test_run_one_of_what_is_no_run(isolaw, one: Path, tmp_path: Path) -> None:
    for path in (tmp_path, one.parent, tmp_path / "runs"):
        code, _, said = isolaw("run-one", path)
        assert code == 2
        assert "not a run of a sweep; expected OUT/runs/<run_id>" in said
    assert isolaw("run-one", tmp_path / "nowhere")[0] == 2


def test_run_one_that_fails(isolaw, tiny, tmp_path: Path) -> None:
    spec: Any = tiny(sweep={"seeds": 1}, recipe={"lr": 1e200})
    planned = engine.resolve_sweep(spec, tmp_path)
    list(engine.execute(planned, tmp_path))
    folder = SweepStore(tmp_path).run(planned.todo[0]).folder
    (folder / "FAILED.json").unlink()
    code, _, said = isolaw("run-one", folder)
    assert code == 1
    assert str(folder) in said
    assert (folder / "FAILED.json").is_file()


def test_run_one_refuses_a_link_in_its_folder(isolaw, tiny, tmp_path: Path) -> None:
    engine.sweep(tiny(), tmp_path / "out")
    run = min((tmp_path / "out").glob("runs/*"))
    (tmp_path / "mine").mkdir()
    (run / "stop").symlink_to(tmp_path / "mine")
    code, _, err = isolaw("run-one", run)
    assert code == 2
    assert f"{run / 'stop'}: found a symbolic link to {tmp_path / 'mine'}; expected a file" in err


def test_a_run_whose_step_is_long_is_told_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else SLURM ends a job in the middle of a step, and what came after its last state is lost."""
    backend = backends.get("bandit")
    cost = SimpleNamespace(step=lambda b, n: 1.0 * n)
    monkeypatch.setattr(type(backend), "estimate", lambda self, spec: cost)
    run = RunSpec(backend="bandit", problems_per_batch=4, rollouts_per_problem=512, compute=10**6)
    section = ExecutorSection(kind="slurm", time=60)
    needs = executors._resources(section, run)
    assert needs.notice_s == 120 + 768
    assert "signal=USR2@888" in slurm.script(Path("out"), "0" * 64, section, needs)
    assert executors._resources(ExecutorSection(kind="ray"), run).notice_s == 120


@pytest.mark.parametrize(
    ("executor", "command", "said"),
    [
        ({"nodes": 2}, {"gpus": 16}, ""),
        ({"nodes": 2, "gpus": 8}, {"gpus": 16}, ""),
        ({"gpus": 16}, {"gpus": 16}, ""),  # a machine with 16 GPUs
        ({}, {"gpus": 16}, "executor.nodes: found 1; expected 2 for command.gpus = 16, or executor.gpus"),
        ({"nodes": 3}, {"gpus": 16}, "executor.nodes: found 3; expected a divisor of command.gpus (16)"),
        ({"gpus": 4}, {"gpus": 8}, "executor.gpus: found 4; expected command.gpus / executor.nodes, 8"),
    ],
)
def test_the_machines_of_a_command(executor: dict, command: dict, said: str, tmp_path: Path) -> None:
    """Its program need not be on the login node: `setup` or a container brings it."""
    spec = SweepSpec.parse(
        {
            "sweep": {"backend": "command", "compute": 640, "seeds": 1},
            "grid": {"problems_per_batch": [4], "rollouts_per_problem": [4]},
            "command": {"run": ["no-such-program", "{nodes}", "{node_list}"], **command},
            "executor": {"kind": "slurm", **executor},
        }
    )
    if said:
        with pytest.raises(SpecError) as caught:
            engine.resolve_sweep(spec, tmp_path)
        assert said in str(caught.value)
        return
    (run,) = engine.resolve_sweep(spec, tmp_path).runs
    needs = executors._resources(spec.executor, run)
    nodes = spec.executor.nodes
    assert (needs.nodes, needs.cpus, needs.gpus) == (nodes, 128 // nodes, 16 // nodes)
    script = slurm.script(tmp_path, run.run_id, spec.executor, needs)
    assert f"--nodes={nodes}" in script
    assert f"--cpus-per-task={128 // nodes}" in script
    assert ("--mem=0" in script) == (nodes > 1)
    shown = run_preview(spec, tmp_path)
    assert shown["words"] == ["no-such-program", str(nodes), "{node_list}" if nodes > 1 else "localhost"]


def run_preview(spec: SweepSpec, out: Path) -> dict:
    (command,) = preview.Preview(engine.resolve_sweep(spec, out), out).commands
    return command
