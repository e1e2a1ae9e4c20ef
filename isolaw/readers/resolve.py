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

_SYMBOL_OF = {**SYMBOL, "rollouts_per_step": "rollouts per step"}
# Facts that must not change between the parts of one run.
_CONSTANT_FACTS = (*SPLIT, UPDATES, "seed", "problem_set", "algorithm", "on_policy")
# Algorithms that compare the rollouts of a problem with each other, by their names in frameworks.
_GROUP_ALGORITHMS = {"grpo", "grpo_passk", "gigpo", "dr_grpo", "drgrpo", "rloo", "opo", "dapo", "gspo"}
# The last two are OpenRLHF's names: GRPO, and a group's mean as baseline.
_GROUP_ALGORITHMS |= {"loop", "group_norm", "reinforce_baseline"}
_SUFFICIENT = 2  # of B_p, n and rollouts per step; if the user sets two, they override the log
# Instructions for isolaw, not facts of the run.
_READER_SETTINGS = ("percent", "framework")


@dataclass
class Resolved:
    """The facts in a run's logs, and the values that are missing or contradictory."""

    # Our name → value and origin. B_p, n, seed and so on are present unless there are problems.
    facts: dict[str, Fact] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # unknown or contradictory facts
    needs: list[str] = field(default_factory=list)  # values that the user has to set, as ``--set`` names them
    notes: list[str] = field(default_factory=list)  # assumptions
    hints: dict[str, str] = field(default_factory=dict)  # unknown fact → the values that would determine it
    differing_facts: set[str] = field(default_factory=set)  # facts that differ between parts of the run
    counts_rollouts: bool = False  # whether the log itself counts the rollouts per step


def resolve(logs: Sequence[RawLog], framework: Framework, settings: Mapping[str, Assignment]) -> Resolved:
    """Combine the configurations of a run's parts with the user's settings for the run, by name."""
    result = Resolved()
    is_one_file = len({log.source for log in logs}) == 1
    for log in logs:
        if not log.config and log.config_source:
            result.hints.setdefault(
                "configuration", f"isolaw did not use its configuration: {log.config_source}"
            )
        for name, fact in framework.facts(log.config, log.config_source).items():
            _add_fact(result, name, fact, settings, is_one_file)
        for count in framework.counted(log):
            _add_fact(result, "rollouts_per_step", count, settings, is_one_file)
            result.counts_rollouts = True
    _doubt_single_rollout(result)
    _compare_settings(result, settings)
    result.problems, result.notes = list(dict.fromkeys(result.problems)), list(dict.fromkeys(result.notes))
    settings = {name: setting for name, setting in settings.items() if not _adds_nothing(result, setting)}
    for name, setting in settings.items():
        if name not in _READER_SETTINGS:
            result.facts[name] = Fact(setting.value, setting.origin)
    _complete_sizes(result, [name for name in SPLIT if name in settings])
    for name, value in DEFAULTS.items():
        result.facts.setdefault(name, Fact(value, ASSUMED))
    return result


def _compare_settings(result: Resolved, settings: Mapping[str, Assignment]) -> None:
    """Add a problem for each name or option that contradicts the log, or a note if it is only a label."""
    for name, setting in settings.items():
        logged = result.facts.get(name)
        if logged is None or logged.value == setting.value:
            continue
        if name in result.differing_facts or name in _READER_SETTINGS:
            continue
        symbol = _SYMBOL_OF.get(name, name)
        text = f"{symbol} = {setting.value} ({setting.origin}), but the log has "
        text += f"{logged.value} ({logged.origin})"
        if setting.pattern is not None:
            text += f": correct the wrong value, or leave {{{symbol}}} out of the pattern"
            result.problems.append(text)
        elif setting.file and name in WHOLE:  # the file may be outdated, or meant for other logs
            result.problems.append(
                f"{text}: correct {setting.file}, or set {symbol} in the command if the log is wrong"
            )
        elif name in SPLIT and sum(other_name in settings for other_name in SPLIT) < _SUFFICIENT:
            result.problems.append(
                f"{text}; omit the option or, if the log is wrong, set two of n, B_p and rollouts_per_step"
            )
        else:
            result.notes.append(f"{text}; isolaw replaced the log's value")
            continue
        result.needs.append(symbol.replace(" ", "_"))


def _adds_nothing(result: Resolved, setting: Assignment) -> bool:
    """Return whether a value from the run's name adds nothing, because the log already determines it."""
    if setting.pattern is None:
        return False
    logged = result.facts.get(setting.name)
    return logged is not None or (setting.name in SPLIT and sum(name in result.facts for name in SPLIT) > 1)


def set_option(glob: str, name: str, value: object) -> Spelled:
    """Return the argument that sets a value for the runs that match ``glob``.

    >>> print(set_option("", "n", 8), set_option("runs/a", "seed", 1))
    set={"n": 8} set={"runs/a:seed": 1}
    """
    return commands.option("set", word(glob, ":", name) if glob else name, value)


def glob_for(run: str, run_names: Iterable[str] = ()) -> str:
    """Return a glob for one of several runs: the last part of its name, unless another name ends with it.

    Characters at which ``--set`` splits are replaced by ``?``.

    >>> glob_for("runs/n=8 [a]"), glob_for("x/a", ["x/a", "x/b"]), glob_for("x/a", ["x/a", "y/a"])
    ('runs/n?8 [[]a]', 'a', 'x/a')
    """
    end = PurePath(run).name
    others = [other for other in run_names if other != run]
    if others and end and not any(other == end or other.endswith(f"/{end}") for other in others):
        run = end
    return escape(run).replace(":", "?").replace("=", "?")


def _add_fact(
    result: Resolved, name: str, fact: Fact, settings: Mapping[str, Assignment], is_one_file: bool
) -> None:
    """Add a fact from one part of a run's log, and report it if another part has a different value."""
    if fact.value is None:  # the origin describes which values would determine it
        if name in SPLIT and fact.origin:
            result.hints.setdefault(name, fact.origin)
        return
    value = _valid_value(name, fact.value)
    if value is None:
        result.notes.append(f"{name} is {str(fact.value)[:80]!r} ({fact.origin}), which isolaw does not use")
        return
    previous = result.facts.setdefault(name, Fact(value, fact.origin))
    if previous.value == value:
        return
    result.differing_facts.add(name)
    if name in settings:
        return
    text = f"its parts differ in {name}: {previous.value} ({previous.origin}) and {value} ({fact.origin})"
    if name in _CONSTANT_FACTS:
        symbol = _SYMBOL_OF.get(name, name).replace(" ", "_")
        result.needs.append(symbol)
        group_by_file = commands.argument("group_by", "file")
        separately = "put each run in a file of its own" if is_one_file else group_by_file
        remedy = separately + "; if not, " + set_option("", symbol, Placeholder("value"))
        result.problems.append(f"{text}. If they are several runs: " + remedy)
    else:
        result.notes.append(f"{text}; isolaw kept the first")


def _doubt_single_rollout(result: Resolved) -> None:
    """Treat n = 1 as unknown if the algorithm compares rollouts of a group: n may be under another key."""
    n, algorithm = result.facts.get("rollouts_per_problem"), result.facts.get("algorithm")
    if n and n.value == 1 and algorithm and str(algorithm.value).lower() in _GROUP_ALGORITHMS:
        del result.facts["rollouts_per_problem"]
        result.hints["rollouts_per_problem"] = (
            f"n is 1 ({n.origin}), but {algorithm.value} ({algorithm.origin}) compares the rollouts of a "
            "problem, so the group size may be under another key; if n really is 1, set it"
        )


def _valid_value(name: str, value: Any) -> Any:
    """Return the value of a fact as a plain type, or None if it is invalid."""
    if name in WHOLE:
        return whole(value, WHOLE[name])
    if name == "on_policy":
        return value if isinstance(value, bool) else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float) else str(value)[:200]


def _complete_sizes(result: Resolved, set_names: Sequence[str]) -> None:
    """Derive the third of B_p, n and rollouts per step, or add the problem that prevents this."""
    facts = result.facts
    b, n, r = (facts.get(name) for name in SPLIT)
    updates = facts[UPDATES].value if UPDATES in facts else 1
    if b and n and r and r.value * updates != b.value * n.value:
        # If the user set two of them, replace the third, unless the log counted it.
        is_counted = result.counts_rollouts and "rollouts_per_step" not in set_names
        if is_counted or len(set_names) != _SUFFICIENT:
            result.problems.append(
                f"rollouts per step = {r.value} ({r.origin}), but B_p · n = {b.value} · {n.value} = "
                f"{b.value * n.value} ({b.origin}; {n.origin}): "
                + (
                    "set the correct value, or rollouts_per_step as well"
                    if is_counted
                    else "set the two of the three that are correct"
                )
            )
            result.needs += ["n", "B_p"]
            return
        contradicted = next(name for name in reversed(SPLIT) if name not in set_names)
        old_fact = facts.pop(contradicted)
        old_value = f"{_SYMBOL_OF[contradicted]} = {old_fact.value} ({old_fact.origin})"
        result.notes.append(f"{old_value} was replaced, since your values contradict it")
        b, n, r = (facts.get(name) for name in SPLIT)
    if b and n:
        batch, remainder = divmod(b.value * n.value, updates)
        batch += remainder / updates if remainder else 0
        facts.setdefault("rollouts_per_step", Fact(batch, f"B_p · n{f' / {updates}' if updates > 1 else ''}"))
    elif r and n and (r.value * updates) % n.value == 0 and updates > 1:
        facts[SPLIT[0]] = Fact(r.value * updates // n.value, f"{UPDATES} {updates}; {r.origin}")
    elif r and n and r.value < n.value and updates == 1:  # a group feeds several updates
        updates = n.value // math.gcd(n.value, r.value)
        facts[SPLIT[0]] = Fact(r.value * updates // n.value, f"for {updates} updates; {r.origin}")
        facts[UPDATES] = Fact(updates, f"n = {n.value} is more than the {r.value} rollouts of a step")
    elif r and (known := n or b):
        missing, symbol = ("problems_per_batch", "n") if n else ("rollouts_per_problem", "B_p")
        if r.value % known.value:
            result.problems.append(
                f"rollouts per step = {r.value} ({r.origin}) is not a multiple of {symbol} = {known.value} "
                f"({known.origin}): set two of n, B_p and rollouts_per_step"
            )
            result.needs += ["n", "B_p"]
        else:
            facts[missing] = Fact(r.value // known.value, f"rollouts per step / {symbol}; {r.origin}")
    else:
        unknown_symbols = [symbol for symbol, fact in (("n", n), ("B_p", b)) if not fact]
        result.needs += ["n"] if r else unknown_symbols  # the product is known, so n determines B_p
        sizes = {_SYMBOL_OF[name]: facts[name] for name in SPLIT if name in facts}
        known_sizes = ", ".join(f"{symbol} = {fact.value} ({fact.origin})" for symbol, fact in sizes.items())
        hints = (" (" + hint + ")" for name, hint in result.hints.items() if name not in facts)
        result.problems.append(
            f"{' and '.join(unknown_symbols)} unknown{f' (known: {known_sizes})' if known_sizes else ''}"
            + joined("", ["", *hints])
        )
