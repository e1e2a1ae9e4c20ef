"""Implement the executor `slurm`: each run is a SLURM job, submitted through submitit.

A job executes ``isolaw run-one DIR/runs/<run_id>``, which a user can also execute manually. Job scripts and
SLURM's logs are in ``DIR/slurm``. The name of a job identifies its sweep and run. A new engine therefore
finds the jobs of a killed engine, and waits for them instead of submitting them again. If a job ends before
its run (time-out, pre-emption, dead machine), isolaw submits it again, and the run continues.

``squeue`` lists the jobs, and isolaw reads the outcome of a run from its folder. If a SLURM command does not
answer, isolaw kills it, prints a warning, and repeats it later. Jobs continue meanwhile.

In a job with several nodes, the first task starts the work of the others (`SlurmNodes`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor, SlurmJobEnvironment

from isolaw import children
from isolaw.config import ExecutorSection
from isolaw.errors import RunError
from isolaw.executors import launcher
from isolaw.executors.base import Resources, drive
from isolaw.executors.waiting import Event, Waiting
from isolaw.store import Folder, SweepStore
from isolaw.store.run import MEETING

# Seconds between readings of the runs' folders, and between calls of squeue. The last value is for the end of
# a sweep that was asked to stop, because the user is waiting.
_LOOK_S, _ASK_S, _ASK_AT_THE_END_S = 1.0, 15.0, 2.0
# Seconds to wait for an answer from SLURM. Submissions can wait for a lock, so they get more time.
_ANSWER_S, _ACCEPT_S = 30, 60
_CALLS_S = 1.0  # seconds between looks at the file with the calls of the first task
_TIMED_OUT = (124, 137)  # exit status of ``timeout`` after a time-out


def run(
    directory: Path, waiting: Waiting, chosen: ExecutorSection, each: Mapping[str, Resources]
) -> Iterator[Event]:
    """Execute the runs as SLURM jobs, and yield their events."""
    yield from drive(_Slurm(directory, chosen, each), waiting)


def script(directory: Path, run_id: str, chosen: ExecutorSection, each: Resources) -> str:
    """Return the job script of a run, for example to print it."""
    executor = _executor(directory, chosen, each, _Scripts)
    executor.parameters["job_name"] = _name(directory, run_id)
    return str(executor._make_submission_file_text(_command(directory, run_id), ""))


def _command(directory: Path, run_id: str) -> str:
    isolaw = Path(sys.executable).with_name("isolaw")
    folder = SweepStore(directory.resolve()).run(run_id).folder
    return shlex.join([str(isolaw) if isolaw.is_file() else "isolaw", "run-one", str(folder)])


def _name(directory: Path, run_id: str) -> str:
    sweep = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:8]
    return f"isolaw-{sweep}-{run_id[:24]}"


class _Scripts(SlurmExecutor):  # type: ignore[misc]
    """A variant of submitit's executor that also writes job scripts on machines without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        return 1


def _executor(directory: Path, chosen: ExecutorSection, each: Resources, kind: Any) -> Any:
    """Return a submitit executor of class ``kind`` with the resources of a run."""
    folder = str(directory.resolve())
    if not folder.isprintable() or "%" in folder:
        raise RunError(
            f"{folder!r}: found a control character or %; SLURM's scripts accept neither in a path"
        )
    executor = kind(directory.resolve() / "slurm")
    warning_s = min(each.notice_s, int(30 * chosen.time))
    if kind is LocalExecutor:
        executor.update_parameters(timeout_min=chosen.time, signal_delay_s=warning_s, setup=chosen.setup)
        return executor
    executor._make_submission_command = _limited(executor._make_submission_command)
    seconds = round(60 * chosen.time)
    executor.update_parameters(
        time=f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        signal_delay_s=warning_s,
        nodes=each.nodes,
        ntasks_per_node=1,
        cpus_per_task=each.cpus,
        gpus_per_node=each.gpus or None,
        partition=chosen.partition,
        wckey=None,
        stderr_to_stdout=True,
        setup=list(chosen.setup) or None,
        srun_args=["--kill-on-bad-exit=1"],
        # One machine's share of memory per core would be too little where a run takes whole machines.
        additional_parameters={"requeue": True, **({"mem": "0"} if each.nodes > 1 else {}), **chosen.sbatch},
    )
    return executor


def _limited(command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Add a time limit to a command with coreutils' ``timeout``, because submitit would wait forever."""
    return lambda path: ["timeout", f"--kill-after={_ANSWER_S}", str(_ACCEPT_S), *command(path)]


class _Slurm:
    """The `Slots` of this executor, with one SLURM job for each run."""

    def __init__(self, directory: Path, chosen: ExecutorSection, each: Mapping[str, Resources]) -> None:
        self.directory, self.store = directory, SweepStore(directory)
        self.local = chosen.cluster == "local"
        (directory / "slurm").mkdir(exist_ok=True)
        kind = LocalExecutor if self.local else SlurmExecutor
        self.executors = {needs: _executor(directory, chosen, needs, kind) for needs in set(each.values())}
        self.each = each
        self.jobs: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.stopping: set[str] = set()
        self.any_accepted, self.refused, self.refusal = False, list[str](), ""
        self.answers = self.cancels = True
        self.listed: dict[str, tuple[str, str]] = {} if self.local else _listed()
        self.reasons = {"None", "Priority", "Resources", "BeginTime"}  # temporary or expected reasons
        self.asked = time.monotonic()

    def start(self, run_id: str) -> Event | None:
        run, name = self.store.run(run_id), _name(self.directory, run_id)
        if name in self.listed:  # submitted by an engine that has ended
            self.jobs[run_id] = job = self.listed[name][0]
            self.any_accepted = True
            return Event(run_id, "warning", cause=f"SLURM job {job} already executes the run; waiting")
        if (holder := run.holder) is not None:
            return Event(run_id, "busy", cause=f"{run.folder} is in use by {holder}")
        if self.refused:  # SLURM has just refused another job
            self.refused.append(run_id)
            return None
        run.proceed()
        run.forget_failure()  # so that a later failure is from this job
        executor = self.executors[self.each[run_id]]
        executor.parameters["job_name"] = name
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the error that it raises
                job = executor._submit_command(_command(self.directory, run_id))
        except Exception as error:
            lines = [re.sub("^(sbatch: )?(error: )?", "", line) for line in str(error).splitlines()]
            if getattr(error.__cause__, "returncode", 0) in _TIMED_OUT and not lines:
                lines = [f"no answer within {_ACCEPT_S} s"]
            cause = f"sbatch: {'; '.join(lines) or repr(error)}"
            if not self.any_accepted:  # SLURM would probably refuse all jobs
                raise RunError(cause) from error
            self.refused.append(run_id)  # the user's job limit is reached, or SLURM is down
            if cause == self.refusal:
                return None
            self.refusal = cause
            return Event(run_id, "warning", cause=f"{cause}; isolaw tries again later")
        self.any_accepted = True
        self.jobs[run_id] = job if self.local else job.job_id
        if not self.local:
            self.listed[name] = job.job_id, "None"
        return None

    def events(self) -> list[Event]:
        time.sleep(_LOOK_S)
        out: list[Event] = []
        ask_s = min(_ASK_S, _ASK_AT_THE_END_S) if self.stopping else _ASK_S
        if self.stopping:
            out += [Event(run_id, "stopped") for run_id in self.refused]
            self.refused.clear()
        if time.monotonic() - self.asked > ask_s:
            if not self.local:
                try:
                    self.listed, self.answers = _listed(), True
                except RunError as error:
                    if self.answers:
                        out.append(Event("", "warning", cause=f"{error}; isolaw retries; the jobs continue"))
                    self.answers = False
            again, self.refused = self.refused, []
            out += [event for run_id in again if (event := self.start(run_id))]
            out += self._waits()
            self.asked = time.monotonic()
        for run_id, job in list(self.jobs.items()):
            if run_id in self.stopping:  # repeat, because a job that was just starting misses the request
                self.store.run(run_id).ask_to_stop()
            ended = job.done() if self.local else _name(self.directory, run_id) not in self.listed
            out += self._events_of(run_id, ended)
        return out

    def _waits(self) -> Iterator[Event]:
        """Yield one warning for each reason why jobs are pending, because some reasons are permanent."""
        for run_id, job in self.jobs.items():
            _, reason = self.listed.get(_name(self.directory, run_id), ("", "None"))
            if reason not in self.reasons:
                self.reasons.add(reason)
                yield Event(run_id, "warning", cause=f"SLURM job {job} waits: {reason}")

    def _events_of(self, run_id: str, ended: bool) -> Iterator[Event]:
        """Yield the events of a run since the last call, determined from its folder."""
        run = self.store.run(run_id)
        size = run.bytes_recorded
        recorded = run.recorded()
        if size != self.sizes.get(run_id) and recorded.checkpoints:
            yield Event(run_id, "checkpoint", recorded.reached)
        self.sizes[run_id] = size
        if recorded.is_done(run.read_spec()):
            event = Event(run_id, "done", recorded.reached)
        elif (failure := run.failure) is not None:
            event = Event(run_id, "failed", cause=failure.get("cause", "unknown"))
        elif ended:
            job = self.jobs[run_id]
            what = f"job {job.job_id} ended" if self.local else f"SLURM job {job} ended{_why(job)}"
            event = Event(run_id, "lost", cause=what)
        else:
            return
        del self.jobs[run_id]
        yield event

    def ask_to_stop(self, run_id: str) -> None:
        self.stopping.add(run_id)
        self.store.run(run_id).ask_to_stop()
        if not self.local:  # SLURM decides which jobs are still pending, because our list can be outdated
            self._cancel(run_id, "--state=PENDING")

    def _cancel(self, run_id: str, *options: str) -> None:
        job = self.jobs.get(run_id)
        if self.local and job is not None:
            job.cancel()
        elif job is not None and self.cancels:
            try:
                _ask("scancel", *options, job)
            except RunError as error:
                self.cancels = False  # other calls would also wait until the time limit
                logging.getLogger(__name__).warning(
                    f"{error}: jobs that isolaw tried to end continue; end them yourself, e.g. with `scancel "
                    f"{job}`"
                )

    def close(self) -> None:
        for run_id in self.jobs:
            self._cancel(run_id)


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Execute a SLURM command; raise `RunError` if it does not answer within the time limit."""
    pipe = subprocess.PIPE
    try:
        return children.run(command, _ANSWER_S, stdout=pipe, stderr=pipe, text=True)
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]}: no answer within {_ANSWER_S} s") from None


def _listed() -> dict[str, tuple[str, str]]:
    """Return this user's jobs by name: the job number, and why it is pending ("None" for running jobs)."""
    hint = "executor.cluster = 'local' runs the jobs without SLURM"
    try:
        done = _ask("squeue", "--noheader", "--format=%i|%r|%j", "--user", str(os.getuid()))
    except RunError as error:
        raise RunError(f"SLURM does not answer ({error}); {hint}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"squeue: exit status {done.returncode}"]
        raise RunError(f"SLURM does not answer ({lines[-1].removeprefix('squeue: ')}); {hint}")
    jobs = [line.split("|", 2) for line in done.stdout.splitlines()]
    return {name.strip(): (number, reason) for number, reason, name in jobs}


def _why(job: str) -> str:
    """Return a text in parentheses on how a job ended, or "" without SLURM's accounting."""
    with contextlib.suppress(OSError, RunError):
        done = _ask("sacct", "--noheader", "--allocations", "--parsable2", "--format=State", "--jobs", job)
        if done.returncode == 0 and done.stdout.strip():
            return f" ({done.stdout.split()[0]})"
    return ""


class SlurmNodes:
    """The `Nodes` of a SLURM job; the first task calls the other tasks through a file in the run's folder."""

    def __init__(self, folder: Folder) -> None:
        job = SlurmJobEnvironment()
        self.count, self.number = job.num_nodes, job.node
        self.names: Sequence[str] = job.hostnames
        self.environment: Mapping[str, str] = {}  # srun finds the job by SLURM's own variables
        self.address = _address(*job.hostnames[:2]) if self.number == 0 else ""
        self.folder = folder
        # A job that SLURM has restarted must ignore the file of its previous attempt.
        self.job = f"{job.raw_job_id}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
        self.calls = 0

    def call(self, meeting: dict[str, Any]) -> None:
        self.calls += 1
        self._write(meeting)

    def dismiss(self) -> None:
        self._write(None)

    def lost(self) -> str:
        with contextlib.suppress(OSError, RunError):
            words = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(self.names)}", "--format=%N %T")
            states = dict(line.split() for line in _ask(*words).stdout.splitlines())
            dead = [node for node, state in states.items() if re.search(r"down|fail|\*", state)]
            return f"SLURM lost {', '.join(dead)}" if dead else ""
        return ""

    def _write(self, meeting: dict[str, Any] | None) -> None:
        text = json.dumps({"job": self.job, "call": self.calls, "meeting": meeting})
        self.folder.write(MEETING, text.encode(), sync=False, mode=0o600)  # the message holds a secret

    def follow(self) -> None:
        """Execute this machine's part of each call by the first task, until the first task dismisses it."""
        while True:
            message: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                message = json.loads(self.folder.read(MEETING) or b"{}")
            if message.get("job") != self.job or (message["call"] == self.calls and message["meeting"]):
                time.sleep(_CALLS_S)
            elif message["meeting"] is None:
                return
            else:
                self.calls = message["call"]
                launcher.join(message["meeting"], self.number)


def _address(node: str, *others: str) -> str:
    """Return the address at which other machines reach this machine.

    ``node`` is SLURM's name for this machine, and ``others`` are names of other machines of the job.
    """
    for name in (*others, node, socket.gethostname()):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 9))  # sends nothing
            return str(probe.getsockname()[0])
    raise RunError(f"neither SLURM's name of this machine, {node!r}, nor its own resolves to an address")
