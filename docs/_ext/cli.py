"""``{commands}``: the reference of the command line, from click's own help."""

from __future__ import annotations

import re

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from isolaw.cli import cli
from isolaw.cli.help import ShortHelp

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def markdown() -> str:
    """A section for every command: its help, its usage, a definition for every option, by their groups."""
    parts = []
    for name in (name for names in cli.sections.values() for name in names):
        command = cli.commands[name]
        assert isinstance(command, ShortHelp)
        context = click.Context(command, info_name=f"isolaw {name}", terminal_width=1000, show_default=True)
        usage = command.get_usage(context).removeprefix("Usage: ")
        parts += [f"## isolaw {name}", f"```text\n{usage}\n```", *_help(command.help or "")]
        for title, options in {"": command.listed, **command.groups}.items():
            parts += [f"Further options, {_escaped(title)}:"] if title else []
            for option in options:
                if (record := option.get_help_record(context)) is not None:
                    parts.append(f"`{record[0]}`\n: {_escaped(' '.join(record[1].split())) or '–'}")
    return "\n\n".join(parts) + "\n"


def _help(text: str) -> list[str]:
    """The paragraphs of a command's help; those behind a backspace are laid out, and stay so."""
    out = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.startswith("\b"):
            out.append(f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```")
        else:
            out.append(_escaped(" ".join(paragraph.split())))
    return out


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(markdown(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
