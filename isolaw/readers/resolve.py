"""What a run was: B_p, n, rollouts per step, seed and the rest, each with where it is known from.

Any two of B_p, n and rollouts per step give the third; a setting of the user's goes before what the log
says; what contradicts itself is a problem, never a guess.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import PurePath
from typing import Any

from isolaw.readers.assignments import SPLIT, Setting
from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.raw import RawLog, number

SYMBOL = {"problems_per_batch": "B_p", "rollouts_per_problem": "n", "rollouts_per_step": "rollouts per step"}
# What may not change between the parts of one run.
_ONE_VALUE = (*SPLIT, "seed", "problem_set", "algorithm", "on_policy")
_DEFAULTS = {"seed": 0, "problem_set": "unnamed", "algorithm": "grpo"}
# Instructions to the reader, not facts of the run.
_FOR_THE_READER = ("percent", "framework")
_LARGEST = 2**31


@dataclass
class Resolved:
    """What is known of a run.

    Attributes
    ----------
    facts
        our name → value and origin. Without problems it has B_p, n, rollouts per step, seed, problem
        set and algorithm.
    problems
        what the user has to settle, each with the ``--set`` that does.
    notes
        what was assumed.
    lacking
        which of n and B_p the user has to give.
    hints
        for what is unknown, what the framework says that it would follow from.
    """

    facts: dict[str, Fact] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lacking: tuple[str, ...] = ()
    hints: dict[str, str] = field(default_factory=dict)


def resolve(
    parts: Sequence[RawLog], framework: Framework, settings: Mapping[str, Setting], glob: str = ""
) -> Resolved:
    """Bring together what the configurations of a run's parts and the user say.

    Parameters
    ----------
    parts
        the logs of one run.
    framework
        what their configuration means.
    settings
        what the user set for this run, by name.
    glob
        what a suggested ``--set`` must begin with to be for this run only.
    """
    out = Resolved()
    _from_logs(parts, framework, settings, out)
    for name, setting in settings.items():
        if name not in _FOR_THE_READER:
            out.facts[name] = Fact(setting.value, "--set")
    _complete(out, {name for name in SPLIT if name in settings}, glob)
    for name, value in _DEFAULTS.items():
        out.facts.setdefault(name, Fact(value, "unless set"))
    return out


def option(glob: str, name: str, value: object) -> str:
    """Return the ``--set`` for the runs that match ``glob``, as one types it in a shell.

    >>> option("", "n", 8), option("runs/a", "seed", 1)
    ('--set n=8', "--set 'runs/a:seed=1'")
    """
    text = f"{glob}:{name}={value}" if glob else f"{name}={value}"
    quoted = shlex.quote(text)
    return f"--set {quoted if quoted != text or not glob else repr(text)}"


def only(run: str, among: Iterable[str] = ()) -> str:
    """Return a glob for this run of several: the end of its name, where no other's is like it.

    What ``--set`` itself splits at is any character in it.

    >>> only("runs/n=8 [a]"), only("x/a", ["x/a", "x/b"]), only("x/a", ["x/a", "y/a"])
    ('runs/n?8 [[]a]', 'a', 'x/a')
    """
    end = PurePath(run).name
    others = [other for other in among if other != run]
    if others and end and not any(other == end or other.endswith(f"/{end}") for other in others):
        run = end
    return escape(run).replace(":", "?").replace("=", "?")


def _from_logs(
    parts: Sequence[RawLog], framework: Framework, settings: Mapping[str, Setting], out: Resolved
) -> None:
    for part in parts:
        if not part.config and part.config_source:
            out.hints.setdefault("configuration", f"its configuration was not used: {part.config_source}")
        for name, fact in framework.facts(part.config, part.config_source).items():
            if fact.value is None:  # what it would follow from
                if name in SPLIT and fact.origin:
                    out.hints.setdefault(name, fact.origin)
                continue
            value = _sound(name, fact.value)
            if value is None:
                out.notes.append(f"{name} is {str(fact.value)[:80]!r} ({fact.origin}): not used")
                continue
            before = out.facts.setdefault(name, Fact(value, fact.origin))
            if before.value == value or name in settings:
                continue
            two = f"{name}: {before.value} ({before.origin}) and {value} ({fact.origin})"
            if name in _ONE_VALUE:
                out.problems.append(
                    f"its parts differ in {two}. If they are several runs: --group-by file; "
                    f"if not, {option('', SYMBOL.get(name, name).replace(' ', '_'), '<value>')}"
                )
            else:
                out.notes.append(f"its parts differ in {two}: the first was kept")
    out.notes = list(dict.fromkeys(out.notes))
    out.problems = list(dict.fromkeys(out.problems))


def _sound(name: str, value: Any) -> Any:
    """Return a fact's value as a plain one; None for what it cannot be."""
    if name in SPLIT or name in ("seed", "logging_steps"):
        found = number(value)
        whole = found is not None and math.isfinite(found) and found == round(found)
        least = 0 if name == "seed" else 1
        return int(found) if found is not None and whole and least <= found <= _LARGEST else None
    if name == "on_policy":
        return value if isinstance(value, bool) else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:200]


def _complete(out: Resolved, given: set[str], glob: str) -> None:
    facts = out.facts
    b, n, r = (facts.get(name) for name in SPLIT)
    if b and n and r and r.value != b.value * n.value:
        aside = _left_aside(given)
        if not aside:
            out.problems.append(
                f"rollouts per step = {r.value} ({r.origin}), but B_p · n = {b.value} · {n.value} = "
                f"{b.value * n.value} ({b.origin}; {n.origin}): say which holds, as in "
                f"{option(glob, 'n', '<number>')} {option(glob, 'B_p', '<number>')}"
            )
            return
        old = facts.pop(aside)
        out.notes.append(f"{SYMBOL[aside]} = {old.value} ({old.origin}) was left aside for what was set")
        b, n, r = (facts.get(name) for name in SPLIT)
    if b and n:
        facts.setdefault("rollouts_per_step", Fact(b.value * n.value, "B_p · n"))
    elif r and (b or n):
        missing, known = ("problems_per_batch", n) if n else ("rollouts_per_problem", b)
        assert known is not None
        if r.value % known.value:
            out.problems.append(
                f"rollouts per step = {r.value} ({r.origin}) is no multiple of "
                f"{'n' if n else 'B_p'} = {known.value} ({known.origin}): set two of n, B_p and "
                "rollouts_per_step"
            )
            return
        divisor = "n" if n else "B_p"
        facts[missing] = Fact(r.value // known.value, f"rollouts per step / {divisor}; {r.origin}")
    else:
        _unknown(out, glob, b, n, r)


def _left_aside(given: set[str]) -> str:
    """Which of three that contradict each other gives way; "" when what was set does not say."""
    if len(given) == 2:
        return next(name for name in SPLIT if name not in given)
    # The product is the derived one, unless it is what the user named.
    return "rollouts_per_step" if given and "rollouts_per_step" not in given else ""


def _unknown(out: Resolved, glob: str, *known: Fact | None) -> None:
    there = [f"{SYMBOL[name]} = {f.value} ({f.origin})" for name, f in zip(SPLIT, known, strict=True) if f]
    lacking = ["n", "B_p"] if not known[0] and not known[1] else ["B_p"] if known[1] else ["n"]
    if known[2]:
        lacking = ["n"]  # the product is known: n gives B_p
    out.lacking = tuple(lacking)
    add = " ".join(option(glob, name, "<number>") for name in lacking)
    out.problems.append(
        f"{' and '.join(['n', 'B_p'] if known[2] else lacking)} unknown"
        + (f" (known: {', '.join(there)})" if there else "")
        + f": add {add}"
        + "".join(f" ({hint})" for name, hint in out.hints.items() if name not in out.facts)
    )
