"""Names from earlier versions, which work for one more minor release with a warning that gives the new name.

One table lists commands, another options. `modern` replaces them before the command line is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

COMMANDS = {"split": "problems", "size": "model-size", "findings": "replicate", "figures": "report"}
OPTIONS = {"--setting": "--hold", "--fixed": "--where", "--bootstrap": "--draws"}
# Options renamed in a single command. The command `figures` became `report --figures`, so its --out changed,
# too.
_OF = {"figures": {"--out": "--figures", "-o": "--figures"}, "plan": {"--target": "--compute"}}
VALUES = {"--hold": {"fixed-bp": "B_p", "fixed-b": "B", "fixed-n": "n", "joint": "nothing"}}
# Options that still work but are not in any --help, and their replacements.
REPLACED = {
    "--mapping": "isolaw.toml next to the table (isolaw read --save writes it)",
    "--settings": "isolaw.toml next to the logs (isolaw read --save writes it)",
    "--write-mapping": "--save",
    "--write-settings": "--save",
}


def modern(words: Sequence[str], options: dict[str, frozenset[str]]) -> tuple[list[str], list[str]]:
    """Return a command line with current names, and a warning for each old name.

    ``options`` maps each command to its options. Raises `click.UsageError` if a command line has an option
    under both its names.

    >>> modern(["fit", "DIR", "--setting=joint"], {"fit": frozenset({"--hold"})})
    (['fit', 'DIR', '--hold=nothing'], ['--setting joint is now --hold nothing'])
    """
    if not words:
        return [], []
    name, *rest = words
    if name == "figures":  # -oFOLDER
        rest = [part for own in rest for part in ((own[:2], own[2:]) if own[:2] == "-o" != own else (own,))]
    warnings = []
    renamed, silent = {**OPTIONS, **_OF.get(name, {})}, name == "figures"
    if name in COMMANDS:
        warnings.append(f"the command {name} is now {COMMANDS[name]}")
        if silent:
            warnings[-1] += " --figures FOLDER"
        name = COMMANDS[name]
    known = options.get(name, frozenset())
    out, of_value = [name], ""
    for i, word in enumerate(rest):
        if word == "--":
            return [*out, *rest[i:]], warnings
        flag, equals, value = word.partition("=")
        if of_value:
            flag, equals, value, of_value = "", "", VALUES[of_value].get(word, word), ""
        elif flag in REPLACED and flag in known:
            warnings.append(f"{flag} is replaced by {REPLACED[flag]}")
        elif (new := renamed.get(flag)) is not None and new in known:
            if any(own.partition("=")[0] == new for own in rest):
                raise click.UsageError(f"found both {flag} and {new}; expected {new} alone")
            given = value if equals else rest[i + 1] if i + 1 < len(rest) else ""
            today = VALUES.get(new, {}).get(given, "")
            if not (silent and flag in _OF["figures"]):
                old, now = (f"{flag} {given}", f"{new} {today}") if today else (flag, new)
                warnings.append(f"{old} is now {now}")
            flag, value = new, today if today and equals else value
            of_value = new if today and not equals else ""
        out.append(f"{flag}{equals}{value}")
    return out, list(dict.fromkeys(warnings))
