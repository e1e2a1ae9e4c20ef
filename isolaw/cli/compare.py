"""The command ``isolaw compare``: compare two configurations, or what all configurations need to a reward."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

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


_USAGES = "SOURCE n=8 n=16 --compute C; SOURCE n=8 n=16 --target REWARD; SOURCE --target REWARD,…|auto"


@click.command(cls=ShortHelp)
@click.argument("compared", nargs=-1, required=True, metavar="SOURCE… [B_p=128,n=8 B_p=64,n=16]")
@click.option(
    "--compute", "--budget", "compute", type=shared.BudgetOption(),
    help="Compare the rewards at this budget C, in rollouts or hours.",
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
    """Compare configurations by the runs of a SOURCE.

    \b
    isolaw compare SOURCE B_p=128,n=8 B_p=64,n=16 --compute 1e6
                                             two configurations at a budget
    isolaw compare SOURCE B_p=128,n=8 B_p=64,n=16 --target 0.5
                                             two configurations to a reward
    isolaw compare SOURCE --target 0.5,0.6   all configurations to rewards

    Two configurations (B_p, n) need no runs of their own. On the way of all configurations to rewards, isolaw
    also reports steps and hours, the critical batch, and how the best lr grows with B_p and n.
    """
    sources = [argument for argument in compared if not _is_shape(argument)]
    shapes = [argument for argument in compared if _is_shape(argument)]
    compute, rewards = options["compute"], options["target"]
    is_pair = len(shapes) == 2 and (compute is None) != (rewards is None)
    if not sources or not (is_pair or (not shapes and compute is None and rewards is not None)):
        raise click.UsageError(f"expected one of: {_USAGES}")
    if is_pair:
        _two_configurations(sources, shapes, options)
    else:
        _to_rewards(sources, options)


def _read(sources: list[str], options: dict[str, Any]) -> Runs:
    return shared.read_to_fit((*sources,), options, together=False).runs


def _to_rewards(sources: list[str], options: dict[str, Any]) -> None:
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


def _two_configurations(sources: list[str], shapes: list[str], options: dict[str, Any]) -> None:
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
