"""`findings`: run and judge a battery and, optionally, presets similar to its own."""

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

    ``settings`` are ``section.key=value`` strings, as in `isolaw.replication.battery`. The directory ``out``
    stores the runs, and a second call continues them. ``jitter`` is the number of additional presets to judge
    around the first; around a calibrated preset they are members of its ensemble. ``progress`` is called with
    the current task and the share of this task done since the last call. Returns the document of `judge`.

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
