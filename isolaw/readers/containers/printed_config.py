"""Configurations that a trainer prints to its console, and the command that started it.

`PrintedConfig`: veRL prints a Python dictionary of several hundred lines with `pprint`, and EasyR1 prints
JSON or YAML. Shell scripts under ``set -x`` print commands such as
``python3 -m verl.trainer.main_ppo data.train_batch_size=512 …``, and Hydra prints the overrides of a run that
fails. Ray prefixes each line, and prints lines of other workers between them.

`PrintedArguments`: the Trainer prints the sizes of a batch, such as ``Total optimization steps = 1,875``. The
Trainer and Megatron print one argument per line::

    GRPOConfig(                          ------------------------ arguments ------------------------
    num_generations=8,                     rollout_batch_size .............................. 32
    per_device_train_batch_size=4,         …
    )                                    -------------------- end of arguments ---------------------

Only literals are read, and nothing is evaluated.
"""

from __future__ import annotations

import ast
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from isolaw.errors import DataError
from isolaw.readers.configs import flatten, overrides
from isolaw.readers.literals import literal, loads, parse_yaml
from isolaw.readers.raw_log import RawLog

_MIN_KEYS = 8  # keys; model output can contain small dictionaries, but a configuration is large
_LONGEST_CONFIG = 250_000  # characters; veRL's configuration has 25,000
_MOST_ATTEMPTS = 10_000  # dictionaries and commands; a configuration is among the first of them
_MOST_BETWEEN = 10_000  # lines of other output inside a dictionary, such as the states of a progress bar
# As printed by a shell, or as a Python list: ['python3', '-m', 'verl.trainer.main_ppo', 'a.b=1'].
_COMMAND = re.compile(
    r"""\bpython[\d.]*['",\s]+(?:-\w+['",\s]+)*-m['",\s]+[\w.]*(?:verl|recipe|dapo|ppo)[\w.]*['"]?([,\s])"""
)
_HYDRA_FAILURE = "Error executing job with overrides: ["
_QUOTED_OVERRIDE = re.compile(r"""(['"])([+~]{0,2}[A-Za-z_][\w./@-]*=.*?)\1""")
_SECTION = re.compile(r"(?:actor_rollout_ref|algorithm|critic|data|ray_init|reward_model|trainer|worker):$")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
# What a line of a dictionary consists of, up to a place where the line can end.
_DICT_CONTENT = re.compile(
    r"""(?:\s|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|-?[\d.]++(?:e[-+]?\d++)?|None|True|False|nan|inf"""
    r"""|null|true|false|NaN|Infinity|[\[\](){},:])++"""
)
_DICT_LINE = re.compile(r"[ \t}]")  # pprint and json.dumps indent all lines except the first
# pprint writes a token at a time, and each can arrive as a line of its own, without indentation.
_TOKEN = re.compile(r"""[{}\[\]()'",:\d-]|None|True|False""")
_VERL_DICT = re.compile(r"\{'(?:actor_rollout_ref|algorithm)'")
_YAML_LINE = re.compile(r"(?:\s+|- |#|[\w.]+:(?:\s|$))")
_MOST_AMONG_ARGUMENTS = 50  # lines of other output, or of a value that spans several lines
_CLASS_CALL = re.compile(r"\w{0,60}(?:Config|Arguments)\($")
_KEYWORD = re.compile(r"(\w{1,60})=(.{0,500}),$")
_TITLE = re.compile(r"-{9,40} (end of )?arguments -{9,40}$")
_DOTTED_ARGUMENT = re.compile(r" {0,4}(\w{1,60}) \.{2,60} (.{0,300})$")
_MODEL = re.compile(r"\bmodel_name_or_path='([^']{1,300})'")
# The banners of the Trainer and of Unsloth.
_KEY_OF_SIZE = {
    "batch size per device": "per_device_train_batch_size",
    "gradient accumulation steps": "gradient_accumulation_steps",
    "data parallel gpus": "world_size",
    "total batch size": "total_train_batch_size",
    "total train batch size": "total_train_batch_size",
    "total steps": "total_steps",
    "total optimization steps": "total_steps",
}
_PRINTED_SIZE = re.compile(rf"\b({'|'.join(_KEY_OF_SIZE)})(?: \([^()]{{1,60}}\))? = (\d[\d,]{{0,15}})", re.I)
_TRAINER_KEY = "per_device_train_batch_size"  # a model's arguments do not contain this key


class PrintedConfig:
    """Collects printed configurations line by line, one configuration at a time."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.command: dict[str, Any] = {}
        self.is_torn = False  # whether a configuration could not be read
        self._form = ""  # form of the current configuration: "dict", "yaml" or "command"
        self._worker = ""
        self._lines: list[str] = []
        self._size = self._open_brackets = self._other_lines = self._attempts = 0

    def add(self, worker: str, line: str) -> None:
        """Process the next line of a worker, cleaned and without Ray's prefix."""
        if self._form:
            if worker != self._worker:
                return  # an interleaved line of another worker
            if self._continues(line):
                self._add_line(_trimmed(line) if self._form == "dict" else line)
                return
            if self._form == "dict" and self._other_lines < _MOST_BETWEEN and not _config_form(line):
                self._other_lines += 1  # other output inside the configuration
                return
            self.close()
        form = _config_form(line) if self._attempts < _MOST_ATTEMPTS else ""
        if form:
            self._attempts += 1
            self._form, self._worker = form, worker
            self._add_line(line)

    def close(self) -> None:
        """Parse the lines collected so far as a configuration."""
        text, form, is_complete = "\n".join(self._lines), self._form, self._open_brackets <= 0
        self._reset()
        if form == "command":
            self.command = _parse_command(text) or self.command
        elif form and is_complete and text.count(":") >= _MIN_KEYS:
            config = _parse_config(text, form)
            if len(config) >= _MIN_KEYS:
                self.config = config
        self.is_torn = self.is_torn or (form == "dict" and not self.config and bool(_VERL_DICT.match(text)))

    @property
    def is_collecting(self) -> bool:
        """True if the next line can continue the current configuration."""
        return bool(self._form)

    def _add_line(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        if self._size > _LONGEST_CONFIG:
            self._reset()
        elif self._form == "dict":
            counts = Counter(_STRING.sub("", line))  # strings do not span lines
            self._open_brackets += sum(counts[c] for c in "{[(") - sum(counts[c] for c in "}])")
            if self._open_brackets <= 0:
                self.close()

    def _reset(self) -> None:
        self._lines, self._form = [], ""
        self._size = self._open_brackets = self._other_lines = 0

    def _continues(self, line: str) -> bool:
        if self._form == "command":
            return self._lines[-1].endswith("\\")
        if self._form == "yaml":
            return bool(_YAML_LINE.match(line))
        is_broken = not self._lines[-1].rstrip().endswith(",") and not _VERL_DICT.match(line)
        return bool(_DICT_LINE.match(line) or (is_broken and _TOKEN.match(line)))


def _trimmed(line: str) -> str:
    """Return a line of a dictionary without other output that was printed right after it.

    >>> _trimmed(" 'seed': 3,Filtering prompts: 0%|"), _trimmed(" 'nnodes': 1, (Worker pid=7) hello")
    (" 'seed': 3,", " 'nnodes': 1,")
    """
    printed = _DICT_CONTENT.match(line)
    if printed is None or not line[printed.end() :].lstrip()[:1].isalpha():
        return line
    end = max(printed[0].rfind(sign) for sign in ",{}[]'\"")
    return line[: end + 1]


def _config_form(line: str) -> str:
    if line.startswith(("{'", '{"')) or line == "{":
        return "dict"
    if _SECTION.match(line):
        return "yaml"
    if line.startswith(_HYDRA_FAILURE):
        return "command"
    return "command" if "python" in line and _COMMAND.search(line[:2_000]) else ""


def _parse_config(text: str, form: str) -> dict[str, Any]:
    """Return a printed dictionary with flat keys, or an empty one if the text is not a dictionary."""
    try:
        parsed = parse_yaml(text) if form == "yaml" else _python_or_json(text)
        return flatten(parsed) if isinstance(parsed, Mapping) else {}
    except DataError:
        return {}


def _python_or_json(text: str) -> Any:
    """Parse a JSON document or a Python literal; return None if the text is neither."""
    for parse in (loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return None


def _parse_command(text: str) -> dict[str, Any]:
    words = text.replace("\\\n", " ").partition("\n")[0]
    if words.startswith(_HYDRA_FAILURE):
        return overrides(word for _, word in _QUOTED_OVERRIDE.findall(words))
    match = _COMMAND.search(words)
    words = words[match.end() :] if match else ""
    if match and match[1] == ",":
        return overrides(word for _, word in _QUOTED_OVERRIDE.findall(words))
    try:
        return overrides(shlex.split(words))
    except ValueError:  # unclosed quotation mark: the command itself may be quoted
        return overrides(word.strip("'\"") for word in words.split())


def _contradict(config: Mapping[str, Any], other_config: Mapping[str, Any]) -> bool:
    """Return whether two configurations in one console have different values for the same setting.

    >>> _contradict({"n": 4, "lr": 1e-6}, {"n": 8}), _contradict({"n": 4}, {"lr": 1e-6})
    (True, False)
    """
    return any(config[key] != other_config[key] for key in config.keys() & other_config.keys())


class Settings:
    """The configuration of each stretch of a log, since a job that continues can print other settings.

    >>> log = RawLog("train.log", "example", "run")
    >>> settings = Settings(log)
    >>> for step, n in enumerate((4, 4, 8)):
    ...     settings.set_config({"n": n})
    ...     log.add({"reward": 0.5}, step)
    >>> for part in settings.parts({}, ""):
    ...     print(part.config, part.config_source)
    {'n': 4} the printed configuration before step 0
    {'n': 8} the printed configuration before step 2
    """

    def __init__(self, log: RawLog) -> None:
        self.configs, self._sources = [dict[str, Any]()], [""]
        self._log, self._begins = log, [0]

    def set_config(self, config: dict[str, Any], source: str = "") -> None:
        """State the configuration of the records that are added to the log from now on."""
        if config is self.configs[-1]:  # as at nearly every record
            return
        record = len(self._log.step)
        if record > self._begins[-1] and _contradict(self.configs[-1], config):
            self._begins.append(record)
            self.configs.append(config)
            self._sources.append(source)
        else:
            self.configs[-1], self._sources[-1] = config, source

    def parts(
        self, config: Mapping[str, Any], source: str, printed_source: str = "the printed configuration"
    ) -> Iterator[RawLog]:
        """Yield the log, in parts where the configuration changes.

        ``config`` and ``source`` are the configuration of a file, which the printed values replace.
        """
        log, has_several = self._log, len(self._begins) > 1
        parts = log.split_at(self._begins, [log.run] * len(self._begins)) if has_several else [log]
        for part, values, part_source in zip(parts, self.configs, self._sources, strict=True):
            first_step = part.step[0] if has_several and part.step else math.nan
            before = "" if math.isnan(first_step) else f" before step {first_step:g}"
            part_source = part_source or f"{printed_source}{before}"
            part.config, part.config_source = {**config, **values}, part_source if values else source
            yield part


class PrintedArguments:
    """Collects the arguments that a job prints, line by line; ``config`` has the arguments found so far.

    A job that continues with other arguments prints its arguments again.
    """

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self._arguments: dict[str, Any] = {}
        self._form: re.Pattern[str] | None = None  # form of the current arguments
        self._other_lines = 0

    @property
    def is_collecting(self) -> bool:
        """True if the next line can be an argument."""
        return self._form is not None

    def add(self, line: str) -> None:
        """Process the next line of the console, which may contain an argument."""
        if self._form:
            argument = self._form.match(line)
            if argument:
                self._arguments[argument[1]] = literal(argument[2])
                return
            self._other_lines += 1
            if line.strip() == ")" or _TITLE.match(line) or self._other_lines > _MOST_AMONG_ARGUMENTS:
                if self._form is _DOTTED_ARGUMENT or _TRAINER_KEY in self._arguments:
                    self.config = {**self.config, **self._arguments}
                self._form, self._arguments, self._other_lines = None, {}, 0
        elif line.endswith("(") and _CLASS_CALL.search(line[-80:]):
            self._form = _KEYWORD
        elif line.startswith("-----") and (title := _TITLE.match(line)) and not title[1]:
            self._form = _DOTTED_ARGUMENT
        elif "model_name_or_path=" in line and (model := _MODEL.search(line)):
            self.config.setdefault("model_name_or_path", model[1])
        elif " = " in line:
            for printed_size in _PRINTED_SIZE.finditer(line[:1_000]):
                name, value = _KEY_OF_SIZE[printed_size[1].lower()], int(printed_size[2].replace(",", ""))
                if self.config.get(name) != value:
                    self.config = {**self.config, name: value}
