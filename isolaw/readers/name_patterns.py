"""``--name-pattern 's{seed}-p{B_p}-n{n}-*'``: values in the names of runs.

Names are not a reliable source, so isolaw applies only patterns that the user gives, and only for values that
the log lacks. It suggests a pattern if the names of runs that lack values differ in these values.

A pattern with ``/`` is matched against equally many final parts of a run's path.

>>> NamePattern("*-s{seed}-n{n}").values("grpo-s21-n128")
{'seed': '21', 'rollouts_per_problem': '128'}
>>> offer(["grpo-s21-p8-n128-m4", "grpo-s22-p8-n32-m4"], ["n", "seed"])
('*-s{seed}-p8-n{n}*', ['n', 'seed'])
>>> offer(["runs/p8_n4/seed_0", "runs/p8_n16/seed_0"], ["n", "seed"])
('*_n{n}/seed_{seed}*', ['n', 'seed'])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from isolaw.errors import InputError
from isolaw.readers.assignments import ALIASES, WHOLE, Assignment, as_number, assignment, settable
from isolaw.readers.names import written

_FIELD = re.compile(r"\{(\w+)\}")
_COUNT = "(?<![0-9])[0-9]+(?![0-9])"  # not part of a longer number
_VALUE = "[0-9.]+e-?[0-9]+|[^-_/ ]+"
_SETTING = re.compile(
    r"(^|[-_/ .])([A-Za-z][A-Za-z_]*?)[-_=]?([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)(?![0-9A-Za-z])"
)
_REPETITIONS = {"run", "rep", "repeat", "trial", "try", "r", "job", "v", "version", "exp", "id", "copy"}
_REPETITIONS |= {"part", "rerun", "again"}


@dataclass(frozen=True)
class NamePattern:
    """A pattern for run names, in which ``{name}`` stands for a value and ``*`` for any text.

    Raises `InputError` if there is no ``{name}``, if one occurs twice, or if the user cannot set the value.
    """

    text: str

    def __post_init__(self) -> None:
        names = [settable(name, str(self)) for name in _FIELD.findall(self.text)]
        if not names or len(set(names)) < len(names):
            raise InputError(f"{self}: expected each value once, as in 's{{seed}}-p{{B_p}}-n{{n}}-*'")

    def __str__(self) -> str:
        return f"--name-pattern {self.text!r}"

    def assigned(self, run: str, sources: Sequence[str]) -> Sequence[Assignment]:
        """Return the values in the name of a run or, failing that, of a file that it was read from."""
        parts = self.text.count("/") + 1
        for name in (ending(run, parts), run, *(ending(source, parts) for source in sources), *sources):
            if values := self.values(name):
                found = [assignment(own, value, "", f"{self}: {name}") for own, value in values.items()]
                return [Assignment(own.name, own.value, pattern=self) for own in found]
        return []

    def values(self, name: str) -> dict[str, str]:
        """Return the values in a name; raise `InputError` if the name is ambiguous."""
        # If a * can match more or less of the name, both readings must give the same values.
        one, other = (
            match.groupdict() if (match := pattern.fullmatch(name)) else {} for pattern in self._expressions
        )
        if one != other:
            values = " or ".join(", ".join(f"{k} = {v}" for k, v in own.items()) for own in (one, other))
            raise InputError(f"{self}: {name} gives {values}; include more of the name around each value")
        return one

    @cached_property
    def _expressions(self) -> list[re.Pattern[str]]:
        out = []
        for anything in (".*", ".*?"):
            text = ""
            for i, part in enumerate(_FIELD.split(self.text)):
                if i % 2 == 0:
                    text += anything.join(re.escape(piece) for piece in part.split("*"))
                    continue
                name = settable(part, str(self))
                text += f"(?P<{name}>{_COUNT if name in WHOLE else _VALUE})"
            out.append(re.compile(text, re.S))
        return out


def ending(path: str, parts: int) -> str:
    """Return the last ``parts`` parts of a path.

    >>> ending("runs/n8/seed_0", 2)
    'n8/seed_0'
    """
    return "/".join(PurePath(path).parts[-parts:])


def offer(runs: Sequence[str], needs: Sequence[str], below: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Suggest a pattern for the needed values in which run names differ, and list these values.

    Of all endings of the runs' paths ``below`` the user's folders, the shortest one with the most values is
    used (`isolaw.readers.names.written`). The pattern is empty if names do not contain a value, or contain it
    in several places.
    """
    depths = [len(PurePath(run).parts) for run in runs]
    for folder in below:
        top = PurePath(folder)
        depths = [
            len(PurePath(run).relative_to(top).parts) if PurePath(run).is_relative_to(top) else depth
            for run, depth in zip(runs, depths, strict=True)
        ]
    best: tuple[str, list[str]] = "", []
    for parts in range(1, max(depths, default=0) + 1):
        found = _offered(runs, parts, needs)
        best = found if len(found[1]) > len(best[1]) else best
    return best


def offer_setting(runs: Sequence[str]) -> str:
    """Suggest a pattern for the one setting in which run names differ, such as ``*-lr{lr}*``, or "".

    >>> offer_setting(["n8-lr1e-6", "n8-lr2e-6"]), offer_setting(["n8-run1", "n8-run2"])
    ('*-lr{lr}*', '')
    """
    names = [ending(run, 1) for run in runs]
    found = [{match[2].lower(): match for match in _SETTING.finditer(name)} for name in names]
    shared = set(found[0]).intersection(*found[1:]) if found else set[str]()
    for word in sorted(shared - _REPETITIONS - {"n", "g", "k", "p", "bs", "s", "seed"}):
        starts = {own[word][0].removesuffix(own[word][3]) for own in found}
        if len({own[word][3] for own in found}) < len(names) or len(starts) > 1:
            continue
        text = f"*{starts.pop()}{{{word}}}*"
        try:
            read = [[str(a.value) for a in NamePattern(text).assigned(run, [])] for run in runs]
        except InputError:
            continue
        if read == [[str(as_number(own[word][3]))] for own in found]:
            return text
    return ""


def words_that_differ(runs: Sequence[str]) -> list[str]:
    """Return a word of each name that not all names contain, or "" for a name without one.

    Runs that differ in a word are not repetitions. The list is empty if the names differ only in numbers.

    >>> words_that_differ(["a/ppo-8", "a/grpo-8"]), words_that_differ(["run1", "run2-again"])
    (['ppo', 'grpo'], [])
    >>> words_that_differ(["a2_vi_42", "a3_enlang_42", "reproduce_rs2_42"])
    ['vi', 'enlang', 'reproduce']
    """
    words = [re.findall(r"(?<![^-_/ .])[A-Za-z]{2,}(?![^-_/ .])", run) for run in runs]
    shared = _REPETITIONS.union(set(words[0]).intersection(*words[1:]))
    differing = [next((word for word in own if word not in shared), "") for own in words]
    return differing if any(differing) else []


def _offered(runs: Sequence[str], parts: int, needs: Sequence[str]) -> tuple[str, list[str]]:
    names = [ending(run, parts) for run in runs]
    if len(set(names)) < len(names) or len(names) < 2:
        return "", []
    found: dict[str, list[re.Match[str]]] = {}
    for need in (need for need in needs if need in ("n", "B_p", "seed")):
        expression = re.compile(rf"(?:^|[^A-Za-z0-9])(?:{written(need)})(?:[-_=]|: ?)?([0-9]+)", re.I)
        own = [list(expression.finditer(name)) for name in names]
        before = {matches[0][0][: -len(matches[0][1])] for matches in own if len(matches) == 1}
        if len(before) == 1 and all(len(matches) == 1 for matches in own):
            found[need] = [matches[0] for matches in own]
    order = sorted(found, key=lambda need: found[need][0].start())
    text, ends = "", [0] * len(names)
    for need in order:
        between = {name[end : own.start(1)] for name, end, own in zip(names, ends, found[need], strict=True)}
        first = found[need][0]
        text += between.pop() if text and len(between) == 1 else f"*{first[0][: -len(first[1])]}"
        text += f"{{{need}}}"
        ends = [own.end() for own in found[need]]
    if not text:
        return "", []
    pattern = NamePattern(f"{text}*")
    wanted = [{ALIASES.get(need, need): int(found[need][i][1]) for need in order} for i in range(len(runs))]
    try:  # as the pattern will be applied
        read = [{own.name: own.value for own in pattern.assigned(run, [])} for run in runs]
    except InputError:
        return "", []
    varies = len({tuple(own.items()) for own in read}) > 1
    return (pattern.text, [n for n in needs if n in found]) if varies and read == wanted else ("", [])
