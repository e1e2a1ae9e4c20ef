"""The command ``isolaw demo``: simulate a sweep and print its answer."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import cast

import click

from isolaw import commands
from isolaw.cli.common import note, print_lines
from isolaw.cli.help import ShortHelp

_SWEEP = "examples/bandit-easy.toml"
_BUDGET, _OTHER = "6e6", "4M"  # three times the compute of the sweep's runs, and a smaller budget


@click.command(cls=ShortHelp)
@click.argument("directory", default="demo", type=click.Path(path_type=Path))
@click.pass_context
def demo(ctx: click.Context, directory: Path) -> int:
    """Simulate a small sweep in DIRECTORY, and recommend a split of three times the compute of its runs.

    isolaw simulates 45 runs in seconds, and writes the runs, their law and their page to DIRECTORY.
    """
    from rich.console import Console

    group, out = cast(click.Group, ctx.find_root().command), str(directory)

    def run(*words: str) -> int:
        return group.main(args=[*words], prog_name="isolaw", standalone_mode=False, obj=[*words]) or 0

    said = io.StringIO()  # output that is only shown on failure, so that the answer comes first
    with Console(stderr=True).status("simulating and fitting 45 runs"):  # shows only on a terminal
        with redirect_stdout(said), redirect_stderr(said):
            code = run("sweep", str(commands.shipped(_SWEEP)), "--out", out)
        if code == 0:
            with redirect_stderr(said):
                code = run("answer", out, "--compute", _BUDGET, "--out", out)
    if code != 0:
        note(said.getvalue().rstrip())
        return code
    print_lines([f"For another budget: {commands.answer([out], _OTHER)}"])
    note(said.getvalue().splitlines()[-1])  # says where the law and the page are
    return 0
