"""Define the command backend, which starts an existing trainer and follows its log.

`template` builds the command, including the settings of its framework (`adapters`). `training` starts the
command, and `following` reads its log.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from isolaw.backend import Backend, Checkpoint, Needs, Outlook, RunContext, sampling_issues
from isolaw.backends.command import adapters, template
from isolaw.backends.command.options import CommandOptions
from isolaw.config import ProblemsSpec, RunSpec
from isolaw.errors import Issue, SpecError
from isolaw.files import sha256
from isolaw.machine import visible_gpus


class _CommandBackend(Backend):
    """The `Backend` that trains with the user's own command."""

    name = "command"
    version = 1

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Return the spec with the parsed section and an identity.

        The identity includes the keys that affect the training and the hashes of ``command.files``.
        """
        options = CommandOptions.read(spec)
        identity, unidentified = options.split_by_identity()
        content, issues = {}, []
        for name in options.files:
            try:
                content[name] = sha256(options.path(name))
            except (OSError, ValueError) as error:
                reason = f"{options.path(name)}: {getattr(error, 'strerror', None) or error}"
                issues.append(Issue("command.files", reason, name))
        if issues:
            raise SpecError(issues)
        if options.adapter:
            content["settings"] = f"{options.framework} {adapters.VERSION}"
        problems = spec.problems
        if "set" not in problems.model_fields_set:
            problems = ProblemsSpec(**{**problems.model_dump(), "set": "problems"})
        return spec.model_copy(
            update={
                "backend_version": self.version,
                "options": identity,
                "content": content,
                "sources": unidentified,
                "problems": problems,
            }
        )

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return all issues of the command and its options."""
        options = CommandOptions.of(spec)
        issues = template.issues_of(spec, options)
        issues += sampling_issues(spec, "the trainer's own configuration decides about evaluations")
        if not Path(options.folder or ".").is_dir():
            issues.append(Issue("command.folder", found=options.folder, accepted="a folder"))
        return issues

    def check_here(self, spec: RunSpec) -> list[Issue]:
        """Return an issue if this machine lacks the command's program."""
        options = CommandOptions.of(spec)
        program = "" if options.shell else template.words_of(options)[0]
        if not program or shutil.which(program) or os.access(options.path(program), os.X_OK):
            return []
        return [Issue("command.run", "no such program", program)]

    def notes(self, spec: RunSpec) -> list[str]:
        """Return notes on keys that do not reach the trainer."""
        try:
            return template.unused(spec, CommandOptions.read(spec))
        except (SpecError, ValueError):  # `resolve` and `check` report the issues
            return []

    def jobs(self, spec: RunSpec) -> int:
        """Return how many runs this machine can execute at a time, by its GPUs or else its cores."""
        options = CommandOptions.of(spec)
        if options.gpus:
            return max(1, len(visible_gpus()) // options.gpus)
        return max(1, (os.cpu_count() or 1) // options.cores)

    def needs(self, spec: RunSpec) -> Needs:
        """Return the cores and GPUs of a run: the values of ``command.cpus`` and ``command.gpus``."""
        options = CommandOptions.of(spec)
        return Needs(options.cores, options.gpus)

    def when_stopped(self, spec: RunSpec) -> str:
        """Return from where the runs continue, because a trainer saves no state when it ends."""
        if CommandOptions.of(spec).checkpoints:
            return "runs end, and continue from the last checkpoint of the trainer"
        return "runs end, and start again at step 0 because command.checkpoints is not set"

    def outlook(self, runs: Sequence[RunSpec], folder: Callable[[RunSpec], Path], nodes: int = 1) -> Outlook:
        """Return the command of each run; the names of several machines are not known yet."""
        from isolaw.backends.command.training import next_attempt

        commands = []
        for spec in runs:
            options = CommandOptions.of(spec)
            out, updates, checkpoint = next_attempt(folder(spec), options)
            values = template.values_of(spec, options, str(out), checkpoint, updates, ["localhost"] * nodes)
            if nodes > 1:
                values |= {name: f"{{{name}}}" for name in ("node_list", "head_address")}
            command = template.command_of(options, values)
            commands.append(
                {
                    "run_id": spec.run_id,
                    "run": f"{_configuration(spec)}: {spec.steps:,} steps",
                    "folder": options.folder,
                    "words": list(command.words),
                    "environment": dict(command.environment),
                    "line": command.line,
                }
            )
        return Outlook(commands=commands)

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Train with the command from the start or from ``ctx.state``; yield the checkpoints in its log."""
        from isolaw.backends.command.training import train

        return train(spec, ctx)


BACKEND = _CommandBackend()


def is_trained(folder: Path) -> bool:
    """Return whether a script has finished training the run in this folder."""
    from isolaw.backends.command.training import ENDED_FILE

    return any(folder.glob(f"*/{ENDED_FILE}"))


def script(spec: RunSpec, folder: Path, sweep_directory: Path) -> list[str]:
    """Return the lines of a script that trains a run, and that works if the sweep's folder is moved first.

    The script's function ``begin PLACE FOLDER`` sets ``$out`` to the folder below the sweep in which the run
    continues.
    """
    from isolaw.backends.command import training

    options = CommandOptions.of(spec)
    out, updates, checkpoint = training.choose_attempt(folder, options)
    (out / training.BEGUN_FILE).unlink(missing_ok=True)
    out_marker = "@isolaw-out@"  # replaced by $out when words are quoted

    def quoted(word: str) -> str:
        pieces = (shlex.quote(piece) if piece else "" for piece in word.split(out_marker))
        return '"$ISOLAW_OUT"'.join(pieces) or "''"

    resume = checkpoint and out_marker + checkpoint.removeprefix(str(out))
    values = template.values_of(spec, options, out_marker, resume, updates)
    command = template.command_of(options, values, quoted)
    environment = {key: value for key, value in command.environment.items() if key != "ISOLAW_OUT"}
    return [
        f"# {_configuration(spec)}: {spec.steps:,} steps",
        f"begin {shlex.quote(str(out.relative_to(sweep_directory)))} {shlex.quote(options.folder or '.')}",
        'export ISOLAW_OUT="$out"',
        *(f"export {key}={quoted(value)}" for key, value in environment.items()),
        f'{" ".join(map(quoted, command.words))} >>"$out/{training.OUTPUT_FILE}" 2>&1',
    ]


def _configuration(spec: RunSpec) -> str:
    return f"B_p = {spec.problems_per_batch}, n = {spec.rollouts_per_problem}, seed {spec.seed}"
