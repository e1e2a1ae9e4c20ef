"""The facts of a run: B_p, n, rollouts per step, seed and others, each with its origin.

Any two of B_p, n and rollouts per step determine the third. User settings and values in the run's name
complete the log. If they contradict the log, isolaw reports a problem and does not guess, unless the user
sets two of the three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import PurePath
from typing import Any

from isolaw import commands
from isolaw.commands import Placeholder, word
from isolaw.errors import Spelled, joined
from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.how_to_read import Assignment
from isolaw.readers.names import ASSUMED, DEFAULTS, SPLIT, SYMBOL, UPDATES, WHOLE
from isolaw.readers.raw_log import RawLog, whole

_SYMBOL = {**SYMBOL, "rollouts_per_step": "rollouts per step"}
# Facts that must not change between the parts of one run.
_ONE_VALUE = (*SPLIT, UPDATES, "seed", "problem_set", "algorithm", "on_policy")
# Algorithms that compare the rollouts of a problem with each other, by their names in frameworks.
_OF_GROUPS = {"grpo", "grpo_passk", "gigpo", "dr_grpo", "drgrpo", "rloo", "opo", "dapo", "gspo", "loop"}
_OF_GROUPS |= {"group_norm", "reinforce_baseline"}  # OpenRLHF's names: GRPO, and a group's mean as baseline
ALGORITHMS = {*_OF_GROUPS, "ppo", "reinforce", "reinforce_plus_plus", "remax", "cispo"}
_ENOUGH = 2  # of B_p, n and rollouts per step; if the user sets two, they override the log
# Instructions for isolaw, not facts of the run.
_FOR_THE_READER = ("percent", "framework")


@dataclass
class Resolved:
    """The facts in a run's logs, and the values that are missing or contradictory."""

    # Our name → value and origin. B_p, n, seed and so on are present unless there are problems.
    facts: dict[str, Fact] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # unknown or contradictory facts
    needs: list[str] = field(default_factory=list)  # values that the user has to set, as ``--set`` names them
    notes: list[str] = field(default_factory=list)  # assumptions
    hints: dict[str, str] = field(default_factory=dict)  # unknown fact → the values that would determine it
    differing: set[str] = field(default_factory=set)  # facts that differ between parts of the run
    counted: bool = False  # whether the log itself counts the rollouts per step


def resolve(parts: Sequence[RawLog], framework: Framework, assignments: Mapping[str, Assignment]) -> Resolved:
    """Combine the configurations of a run's parts with the user's settings for the run, by name."""
    out = Resolved()
    one_file = len({part.source for part in parts}) == 1
    for part in parts:
        if not part.config and part.config_source:
            out.hints.setdefault(
                "configuration", f"isolaw did not use its configuration: {part.config_source}"
            )
        for name, fact in framework.facts(part.config, part.config_source).items():
            _add(out, name, fact, assignments, one_file)
        for counted in framework.counted(part):
            _add(out, "rollouts_per_step", counted, assignments, one_file)
            out.counted = True
    _question_single(out)
    _compare(out, assignments)
    out.problems, out.notes = list(dict.fromkeys(out.problems)), list(dict.fromkeys(out.notes))
    assignments = {name: one for name, one in assignments.items() if not _known(out, one)}
    for name, one in assignments.items():
        if name not in _FOR_THE_READER:
            out.facts[name] = Fact(one.value, one.origin)
    _complete(out, [name for name in SPLIT if name in assignments])
    for name, value in DEFAULTS.items():
        out.facts.setdefault(name, Fact(value, ASSUMED))
    return out


def _compare(out: Resolved, assignments: Mapping[str, Assignment]) -> None:
    """Add a problem for each name or option that contradicts the log, or a note if it is only a label."""
    for name, assignment in assignments.items():
        known = out.facts.get(name)
        if (
            known is None
            or known.value == assignment.value
            or name in out.differing
            or name in _FOR_THE_READER
        ):
            continue
        symbol = _SYMBOL.get(name, name)
        text = f"{symbol} = {assignment.value} ({assignment.origin}), but the log has "
        text += f"{known.value} ({known.origin})"
        if assignment.pattern is not None:
            out.problems.append(f"{text}: correct the wrong value, or leave {{{symbol}}} out of the pattern")
        elif assignment.file and name in WHOLE:  # the file may be outdated, or meant for other logs
            out.problems.append(
                f"{text}: correct {assignment.file}, or set {symbol} in the command if the log is wrong"
            )
        elif name in SPLIT and sum(other in assignments for other in SPLIT) < _ENOUGH:
            out.problems.append(
                f"{text}; omit the option or, if the log is wrong, set two of n, B_p and rollouts_per_step"
            )
        else:
            out.notes.append(f"{text}; isolaw replaced the log's value")
            continue
        out.needs.append(symbol.replace(" ", "_"))


def _known(out: Resolved, assignment: Assignment) -> bool:
    """Return whether a value from the run's name adds nothing, because the log already determines it."""
    if assignment.pattern is None:
        return False
    known = out.facts.get(assignment.name)
    return known is not None or (assignment.name in SPLIT and sum(name in out.facts for name in SPLIT) > 1)


def option(glob: str, name: str, value: object) -> Spelled:
    """Return the argument that sets a value for the runs that match ``glob``.

    >>> print(option("", "n", 8), option("runs/a", "seed", 1))
    set={"n": 8} set={"runs/a:seed": 1}
    """
    return commands.option("set", word(glob, ":", name) if glob else name, value)


def only(run: str, among: Iterable[str] = ()) -> str:
    """Return a glob for one of several runs: the last part of its name, unless another name ends with it.

    Characters at which ``--set`` splits are replaced by ``?``.

    >>> only("runs/n=8 [a]"), only("x/a", ["x/a", "x/b"]), only("x/a", ["x/a", "y/a"])
    ('runs/n?8 [[]a]', 'a', 'x/a')
    """
    end = PurePath(run).name
    others = [other for other in among if other != run]
    if others and end and not any(other == end or other.endswith(f"/{end}") for other in others):
        run = end
    return escape(run).replace(":", "?").replace("=", "?")


def _add(out: Resolved, name: str, fact: Fact, assignments: Mapping[str, Assignment], one_file: bool) -> None:
    """Add a fact from one part of a run's log, and report it if another part has a different value."""
    if fact.value is None:  # the origin describes which values would determine it
        if name in SPLIT and fact.origin:
            out.hints.setdefault(name, fact.origin)
        return
    value = _sound(name, fact.value)
    if value is None:
        out.notes.append(f"{name} is {str(fact.value)[:80]!r} ({fact.origin}), which isolaw does not use")
        return
    before = out.facts.setdefault(name, Fact(value, fact.origin))
    if before.value == value:
        return
    out.differing.add(name)
    if name in assignments:
        return
    both = f"its parts differ in {name}: {before.value} ({before.origin}) and {value} ({fact.origin})"
    if name in _ONE_VALUE:
        symbol = _SYMBOL.get(name, name).replace(" ", "_")
        out.needs.append(symbol)
        by_file = commands.argument("group_by", "file")
        apart = "put each run in a file of its own" if one_file else by_file
        way = option("", symbol, Placeholder("value"))
        out.problems.append(f"{both}. If they are several runs: " + (apart + "; if not, " + way))
    else:
        out.notes.append(f"{both}; isolaw kept the first")


def _question_single(out: Resolved) -> None:
    """Treat n = 1 as unknown if the algorithm compares rollouts of a group: n may be under another key."""
    n, algorithm = out.facts.get("rollouts_per_problem"), out.facts.get("algorithm")
    if n and n.value == 1 and algorithm and str(algorithm.value).lower() in _OF_GROUPS:
        del out.facts["rollouts_per_problem"]
        out.hints["rollouts_per_problem"] = (
            f"n is 1 ({n.origin}), but {algorithm.value} ({algorithm.origin}) compares the rollouts of a "
            f"problem, so the group size may be under another key; if it is 1: " + option("", "n", 1)
        )


def _sound(name: str, value: Any) -> Any:
    """Return the value of a fact as a plain type, or None if it is invalid."""
    if name in WHOLE:
        return whole(value, WHOLE[name])
    if name == "on_policy":
        return value if isinstance(value, bool) else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float) else str(value)[:200]


def _complete(out: Resolved, given: Sequence[str]) -> None:
    """Derive the third of B_p, n and rollouts per step, or add the problem that prevents this."""
    facts = out.facts
    b, n, r = (facts.get(name) for name in SPLIT)
    updates = facts[UPDATES].value if UPDATES in facts else 1
    if b and n and r and r.value * updates != b.value * n.value:
        # If the user set two of them, replace the third, unless the log counted it.
        seen = out.counted and "rollouts_per_step" not in given
        if seen or len(given) != _ENOUGH:
            out.problems.append(
                f"rollouts per step = {r.value} ({r.origin}), but B_p · n = {b.value} · {n.value} = "
                f"{b.value * n.value} ({b.origin}; {n.origin}): "
                + (
                    "set the correct value, or rollouts_per_step as well"
                    if seen
                    else "set the two of the three that are correct"
                )
            )
            out.needs += ["n", "B_p"]
            return
        loser = next(name for name in reversed(SPLIT) if name not in given)
        old = facts.pop(loser)
        out.notes.append(
            f"{_SYMBOL[loser]} = {old.value} ({old.origin}) was replaced, since your values contradict it"
        )
        b, n, r = (facts.get(name) for name in SPLIT)
    if b and n:
        product, rest = divmod(b.value * n.value, updates)
        batch = product + rest / updates if rest else product
        facts.setdefault("rollouts_per_step", Fact(batch, f"B_p · n{f' / {updates}' if updates > 1 else ''}"))
    elif r and n and (r.value * updates) % n.value == 0 and updates > 1:
        facts[SPLIT[0]] = Fact(r.value * updates // n.value, f"{UPDATES} {updates}; {r.origin}")
    elif r and n and r.value < n.value and updates == 1:  # a group feeds several updates
        updates = n.value // math.gcd(n.value, r.value)
        facts[SPLIT[0]] = Fact(r.value * updates // n.value, f"for {updates} updates; {r.origin}")
        facts[UPDATES] = Fact(updates, f"n = {n.value} is more than the {r.value} rollouts of a step")
    elif r and (known := n or b):
        missing, divisor = ("problems_per_batch", "n") if n else ("rollouts_per_problem", "B_p")
        if r.value % known.value:
            out.problems.append(
                f"rollouts per step = {r.value} ({r.origin}) is not a multiple of {divisor} = {known.value} "
                f"({known.origin}): set two of n, B_p and rollouts_per_step"
            )
            out.needs += ["n", "B_p"]
        else:
            facts[missing] = Fact(r.value // known.value, f"rollouts per step / {divisor}; {r.origin}")
    else:
        unknown = [symbol for symbol, fact in (("n", n), ("B_p", b)) if not fact]
        out.needs += ["n"] if r else unknown  # the product is known, so n determines B_p
        there = ", ".join(f"{_SYMBOL[k]} = {facts[k].value} ({facts[k].origin})" for k in SPLIT if k in facts)
        out.problems.append(
            f"{' and '.join(unknown)} unknown{f' (known: {there})' if there else ''}"
            + joined("", ["", *(" (" + hint + ")" for name, hint in out.hints.items() if name not in facts)])
        )
