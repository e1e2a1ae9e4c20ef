"""``isolaw status``: how a sweep stands."""

from __future__ import annotations

import click

from isolaw.cli.common import print_json


@click.command()
@click.argument("directory", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def status(directory: str, as_json: bool) -> None:
    """Say how the sweep in DIRECTORY stands; also while it is running."""
    from isolaw import engine
    from isolaw.report.words import number

    state = engine.status(directory)
    if as_json:
        print_json(state)
        return
    share = state["rollouts"] / state["rollouts_planned"] if state["rollouts_planned"] else 1.0
    click.echo(
        f"{directory}: {state['runs']} runs of {state['backend']} to C = {number(state['compute'])}: "
        f"{state['done']} done, {state['started']} begun, {state['waiting']} waiting, "
        f"{state['failed']} failed"
    )
    click.echo(
        f"{number(state['rollouts'])} of {number(state['rollouts_planned'])} rollouts ({share:.0%})"
        + ("; an engine is at work" if state["running"] else "")
    )
    for failure in state["failures"]:
        click.echo(
            f"failed: B_p = {failure['problems_per_batch']}, n = {failure['rollouts_per_problem']}, "
            f"seed {failure['seed']}: {failure['cause']}"
        )
    if state["done"] < state["runs"] and not state["running"]:
        click.echo(f"Continue: isolaw sweep --out {directory}")
