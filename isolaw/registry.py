"""Define the version of isolaw, its public names, the traits of each backend, and the base class of results.

The public names are the imports of the stub ``isolaw/__init__.pyi``. Low-level modules use higher-level
modules through them. For example, the module of a law does not import the modules of its text and figure.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

__version__ = "0.1.0"


def _public_modules() -> dict[str, str]:
    stub = Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


#: Public name → its module, from the stub that type checkers read.
PUBLIC = _public_modules()


def public(name: str) -> Any:
    """Return the object that `isolaw` exports under a name in `PUBLIC`, and import it at first use.

    >>> public("Allocation")(32, 64, 100).compute
    204800
    """
    return getattr(importlib.import_module(PUBLIC[name]), name)


@dataclass(frozen=True)
class _Traits:
    """The properties of a backend that isolaw needs without importing its module, `isolaw.backends.NAME`."""

    simulated: bool = False  #: a simulator makes its runs
    recorded: bool = False  #: its runs exist already, and it cannot make others
    trains: bool = False  #: its runs train a model, so their time is the cost of training
    by_command: bool = False  #: another program trains, which decides what it logs, and logs its own times
    plans_gpus: bool = False  #: it plans its runs for the kind and number of GPUs
    packages: tuple[str, ...] = ()  #: `isolaw doctor` calls it not installed without them


#: Each backend has a section of its name in the sweep file.
BACKENDS: Mapping[str, _Traits] = {
    "bandit": _Traits(simulated=True),
    "replay": _Traits(recorded=True),
    "real": _Traits(trains=True, plans_gpus=True, packages=("torch", "transformers", "deepspeed")),
    "command": _Traits(trains=True, by_command=True),
}


def traits(backend: object) -> _Traits:
    """Return the traits of a backend; the backend of a table of runs may be unknown, and then has none.

    >>> traits("bandit").simulated, traits("another").simulated
    (True, False)
    """
    return BACKENDS.get(str(backend), _Traits())


class Shown:
    """The base class of results that ``print`` and notebooks show as text and tables.

    `isolaw.report.document` creates this text: ``TEXT`` is ``module.function`` in `isolaw.report`.
    """

    TEXT: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "__repr__" not in cls.__dict__:  # before a dataclass adds its own, which nobody can read
            cls.__repr__ = Shown.__str__  # type: ignore[method-assign, assignment]

    def __str__(self) -> str:
        return str(public("summary")(self))

    def _repr_html_(self) -> str:
        return str(public("summary")(self, html=True))
