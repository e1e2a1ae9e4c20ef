"""The command line, with one file per command.

Results go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 failed or refused,
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
from isolaw.cli.common import note, shown
from isolaw.cli.compare import compare
from isolaw.cli.demo import demo
from isolaw.cli.doctor import doctor
from isolaw.cli.export import export
from isolaw.cli.fit import fit
from isolaw.cli.help import Commands
from isolaw.cli.model_size import model_size
from isolaw.cli.old_names import modern
from isolaw.cli.plan import plan
from isolaw.cli.predict import predict
from isolaw.cli.problems import problems
from isolaw.cli.read import read
from isolaw.cli.replicate import replicate
from isolaw.cli.report import report
from isolaw.cli.run_one import run_one
from isolaw.cli.status import status
from isolaw.cli.sweep import sweep
from isolaw.errors import IsolawError, at_command_line, options_here

_SECTIONS: dict[str, list[click.Command]] = {
    "Answer": [answer, read, fit, predict, report],
    "Run": [sweep, plan, status],
    "More": [
        advise, calibrate, compare, backtest, problems, model_size, replicate, export, doctor, demo
    ],
}  # fmt: skip


@click.group(
    cls=Commands,
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
    isolaw answer LOGS --compute 1e7         split a budget, from logs
    isolaw answer SWEEP --compute 1e7        split a budget, from a sweep
    isolaw advise --compute 1e6              find a start without runs
    isolaw demo                              simulate a sweep and its answer

    Each command has --help, with the options that most people need, and --help-all, with all of them.
    """


for _title, _members in _SECTIONS.items():
    cli.sections[_title] = [str(_command.name) for _command in _members]
    for _command in _members:
        cli.add_command(_command)
cli.add_command(run_one)  # cluster jobs call this command; --help does not list it


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. User mistakes print one message and no traceback."""
    options = {name: frozenset(o for p in own.params for o in p.opts) for name, own in cli.commands.items()}
    before, without = at_command_line.set(True), options_here.set(None)
    try:
        words, warnings = modern(sys.argv[1:] if arguments is None else arguments, options)
        for text in warnings:
            note(f"warning: {text}; the next release removes the old name")
        code = cli.main(args=words, prog_name="isolaw", standalone_mode=False, obj=words)
    except click.ClickException as error:
        error.message = shown(error.message)  # type: ignore[misc]  # it may contain a file name
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("isolaw: interrupted; run the same command to continue", err=True)
        return 130
    except IsolawError as error:
        click.echo(f"isolaw: {shown(str(error))}", err=True)
        return error.exit_code
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (OSError, MemoryError, RecursionError) as error:  # a full disk, no permission, no memory
        click.echo(f"isolaw: {type(error).__name__}: {shown(str(error))}", err=True)
        return 1
    finally:
        at_command_line.reset(before)
        options_here.reset(without)
    return code if isinstance(code, int) else 0
