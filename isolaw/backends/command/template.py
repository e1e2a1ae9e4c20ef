"""What a run asks becomes a command: its placeholders filled in, and environment variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from isolaw.backends.command.options import CommandOptions
from isolaw.config import RunSpec
from isolaw.errors import Issue, nearest

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
# Keys of the recipe that say how isolaw computes the lr, and that no trainer is given.
_OURS = ("lr", "lr_scaling", "algorithm")


@dataclass(frozen=True)
class Command:
    """What isolaw starts: words, and what it adds to the environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def line(self) -> str:
        """The command as one types it in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])


def lr_of(spec: RunSpec) -> float | None:
    """Return the run's own lr (`RunSpec.lr_factor`); None: the trainer's."""
    return None if spec.recipe.lr is None else spec.recipe.lr * spec.lr_factor


def values_of(spec: RunSpec, options: CommandOptions, out: str, checkpoint: str = "") -> dict[str, str]:
    """Return the placeholders' values; a key of the recipe that the sweep leaves open has none.

    ``every`` divides the horizon that the sweep began with into ``evaluation.points`` parts, so that a
    longer horizon leaves it as it is.
    """
    end = spec.evaluation.end or spec.compute
    values = {
        "B_p": spec.problems_per_batch,
        "n": spec.rollouts_per_problem,
        "B": spec.batch_rollouts,
        "steps": spec.steps,
        "seed": spec.seed,
        "out": out,
        "resume": checkpoint,
        "every": max(1, end // spec.batch_rollouts // spec.evaluation.points),
        "gpus": options.gpus,
        "lr": lr_of(spec),
        **{key: value for key, value in spec.recipe.chosen().items() if key not in _OURS},
    }
    return {name: _text(value) for name, value in values.items() if value is not None}


def command_of(options: CommandOptions, values: Mapping[str, str]) -> Command:
    """Return the command of a run with these values of its placeholders.

    They become whole words or parts of one, whatever they hold; a line for a shell gets them quoted.
    """
    environment = {f"ISOLAW_{name.upper()}": value for name, value in values.items()}
    if options.shell:
        assert isinstance(options.run, str)
        line = fill(options.run, {name: shlex.quote(value) for name, value in values.items()})
        return Command(("/bin/sh", "-c", line), environment)
    words = shlex.split(options.run) if isinstance(options.run, str) else options.run
    return Command(tuple(fill(word, values) for word in words), environment)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled in; ``{{`` and ``}}`` are braces.

    >>> fill("--n={n} {{x}}", {"n": "8"})
    '--n=8 {x}'
    """
    return _PLACE.sub(lambda found: values[found[1]] if found[1] is not None else found[0][0], text)


def issues_of(spec: RunSpec, options: CommandOptions) -> list[Issue]:
    """Return what is wrong with the command and its placeholders."""
    out: list[Issue] = []
    values = values_of(spec, options, "out")
    try:
        words = shlex.split(options.run) if isinstance(options.run, str) else list(options.run)
    except ValueError as error:
        return [Issue("command.run", str(error), options.run, "a line whose quotes are closed")]
    if not words or not words[0].strip():
        return [Issue("command.run", found=options.run, accepted="a command that trains")]
    if options.shell and not isinstance(options.run, str):
        out.append(Issue("command.shell", "a shell takes one line", options.run, "command.run as a line"))
    for key, texts in {"run": words, "log": [options.log or ""]}.items():
        for name in (found[1] for text in texts for found in _PLACE.finditer(text) if found[1] is not None):
            if name not in values:
                known = type(spec.recipe).model_fields
                message = f"{{{name}}} has no value: set recipe.{name}" if name in known else ""
                accepted = "" if message else ", ".join(f"{{{own}}}" for own in values)
                out.append(Issue(f"command.{key}", message, f"{{{name}}}", accepted, nearest(name, values)))
    return out


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
