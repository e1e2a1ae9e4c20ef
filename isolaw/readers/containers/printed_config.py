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
from collections.abc import Iterator, Mapping
from typing import Any

from isolaw.errors import DataError
from isolaw.readers.configs import flatten, overrides
from isolaw.readers.literals import literal, loads, parse_yaml
from isolaw.readers.raw_log import RawLog

_FEWEST = 8  # keys; model output can contain small dictionaries, but a configuration is large
_LARGEST = 250_000  # characters; veRL's configuration has 25,000
_MOST_BEGUN = 10_000  # dictionaries and commands; a configuration is among the first of them
_FOREIGN = 10_000  # lines of other output inside a dictionary, such as the states of a progress bar
# As printed by a shell, or as a Python list: ['python3', '-m', 'verl.trainer.main_ppo', 'a.b=1'].
_COMMAND = re.compile(
    r"""\bpython[\d.]*['",\s]+(?:-\w+['",\s]+)*-m['",\s]+[\w.]*(?:verl|recipe|dapo|ppo)[\w.]*['"]?([,\s])"""
)
_FAILED = "Error executing job with overrides: ["
_LISTED = re.compile(r"""(['"])([+~]{0,2}[A-Za-z_][\w./@-]*=.*?)\1""")
_SECTION = re.compile(r"(?:actor_rollout_ref|algorithm|critic|data|ray_init|reward_model|trainer|worker):$")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
# What a line of a dictionary consists of, up to a place where the line can end.
_PRINTED = re.compile(
    r"""(?:\s|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|-?[\d.]++(?:e[-+]?\d++)?|None|True|False|nan|inf"""
    r"""|null|true|false|NaN|Infinity|[\[\](){},:])++"""
)
_DICT = re.compile(r"[ \t}]")  # pprint and json.dumps indent all lines except the first
# pprint writes a token at a time, and each can arrive as a line of its own, without indentation.
_TOKEN = re.compile(r"""[{}\[\]()'",:\d-]|None|True|False""")
_FIRST = re.compile(r"\{'(?:actor_rollout_ref|algorithm)'")
_YAML = re.compile(r"(?:\s+|- |#|[\w.]+:(?:\s|$))")
_FOREIGN_TO_ARGUMENTS = 50  # lines of other output, or of a value that spans several lines
_CLASS = re.compile(r"\w{0,60}(?:Config|Arguments)\($")
_EQUALS = re.compile(r"(\w{1,60})=(.{0,500}),$")
_TITLE = re.compile(r"-{9,40} (end of )?arguments -{9,40}$")
_DOTS = re.compile(r" {0,4}(\w{1,60}) \.{2,60} (.{0,300})$")
_MODEL = re.compile(r"\bmodel_name_or_path='([^']{1,300})'")
# The banners of the Trainer and of Unsloth.
_SIZES = {
    "batch size per device": "per_device_train_batch_size",
    "gradient accumulation steps": "gradient_accumulation_steps",
    "data parallel gpus": "world_size",
    "total batch size": "total_train_batch_size",
    "total train batch size": "total_train_batch_size",
    "total steps": "total_steps",
    "total optimization steps": "total_steps",
}
_SIZE = re.compile(rf"\b({'|'.join(_SIZES)})(?: \([^()]{{1,60}}\))? = (\d[\d,]{{0,15}})", re.I)
_TRAINER = "per_device_train_batch_size"  # a model's arguments do not contain this key


class PrintedConfig:
    """Collects printed configurations line by line, one configuration at a time."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.command: dict[str, Any] = {}
        self.is_torn = False  # whether a configuration could not be read
        self._kind = ""  # form of the current configuration: "dict", "yaml" or "command"
        self._worker = ""
        self._lines: list[str] = []
        self._size = self._open = self._foreign = self._begun = 0

    def add(self, worker: str, line: str) -> None:
        """Process the next line of a worker, cleaned and without Ray's prefix."""
        if self._kind:
            if worker != self._worker:
                return  # an interleaved line of another worker
            if self._goes_on(line):
                self._keep(_unglued(line) if self._kind == "dict" else line)
                return
            if self._kind == "dict" and self._foreign < _FOREIGN and not _kind(line):
                self._foreign += 1  # other output inside the configuration
                return
            self.close()
        kind = _kind(line) if self._begun < _MOST_BEGUN else ""
        if kind:
            self._begun += 1
            self._kind, self._worker = kind, worker
            self._keep(line)

    def close(self) -> None:
        """Parse the lines collected so far as a configuration."""
        text, kind, whole = "\n".join(self._lines), self._kind, self._open <= 0
        self._forget()
        if kind == "command":
            self.command = _command(text) or self.command
        elif kind and whole and text.count(":") >= _FEWEST:
            config = _parsed(text, kind)
            if len(config) >= _FEWEST:
                self.config = config
        self.is_torn = self.is_torn or (kind == "dict" and not self.config and bool(_FIRST.match(text)))

    @property
    def collecting(self) -> bool:
        """True if the next line can continue the current configuration."""
        return bool(self._kind)

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        if self._size > _LARGEST:
            self._forget()
        elif self._kind == "dict":
            bare = _STRING.sub("", line)  # strings do not span lines
            self._open += sum(bare.count(c) for c in "{[(") - sum(bare.count(c) for c in "}])")
            if self._open <= 0:
                self.close()

    def _forget(self) -> None:
        self._lines, self._kind = [], ""
        self._size = self._open = self._foreign = 0

    def _goes_on(self, line: str) -> bool:
        if self._kind == "command":
            return self._lines[-1].endswith("\\")
        if self._kind == "yaml":
            return bool(_YAML.match(line))
        broken = not self._lines[-1].rstrip().endswith(",") and not _FIRST.match(line)
        return bool(_DICT.match(line) or (broken and _TOKEN.match(line)))


def _unglued(line: str) -> str:
    """Return a line of a dictionary without other output that was printed right after it.

    >>> _unglued(" 'seed': 3,Filtering prompts: 0%|"), _unglued(" 'nnodes': 1, (Worker pid=7) hello")
    (" 'seed': 3,", " 'nnodes': 1,")
    """
    printed = _PRINTED.match(line)
    if printed is None or not line[printed.end() :].lstrip()[:1].isalpha():
        return line
    end = max(printed[0].rfind(sign) for sign in ",{}[]'\"")
    return line[: end + 1]


def _kind(line: str) -> str:
    if line.startswith(("{'", '{"')) or line == "{":
        return "dict"
    if _SECTION.match(line):
        return "yaml"
    if line.startswith(_FAILED):
        return "command"
    return "command" if "python" in line and _COMMAND.search(line[:2_000]) else ""


def _parsed(text: str, kind: str) -> dict[str, Any]:
    """Return a printed dictionary with flat keys, or an empty one if the text is not a dictionary."""
    try:
        parsed = parse_yaml(text) if kind == "yaml" else _python_or_json(text)
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


def _command(text: str) -> dict[str, Any]:
    words = text.replace("\\\n", " ").partition("\n")[0]
    if words.startswith(_FAILED):
        return overrides(word for _, word in _LISTED.findall(words))
    match = _COMMAND.search(words)
    words = words[match.end() :] if match else ""
    if match and match[1] == ",":
        return overrides(word for _, word in _LISTED.findall(words))
    try:
        return overrides(shlex.split(words))
    except ValueError:  # unclosed quotation mark: the command itself may be quoted
        return overrides(word.strip("'\"") for word in words.split())


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two configurations in one console have different values for the same setting.

    >>> _changed({"n": 4, "lr": 1e-6}, {"n": 8}), _changed({"n": 4}, {"lr": 1e-6})
    (True, False)
    """
    return any(one[key] != other[key] for key in one.keys() & other.keys())


class Settings:
    """The configuration of each stretch of a log, since a job that continues can print other settings.

    >>> log = RawLog("train.log", "example", "run")
    >>> settings = Settings(log)
    >>> for step, n in enumerate((4, 4, 8)):
    ...     settings.hold({"n": n})
    ...     log.add({"reward": 0.5}, step)
    >>> for part in settings.parts({}, ""):
    ...     print(part.config, part.config_source)
    {'n': 4} the printed configuration before step 0
    {'n': 8} the printed configuration before step 2
    """

    def __init__(self, log: RawLog) -> None:
        self.configs, self._sources = [dict[str, Any]()], [""]
        self._log, self._begins = log, [0]

    def hold(self, config: dict[str, Any], source: str = "") -> None:
        """State the configuration of the records that are added to the log from now on."""
        if config is self.configs[-1]:  # as at nearly every record
            return
        at = len(self._log.step)
        if at > self._begins[-1] and _changed(self.configs[-1], config):
            self._begins.append(at)
            self.configs.append(config)
            self._sources.append(source)
        else:
            self.configs[-1], self._sources[-1] = config, source

    def parts(
        self, config: Mapping[str, Any], source: str, printed: str = "the printed configuration"
    ) -> Iterator[RawLog]:
        """Yield the log, in parts where the configuration changes.

        ``config`` and ``source`` are the configuration of a file, which the ``printed`` values replace.
        """
        log, several = self._log, len(self._begins) > 1
        parts = log.split_at(self._begins, [log.run] * len(self._begins)) if several else [log]
        for part, values, where in zip(parts, self.configs, self._sources, strict=True):
            first = part.step[0] if several and part.step else math.nan
            where = where or f"{printed}{'' if math.isnan(first) else f' before step {first:g}'}"
            part.config, part.config_source = {**config, **values}, where if values else source
            yield part


class PrintedArguments:
    """Collects the arguments that a job prints, line by line; ``config`` has the arguments found so far.

    A job that continues with other arguments prints its arguments again.
    """

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self._found: dict[str, Any] = {}
        self._form: re.Pattern[str] | None = None  # form of the current arguments
        self._foreign = 0

    @property
    def collecting(self) -> bool:
        """True if the next line can be an argument."""
        return self._form is not None

    def add(self, line: str) -> None:
        """Process the next line of the console, which may contain an argument."""
        if self._form:
            argument = self._form.match(line)
            if argument:
                self._found[argument[1]] = literal(argument[2])
                return
            self._foreign += 1
            if line.strip() == ")" or _TITLE.match(line) or self._foreign > _FOREIGN_TO_ARGUMENTS:
                self._end()
        elif line.endswith("(") and _CLASS.search(line[-80:]):
            self._form = _EQUALS
        elif line.startswith("-----") and (title := _TITLE.match(line)) and not title[1]:
            self._form = _DOTS
        elif "model_name_or_path=" in line and (model := _MODEL.search(line)):
            self.config.setdefault("model_name_or_path", model[1])
        elif " = " in line:
            for size in _SIZE.finditer(line[:1_000]):
                name, value = _SIZES[size[1].lower()], int(size[2].replace(",", ""))
                if self.config.get(name) != value:
                    self.config = {**self.config, name: value}

    def _end(self) -> None:
        if self._form is _DOTS or _TRAINER in self._found:
            self.config = {**self.config, **self._found}
        self._form, self._found, self._foreign = None, {}, 0
