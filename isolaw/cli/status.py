"""The command ``isolaw status``: show the progress of a sweep."""

from __future__ import annotations

import click

from isolaw.cli.common import json_option, print_result
from isolaw.cli.help import ShortHelp


@click.command(cls=ShortHelp)
@click.argument("directory", type=click.Path())
@json_option
def status(directory: str) -> None:
    """Show the progress of a sweep, which may still be running."""
    from isolaw import engine
    from isolaw.report.text.sweep import sweep_state

    state = engine.status(directory)
    print_result(state, sweep_state(state))
