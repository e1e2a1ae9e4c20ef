"""Read the responses that the runs of a sweep saved at their evaluations, for people to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isolaw.backend import Response
from isolaw.config import RunSpec
from isolaw.errors import NotOurs
from isolaw.store.sweep import SweepStore


@dataclass(frozen=True)
class Kept:
    """The saved responses of one evaluation of a run."""

    spec: RunSpec
    step: int
    compute: int
    responses: list[Response]


def kept(store: SweepStore) -> Iterator[Kept]:
    """Yield the evaluations with responses, run by run; damaged lines are omitted, as in tables."""
    for run_id, spec in store.specs()[0].items():
        try:
            lines = store.run(run_id).recorded().checkpoints
        except (NotOurs, OSError):
            continue
        for line in lines:
            if responses := [Response(**response) for response in line.get("responses", [])]:
                yield Kept(spec, line["step"], line["compute"], responses)
