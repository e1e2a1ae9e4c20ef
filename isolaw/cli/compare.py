"""The command ``isolaw compare``: compare recipes, configurations, or the way of all runs to a reward."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from isolaw.cli import options as shared
from isolaw.cli.common import json_option, notes_on_failure, print_document, print_notes
from isolaw.cli.help import ShortHelp

if TYPE_CHECKING:
    from isolaw.runs import Runs


def _is_shape(text: str) -> bool:
    """Return whether an argument is a configuration such as B_p=128,n=8, and not a source."""
    return "=" in text and "/" not in text and not os.path.lexists(text)


def _parse_rewards(_: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    """Return the listed rewards, an empty list for ``auto``, or None without the option."""
    if text is None or text == "auto":
        return None if text is None else []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        expected = "rewards, e.g. 0.5 or 0.45,0.5,0.55, or auto"
        raise click.UsageError(f"{option.opts[0]}: found {text!r}; expected {expected}") from None


@click.command(cls=ShortHelp)
@click.argument("compared", nargs=-1, required=True, metavar="SOURCE… [B_p=128,n=8 B_p=64,n=16]")
@click.option("--by", metavar="NAME", help="Compare the values of NAME in SOURCE, e.g. without or lr.")
@click.option(
    "--compute", "--budget", "compute", type=shared.BudgetOption(),
    help="Compare the rewards at this budget C, in rollouts. For two configurations, also in hours.",
)  # fmt: skip
@click.option(
    "--target",
    metavar="REWARD,…",
    callback=_parse_rewards,
    help="Compare the rollouts to these rewards, or to rewards that isolaw chooses (auto).",
)
@shared.cost_option
@shared.metric_option
@shared.eval_set_option
@shared.where_option
@shared.source_options
@json_option
def compare(compared: tuple[str, ...], **options: Any) -> None:
    """Compare recipes or configurations by their runs.

    \b
    isolaw compare FIRST SECOND              two recipes, each from a SOURCE
    isolaw compare SOURCE --by without       all recipes of a source
    isolaw compare SOURCE B_p=128,n=8 B_p=64,n=16 --compute 1e6
                                             two configurations at a budget
    isolaw compare SOURCE B_p=128,n=8 B_p=64,n=16 --target 0.5
                                             two configurations to a reward
    isolaw compare SOURCE --target 0.5,0.6   all configurations to rewards

    The ceiling A of a Hill curve shows which recipe ends higher, and its C_mid which recipe is faster
    (ScaleRL, arXiv 2510.13786). isolaw also fits the first half of the compute and checks its prediction on
    the second half. With --by, each value is compared with the value nothing or, without it, with
    the smallest value.

    Two configurations (B_p, n) need no runs of their own. On the way of all configurations to rewards, isolaw
    also reports steps and hours, the critical batch, and how the best lr grows with B_p and n.
    """
    sources = [argument for argument in compared if not _is_shape(argument)]
    shapes = [argument for argument in compared if _is_shape(argument)]
    names = {name for question in _QUESTIONS for name in question.accepts}
    given_names = {name for name in names if options[name] is not None}
    for question in _QUESTIONS:
        has_counts = len(sources) in question.sources and len(shapes) == question.shapes
        if has_counts and question.requires <= given_names <= question.accepts:
            return question.answer(sources, shapes, options)
    usages = "; ".join(question.usage for question in _QUESTIONS)
    raise click.UsageError(f"expected one of: {usages}")


def _read(sources: list[str], options: dict[str, Any]) -> Runs:
    return shared.read_to_fit((*sources,), options, together=False).runs


def _select(runs: Runs, where: dict[str, Any]) -> Runs:
    from isolaw.fits.selection import rows_with

    return runs.select(rows_with(runs.table(), where).index) if where else runs


def _recipes(sources: list[str], _: list[str], options: dict[str, Any]) -> None:
    """Print the comparison of two recipes, each from its own source."""
    import isolaw
    from isolaw.store import SweepStore

    first, second = sources
    keywords = _recipe_keywords(options)
    has_table = os.path.isdir(first) != os.path.isdir(second)
    sides = []
    for source in (first, second):
        overrides: dict[str, Any] = {}
        if has_table and os.path.isdir(source):  # the columns are for the table; a sweep lacks no value
            overrides = {"columns": {}, **({"set": ()} if SweepStore(source).exists else {})}
        runs = shared.read_to_fit((source,), {**options, "metric": keywords["metric"], **overrides}).runs
        sides.append(_select(runs, options["where"]))
    comparison = isolaw.compare(sides[0], sides[1], names=_side_names(first, second), **keywords)
    print_document(comparison)
    print_notes(comparison.notes)


def _along(sources: list[str], _: list[str], options: dict[str, Any]) -> None:
    """Print the comparison of the recipes of one source, along an axis."""
    import isolaw

    keywords = _recipe_keywords(options)
    runs = _select(_read(sources, {**options, "metric": keywords["metric"]}), options["where"])
    study = isolaw.compare_by(runs, options["by"], **keywords)
    print_document(study)
    print_notes(dict.fromkeys(text for comparison in study.comparisons.values() for text in comparison.notes))


def _recipe_keywords(options: dict[str, Any]) -> dict[str, Any]:
    from isolaw.fits.metric import EVAL_SET, METRIC

    metric, eval_set = options["metric"] or METRIC, options["eval_set"] or EVAL_SET
    return {"metric": metric, "eval_set": eval_set, "compute": options["compute"]}


def _to_rewards(sources: list[str], _: list[str], options: dict[str, Any]) -> None:
    """Print what all configurations need to reach rewards."""
    import isolaw
    from isolaw.report.text.law import notes

    cost = shared.cost_of(options)
    runs = _read(sources, options)
    keywords = {name: options[name] for name in ("metric", "eval_set", "where")}
    with notes_on_failure(runs.notes):
        study = isolaw.to_target(runs, options["target"] or None, cost=cost, **keywords)
    print_document(study)
    print_notes(notes(study.flags))


def _shapes(sources: list[str], shapes: list[str], options: dict[str, Any]) -> None:
    """Print the comparison of two configurations of one source."""
    import isolaw
    from isolaw.allocation import shape_of
    from isolaw.report.text.comparisons import shapes as document

    for shape in shapes:  # before anything is read
        shape_of(shape, {"problems_per_batch": {1}, "rollouts_per_problem": {1}})
    rewards: Any = options["target"]
    target = rewards[0] if rewards is not None and len(rewards) == 1 else rewards
    cost = shared.cost_of(options)
    runs = _read(sources, options)
    values = {name: {*map(int, runs.points[name])} for name in ("problems_per_batch", "rollouts_per_problem")}
    a, b = (shape_of(shape, values) for shape in shapes)
    keywords = {name: options[name] for name in ("compute", "metric", "eval_set", "where")}
    comparison = isolaw.compare_shapes(runs, a, b, target=target, cost=cost, **keywords)
    print_document(document(comparison, cost))


def _side_names(first: str, second: str) -> tuple[str, str]:
    """Return a label for each path: its last part, or the path as given if both have the same."""
    a, b = Path(first).resolve(), Path(second).resolve()
    if a == b:
        return "first", "second"
    return (a.name, b.name) if a.name != b.name else (first, second)


class _Question(NamedTuple):
    """A question that the command answers, by its arguments and options."""

    usage: str
    answer: Callable[[list[str], list[str], dict[str, Any]], None]
    sources: range  # accepted numbers of sources
    shapes: int  # number of configurations
    requires: set[str]
    accepts: set[str]


# Options that no question names apply to all.
_TWO, _ANY = range(2, 3), range(1, sys.maxsize)
_QUESTIONS = (
    _Question("FIRST SECOND", _recipes, _TWO, 0, set(), {"compute"}),
    _Question("SOURCE --by NAME", _along, _ANY, 0, {"by"}, {"by", "compute"}),
    _Question("SOURCE n=8 n=16 --compute C", _shapes, _ANY, 2, {"compute"}, {"compute", "cost"}),
    _Question("SOURCE n=8 n=16 --target REWARD", _shapes, _ANY, 2, {"target"}, {"target", "cost"}),
    _Question("SOURCE --target REWARD,…|auto", _to_rewards, _ANY, 0, {"target"}, {"target", "cost"}),
)
