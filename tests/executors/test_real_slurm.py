"""Jobs of a real SLURM, which this module starts for itself: one machine posing as two."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.executors import slurm
from isolaw.executors.waiting import Event
from isolaw.runs import Runs
from isolaw.store import SweepStore

pytestmark = pytest.mark.slow

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])  # which users have not always
MISSING = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if not shutil.which(name, path=PATH)]
if MISSING:
    pytest.skip(
        f"no {', '.join(MISSING)} on PATH; on Debian: apt-get install --no-install-recommends slurm-wlm",
        allow_module_level=True,
    )

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"

# Needs neither root nor control groups nor systemd. A job that is put back waits for cred_expire, of which
# five seconds are the least.
CONFIGURATION = """\
ClusterName=isolaw
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge,cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=usual Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


def said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def _slurm(wait_for) -> Iterator[None]:
    """A SLURM that is there for as long as this module's tests run, and that its commands speak to."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))  # sockets' are short
        folder.chmod(0o711)  # munge wants its socket to be within everybody's reach
        key, configuration = folder / "key", folder / "slurm.conf"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        host, heard = socket.gethostname().partition(".")[0], ""
        with suppress(OSError):
            if socket.gethostbyname(host) == "127.0.0.1":  # then SLURM can be heard by this machine alone
                heard = "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"
        told = {"folder": folder, "host": host, "user": os.getuid(), "ports": free_ports(3)}
        configuration.write_text(CONFIGURATION.format(**told) + heard)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in os.environ:  # the tests may be a job themselves
            if name.startswith(("SLURM", "SBATCH", "SQUEUE", "SINFO", "SCANCEL")):
                patch.delenv(name)
        patch.setenv("SLURM_CONF", str(configuration))
        patch.setenv("PATH", PATH)

        def start(*words: str) -> None:
            words = ("setpriv", "--pdeathsig", "KILL", *words)  # also when the tests are killed
            daemon = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
            stack.callback(daemon.wait, timeout=120)
            stack.callback(daemon.terminate)

        stack.callback(kill_what_knows, configuration)
        files = {
            "key-file": "key",
            "socket": "munge",
            "pid-file": "pid",
            "seed-file": "seed",
            "log-file": "log",
        }
        start("munged", "--foreground", *(f"--{option}={folder / name}" for option, name in files.items()))
        wait_for((folder / "munge").exists)
        start("slurmctld", "-D", "-i")
        for node in ("one", "two"):
            start("slurmd", "-D", "-N", node)
        words = ["sinfo", "--noheader", "--partition=usual", "--Node", "--format=%T"]
        wait_for(lambda: subprocess.run(words, capture_output=True).stdout.split() == [b"idle", b"idle"])
        yield


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def kill_what_knows(configuration: Path) -> None:
    """End what has been told of this SLURM: jobs that have outlived it."""
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("SLURM_CONF") == str(configuration):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture(autouse=True)
def _no_jobs(_slurm: None, monkeypatch: pytest.MonkeyPatch, wait_for) -> Iterator[None]:
    """Each test leaves without jobs."""
    monkeypatch.setattr(slurm, "_QUEUE_CHECK_S", 0.5)
    monkeypatch.setattr(slurm, "_FOLDER_CHECK_S", 0.1)
    yield
    for job in jobs():
        subprocess.run(["scancel", job], check=False)
    wait_for(lambda: not jobs())


@pytest.fixture
def engine_of(command: str) -> Iterator[Callable[[SweepSpec, Path], subprocess.Popen[str]]]:
    """Give a sweep's command, in a process that a test may hurt."""
    with ExitStack() as stack:

        def start(spec: SweepSpec, out: Path, **more: Any) -> subprocess.Popen[str]:
            sections = spec.model_dump(mode="json", exclude_unset=True)
            settings = [
                f"--set={section}.{key}={json.dumps(value)}"
                for section, keys in sections.items()
                for key, value in keys.items()
            ]
            process = subprocess.Popen([command, "sweep", f"--out={out}", *settings], text=True, **more)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def jobs(*states: str) -> list[str]:
    """Numbers of the jobs that there are."""
    lines = [line.split() for line in said("squeue", "--noheader", "--format=%i %T").splitlines()]
    return [number for number, state in lines if not states or state in states]


def submitted(out: Path) -> int:
    """How many jobs have been made for a sweep, ever."""
    return len(list((out / "slurm").glob("*_submission.sh")))


def told(events: list[Event]) -> list[str]:
    return [event.cause for event in events if event.kind == "warning"]


@pytest.fixture
def spec(long) -> SweepSpec:
    """Three runs, of which two are at work at a time."""
    return long(sweep={"compute": 15_000_000, "seeds": 3}, executor={"kind": "slurm"})


@pytest.fixture(scope="module")
def truth(long, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Its table, made in this process."""
    return engine.sweep(long(sweep={"compute": 15_000_000, "seeds": 3}), tmp_path_factory.mktemp("inline"))


@pytest.fixture
def held(holder) -> Callable[[Path], dict[str, int]]:
    """Hold the first two processes that have begun to make runs, so that no run ends before it is hurt."""
    stopped: dict[str, int] = {}

    def hold(out: Path) -> dict[str, int]:
        store = SweepStore(out)
        for run_id in store.run_ids():
            process = holder(out, run_id)  # 0, of a run that has ended, would be all of us
            if (
                process
                and len(stopped) < 2
                and run_id not in stopped
                and store.run(run_id).recorded().checkpoints
            ):
                os.kill(process, signal.SIGSTOP)
                stopped[run_id] = process
        return stopped

    return hold


@pytest.mark.nightly  # what these commands write is compared by the tests below, too
def test_the_example_makes_what_this_process_makes(command: str, tmp_path: Path, same) -> None:
    for name, words in {"jobs": ["slurm.toml"], "inline": ["bandit.toml", "--executor", "inline"]}.items():
        words = ["sweep", str(EXAMPLES / words[0]), "--out", str(tmp_path / name), *words[1:]]
        assert "4 of 4 runs are done" in said(command, *words)
    assert submitted(tmp_path / "jobs") == 4
    same(*(SweepStore(tmp_path / name).collect() for name in ("jobs", "inline")))


@pytest.mark.nightly
def test_jobs_that_have_to_make_room(make, spec, truth, held, tmp_path: Path, same) -> None:
    """SLURM puts them back itself, and they go on from their state."""
    out, numbers = tmp_path / "out", []

    def urgent(_: Event) -> None:
        if not numbers and len(held(out)) == 2:
            numbers.extend(jobs("RUNNING"))
            said("sbatch", "--partition=urgent", "--nodes=2", "--output=/dev/null", "--wrap=true")

    events = make(spec, out, urgent)
    assert all("waits: Nodes required for job are" in cause for cause in told(events))
    assert [e.kind for e in events if e.kind not in ("checkpoint", "warning")] == ["done"] * 3
    assert submitted(out) == 3
    assert len(numbers) == 2
    for number in numbers:
        log = (out / "slurm" / f"{number}_0_log.out").read_text()
        assert "DUE TO PREEMPTION" in log
        assert "stopped; the same command continues" in log
    same(SweepStore(out).collect(), truth)


@pytest.mark.nightly
def test_a_time_out(make, spec, truth, held, tmp_path: Path, same) -> None:
    """Every 30 s SLURM looks for jobs that have a minute left, or less: with `time = 1` that is any job.

    The jobs at work are told so. What holds them ends with SLURM's signal, before which it sends SIGCONT.
    Jobs that come later get more time, or a busy machine would be interrupting them for minutes.
    """
    spec = spec.model_copy(update={"executor": spec.executor.model_copy(update={"time": 1.0})})
    out, ended, stopped = tmp_path / "out", set(), {}

    def more_time(event: Event) -> None:
        ended.update(re.findall(r"SLURM job (\d+) ended; isolaw repeats the run from step", event.cause))
        if len(ended) < 2:
            stopped.update(held(out))
        elif not any(map(is_stopped, stopped.values())):
            for job in jobs():
                subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=60"], check=False)

    events = make(spec, out, more_time)
    again = [cause for cause in told(events) if "repeats the run" in cause]
    assert len(ended) >= 2
    assert submitted(out) == 3 + len(again)  # a busy controller is told of, too, and is no new job
    assert engine.status(out)["done"] == 3
    same(SweepStore(out).collect(), truth)


def is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def test_an_engine_that_is_killed_and_ctrl_c_for_the_next(
    make, engine_of, spec, truth, held, tmp_path: Path, wait_for, same
) -> None:
    """The next one waits for the jobs that it finds, at work or not, and makes no second for any.

    With Ctrl-C the jobs at work end with their state, those that wait do not begin, and none is left behind.
    """
    out = tmp_path / "out"
    process = engine_of(spec, out)
    wait_for(lambda: len(held(out)) == 2 and len(jobs("PENDING")) == 1)
    process.kill()
    process.wait()
    notes = tmp_path / "notes"
    with notes.open("w") as file:
        process = engine_of(spec, out, stderr=file)
    wait_for(lambda: notes.read_text().count("already executes the run; waiting") == 3)
    assert submitted(out) == 3
    process.send_signal(signal.SIGINT)
    wait_for(lambda: not jobs("PENDING"))
    for pid in held(out).values():
        os.kill(pid, signal.SIGCONT)
    assert process.wait(timeout=300) == 130
    assert not jobs()
    state = engine.status(out)
    assert (state["started"], state["waiting"], state["failed"]) == (2, 1, 0)
    for run in map(SweepStore(out).run, held(out)):
        assert run.settled() == run.recorded().checkpoints
    assert not told(make(spec, out))
    assert submitted(out) == 3 + 3
    same(SweepStore(out).collect(), truth)


@pytest.mark.nightly
def test_scancel_by_somebody(make, spec, truth, held, tmp_path: Path, same) -> None:
    """Of a job at work and of one that waits: both are made again."""
    out, cancelled = tmp_path / "out", []

    def cancel(_: Event) -> None:
        if not cancelled and len(held(out)) == 2:
            working, waiting = jobs("RUNNING"), jobs("PENDING")
            cancelled.extend([*working, *waiting])
            said("scancel", *cancelled)

    events = make(spec, out, cancel)
    assert len([cause for cause in told(events) if "repeats the run from step" in cause]) == 2
    assert len([cause for cause in told(events) if "repeats the run from its start" in cause]) == 1
    assert submitted(out) == 3 + 3
    assert engine.status(out)["done"] == 3
    same(SweepStore(out).collect(), truth)


@pytest.mark.nightly
def test_ctrl_c_while_jobs_begin(engine_of, long, tmp_path: Path, wait_for) -> None:
    """Also a run that has not begun by then ends as soon as it has."""
    out = tmp_path / "out"
    endless = long(sweep={"compute": 10**11}, executor={"kind": "slurm", "setup": ["sleep 4"]})
    process = engine_of(endless, out)
    wait_for(lambda: len(jobs("RUNNING")) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert not jobs()
    assert engine.status(out)["started"] == 2


def test_what_sbatch_refuses(isolaw, tmp_path: Path) -> None:
    """Its own words, once."""
    sweep = ["sweep", EXAMPLES / "slurm.toml", "--out", tmp_path / "out", "--set"]
    for setting, words in {
        "executor.partition=nowhere": "invalid partition specified: nowhere; Batch job submission failed: ",
        'executor.sbatch={constraint="gold"}': "Batch job submission failed: Invalid feature specification",
    }.items():
        code, _, notes = isolaw(*sweep, setting)
        assert code == 1
        assert f"isolaw: sbatch: {words}" in notes
        assert notes.count("Batch job submission failed") == 1


def test_what_no_machine_has_room_for_says_why_it_waits(long, tmp_path: Path) -> None:
    spec = long(sweep={"seeds": 2}, executor={"kind": "slurm", "cpus": 3})
    stop, causes = threading.Event(), []
    for event in engine.execute(engine.resolve_sweep(spec, tmp_path / "out"), tmp_path / "out", stop=stop):
        if event.kind == "warning":
            causes.append(event.cause)
            stop.set()
    (cause,) = causes
    assert re.fullmatch(r"SLURM job \d+ waits: PartitionConfig", cause)


def dies(out: Path, checkpoint: str) -> Callable[[Event], None]:
    """Kill what runs on the second machine once a run has the checkpoint."""
    died: list[bool] = []

    def die(_: Event) -> None:
        if died or not list(out.glob(f"runs/*/out/0/{checkpoint}")):
            return
        died.append(True)
        said("scontrol", "update", "NodeName=two", "State=DOWN", "Reason=dead")
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get("SLURMD_NODENAME") == "two":
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        said("scontrol", "update", "NodeName=two", "State=RESUME")

    return die


@pytest.mark.nightly
def test_a_command_over_two_machines_one_of_which_dies(make, pair: Path, whole, tmp_path: Path) -> None:
    """It starts once, with the names of its machines; after the death it continues from its checkpoint."""
    (port,), out = free_ports(1), tmp_path / "out"
    spec = SweepSpec.parse(
        {
            "sweep": {"backend": "command", "compute": 160, "seeds": 1},
            "grid": {"problems_per_batch": [2], "rollouts_per_problem": [4]},
            "command": {
                "run": ["srun", "--overlap", "--nodes={nodes}", "--ntasks-per-node=1", sys.executable,
                        str(pair), str(port)],
                "log": "{out}/metrics.jsonl", "checkpoints": "step-{step}",
            },
            "executor": {"kind": "slurm", "nodes": 2, "cpus": 1},
        }
    )  # fmt: skip

    events = make(spec, out, dies(out, "step-5"))
    assert [e.kind for e in events if e.kind not in ("checkpoint", "warning")] == ["done"]
    assert "--nodes=2" in next((out / "slurm").glob("*_submission.sh")).read_text()
    (commands,) = out.glob("runs/*/out/0/command.sh")
    assert commands.read_text().count("srun --overlap --nodes=2") == 2
    assert "ISOLAW_NODE_LIST=one,two" in commands.read_text()
    whole(out)


@pytest.mark.nightly
@pytest.mark.real
def test_trl_over_two_machines_one_of_which_dies(make, trl, tmp_path: Path) -> None:
    (port,), out = free_ports(1), tmp_path / "out"
    launcher = ["srun", "--overlap", "--nodes={nodes}", "--ntasks-per-node=1"]
    spec = trl.spec(launcher, "SLURM_PROCID", port, {"kind": "slurm"})
    events = make(spec, out, dies(out, "checkpoint-*/trainer_state.json"))
    assert [e.kind for e in events if e.kind not in ("checkpoint", "warning")] == ["done"] * 4, told(events)
    trl.check(out)


# What ray-in-job.sh starts: it asks every machine of its Ray for a number, in every step.
OVER_RAY = """
import json, os, ray
ray.init(log_to_driver=False)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
assert len(nodes) == int(os.environ["ISOLAW_NODES"])
there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy

@ray.remote(num_cpus=0)
def where():
    return ray.get_runtime_context().get_node_id()

with open(os.environ["ISOLAW_OUT"] + "/metrics.jsonl", "a") as log:
    for step in range(1, int(os.environ["ISOLAW_STEPS"]) + 1):
        asked = [where.options(scheduling_strategy=there(node, soft=False)).remote() for node in nodes]
        assert ray.get(asked) == nodes
        log.write(json.dumps({"step": step, "reward": step / 100}) + "\\n")
"""


@pytest.mark.nightly
def test_the_examples_script_starts_ray_on_both_machines_of_a_job(
    make, whole, wait_for, tmp_path: Path
) -> None:
    (tmp_path / "over_ray.py").write_text(OVER_RAY)
    script = Path(__file__).parents[2] / "examples" / "cluster" / "ray-in-job.sh"
    spec = SweepSpec.parse(
        {
            "sweep": {"backend": "command", "compute": 160, "seeds": 1},
            "grid": {"problems_per_batch": [2], "rollouts_per_problem": [4]},
            "command": {
                "run": ["bash", str(script), "python3", str(tmp_path / "over_ray.py")],
                "log": "{out}/metrics.jsonl",
            },
            "executor": {
                "kind": "slurm", "nodes": 2, "cpus": 1,
                "setup": [f"export PATH={Path(sys.executable).parent}:$PATH RAY_TMPDIR={tempfile.mkdtemp()}"],
            },
        }
    )  # fmt: skip
    events = make(spec, tmp_path / "out")
    assert [event.kind for event in events if event.kind != "checkpoint"] == ["done"], events[-1].cause
    whole(tmp_path / "out")
    wait_for(lambda: not jobs())  # the script has ended what it started
