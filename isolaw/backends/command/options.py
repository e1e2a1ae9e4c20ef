"""The ``[command]`` section: which command trains, in which framework, and when to stop it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from isolaw.backends.command.adapters import ADAPTERS, Adapter
from isolaw.config import Positive, RunSpec
from isolaw.config.sections import Count, Index, Text, listed
from isolaw.documents.validation import parse_section
from isolaw.errors import Issue, SpecError
from isolaw.readers.frameworks import FRAMEWORKS

# The keys that decide what is trained; the others decide where, and how isolaw follows it.
IDENTITY = ("run", "shell", "framework", "evaluation_set")
NOT_FINITE = "nan"  # of ``stop_if``: any value of the log is NaN or infinite
_CONDITION = re.compile(r"\s*(\S+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*")


def _condition(text: str) -> str:
    found = _CONDITION.fullmatch(text)
    with contextlib.suppress(ValueError):
        if text == NOT_FINITE or (found and float(found[3]) is not None):
            return text
    raise ValueError("'nan', or a metric, a comparison and a number, as in 'train/reward < 0.01'")


def _framework(name: str) -> str:
    """Accept a framework with an adapter or whose logs isolaw reads, in any case."""
    names = dict.fromkeys(["none", *ADAPTERS, *FRAMEWORKS])
    known = {own.lower(): own for own in names}
    if name.lower() not in known:
        raise ValueError(", ".join(names))
    return known[name.lower()]


Conditions = Annotated[tuple[Annotated[str, AfterValidator(_condition)], ...], BeforeValidator(listed)]


class CommandOptions(BaseModel):
    """The ``[command]`` section. `template.values_of` lists the placeholders.

    Where the framework has an adapter, its settings follow the command, or stand where ``{settings}`` does,
    unless the command itself names ``{n}`` or ``{B_p}``. The adapter then knows the log and the checkpoints.
    Otherwise, without a ``log`` isolaw reads what the command prints: in no framework, JSON lines.
    ``checkpoints`` is the pattern of a finished checkpoint below the run's folder, with ``{step}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    run: Annotated[tuple[str, ...] | Text, Field(min_length=1)]  # a line, or its words
    shell: bool = False  # whether /bin/sh gets the line
    framework: Annotated[str, AfterValidator(_framework)] = "none"  # whose log it is
    log: Text | None = None
    checkpoints: Text | None = None
    evaluation_set: Text = "validation"  # what the log's evaluations without a name are on
    files: Annotated[tuple[Text, ...], BeforeValidator(listed)] = ()  # their content is part of the identity
    folder: Text | None = None  # where the command executes; by default, where the sweep was started
    cpus: Count = 1
    gpus: Index = 0
    micro_batch: Count | None = None  # rollouts of a GPU and a pass, where the framework asks for them
    stop_if: Conditions = ()  # a run ends, failed, where one of these holds
    silent_minutes: Positive = 60.0  # a run ends, failed, when its log has no new step for so long
    limit_hours: Positive | None = None  # of one run

    @classmethod
    def read(cls, spec: RunSpec) -> CommandOptions:
        """Return the section of an unresolved spec; raise `SpecError` with everything wrong with it."""
        if "run" not in spec.options:
            accepted = "the command that trains, as in 'bash train.sh'"
            raise SpecError([Issue("command.run", "missing", accepted=accepted)])
        own = parse_section(cls, spec.options, prefix="command")
        folder = str(Path(own.folder or ".").absolute())
        return own.model_copy(update={"folder": folder})

    @classmethod
    def of(cls, spec: RunSpec) -> CommandOptions:
        """Return the section of a resolved spec."""
        own = {key: value for key, value in spec.sources.items() if key in cls.model_fields}
        options = {key: value for key, value in spec.options.items() if key in cls.model_fields}
        out = cls.model_validate({**own, **options})
        if adapter := out.adapter:
            log, checkpoints = out.log or adapter.log, out.checkpoints or adapter.checkpoints
            out = out.model_copy(update={"log": log, "checkpoints": checkpoints})
        return out

    @property
    def adapter(self) -> Adapter | None:
        """The adapter whose settings the command gets, if it gets any."""
        text = self.run if isinstance(self.run, str) else " ".join(self.run)
        says_it_itself = "{settings}" not in text and ("{n}" in text or "{B_p}" in text)
        return None if says_it_itself else ADAPTERS.get(self.framework)

    def split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is part of a run's identity, defaults left out, and the other keys."""
        chosen = self.model_dump(mode="json", exclude_defaults=True)
        identity = {key: value for key, value in chosen.items() if key in IDENTITY}
        return identity, {key: value for key, value in chosen.items() if key not in IDENTITY}

    def path(self, name: str) -> Path:
        """Return a path of the section: relative ones begin where the command executes."""
        return Path(os.path.join(self.folder or ".", name))


def holds(condition: str, values: dict[str, float]) -> bool:
    """Return whether a condition of ``stop_if`` holds for the values of a step, by ``eval_set/metric``.

    >>> holds("train/reward < 0.01", {"train/reward": 0.0}), holds("train/kl >= 1", {"train/reward": 0.0})
    (True, False)
    """
    if condition == NOT_FINITE:
        return False  # such a value is not among them
    found = _CONDITION.fullmatch(condition)
    assert found
    value, limit = values.get(found[1]), float(found[3])
    if value is None:
        return False
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[found[2]]
