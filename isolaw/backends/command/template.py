"""Build the command of a run: fill in its placeholders, and set environment variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isolaw.backends.command.adapters import plain_name
from isolaw.backends.command.options import CommandOptions
from isolaw.config import RunSpec
from isolaw.errors import Issue, nearest
from isolaw.files import open_file

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_SETTINGS = "{settings}"
_SCRIPT_BYTES = 2**20  # bytes of a file that may be code
_LR_KEYS = ("lr", "lr_scaling")  # recipe keys that determine the lr
# Keys of the sweep file that describe the run to isolaw. A command cannot get them.
_DESCRIPTION_KEYS = {
    "problems": ("difficulty", "n_train", "n_validation"),
    "evaluation": ("metrics", "samples", "sets"),
}


@dataclass(frozen=True)
class Invocation:
    """The command that isolaw starts: its words, and additional environment variables."""

    words: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def line(self) -> str:
        """Command as a line that a user could enter in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])


def lr_of(spec: RunSpec) -> float | None:
    """Return the learning rate of a run, scaled to its batch size (`RunSpec.lr_factor`).

    Return None if the recipe sets no lr; the trainer then uses its own default.
    """
    return None if spec.recipe.lr is None else spec.recipe.lr * spec.lr_factor


def values_of(
    spec: RunSpec,
    options: CommandOptions,
    out: str,
    checkpoint: str = "",
    done: int = 0,
    nodes: Sequence[str] = ("localhost",),
    address: str = "127.0.0.1",
) -> dict[str, str]:
    """Return the values of the placeholders; recipe keys that the sweep does not set have no value.

    ``resume`` is the checkpoint, which has ``done`` updates. ``every`` divides the run's horizon into
    ``evaluation.points`` parts. For an extended run, it divides the original horizon instead, so that
    extensions do not change ``every``. In a race, the original horizon is the horizon of the initial, shorter
    runs. ``nodes`` are the names of the run's machines; the others reach the first one at ``address``, where
    the command starts. ``micro_batch`` and ``accumulation`` satisfy
    ``micro_batch · accumulation · devices = B``, where a device is a GPU or, without GPUs, a machine.
    """
    end = min(spec.evaluation.end or spec.compute, spec.compute)
    micro_batch, accumulation = _micro_batches(spec, options, options.gpus or len(nodes))
    values = {
        "B_p": spec.problems_per_batch,
        "n": spec.rollouts_per_problem,
        "B": spec.batch_rollouts,
        "steps": spec.steps,
        "seed": spec.seed,
        "out": out,
        "resume": checkpoint,
        "done": done,
        "every": max(1, end // spec.batch_rollouts // spec.evaluation.points),
        "gpus": options.gpus,
        "cpus": options.cores,
        "nodes": len(nodes),
        "node_list": ",".join(nodes),
        "head_address": address,
        "gpus_per_node": options.gpus // len(nodes) or None,
        "algorithm": spec.recipe.algorithm,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "lr": lr_of(spec),
        **{key: value for key, value in spec.recipe.chosen().items() if key not in _LR_KEYS},
    }
    return {name: _as_text(value) for name, value in values.items() if value is not None}


def _micro_batches(spec: RunSpec, options: CommandOptions, devices: int) -> tuple[int | None, int | None]:
    """Return the rollouts per device and pass, and the number of passes, or None if B has no such split.

    A device is a GPU or, without GPUs, a machine. By default, a pass has at most 8 rollouts per device.
    """
    per_device, remainder = divmod(spec.batch_rollouts, devices)
    if remainder:
        return None, None
    micro_batch = options.micro_batch or next(
        divisor for divisor in range(min(8, per_device), 0, -1) if per_device % divisor == 0
    )
    return (micro_batch, per_device // micro_batch) if per_device % micro_batch == 0 else (None, None)


def command_of(
    options: CommandOptions, values: Mapping[str, str], quote: Callable[[str], str] = shlex.quote
) -> Invocation:
    """Return the command of a run with the given values of its placeholders.

    A value never splits into several words, even if it contains spaces. In a shell line, values are quoted.
    """
    environment = {f"ISOLAW_{name.upper()}": value for name, value in values.items()}
    settings: list[str] = []
    if adapter := options.adapter:
        of_run = adapter.settings(bool(values["resume"]), values, adapter.settings_in(words_of(options)))
        settings = adapter.words({name: value and fill(value, values) for name, value in of_run.items()})
    if options.shell:
        assert isinstance(options.run, str)
        line = options.run if _SETTINGS in options.run or not settings else f"{options.run} {_SETTINGS}"
        quoted = {name: quote(value) for name, value in values.items()}
        quoted["settings"] = " ".join(map(quote, settings))
        return Invocation(("/bin/sh", "-c", fill(line, quoted)), environment)
    words = words_of(options)
    if settings and _SETTINGS not in words:
        words.append(_SETTINGS)
    word_lists = (settings if word == _SETTINGS else [fill(word, values)] for word in words)
    return Invocation(tuple(word for words in word_lists for word in words), environment)


def words_of(options: CommandOptions) -> list[str]:
    """Return the command's words, with placeholders; raise `ValueError` if a quotation mark is not closed."""
    return shlex.split(options.run) if isinstance(options.run, str) else list(options.run)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled in; ``{{`` and ``}}`` become single braces.

    >>> fill("--n={n} {{x}}", {"n": "8"})
    '--n=8 {x}'
    """
    return _FIELD.sub(lambda match: values[match[1]] if match[1] is not None else match[0][0], text)


def issues_of(spec: RunSpec, options: CommandOptions) -> list[Issue]:
    """Return the issues of the command and its placeholders."""
    out: list[Issue] = []
    values = values_of(spec, options, "out")
    try:
        words = words_of(options)
    except ValueError as error:
        return [Issue("command.run", str(error), options.run, "a line whose quotes are closed")]
    if not words or not words[0].strip():
        return [Issue("command.run", found=options.run, accepted="a training command")]
    out += _issues_of_settings(spec, options, values)
    if options.adapter and options.shell:
        values["settings"] = ""
    elif options.adapter:
        words = [word for word in words if word != _SETTINGS]  # allowed only as a separate word
    if options.shell and not isinstance(options.run, str):
        out.append(Issue("command.shell", "a shell accepts one line", options.run, "command.run as a line"))
    for key, texts in {"run": words, "log": [options.log or ""]}.items():
        for name in (match[1] for text in texts for match in _FIELD.finditer(text) if match[1] is not None):
            if name not in values:
                recipe_fields = type(spec.recipe).model_fields
                message = f"{{{name}}} has no value: set recipe.{name}" if name in recipe_fields else ""
                accepted = "" if message else ", ".join(f"{{{value}}}" for value in values)
                out.append(Issue(f"command.{key}", message, f"{{{name}}}", accepted, nearest(name, values)))
    return out


def _issues_of_settings(spec: RunSpec, options: CommandOptions, values: Mapping[str, str]) -> list[Issue]:
    """Return the issues of settings that the framework's adapter sets itself or cannot express."""
    out = []
    if spec.recipe.lr is None and spec.recipe.lr_scaling != type(spec.recipe)().lr_scaling:
        message = "without recipe.lr, the trainer's own lr applies to every batch"
        out.append(Issue("recipe.lr_scaling", message, spec.recipe.lr_scaling, "a recipe.lr"))
    if not (adapter := options.adapter):
        return out
    words = words_of(options)
    in_command, recipe_keys = adapter.settings_in(words), spec.recipe.chosen()
    for name in map(plain_name, {**adapter.always, **adapter.resumed, **adapter.fresh}):
        if name in in_command:
            message = f"isolaw sets {name}: leave it out, or pass all options with placeholders such as {{n}}"
            out.append(Issue("command.run", message, in_command[name]))
    for name, (pattern, reason) in adapter.refused_values.items():
        if name in in_command and re.fullmatch(pattern, in_command[name].strip("\"'")):
            out.append(Issue("command.run", f"leave out {name}: {reason}", in_command[name]))
    for key in recipe_keys:
        name, pattern, reason = adapter.conflicts.get(key, ("", "", ""))
        if key not in _LR_KEYS and key not in adapter.recipe and f"{{{key}}}" not in " ".join(words):
            message = (
                f"isolaw knows no {options.framework} option for this key; pass {{{key}}} in command.run"
            )
            out.append(Issue(f"recipe.{key}", message, values[key]))
        elif name in in_command and re.fullmatch(pattern, in_command[name]):
            out.append(Issue(f"recipe.{key}", f"with {name} = {in_command[name]}, {reason}", values[key]))
    for key, (minimum, reason) in adapter.minimums.items():  # `recipe_keys` omits a staleness of 0
        if (value := getattr(spec.recipe, key)) is not None and value < minimum:
            out.append(Issue(f"recipe.{key}", reason, value, f"at least {minimum:g}"))
    if "micro_batch" not in values and any(setting == "{micro_batch}" for setting in adapter.always.values()):
        b, n, gpus = spec.problems_per_batch, spec.rollouts_per_problem, max(options.gpus, 1)
        batch = f"B_p = {b}, n = {n}: {b * n} rollouts on {gpus} device{'s' * (gpus > 1)}"
        in_passes = f", in passes of {options.micro_batch}" if options.micro_batch else ""
        out.append(Issue("command.micro_batch", "", batch + in_passes, "sizes that divide B_p · n"))
    return out


def unused(spec: RunSpec, options: CommandOptions) -> list[str]:
    """Return notes on keys of the sweep file that the command does not get, or gets only as a variable."""
    out = []
    unused_keys = [
        f"{section}.{key}"
        for section, keys in _DESCRIPTION_KEYS.items()
        for key in keys
        if getattr(getattr(spec, section), key) != type(getattr(spec, section)).model_fields[key].default
    ]
    text = " ".join(words_of(options))
    adapter_values = options.adapter.always.values() if options.adapter else ()
    if options.micro_batch and not any("{micro_batch}" in str(value) for value in (text, *adapter_values)):
        unused_keys.append("command.micro_batch")
    if unused_keys:
        out.append(f"the command does not get {', '.join(unused_keys)}; its own configuration decides")
    if options.adapter is None:
        code = text + "".join(_script_text(options.path(name)) for name in options.files)
        set_keys = [key for key in spec.recipe.chosen() if key != "lr_scaling"]
        unseen = [key for key in set_keys if f"{{{key}}}" not in text and f"ISOLAW_{key.upper()}" not in code]
        if unseen:
            keys = ", ".join(f"recipe.{key} as ISOLAW_{key.upper()}" for key in unseen)
            out.append(f"the command gets these keys only as environment variables: {keys}")
    return out


def _script_text(path: Path) -> str:
    """Return the beginning of a file, or an empty string."""
    try:
        with open_file(path) as file:
            return file.read(_SCRIPT_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
