"""Backends: what trains. One module each, behind the protocol of `isolaw.backends.base`."""

from __future__ import annotations

import importlib

from isolaw.backends.base import Backend
from isolaw.errors import Issue, SpecError, nearest

# Imported when used: each brings its own libraries.
_MODULES = {
    "bandit": "isolaw.backends.bandit",
    "replay": "isolaw.backends.replay",
    "real": "isolaw.backends.real",
}
NAMES = tuple(_MODULES)


def get(name: str) -> Backend:
    """Return the backend called ``name``, or raise `SpecError` naming the ones there are."""
    if name not in _MODULES:
        accepted = ", ".join(NAMES)
        raise SpecError([Issue("sweep.backend", found=name, accepted=accepted, nearest=nearest(name, NAMES))])
    backend: Backend = importlib.import_module(_MODULES[name]).BACKEND
    return backend
