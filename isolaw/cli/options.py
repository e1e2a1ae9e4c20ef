"""Options that several commands share, and the conversion of their values to keyword arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from isolaw import commands
from isolaw.cli.common import print_notes
from isolaw.cli.help import COSTS, CURVES, READING, Further
from isolaw.registry import traits

if TYPE_CHECKING:
    from isolaw.costs import Cost
    from isolaw.readers.how_to_read import HowToRead
    from isolaw.readers.reading import Reading


class Destination(click.Path):
    """The path of an output file or folder, which must not be inside a sweep (`isolaw.files`)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of an output; raise `DataError` if it is inside a sweep."""
        from isolaw.files import check_destination

        # The command itself reports an unusable path, together with all other mistakes.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            Path(value).resolve().exists()
            check_destination(value)
        return super().convert(value, param, ctx)


class BudgetOption(click.ParamType):  # type: ignore[type-arg]
    """A budget: in rollouts (``1e6``, ``1M``), in hours (``384gpuh``, ``48h``), or as a multiple (``4x``)."""

    name = "budget"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the placeholder for a budget in help texts."""
        return "1M|4x|384gpuh"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return a budget in rollouts as a number, and any other as text."""
        from isolaw.errors import InputError
        from isolaw.step_cost import parse_budget

        try:
            return parse_budget(value)
        except InputError as error:
            self.fail(str(error).removeprefix("budget: ").removeprefix("compute: "), param, ctx)


POSITIVE = click.IntRange(min=1)
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def pairs(
    _: click.Context, option: click.Parameter, values: Iterable[str], allow_empty: bool = False
) -> dict[str, str]:
    """Return the NAME=VALUE values of a repeatable option as a dict; ``allow_empty`` permits no VALUE."""
    values_by_name = {}
    for text in values:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals or not (value or allow_empty):
            raise click.UsageError(f"{option.opts[0]}: found {text!r}; expected NAME=VALUE")
        values_by_name[name] = value
    return values_by_name


def _parse_where(ctx: click.Context, option: click.Parameter, values: Iterable[str]) -> dict[str, Any]:
    from isolaw.readers.names import as_number
    from isolaw.runs import full_names

    return full_names({name: as_number(text) for name, text in pairs(ctx, option, values).items()})


def _add_options(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds options to a command in the given order."""

    def add(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return add


draws_option = click.option(
    "--draws", type=click.IntRange(0, 10_000), default=400, cls=Further, group=CURVES,
    help="Number of draws for the intervals; 0 for no intervals.",
)  # fmt: skip
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, cls=Further, group=CURVES, help="Bootstrap seed."
)


def _table_options(style: dict[str, Any]) -> tuple[Callable[[Any], Any], ...]:
    return (
        click.option(
            "--column", "columns", multiple=True, metavar="NAME=ARITHMETIC", callback=pairs, **style,
            help="Map isolaw's name or symbol to a column of the table, or to arithmetic on columns, e.g. "
            "n=group_size or 'C=prompts_seen*group_size'.",
        ),
        click.option(
            "--set", multiple=True, metavar="[GLOB:]NAME=VALUE", **style,
            help="Set a value that a log or a table lacks, e.g. n=16, B_p=512 or 'runs/a*:seed=1'.",
        ),
    )  # fmt: skip


def reading_options(style: dict[str, Any]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds the reading options, with ``style`` passed to each `click.option`."""
    return _add_options(
        click.option("--format", default="auto", **style, help="Log format; auto detects it."),
        *_table_options(style),
        click.option(
            "--name-pattern", multiple=True, metavar="PATTERN", **style,
            help="Pattern for values in run names, e.g. 's{seed}-p{B_p}-n{n}-*'.",
        ),
        click.option(
            "--only", multiple=True, metavar="GLOB", **style,
            help="Read only the runs or files that match, e.g. '*n8*'. '!GLOB' leaves out what matches.",
        ),
        click.option(
            "--group-by", type=click.Choice(["file", "directory"]), **style,
            help="How several logs form one run: by file or by directory.",
        ),
    )  # fmt: skip


_FURTHER_READING: dict[str, Any] = {"cls": Further, "group": READING}
source_options = reading_options(_FURTHER_READING)
table_options = _add_options(*_table_options(_FURTHER_READING))
_SOURCE_OPTIONS = ("metric", "columns", "set", "format", "name_pattern", "only", "group_by")


batch_option = click.option(
    "--max-batch-rollouts", type=POSITIVE, help="Hardware limit on B_p · n, in rollouts."
)
budget_options = _add_options(
    batch_option,
    click.option("--n-train-problems", type=POSITIVE, help="Number of training problems D, to show epochs."),
)


def _cost_option(style: dict[str, Any]) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--cost", type=click.Path(), metavar="SOURCE", **style,
        help="Also print hours. SOURCE: a model and its GPUs (qwen2.5-7b@h100-80g:8), rollouts a second and "
        "GPUs (12/s@8), or runs or logs with times. With the price of a GPU hour, also print money: "
        "SOURCE,2.5/h (docs/costs.md).",
    )  # fmt: skip


cost_option = _cost_option({})
further_cost_option = _cost_option({"cls": Further, "group": COSTS})  # listed only by --help-all


def cost_of(options: dict[str, Any]) -> Cost | None:
    """Return the cost from the source in ``--cost``, and print a note about runs it leaves out."""
    if options["cost"] is None:
        return None
    from isolaw.preview import read_cost  # imported here, since it imports all that plans a sweep

    cost = read_cost(options["cost"])
    print_notes(f"{cost.where}: {text}" for text in cost.notes)
    return cost


def recorded_cost(reading: Reading) -> Cost | None:
    """Return the cost of a step if all runs are of one sweep of models, which records its times."""
    directories = {run.sources[0] for run in reading.ready}
    if len(directories) != 1 or reading.ready[0].container != "sweep":
        return None
    from isolaw.costs import read
    from isolaw.errors import DataError
    from isolaw.store import SweepStore

    (directory,) = directories
    if not traits(SweepStore(directory).read_spec().sweep.backend).plans_gpus:
        return None
    try:
        return read(directory)
    except DataError:  # no run has completed a step
        return None


# Options of answer, predict and report with the same names as in Python.
LIMITS = ("max_batch_rollouts", "n_train_problems", "cost")


def limits_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that limit or price a budget, as keyword arguments of `Law.predict`."""
    return {name: options.get(name) for name in LIMITS} | {"cost": cost_of(options)}


def _single_budget(_: click.Context, option: click.Parameter, values: Sequence[float | str]) -> float | str:
    if len(values) > 1:
        raise click.UsageError(f"{' and '.join(option.opts)} are one option; found {len(values)} budgets")
    if not values:
        raise click.UsageError("--compute: missing; expected a budget in rollouts or, with --cost, in hours")
    return values[0]


compute_option = click.option(
    "--compute", "--budget", "compute", type=BudgetOption(), multiple=True, callback=_single_budget,
    help="Budget C in rollouts, as a multiple of the runs (4x), or with --cost in GPU hours (384gpuh) or "
    "hours of run time (48h).",
)  # fmt: skip
question_options = _add_options(compute_option, budget_options, cost_option)
answer_options = _add_options(compute_option, batch_option, cost_option)  # D is of the runs
where_option = click.option(
    "--where", multiple=True, metavar="NAME=VALUE", callback=_parse_where,
    help="Use only runs with this value, e.g. B_p=32 or lr=0.02.",
)  # fmt: skip
eval_set_option = click.option(
    "--eval-set", help="Evaluation set.  [default: validation, else the only one in the runs]"
)
metric_option = click.option(
    "--metric", help="Reward metric.  [default: avg@4, else the only accuracy, else the only reward]"
)
law_options = _add_options(metric_option, eval_set_option, where_option, draws_option)
LAW_NAMES = ("metric", "eval_set", "where", "method", "draws", "hold")


def law_keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a command that are keyword arguments of `isolaw.fit`."""
    return {name: options[name] for name in LAW_NAMES if name in options}


def _given_parameters(ctx: click.Context) -> dict[str, click.Parameter]:
    """Return the options and arguments that the user gave on the command line, by name."""
    parameters = {str(parameter.name): parameter for parameter in ctx.command.params}
    typed = ParameterSource.COMMANDLINE
    return {name: each for name, each in parameters.items() if ctx.get_parameter_source(name) is typed}


def words_of(ctx: click.Context, sources: Sequence[str]) -> list[str]:
    """Return the sources and the given `source_options` as arguments of another command."""
    words = [commands.path(source) for source in sources]
    for name, option in _given_parameters(ctx).items():
        if name in _SOURCE_OPTIONS:
            values = ctx.params[name]
            if isinstance(values, dict):
                values = [f"{key}={value}" for key, value in values.items()]
            for value in [values] if isinstance(values, str) else values:
                words += [option.opts[0], str(value)]
    return words


def how_to_read(options: dict[str, Any]) -> HowToRead:
    """Return what `source_options` and ``--metric`` say about how to read."""
    from isolaw.readers.how_to_read import HowToRead

    return HowToRead.of(**{name: options[name] for name in _SOURCE_OPTIONS if name in options})


def read_sources(sources: tuple[str, ...], options: dict[str, Any]) -> Reading:
    """Read the sources of a command with `source_options` and ``--metric``."""
    from isolaw.readers.survey import survey

    return survey(sources, how_to_read(options))


def read_to_fit(sources: tuple[str, ...], options: dict[str, Any], together: bool = True) -> Reading:
    """Read the sources of a command that fits them, and print the notes.

    Without ``--where``, ``together`` restricts logs to runs that one law can describe.
    """
    reading = read_sources(sources, options)
    if together and not options["where"]:
        reading = reading.together()
    print_notes((*reading.notes, *(reading.warnings if reading.ready else ())))
    return reading
