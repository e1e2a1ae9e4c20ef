"""Adapters: a framework's names for the settings of a run, so that one step is B_p · n rollouts, one update.

A module holds one, called ``ADAPTER``; `NAMES` lists the modules by the names that ``command.framework``
accepts. There is none yet: ``command.run`` says it all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from isolaw.errors import Issue, SpecError, nearest

if TYPE_CHECKING:
    from isolaw.backends.command.adapters.base import Adapter

NAMES: tuple[str, ...] = ()


def get(name: str) -> Adapter:
    """Return the adapter called ``name``, or raise `SpecError` with the valid names."""
    if name not in NAMES:
        found = nearest(name, NAMES)
        raise SpecError([Issue("command.framework", "", name, f"{', '.join(NAMES)} or none", found)])
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    adapter: Adapter = module.ADAPTER
    return adapter
