"""``isolaw calibrate``: a simulator fitted to runs."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli.common import interruptible, note, notes_on_failure, print_result, progress_bar
from isolaw.cli.options import POSITIVE, fixed_option, json_option, read_to_fit, seed_option, source_options

_KEYWORDS = ("out", "metric", "eval_set", "fixed", "problems", "n_train", "until", "jobs", "seed")


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="SOURCE...")
@click.option("--out", type=click.Path(), help="Write the preset here, e.g. preset.toml.")
@click.option("--metric", help="The reward, a mean of successes.  [default: avg@4]")
@click.option("--eval-set", help="What it was measured on.  [default: validation]")
@source_options
@fixed_option
@click.option(
    "--problems", metavar="SET",
    help="The difficulty where it is known, as problems.set takes it.  [default: fitted]",
)  # fmt: skip
@click.option("--n-train", type=POSITIVE, help="D, if the runs did not record it.")
@click.option("--until", type=float, help="Use only what was measured up to this C.")
@click.option("--jobs", type=POSITIVE, help="Number of threads.  [default here: one for each core]")
@seed_option
@json_option
def calibrate(sources: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Fit the simulator to runs, to continue them to budgets that were never run.

    SOURCE is what isolaw read takes. The preset is for isolaw predict --method simulate, isolaw plan
    --preset, and isolaw sweep --set bandit.preset=preset.toml. It is an ensemble: what the runs leave open
    differs between its members. The same command continues a calibration that was interrupted.
    """
    from isolaw.calibration.calibrate import calibrate as fit
    from isolaw.report.text.calibration import calibration_summary, to_dict

    runs = read_to_fit(sources, options).runs
    own = {name: options[name] for name in _KEYWORDS}
    with notes_on_failure(runs.notes), interruptible(), progress_bar("simulating") as update:
        found = fit(runs, **own, progress=lambda share: update(completed=share))
    print_result(as_json, to_dict(found), calibration_summary(found))
    if options["out"] is None:
        note("note: the preset is not saved; add --out preset.toml")
    return 0
