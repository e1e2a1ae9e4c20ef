"""Arguments that a trainer printed one a line, as transformers and Megatron do.

::

    GRPOConfig(                          ------------------------ arguments ------------------------
    num_generations=8,                     rollout_batch_size .............................. 32
    per_device_train_batch_size=4,         …
    )                                    -------------------- end of arguments ---------------------
"""

from __future__ import annotations

import re
from typing import Any

from isolaw.readers.safe_yaml import scalar

_FOREIGN = 50  # lines that are no argument: what else was printed, a value of several lines
_CLASS = re.compile(r"\w{0,60}(?:Config|Arguments)\($")
_EQUALS = re.compile(r"(\w{1,60})=(.{0,500}),$")
_TITLE = re.compile(r"-{9,40} (end of )?arguments -{9,40}$")
_DOTS = re.compile(r" {0,4}(\w{1,60}) \.{2,60} (.{0,300})$")
_MODEL = re.compile(r"\bmodel_name_or_path='([^']{1,300})'")
_TRAINER = "per_device_train_batch_size"  # tells the trainer's arguments from a model's


class PrintedArguments:
    """Collects them line by line; ``config`` holds what has been found.

    >>> printed = PrintedArguments()
    >>> for line in ["INFO - Training parameters GRPOConfig(", "num_generations=8,", "learning_rate=1e-06,",
    ...              "per_device_train_batch_size=4,", ")", "done"]:
    ...     printed.add(line)
    >>> printed.config
    {'num_generations': 8, 'learning_rate': 1e-06, 'per_device_train_batch_size': 4}
    """

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self._found: dict[str, Any] = {}
        self._form: re.Pattern[str] | None = None  # of the arguments that are being collected
        self._foreign = 0

    @property
    def collecting(self) -> bool:
        """Whether the next line may be an argument."""
        return self._form is not None

    def add(self, line: str) -> None:
        """Take a line."""
        if self._form:
            argument = self._form.match(line)
            if argument:
                self._found[argument[1]] = _value(argument[2])
                return
            self._foreign += 1
            if line.strip() == ")" or _TITLE.match(line) or self._foreign > _FOREIGN:
                self._end()
        elif line.endswith("(") and _CLASS.search(line[-80:]):
            self._form = _EQUALS
        elif line.startswith("-----") and (title := _TITLE.match(line)) and not title[1]:
            self._form = _DOTS
        elif "model_name_or_path=" in line and (model := _MODEL.search(line)):
            self.config.setdefault("model_name_or_path", model[1])

    def _end(self) -> None:
        if self._form is _DOTS or _TRAINER in self._found:
            self.config |= self._found
        self._form, self._found, self._foreign = None, {}, 0


def _value(text: str) -> Any:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else scalar(text)
