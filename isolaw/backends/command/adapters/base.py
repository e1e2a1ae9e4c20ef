"""`Adapter`: one framework's names for what a run asks of a trainer, and what it cannot be asked.

The contract: under the settings that an adapter writes, a step of the framework is B_p · n rollouts (B_p
distinct prompts, n completions each) and one optimiser update on all of them, the run ends after M steps, and
its log says so in what the readers read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from isolaw.errors import Issue


@dataclass(frozen=True)
class Asked:
    """What a run asks of its trainer; None: the trainer's own choice, which is not touched.

    ``out`` is the run's folder: all that the framework writes goes there. ``every`` are the steps between two
    evaluations and two checkpoints. ``gpus`` are those of a machine, of which there are ``nodes``; 0: the
    trainer runs without. ``recipe`` holds the recipe's further keys that the sweep file sets, by our names
    (``kl``, ``top_p``, …).
    """

    problems_per_batch: int
    rollouts_per_problem: int
    steps: int
    seed: int
    out: str
    every: int
    gpus: int = 0
    nodes: int = 1
    lr: float | None = None
    temperature: float | None = None
    max_response_tokens: int | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, str] = field(
        default_factory=dict
    )  # command.settings: the user's own, by the framework's names

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem


Settings = Mapping[str, "str | int | float | bool | None"]


@dataclass(frozen=True)
class Adapter:
    """How to ask one framework for a run.

    ``settings`` returns the framework's own names and values; ``style`` is how they are written on a command
    line: ``hydra`` (``a.b=1``), ``flags`` (``--a_b 1``) or ``dashes`` (``--a-b 1``); a None leaves the
    setting out. ``issues`` finds what the framework cannot do, as `Issue`s whose ``where`` is a key of the
    sweep file; a size that does not divide names the nearest sizes that do. ``recipe`` are the recipe's keys
    that ``settings`` translates; any other that a sweep file sets is refused.
    """

    name: str  # as users write it: ``veRL``
    tested: tuple[str, ...]  # versions whose own configuration was composed with these settings
    style: Literal["hydra", "flags", "dashes"]
    settings: Callable[[Asked], Settings]
    log: str  # where the framework writes what the readers read: a pattern below ``{out}``, or ``stdout``
    # Pattern of a finished checkpoint's path below ``{out}``, with a group ``step``; empty: it cannot resume.
    checkpoint: str
    resume: Callable[[Asked, str], Settings] = (
        lambda _asked, _checkpoint: {}
    )  # how to continue from a checkpoint
    environment: Callable[[Asked], Mapping[str, str]] = lambda _asked: {}
    issues: Callable[[Asked], list[Issue]] = lambda _asked: []
    recipe: frozenset[str] = frozenset()
    # What people stumble over here, in a sentence each: for the docs and ``--dry-run``.
    traps: tuple[str, ...] = ()

    def arguments(self, settings: Settings) -> list[str]:
        """Return settings as words of a command line."""
        out: list[str] = []
        for name, value in settings.items():
            if value is None:
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self.style == "hydra":
                out.append(f"{name}={text}")
            else:
                out += [f"--{name.replace('_', '-') if self.style == 'dashes' else name}", text]
        return out
