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
_FOLDER_CHECK_S, _QUEUE_CHECK_S, _END_CHECK_S = 1.0, 15.0, 2.0
# Seconds to wait for an answer from SLURM. Submissions can wait for a lock, so they get more time.
_ANSWER_LIMIT_S, _SUBMIT_LIMIT_S = 30, 60
_CALL_CHECK_S = 1.0  # seconds between looks at the file with the calls of the first task
_TIMEOUT_STATUSES = (124, 137)  # exit status of ``timeout`` after a time-out


def run(
    directory: Path, waiting: Waiting, section: ExecutorSection, needs_by_run: Mapping[str, Resources]
) -> Iterator[Event]:
    """Execute the runs as SLURM jobs, and yield their events."""
    yield from drive(_Slurm(directory, section, needs_by_run), waiting)


def script(directory: Path, run_id: str, section: ExecutorSection, resources: Resources) -> str:
    """Return the job script of a run, for example to print it."""
    executor = _executor(directory, section, resources, _OfflineSlurmExecutor)
    executor.parameters["job_name"] = _job_name(directory, run_id)
    return str(executor._make_submission_file_text(_run_command(directory, run_id), ""))


def _run_command(directory: Path, run_id: str) -> str:
    isolaw_path = Path(sys.executable).with_name("isolaw")
    folder = SweepStore(directory.resolve()).run(run_id).folder
    return shlex.join([str(isolaw_path) if isolaw_path.is_file() else "isolaw", "run-one", str(folder)])


def _job_name(directory: Path, run_id: str) -> str:
    sweep_hash = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:8]
    return f"isolaw-{sweep_hash}-{run_id[:24]}"


class _OfflineSlurmExecutor(SlurmExecutor):  # type: ignore[misc]
    """A variant of submitit's executor that also writes job scripts on machines without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        return 1


def _executor(directory: Path, section: ExecutorSection, resources: Resources, executor_class: Any) -> Any:
    """Return a submitit executor of class ``executor_class`` with the resources of a run."""
    folder = str(directory.resolve())
    if not folder.isprintable() or "%" in folder:
        raise RunError(
            f"{folder!r}: found a control character or %; SLURM's scripts accept neither in a path"
        )
    executor = executor_class(directory.resolve() / "slurm")
    warning_s = min(resources.notice_s, int(30 * section.time))
    if executor_class is LocalExecutor:
        executor.update_parameters(timeout_min=section.time, signal_delay_s=warning_s, setup=section.setup)
        return executor
    executor._make_submission_command = _with_time_limit(executor._make_submission_command)
    seconds = round(60 * section.time)
    # One machine's share of memory per core would be too little where a run takes whole machines.
    memory = {"mem": "0"} if resources.nodes > 1 else {}
    executor.update_parameters(
        time=f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        signal_delay_s=warning_s,
        nodes=resources.nodes,
        ntasks_per_node=1,
        cpus_per_task=resources.cpus,
        gpus_per_node=resources.gpus or None,
        partition=section.partition,
        wckey=None,
        stderr_to_stdout=True,
        setup=list(section.setup) or None,
        srun_args=["--kill-on-bad-exit=1"],
        additional_parameters={"requeue": True, **memory, **section.sbatch},
    )
    return executor


def _with_time_limit(command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Add a time limit to a command with coreutils' ``timeout``, because submitit would wait forever."""
    return lambda path: ["timeout", f"--kill-after={_ANSWER_LIMIT_S}", str(_SUBMIT_LIMIT_S), *command(path)]


class _Slurm:
    """The `Slots` of this executor, with one SLURM job for each run."""

    def __init__(
        self, directory: Path, section: ExecutorSection, needs_by_run: Mapping[str, Resources]
    ) -> None:
        self.directory, self.store = directory, SweepStore(directory)
        self.is_local = section.cluster == "local"
        (directory / "slurm").mkdir(exist_ok=True)
        executor_class = LocalExecutor if self.is_local else SlurmExecutor
        self.executors = {
            resources: _executor(directory, section, resources, executor_class)
            for resources in set(needs_by_run.values())
        }
        self.needs_by_run = needs_by_run
        self.job_by_run: dict[str, Any] = {}
        self.recorded_bytes_by_run: dict[str, int] = {}
        self.stopping: set[str] = set()
        self.has_accepted_job, self.refused_ids, self.last_refusal = False, list[str](), ""
        self.has_answered = self.can_cancel = True
        self.queue: dict[str, tuple[str, str]] = {} if self.is_local else _queued_jobs()
        self.known_reasons = {"None", "Priority", "Resources", "BeginTime"}  # temporary or expected reasons
        self.last_queue_check = time.monotonic()

    def start(self, run_id: str) -> Event | None:
        run, name = self.store.run(run_id), _job_name(self.directory, run_id)
        if name in self.queue:  # submitted by an engine that has ended
            self.job_by_run[run_id] = job = self.queue[name][0]
            self.has_accepted_job = True
            return Event(run_id, "warning", cause=f"SLURM job {job} already executes the run; waiting")
        if (holder := run.holder) is not None:
            return Event(run_id, "busy", cause=f"{run.folder} is in use by {holder}")
        if self.refused_ids:  # SLURM has just refused another job
            self.refused_ids.append(run_id)
            return None
        run.proceed()
        run.forget_failure()  # so that a later failure is from this job
        executor = self.executors[self.needs_by_run[run_id]]
        executor.parameters["job_name"] = name
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the error that it raises
                job = executor._submit_command(_run_command(self.directory, run_id))
        except Exception as error:
            lines = [re.sub("^(sbatch: )?(error: )?", "", line) for line in str(error).splitlines()]
            if getattr(error.__cause__, "returncode", 0) in _TIMEOUT_STATUSES and not lines:
                lines = [f"no answer within {_SUBMIT_LIMIT_S} s"]
            cause = f"sbatch: {'; '.join(lines) or repr(error)}"
            if not self.has_accepted_job:  # SLURM would probably refuse all jobs
                raise RunError(cause) from error
            self.refused_ids.append(run_id)  # the user's job limit is reached, or SLURM is down
            if cause == self.last_refusal:
                return None
            self.last_refusal = cause
            return Event(run_id, "warning", cause=f"{cause}; isolaw tries again later")
        self.has_accepted_job = True
        self.job_by_run[run_id] = job if self.is_local else job.job_id
        if not self.is_local:
            self.queue[name] = job.job_id, "None"
        return None

    def events(self) -> list[Event]:
        time.sleep(_FOLDER_CHECK_S)
        events: list[Event] = []
        interval_s = min(_QUEUE_CHECK_S, _END_CHECK_S) if self.stopping else _QUEUE_CHECK_S
        if self.stopping:
            events += [Event(run_id, "stopped") for run_id in self.refused_ids]
            self.refused_ids.clear()
        if time.monotonic() - self.last_queue_check > interval_s:
            if not self.is_local:
                try:
                    self.queue, self.has_answered = _queued_jobs(), True
                except RunError as error:
                    if self.has_answered:
                        cause = f"{error}; isolaw retries; the jobs continue"
                        events.append(Event("", "warning", cause=cause))
                    self.has_answered = False
            retried, self.refused_ids = self.refused_ids, []
            events += [event for run_id in retried if (event := self.start(run_id))]
            events += self._wait_warnings()
            self.last_queue_check = time.monotonic()
        for run_id, job in list(self.job_by_run.items()):
            if run_id in self.stopping:  # repeat, because a job that was just starting misses the request
                self.store.run(run_id).ask_to_stop()
            has_ended = job.done() if self.is_local else _job_name(self.directory, run_id) not in self.queue
            events += self._events_of(run_id, has_ended)
        return events

    def _wait_warnings(self) -> Iterator[Event]:
        """Yield one warning for each reason why jobs are pending, because some reasons are permanent."""
        for run_id, job in self.job_by_run.items():
            _, reason = self.queue.get(_job_name(self.directory, run_id), ("", "None"))
            if reason not in self.known_reasons:
                self.known_reasons.add(reason)
                yield Event(run_id, "warning", cause=f"SLURM job {job} waits: {reason}")

    def _events_of(self, run_id: str, has_ended: bool) -> Iterator[Event]:
        """Yield the events of a run since the last call, determined from its folder."""
        run = self.store.run(run_id)
        size = run.bytes_recorded
        recorded = run.recorded()
        if size != self.recorded_bytes_by_run.get(run_id) and recorded.checkpoints:
            yield Event(run_id, "checkpoint", recorded.reached)
        self.recorded_bytes_by_run[run_id] = size
        if recorded.is_done(run.read_spec()):
            event = Event(run_id, "done", recorded.reached)
        elif (failure := run.failure) is not None:
            event = Event(run_id, "failed", cause=failure.get("cause", "unknown"))
        elif has_ended:
            job = self.job_by_run[run_id]
            cause = f"job {job.job_id} ended" if self.is_local else f"SLURM job {job} ended{_end_state(job)}"
            event = Event(run_id, "lost", cause=cause)
        else:
            return
        del self.job_by_run[run_id]
        yield event

    def ask_to_stop(self, run_id: str) -> None:
        self.stopping.add(run_id)
        self.store.run(run_id).ask_to_stop()
        if not self.is_local:  # SLURM decides which jobs are still pending, because our list can be outdated
            self._cancel(run_id, "--state=PENDING")

    def _cancel(self, run_id: str, *options: str) -> None:
        job = self.job_by_run.get(run_id)
        if self.is_local and job is not None:
            job.cancel()
        elif job is not None and self.can_cancel:
            try:
                _call("scancel", *options, job)
            except RunError as error:
                self.can_cancel = False  # other calls would also wait until the time limit
                logging.getLogger(__name__).warning(
                    f"{error}: jobs that isolaw tried to end continue; end them yourself, e.g. with `scancel "
                    f"{job}`"
                )

    def close(self) -> None:
        for run_id in self.job_by_run:
            self._cancel(run_id)


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    """Execute a SLURM command; raise `RunError` if it does not answer within the time limit."""
    pipe = subprocess.PIPE
    try:
        return children.run(command, _ANSWER_LIMIT_S, stdout=pipe, stderr=pipe, text=True)
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]}: no answer within {_ANSWER_LIMIT_S} s") from None


def _queued_jobs() -> dict[str, tuple[str, str]]:
    """Return this user's jobs by name: the job number, and why it is pending ("None" for running jobs)."""
    hint = "executor.cluster = 'local' runs the jobs without SLURM"
    try:
        result = _call("squeue", "--noheader", "--format=%i|%r|%j", "--user", str(os.getuid()))
    except RunError as error:
        raise RunError(f"SLURM does not answer ({error}); {hint}") from None
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"squeue: exit status {result.returncode}"]
        raise RunError(f"SLURM does not answer ({lines[-1].removeprefix('squeue: ')}); {hint}")
    jobs = [line.split("|", 2) for line in result.stdout.splitlines()]
    return {name.strip(): (number, reason) for number, reason, name in jobs}


def _end_state(job: str) -> str:
    """Return a text in parentheses on how a job ended, or "" without SLURM's accounting."""
    with contextlib.suppress(OSError, RunError):
        result = _call("sacct", "--noheader", "--allocations", "--parsable2", "--format=State", "--jobs", job)
        if result.returncode == 0 and result.stdout.strip():
            return f" ({result.stdout.split()[0]})"
    return ""


class SlurmNodes:
    """The `Nodes` of a SLURM job; the first task calls the other tasks through a file in the run's folder."""

    def __init__(self, folder: Folder) -> None:
        job = SlurmJobEnvironment()
        self.count, self.node_index = job.num_nodes, job.node
        self.names: Sequence[str] = job.hostnames
        self.environment: Mapping[str, str] = {}  # srun finds the job by SLURM's own variables
        self.address = _address(*job.hostnames[:2]) if self.node_index == 0 else ""
        self.folder = folder
        # A job that SLURM has restarted must ignore the file of its previous attempt.
        self.attempt = f"{job.raw_job_id}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
        self.calls = 0

    def call(self, meeting: dict[str, Any]) -> None:
        self.calls += 1
        self._write(meeting)

    def dismiss(self) -> None:
        self._write(None)

    def lost(self) -> str:
        with contextlib.suppress(OSError, RunError):
            command = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(self.names)}", "--format=%N %T")
            states = dict(line.split() for line in _call(*command).stdout.splitlines())
            lost_nodes = [node for node, state in states.items() if re.search(r"down|fail|\*", state)]
            return f"SLURM lost {', '.join(lost_nodes)}" if lost_nodes else ""
        return ""

    def _write(self, meeting: dict[str, Any] | None) -> None:
        text = json.dumps({"job": self.attempt, "call": self.calls, "meeting": meeting})
        self.folder.write(MEETING, text.encode(), sync=False, mode=0o600)  # the message holds a secret

    def follow(self) -> None:
        """Execute this machine's part of each call by the first task, until the first task dismisses it."""
        while True:
            message: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                message = json.loads(self.folder.read(MEETING) or b"{}")
            if message.get("job") != self.attempt or (message["call"] == self.calls and message["meeting"]):
                time.sleep(_CALL_CHECK_S)
            elif message["meeting"] is None:
                return
            else:
                self.calls = message["call"]
                launcher.join(message["meeting"], self.node_index)


def _address(node: str, *others: str) -> str:
    """Return the address at which other machines reach this machine.

    ``node`` is SLURM's name for this machine, and ``others`` are names of other machines of the job.
    """
    for name in (*others, node, socket.gethostname()):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 9))  # sends nothing
            return str(probe.getsockname()[0])
    raise RunError(f"neither SLURM's name of this machine, {node!r}, nor its own resolves to an address")
