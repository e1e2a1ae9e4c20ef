"""Check that the entries in a sweep's directory with isolaw's names have the kinds that isolaw creates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from isolaw.errors import NotOurs, Wording
from isolaw.store.folder import LINKS_HINT, EntryKind, Folder
from isolaw.store.run import OWN
from isolaw.store.states import STATE, is_own

# Names in a sweep's directory.
POINTS, PROBLEMS = "points.parquet", "problems.parquet"
RECORDED = "recorded.parquet"  # the runs that a sweep replays, unless they are in a table file of the user
RUNS, RUN_ID = "runs", re.compile(r"[0-9a-f]{64}")
_SHOWN = 8
_DEEPEST = 20


def sweep(directory: Folder, files: Mapping[str, EntryKind]) -> None:
    """Raise `NotOurs` if entries in a sweep's directory are links or of the wrong kind.

    ``own`` maps the names of isolaw's entries in the directory itself to their kinds. Other names belong to
    the user and are ignored. The error lists all wrong entries.
    """

    def kinds(*place: str) -> tuple[EntryKind, ...]:
        match place:
            case (name,) if name in files:
                return (files[name],)
            case ("runs", name) if RUN_ID.fullmatch(name):
                return ("folder",)
            case ("runs", _, *inside):
                return _kinds_in_run(*inside)
        return ()

    _refuse(directory, kinds)


def run(folder: Folder) -> None:
    """Raise `NotOurs` as `sweep` does, but check only one run, because a sweep can have thousands of runs."""
    _refuse(folder, _kinds_in_run)


def _kinds_in_run(*place: str) -> tuple[EntryKind, ...]:
    match place:
        case (name,) if name in OWN:
            return (OWN[name],)
        case (folder, name) if folder == STATE and is_own(name):
            return ("folder",)
        case (folder, _, *inside) if folder == STATE and inside:
            return ("file", "folder")
    return ()


def _refuse(directory: Folder, kinds: Callable[..., tuple[EntryKind, ...]]) -> None:
    wrong = list(_wrong(directory, kinds))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        shown = [f"  - {error.what}" for error in wrong[:_SHOWN]]
        more = [f"  - and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        head = f"{directory.path}: {len(wrong)} entries differ from what isolaw wrote. {LINKS_HINT}"
        raise NotOurs(Wording(head, *shown, *more))


def _wrong(folder: Folder, kinds: Callable[..., tuple[EntryKind, ...]], *above: str) -> Iterator[NotOurs]:
    """Yield the errors; ``kinds`` returns the accepted kinds of an entry, or () for the user's entries."""
    for name, kind in sorted(folder.entries().items()):
        accepted = kinds(*above, name)
        if accepted and kind not in accepted:
            yield folder.not_ours(name, accepted[0])
        elif accepted and kind == "folder" and len(above) == _DEEPEST:
            what = f"{folder.path / name}: more than {_DEEPEST} nested folders, but no state has so many"
            yield NotOurs(what, LINKS_HINT)
        elif accepted and kind == "folder":
            yield from _wrong(folder.folder(name), kinds, *above, name)
