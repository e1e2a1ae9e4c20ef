"""`findings`: a battery of runs, and presets around its own, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from isolaw.replication.battery import FIRST_SEED, MODELS, SEEDS, battery
from isolaw.replication.document import judge
from isolaw.replication.jitter import check, study


def findings(
    model: str = MODELS[0],
    preset: str | None = None,
    *,
    seeds: int = SEEDS,
    settings: Iterable[str] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    jitter: int = 0,
    progress: Callable[[str, float], None] = lambda task, share: None,
) -> dict[str, Any]:
    """Test the findings F1 to F7 of arXiv 2603.12151 on a simulator, with intervals over seeds.

    ``settings`` are ``section.key=value``, as in `isolaw.replication.battery`. A directory ``out`` keeps the
    runs, and a second call continues them. ``jitter`` more presets around the first are judged, too: members
    of its ensemble where it is calibrated.
    ``progress`` is called with what is at work and the share of it since the last call. Returns the document
    of `judge`.

    Raises
    ------
    SpecError, StoreError, InputError
        before anything is spent.
    """
    chosen = battery(model, preset, range(FIRST_SEED, FIRST_SEED + seeds), settings)
    check(chosen, jitter)
    document = judge(chosen, out, jobs, partial(progress, "the battery"))
    if jitter:
        own = partial(progress, f"{jitter} more presets")
        document["jitter"] = study(chosen, jitter, out, jobs, own)
    return document
