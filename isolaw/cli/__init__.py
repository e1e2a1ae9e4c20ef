"""The command line, with one file per command.

Results go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 failed or refused,
2 wrong usage or input, 3 partly done, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from isolaw import __version__
from isolaw.cli.common import shown
from isolaw.cli.help import Commands

_LONGEST_ERROR = 1_000  # most characters to print of an error that is not isolaw's
# Each command has the name of its module, or is in the module of a similar command.
_MODULES = {
    "predict": "answer", "advise": "answer", "demo": "answer", "model_size": "fit", "export": "run_one",
    "status": "sweep",
}  # fmt: skip
_SECTIONS = {
    "Answer": ["answer", "read", "fit", "predict", "report"],
    "Run": ["sweep", "status"],
    "More": [
        "advise", "compare", "problems", "model_size", "export", "doctor", "demo",
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

    Each command has --help, with what most people need, and --help-all.
    """


def _command(name: str) -> click.Command:
    command: click.Command = getattr(importlib.import_module(f"isolaw.cli.{_MODULES.get(name, name)}"), name)
    return command


for _title, _names in _SECTIONS.items():
    _members = [_command(name) for name in _names]
    cli.sections[_title] = [str(member.name) for member in _members]
    for _member in _members:
        cli.add_command(_member)
cli.add_command(_command("run_one"))  # cluster jobs call this command; --help does not list it


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. User mistakes print one message and no traceback."""
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        words = sys.argv[1:] if arguments is None else arguments
        code = cli.main(args=words, prog_name="isolaw", standalone_mode=False, obj=words)
    except click.ClickException as error:
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the help
            error.message = shown(error.message, _LONGEST_ERROR)  # type: ignore[misc]  # may name a file
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("isolaw: interrupted; run the same command to continue", err=True)
        return 130
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (OSError, MemoryError, RecursionError) as error:  # a full disk, no permission, no memory
        click.echo(f"isolaw: {type(error).__name__}: {shown(str(error), _LONGEST_ERROR)}", err=True)
        return 1
    return code if isinstance(code, int) else 0
