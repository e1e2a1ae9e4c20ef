"""Define the ``[command]`` section: the training command, its framework, and its stop conditions."""

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

# The keys that affect the training; the other keys affect where it runs, and how isolaw follows it.
IDENTITY = ("run", "shell", "framework", "evaluation_set")
NOT_FINITE = "nan"  # condition in ``stop_if`` that holds if any value in the log is NaN or infinite
_CORES_PER_GPU = 8  # data loaders, samplers and Ray's own processes; GPU machines have 12 to 28
_STOP_CONDITION = re.compile(r"\s*(\S+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*")


def _check_condition(text: str) -> str:
    match = _STOP_CONDITION.fullmatch(text)
    with contextlib.suppress(ValueError):
        if text == NOT_FINITE or (match and float(match[3]) is not None):
            return text
    raise ValueError("'nan', or a metric, a comparison and a number, e.g. 'train/reward < 0.01'")


def _canonical_framework(name: str) -> str:
    """Return the canonical spelling of a framework that has an adapter or a log reader; case is ignored."""
    names = dict.fromkeys(["none", *ADAPTERS, *FRAMEWORKS])
    spelling_of = {label.lower(): label for label in names}
    if name.lower() not in spelling_of:
        raise ValueError(", ".join(names))
    return spelling_of[name.lower()]


_Conditions = Annotated[tuple[Annotated[str, AfterValidator(_check_condition)], ...], BeforeValidator(listed)]


class CommandOptions(BaseModel):
    """The keys of the ``[command]`` section; `template.values_of` lists the placeholders.

    If the framework has an adapter, its settings are appended to the command, or replace ``{settings}``,
    unless the command uses ``{n}`` or ``{B_p}``. The adapter then also sets the default ``log`` and
    ``checkpoints``. Otherwise, if ``log`` is not set, isolaw reads the printed output of the command, as JSON
    lines if there is no framework. ``checkpoints`` is the pattern of a finished checkpoint in the run's
    folder and contains ``{step}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    run: Annotated[tuple[str, ...] | Text, Field(min_length=1)]  # a command line, or its words
    shell: bool = False  # whether /bin/sh executes the line
    framework: Annotated[str, AfterValidator(_canonical_framework)] = "none"  # framework that writes the log
    log: Text | None = None
    checkpoints: Text | None = None
    evaluation_set: Text = "validation"  # name of the evaluation set if the log does not name it
    files: Annotated[tuple[Text, ...], BeforeValidator(listed)] = ()  # their content is part of the identity
    folder: Text | None = None  # working directory; None: the directory in which the sweep was started
    cpus: Count | None = None  # None: `_CORES_PER_GPU` for each GPU, or 1
    gpus: Index = 0  # of a run, on all its machines
    micro_batch: Count | None = None  # rollouts per GPU and pass, for frameworks that require it
    stop_if: _Conditions = ()  # a run fails as soon as one of these conditions holds
    silent_minutes: Positive = 60.0  # a run fails if its log has no new step for this long
    limit_hours: Positive | None = None  # time limit of a run

    @classmethod
    def read(cls, spec: RunSpec) -> CommandOptions:
        """Return the section of an unresolved spec; raise `SpecError` with all issues of the section."""
        if "run" not in spec.options:
            accepted = "the training command, e.g. 'bash train.sh'"
            raise SpecError([Issue("command.run", "missing", accepted=accepted)])
        section = parse_section(cls, spec.options, prefix="command")
        if section.framework != "none" and "evaluation_set" in spec.options:
            message = f"the logs of {section.framework} name their evaluation sets"
            found = section.evaluation_set
            raise SpecError([Issue("command.evaluation_set", message, found, "no such key")])
        folder = str(Path(section.folder or ".").absolute())
        return section.model_copy(update={"folder": folder})

    @classmethod
    def of(cls, spec: RunSpec) -> CommandOptions:
        """Return the section ``[command]`` of a resolved spec."""
        sources = {key: value for key, value in spec.sources.items() if key in cls.model_fields}
        options = {key: value for key, value in spec.options.items() if key in cls.model_fields}
        section = cls.model_validate({**sources, **options})
        if adapter := section.adapter:
            log, checkpoints = section.log or adapter.log, section.checkpoints or adapter.checkpoints
            section = section.model_copy(update={"log": log, "checkpoints": checkpoints})
        return section

    @property
    def cores(self) -> int:
        """Number of cores of a run, on all its machines."""
        return self.cpus or max(1, _CORES_PER_GPU * self.gpus)

    @property
    def adapter(self) -> Adapter | None:
        """Adapter that adds settings to the command, or None."""
        text = self.run if isinstance(self.run, str) else " ".join(self.run)
        has_placeholders = "{settings}" not in text and ("{n}" in text or "{B_p}" in text)
        return None if has_placeholders else ADAPTERS.get(self.framework)

    def split_by_identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the keys that are part of a run's identity, and the other keys; both omit defaults."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        identity = {key: value for key, value in values.items() if key in IDENTITY}
        return identity, {key: value for key, value in values.items() if key not in IDENTITY}

    def path(self, name: str) -> Path:
        """Return a path in the section; relative paths are relative to the command's working directory."""
        return Path(os.path.join(self.folder or ".", name))


def holds(condition: str, values: dict[str, float]) -> bool:
    """Return whether a condition of ``stop_if`` holds for the values of a step by ``eval_set/metric``.

    The condition `NOT_FINITE` is checked elsewhere, so it returns False here.

    >>> holds("train/reward < 0.01", {"train/reward": 0.0}), holds("train/kl >= 1", {"train/reward": 0.0})
    (True, False)
    """
    if condition == NOT_FINITE:
        return False  # non-finite values are not among these
    match = _STOP_CONDITION.fullmatch(condition)
    assert match
    value, limit = values.get(match[1]), float(match[3])
    if value is None:
        return False
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[match[2]]
