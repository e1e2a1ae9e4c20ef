"""Whether all that has a name of isolaw's own, in a sweep's directory, is of the kind that isolaw makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from isolaw.errors import NotOurs
from isolaw.store.folder import LINKS_HINT, Folder, Kind
from isolaw.store.run import OWN
from isolaw.store.states import STATE, is_own

RUNS, RUN_ID = "runs", re.compile(r"[0-9a-f]{64}")
_SHOWN = 8
_DEEPEST = 16


def sweep(directory: Folder, own: Mapping[str, Kind]) -> None:
    """Refuse links, and files and folders in each other's place; other names are the user's.

    Parameters
    ----------
    directory
        the sweep's.
    own
        the kinds of what isolaw makes in it, by name.

    Raises
    ------
    NotOurs
        all of them.
    """
    _refuse(directory, [*_wrong(directory, own), *_wrong_in_runs(directory)])


def run(folder: Folder) -> None:
    """Refuse the same in the folder of one run; its sweep may have thousands.

    Raises
    ------
    NotOurs
        all of them.
    """
    _refuse(folder, [*_wrong_in_run(folder)])


def _refuse(directory: Folder, wrong: list[NotOurs]) -> None:
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        shown = [f"  - {error.what}" for error in wrong[:_SHOWN]]
        more = [f"  - and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        head = f"{directory.path}: {len(wrong)} entries are not what isolaw made. {LINKS_HINT}"
        raise NotOurs("\n".join([head, *shown, *more]))


def _wrong(folder: Folder, own: Mapping[str, Kind]) -> Iterator[NotOurs]:
    for name, kind in sorted(folder.entries().items()):
        if own.get(name, kind) != kind:
            yield folder.not_ours(name, own[name])


def _wrong_in_runs(directory: Folder) -> Iterator[NotOurs]:
    if directory.entries().get(RUNS) != "folder":
        return
    runs = directory.folder(RUNS)
    for name, kind in sorted(runs.entries().items()):
        if RUN_ID.fullmatch(name) and kind != "folder":
            yield runs.not_ours(name, "folder")
        elif RUN_ID.fullmatch(name):
            yield from _wrong_in_run(runs.folder(name))


def _wrong_in_run(run: Folder) -> Iterator[NotOurs]:
    yield from _wrong(run, OWN)
    if run.entries().get(STATE) == "folder":
        yield from _wrong_states(run.folder(STATE))


def _wrong_states(states: Folder) -> Iterator[NotOurs]:
    for name, kind in states.entries().items():
        if is_own(name) and kind != "folder":
            yield states.not_ours(name, "folder")
        elif is_own(name):
            yield from _wrong_below(states.folder(name))


def _wrong_below(folder: Folder, depth: int = 0) -> Iterator[NotOurs]:
    """What is neither file nor folder anywhere in a state."""
    for name, kind in sorted(folder.entries().items()):
        if kind == "folder" and depth == _DEEPEST:
            what = f"{folder.path / name}: folders nested deeper than {_DEEPEST}, as no state has them"
            yield NotOurs(what, LINKS_HINT)
        elif kind == "folder":
            yield from _wrong_below(folder.folder(name), depth + 1)
        elif kind != "file":
            yield folder.not_ours(name, "file")
