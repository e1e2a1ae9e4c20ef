"""The options of a fit, for every command that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import click

from isolaw.cli.read import Command


def setting_option(default: str | None) -> Callable[[Command], Command]:
    """Return what adds ``--setting``; None leaves it to the command."""
    return click.option(
        "--setting",
        type=click.Choice(["fixed-bp", "fixed-b", "joint"]),
        default=default,
        show_default=True if default else "as B_p and n vary",
        help="What is held: B_p, B = B_p · n, or nothing.",
    )


def law_options(command: Command) -> Command:
    """Add the options of a fit but for its setting: the same for every command that fits."""
    for option in reversed(
        [
            click.option(
                "--metric",
                help="What counts as reward; avg@4 unless given, or the only accuracy that was measured.",
            ),
            click.option(
                "--eval-set", help="Which evaluation set; validation unless given, or the only one."
            ),
            click.option(
                "--fixed",
                multiple=True,
                metavar="NAME=VALUE",
                help="Use only runs with this, as problems_per_batch=32 or lr=0.02.",
            ),
            click.option(
                "--method",
                type=click.Choice(["surface", "paper"]),
                default="surface",
                show_default=True,
                help="n* from a smooth surface over n, or as in arXiv 2603.12151 from the highest curve.",
            ),
            click.option(
                "--curve",
                type=click.Choice(["auto", "exp", "hill", "power"]),
                default="auto",
                show_default=True,
                help="Learning curve; auto: by AICc (surface), exp (paper).",
            ),
            click.option(
                "--records",
                default="auto",
                show_default=True,
                metavar="WIDTH|off",
                help="Bin width of record points, off for all checkpoints; "
                "auto: off (surface), 0.005 (paper).",
            ),
            click.option(
                "--robust",
                is_flag=True,
                help="Huber's loss in the curves, for evaluations that go astray.",
            ),
            click.option(
                "--bootstrap",
                type=click.IntRange(0, 10_000),
                default=400,
                show_default=True,
                help="Draws; 0 for none.",
            ),
            click.option(
                "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws."
            ),
        ]
    ):
        command = option(command)
    return command


def law_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Return what `law_options` say, as keywords of `isolaw.fit`; not what is fixed."""
    names = ("metric", "eval_set", "method", "curve", "robust", "bootstrap", "seed")
    return {**{name: options[name] for name in names}, "records": _records(options["records"])}


def _records(text: str) -> float | Literal["auto", "off"]:
    if text == "auto":
        return "auto"
    if text == "off":
        return "off"
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"--records {text!r}: accepted: a width, as 0.005, auto, or off") from None
