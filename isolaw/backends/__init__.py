"""Look up backends, which train, simulate or replay runs as the protocol in `isolaw.backend` defines."""

from __future__ import annotations

import importlib

from isolaw.backend import Backend
from isolaw.errors import Issue, SpecError, nearest
from isolaw.registry import BACKENDS


def get(name: str) -> Backend:
    """Return the backend called ``name``, or raise `SpecError` with the valid names."""
    if name not in BACKENDS:
        like, accepted = nearest(name, BACKENDS), ", ".join(BACKENDS)
        raise SpecError([Issue("sweep.backend", found=name, accepted=accepted, nearest=like)])
    backend: Backend = importlib.import_module(f"isolaw.backends.{name}").BACKEND  # imports its libraries
    return backend
