"""What a run asks becomes a command: placeholders, environment variables, and the framework's settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from isolaw.backends.command import adapters
from isolaw.backends.command.adapters.base import Adapter, Asked
from isolaw.backends.command.options import CommandOptions
from isolaw.config import RunSpec
from isolaw.errors import Issue, nearest
from isolaw.readers.frameworks import FRAMEWORKS

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
# Keys of the recipe that `Asked` has by name, or that say how isolaw itself computes one.
_ASKED = ("lr", "temperature", "max_response_tokens", "lr_scaling", "algorithm")


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


def adapter_of(options: CommandOptions) -> Adapter | None:
    """Return the framework's adapter; None where ``run`` says it all: in no framework, or one without."""
    name = options.framework
    if name == "none" or (name not in adapters.NAMES and name.lower() in map(str.lower, FRAMEWORKS)):
        return None
    return adapters.get(name)


def asked_of(spec: RunSpec, options: CommandOptions, out: str) -> Asked:
    """Return what a run asks of its trainer.

    ``every`` divides the horizon that the sweep began with into ``evaluation.points`` parts, so that a
    longer horizon leaves it as it is.
    """
    chosen, end = spec.recipe.chosen(), spec.evaluation.end or spec.compute
    return Asked(
        spec.problems_per_batch,
        spec.rollouts_per_problem,
        spec.steps,
        spec.seed,
        out,
        max(1, end // spec.batch_rollouts // spec.evaluation.points),
        options.gpus,
        lr=None if spec.recipe.lr is None else spec.recipe.lr * spec.lr_factor,
        temperature=spec.recipe.temperature,
        max_response_tokens=spec.recipe.max_response_tokens,
        recipe={key: value for key, value in chosen.items() if key not in _ASKED},
        given={key: _text(value) for key, value in options.settings.items()},
    )


def values_of(asked: Asked, checkpoint: str = "") -> dict[str, str]:
    """Return the placeholders' values; a key of the recipe that the sweep leaves open has none."""
    values = {
        "B_p": asked.problems_per_batch,
        "n": asked.rollouts_per_problem,
        "B": asked.batch_rollouts,
        "steps": asked.steps,
        "seed": asked.seed,
        "out": asked.out,
        "resume": checkpoint,
        "every": asked.every,
        "gpus": asked.gpus,
        "lr": asked.lr,
        "temperature": asked.temperature,
        "max_response_tokens": asked.max_response_tokens,
        **asked.recipe,
    }
    return {name: _text(value) for name, value in values.items() if value is not None}


def command_of(options: CommandOptions, asked: Asked, checkpoint: str = "") -> Command:
    """Return the command of a run that begins, or continues from a checkpoint.

    Placeholders become whole words or parts of one, whatever their values hold; a line for a shell gets them
    quoted. The framework's settings follow as words, the user's own in place of isolaw's.
    """
    values, adapter = values_of(asked, checkpoint), adapter_of(options)
    environment = {f"ISOLAW_{name.upper()}": value for name, value in values.items()}
    more: list[str] = []
    if adapter is not None:
        settings = {**adapter.settings(asked), **(adapter.resume(asked, checkpoint) if checkpoint else {})}
        more = adapter.arguments({**settings, **options.settings})
        environment |= adapter.environment(asked)
    if options.shell:
        assert isinstance(options.run, str)
        line = fill(options.run, {name: shlex.quote(value) for name, value in values.items()})
        # "$@" of the line are the framework's settings, and stand at its end unless the line uses them.
        line = line if "$@" in line or not more else f'{line} "$@"'
        return Command(("/bin/sh", "-c", line, "sh", *more), environment)
    words = shlex.split(options.run) if isinstance(options.run, str) else options.run
    return Command((*(fill(word, values) for word in words), *more), environment)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled in; ``{{`` and ``}}`` are braces.

    >>> fill("--n={n} {{x}}", {"n": "8"})
    '--n=8 {x}'
    """
    return _PLACE.sub(lambda found: values[found[1]] if found[1] is not None else found[0][0], text)


def issues_of(spec: RunSpec, options: CommandOptions, asked: Asked) -> list[Issue]:
    """Return what is wrong with the command's placeholders and what the framework cannot be asked."""
    out: list[Issue] = []
    values, adapter = values_of(asked), adapter_of(options)
    try:
        words = shlex.split(options.run) if isinstance(options.run, str) else list(options.run)
    except ValueError as error:
        return [Issue("command.run", str(error), options.run, "a line whose quotes are closed")]
    if not words or not words[0].strip():
        return [Issue("command.run", found=options.run, accepted="a command that trains")]
    if options.shell and not isinstance(options.run, str):
        out.append(Issue("command.shell", "a shell takes one line", options.run, "command.run as a line"))
    used: set[str] = set()
    for key, texts in {"run": words, "log": [options.log or ""]}.items():
        for name in (found[1] for text in texts for found in _PLACE.finditer(text) if found[1] is not None):
            used.add(name)
            if name not in values:
                known = type(spec.recipe).model_fields
                message = f"{{{name}}} has no value: set recipe.{name}" if name in known else ""
                accepted = "" if message else ", ".join(f"{{{own}}}" for own in values)
                out.append(Issue(f"command.{key}", message, f"{{{name}}}", accepted, nearest(name, values)))
    if adapter is not None and not out:
        for name in asked.recipe.keys() - adapter.recipe - used:
            accepted = ", ".join(sorted(adapter.recipe)) or "no key"
            message = f"isolaw does not know what {adapter.name} calls it; use {{{name}}} in command.run"
            out.append(Issue(f"recipe.{name}", message, asked.recipe[name], accepted))
        out += adapter.issues(asked)
    return out


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
