"""The short ``--help``, which lists the options that most people need and a line that names the others.

The others are `Further` options, each in a group such as `READING`. ``--help`` only names the groups, and
``--help-all`` lists all options. ``isolaw --help`` lists the commands by group (`Commands`).
"""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli.common import note
from isolaw.errors import IsolawError

READING = "how logs are read"
CURVES = "how curves and intervals are fitted"
COSTS = "limits, hours and costs"
_FLAGS_SHOWN = 3  # options of each group to name in the last line of --help


class Further(click.Option):
    """An option that only ``--help-all`` lists, under the title of its group."""

    def __init__(self, *args: Any, group: str = READING, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.group = group


def _print_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[__name__] = True
        click.echo(ctx.get_help())
        ctx.exit()


class ShortHelp(click.Command):
    """A command whose ``--help`` omits `Further` options, and whose ``--help-all`` lists them."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        help_all = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_print_all, hidden=True
        )
        self.params.append(help_all)

    @property
    def listed(self) -> list[click.Option]:
        """The options that ``--help`` lists."""
        return [
            param
            for param in self.params
            if isinstance(param, click.Option) and not isinstance(param, Further)
        ]

    @property
    def groups(self) -> dict[str, list[click.Option]]:
        """The `Further` options, by group."""
        by_group: dict[str, list[click.Option]] = {}
        for option in self.params:
            if isinstance(option, Further) and not option.hidden:
                by_group.setdefault(option.group, []).append(option)
        return by_group

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the main options, then the groups of `Further` options as sections or as one line."""
        _section("Options", self.listed, ctx, formatter)
        if __name__ in ctx.meta:
            for title, options in self.groups.items():
                _section(title[0].upper() + title[1:], options, ctx, formatter)
            return
        if self.groups:
            group_texts = []
            for title, options in self.groups.items():
                flags = [max(option.opts, key=len) for option in options]
                ellipsis = ", …" if len(flags) > _FLAGS_SHOWN else ""
                group_texts.append(f"{title} ({', '.join(flags[:_FLAGS_SHOWN])}{ellipsis})")
            formatter.write_paragraph()
            formatter.write_text(f"{ctx.command_path} --help-all also lists {', '.join(group_texts)}.")


def _section(title: str, options: list[Any], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


class Commands(click.Group):
    """The commands by group. Error messages suggest options of the command that is running."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.sections: dict[str, list[str]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listed commands, with a section for each group."""
        for title, names in self.sections.items():
            rows = [(name, self.commands[name].get_short_help_str(78)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and print the error of a user's mistake or of a failed run."""
        try:
            return super().invoke(ctx)
        except IsolawError as error:
            with click.Context(self.commands[str(ctx.invoked_subcommand)], parent=ctx):
                note("isolaw: " + str(error))
            ctx.exit(error.exit_code)
