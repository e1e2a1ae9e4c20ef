"""The command line: one file per command.

Data go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 failed or refused,
2 wrong usage or input, 3 partly done, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

import click

from isolaw import __version__
from isolaw.cli.advise import advise
from isolaw.cli.answer import answer
from isolaw.cli.backtest import backtest
from isolaw.cli.calibrate import calibrate
from isolaw.cli.common import shown
from isolaw.cli.compare import compare
from isolaw.cli.demo import demo
from isolaw.cli.doctor import doctor
from isolaw.cli.export import export
from isolaw.cli.figures import figures
from isolaw.cli.findings import findings
from isolaw.cli.fit import fit
from isolaw.cli.plan import plan
from isolaw.cli.predict import predict
from isolaw.cli.read import read
from isolaw.cli.report import report
from isolaw.cli.run_one import run_one
from isolaw.cli.size import size
from isolaw.cli.split import split
from isolaw.cli.status import status
from isolaw.cli.sweep import sweep
from isolaw.errors import IsolawError, at_command_line, options_here


class _Commands(click.Group):
    """The commands; messages advise only options that the command which runs has."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, and note its options."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            options_here.set(frozenset(flag for option in command.params for flag in option.opts))
        return name, command, rest


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="isolaw")
def cli() -> None:
    """Find the best n, B_p and M for a sampling budget in RL post-training.

    \b
    A budget of C rollouts is C = B_p · n · M:
      B_p  problems per batch
      n    rollouts per problem
      M    update steps

    \b
    isolaw answer LOGS --compute 1e7     how to spend a budget: reads, fits, predicts, backtests
    isolaw advise --compute 1e6          where to start without runs, from published results
    isolaw plan SWEEP.toml --spend 20%   which small runs to execute, on simulated truths
    isolaw sweep --out DIR               execute small runs (simulated by default)
    isolaw read LOGS                     list the runs in logs
    isolaw fit DIR --out law.json        fit the law n*(C) to a sweep or to logs
    isolaw predict law.json --compute 1e7
    isolaw calibrate DIR --out preset.toml  fit the simulator to runs, to look further ahead
    isolaw report DIR -o report.html     write a page about the runs and their law
    isolaw backtest DIR --fit-below 1e6  would small runs have predicted the best allocation?
    isolaw demo                          a simulated sweep and its answer, in a minute
    isolaw findings                      test the paper's findings on simulators
    isolaw doctor                        check this machine for each backend
    """


for command in (
    answer, advise, plan, sweep, run_one, status, export, split, read, fit, predict, backtest, compare,
    calibrate, size, report, figures, findings, doctor, demo,
):  # fmt: skip
    cli.add_command(command)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; a user's mistake is one message, no traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    before, without = at_command_line.set(True), options_here.set(None)
    try:
        code = cli.main(args=words, prog_name="isolaw", standalone_mode=False, obj=words)
    except click.ClickException as error:
        error.message = shown(error.message)  # type: ignore[misc]  # it may contain a file's name
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("isolaw: interrupted; the same command continues", err=True)
        return 130
    except IsolawError as error:
        click.echo(f"isolaw: {shown(str(error))}", err=True)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (OSError, MemoryError, RecursionError) as error:  # a full disk, no permission, no memory
        click.echo(f"isolaw: {type(error).__name__}: {shown(str(error))}", err=True)
        return 1
    finally:
        at_command_line.reset(before)
        options_here.reset(without)
    return code if isinstance(code, int) else 0
