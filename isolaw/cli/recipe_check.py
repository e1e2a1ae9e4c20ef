"""The option ``isolaw sweep --recipe-check``: find the learning rate before the sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from isolaw.cli.common import note, print_document, print_result
from isolaw.evidence import Simulated
from isolaw.registry import traits

if TYPE_CHECKING:
    from isolaw.config import SweepSpec
    from isolaw.resolve import Plan


def run(spec: SweepSpec, out: str, dry_run: bool, execute: Callable[[Plan, str], None]) -> int:
    """Check the recipe of a sweep file. ``execute`` runs one stage in its folder, with a progress bar."""
    from isolaw.recipe_check.check import check, first
    from isolaw.recipe_check.stages import CheckSweep, setup
    from isolaw.report.text import recipe_check as text
    from isolaw.report.text.sweep import plan_summary

    start = setup(spec)
    first(start, Path(out))
    stages = start.expected()
    lines = text.expected(stages)
    simulated = Simulated.among([traits(spec.sweep.backend).simulated])
    if dry_run:
        print_result({"simulated": simulated.json, "stages": stages, "dry_run": True}, lines)
        return 0
    note(*simulated.lines(lines))

    def stage(own: CheckSweep, planned: Plan) -> None:
        note(f"{own.name}: {plan_summary(planned.to_dict(), spec.sweep.backend)[0]}")
        execute(planned, str(own.directory))

    found = check(start, Path(out), stage)
    print_document(text.document(found))
    return 0
