"""The command ``isolaw compare``: compare two recipes, models, problem sets or configurations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import json_option, print_document, print_notes
from isolaw.cli.help import COSTS, Further, ShortHelp

if TYPE_CHECKING:
    from isolaw.runs import Runs


def _shape(_: click.Context, option: click.Parameter, text: str | None) -> dict[str, int] | None:
    """Parse B_p=128,n=8 into {"problems_per_batch": 128, "rollouts_per_problem": 8}."""
    if text is None:
        return None
    from isolaw.runs import full_names

    found: dict[str, int] = {}
    accepted = "problems_per_batch", "rollouts_per_problem"
    for part in text.split(","):
        name, _equals, value = (own.strip() for own in part.partition("="))
        (full,) = full_names({name: value})
        if full not in accepted or not value.isdecimal() or int(value) < 1 or full in found:
            raise click.UsageError(f"{option.opts[0]}: found {part!r} in {text!r}; expected e.g. B_p=128,n=8")
        found[full] = int(value)
    return found


@click.command(cls=ShortHelp)
@click.argument("first", type=click.Path(), required=False)
@click.argument("second", type=click.Path(), required=False)
@click.option("--by", metavar="NAME", help="Compare the values of NAME in FIRST, e.g. without or lr.")
@click.option("--base", help="Value of --by to compare the others with.  [default: nothing]")
@click.option("--metric", help="Reward metric.  [default: avg@4; with --a and --b as in isolaw fit]")
@click.option("--eval-set", help="Evaluation set.  [default: validation]")
@click.option(
    "--compute", "--budget", "compute", type=shared.ROLLOUTS,
    help="Also compare the rewards at this budget C, in rollouts.",
)  # fmt: skip
@click.option("--a", metavar="B_p=128,n=8", callback=_shape, help="Configuration A in FIRST; requires --b.")
@click.option("--b", metavar="B_p=64,n=16", callback=_shape, help="Configuration B in FIRST.")
@click.option(
    "--steps", type=click.IntRange(min=1), cls=Further, group=COSTS,
    help="With --a, --b and --cost: compare the hours of this many steps.",
)  # fmt: skip
@click.option("--target", type=float, help="With --a and --b: compare the rollouts to this reward.")
@click.option(
    "--hours", metavar="48h|384gpuh", cls=Further, group=COSTS,
    help="With --a and --b: compare the rewards after this time; requires --cost.",
)  # fmt: skip
@shared.further_cost_options
@shared.where_option
@shared.source_options
@json_option
def compare(
    first: str | None, second: str | None, by: str | None, base: str | None, steps: int | None, **options: Any
) -> None:
    """Compare the learning curves of two recipes, FIRST and SECOND.

    FIRST and SECOND are a SOURCE each, as in isolaw fit. The ceiling A shows which recipe ends higher. The
    C_mid of a Hill curve (ScaleRL, arXiv 2510.13786) shows which recipe is faster. isolaw also fits the first
    half of the compute and checks its prediction on the second half.

    With --by and one SOURCE, compare its recipes: isolaw compare SWEEP --by without.

    With --a and --b, compare two configurations (B_p, n) of one SOURCE, at --compute, after --hours or on the
    way to --target: isolaw compare SWEEP --a B_p=128,n=8 --b B_p=64,n=16 --compute 1e6. The configurations
    need no runs of their own. To compare only the cost of steps, omit SOURCE: isolaw compare --a B_p=128,n=8
    --b B_p=64,n=16 --steps 100 --cost FILE.
    """
    if steps is not None:
        _costs(steps, first, options)
    elif options["a"] is not None or options["b"] is not None:
        _shapes(first, second or by or base, options)
    else:
        _recipes(first, second, by, base, options)


def _recipes(
    first: str | None, second: str | None, by: str | None, base: str | None, options: dict[str, Any]
) -> None:
    """Print the comparison of two recipes, or of all recipes along an axis."""
    import isolaw
    from isolaw.fits.metric import EVAL_SET, METRIC
    from isolaw.report.text.recipes import document
    from isolaw.store import SweepStore

    if given := [f"--{name}" for name in ("target", "hours", "cost", "where", "price") if options[name]]:
        raise click.UsageError(f"{', '.join(given)}: requires --a and --b")
    if first is None or (by is None) == (second is None) or (base is not None and by is None):
        raise click.UsageError("expected FIRST and SECOND, or FIRST with --by NAME (and --base)")
    metric = options["metric"] or METRIC
    keywords = {"eval_set": options["eval_set"] or EVAL_SET, "compute": options["compute"]}
    if second is None:
        assert by is not None
        runs = shared.read_to_fit((first,), {**options, "metric": metric, "by": by}).runs
        axis = isolaw.compare_by(runs, by, base, metric, **keywords)
        print_document(document(axis))
        print_notes(dict.fromkeys(text for own in axis.comparisons.values() for text in own.notes))
        return
    of_a_table = Path(first).is_dir() != Path(second).is_dir()

    def runs_of(source: str) -> Runs:
        without: dict[str, Any] = {}
        if of_a_table and Path(source).is_dir():  # the columns are for the table; a sweep lacks no value
            without = {"columns": {}, **({"set": ()} if SweepStore(source).exists else {})}
        return shared.read_to_fit((source,), {**options, "metric": metric, **without}).runs

    found = isolaw.compare(runs_of(first), runs_of(second), metric, names=_names(first, second), **keywords)
    print_document(document(found))
    print_notes(found.notes)


def _costs(steps: int, first: str | None, options: dict[str, Any]) -> None:
    """Print the cost of the steps of two configurations."""
    from isolaw.report.text import costs

    a, b = options["a"] or {}, options["b"] or {}
    if not len(a) == len(b) == 2 or first is not None or options["cost"] is None:
        raise click.UsageError("--steps: expected --a B_p=…,n=…, --b B_p=…,n=… and --cost, without FIRST")
    cost = shared.cost_of(options)
    assert cost is not None
    shapes = [(own["problems_per_batch"], own["rollouts_per_problem"]) for own in (a, b)]
    print_document(costs.steps_document(cost, shapes, steps))


def _shapes(source: str | None, other: str | None, options: dict[str, Any]) -> None:
    """Print the comparison of two configurations of one source."""
    import isolaw
    from isolaw.report.text.shapes import document

    a, b = options["a"], options["b"]
    asked = {name: options[name] for name in ("compute", "target", "hours")}
    given = [f"--{name}" for name, value in asked.items() if value is not None]
    if source is None or a is None or b is None or other is not None or len(given) != 1:
        raise click.UsageError(
            "expected FIRST with --a, --b and one of --compute, --target and --hours; "
            f"found {', '.join(given) or 'none of the three'}"
        )
    if asked["hours"] is not None and asked["hours"].replace(".", "", 1).isdecimal():
        asked["hours"] += "h"
    cost = shared.cost_of(options)
    runs = shared.read_to_fit((source,), options | {"by": True}).runs
    shapes = [_completed(own, runs, flag) for own, flag in ((a, "--a"), (b, "--b"))]
    names = {name: options[name] for name in ("metric", "eval_set", "where")}
    found = isolaw.compare_shapes(runs, shapes[0], shapes[1], **asked, cost=cost, **names)
    print_document(document(found, cost))


def _completed(shape: dict[str, int], runs: Runs, flag: str) -> tuple[int, int]:
    """Return (B_p, n). The option can omit one of them if all runs share its value."""
    out = []
    for name, symbol in (("problems_per_batch", "B_p"), ("rollouts_per_problem", "n")):
        known = sorted({int(value) for value in runs.table()[name]})
        if name not in shape and len(known) > 1:
            there = ", ".join(map(str, known))
            raise click.UsageError(f"{flag}: {symbol} is missing; the runs have {symbol} = {there}")
        out.append(shape.get(name, known[0]))
    return out[0], out[1]


def _names(first: str, second: str) -> tuple[str, str]:
    """Return a label for each path: its last part, or the path as given if both have the same."""
    a, b = Path(first).resolve(), Path(second).resolve()
    if a == b:
        return "first", "second"
    return (a.name, b.name) if a.name != b.name else (first, second)
