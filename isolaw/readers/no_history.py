"""Files without a training history: empty files, consoles that end before the first step, evaluations."""

from __future__ import annotations

import re
from pathlib import Path

from isolaw.readers import frameworks
from isolaw.readers.containers.printed_config import PrintedArguments, PrintedConfig
from isolaw.readers.text_lines import clean, is_text, unprefixed

_LOGS = {".wandb", ".jsonl", ".log", ".out", ".csv"}
_CONSOLES = {".log", ".out", ".txt", ".err", ".stdout", ""}
# Lines that veRL prints before its first step.
_VERL_BEGINS = (b"Checkpoint tracker file does not exist", b"Training Progress:")
# The first keys of verifiers' `results.jsonl` (0.1) and `traces.jsonl` (0.4).
_ROLLOUT = re.compile(rb'\s*\{(?="(?:example_id|id|env)":)')
_KEYS = ((b'"example_id":', b'"completion":', b'"reward":'), (b'"env":', b'"task":', b'"traces":'))
# Words that only printed configurations contain, in any of their forms.
_SIGNS = (b"actor_rollout_ref", b"num_generations=", b"- arguments -", b"worker")


def reason(path: Path, head: bytes) -> tuple[str, str] | None:
    """Return why a file that no container reads is a run without history, and the framework of the run.

    Returns None for any other file. ``head`` is the beginning of the file.
    """
    if not head:
        empty = path.suffix.lower() in _LOGS or "tfevents" in path.name or path.name == "trainer_state.json"
        return ("the file is empty", "") if empty else None
    if (
        _ROLLOUT.match(head)
        and b'"step":' not in head
        and any(all(k in head for k in keys) for keys in _KEYS)
    ):
        return "the lines are rollouts of one evaluation by verifiers, without training steps", "verifiers"
    if path.suffix.lower() not in _CONSOLES or not is_text(head):
        return None
    if all(sign in head for sign in _VERL_BEGINS):
        return "training began, but no step was logged", "veRL"
    if not any(sign in head for sign in _SIGNS):
        return None
    printed, arguments = PrintedConfig(), PrintedArguments()
    for line in head.replace(b"\r", b"\n").split(b"\n"):
        worker, text = unprefixed(clean(line))
        printed.add(worker, text)
        arguments.add(text)
    printed.close()
    framework = frameworks.find((), {**printed.command, **printed.config, **arguments.config})
    if framework is None:
        return None
    return "it has a configuration, but logged no step", framework.name
