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
from typing import Any

from isolaw.errors import InputError, shown
from isolaw.readers import limits
from isolaw.readers.names import ALIASES, WHOLE, settable, value_of, written

_FIELD = re.compile(r"\{(\w+)\}")
# A whole number, not a part of a longer one; any other value as long as possible, such as 1e-6 or easy.
_WHOLE_VALUE, _VALUE = r"(?<![0-9])([0-9]++)", r"((?>[0-9.]+e-?[0-9]+|[^-_/ ]+))"
_MOST_PARTS = 40  # values and * in a pattern
_REPETITIONS = {"run", "rep", "repeat", "trial", "try", "r", "job", "v", "version", "exp", "id", "copy"}
_REPETITIONS |= {"part", "rerun", "again", "seed"}
_WORD_OR_SETTING = re.compile(r"(?<![^-_/ .])([A-Za-z]{2,})(?:[0-9][0-9.]*(?:e-?[0-9]+)?)?(?![^-_/ .#])")


@dataclass(frozen=True)
class NamePattern:
    """A pattern for run names, in which ``{name}`` stands for a value and ``*`` for any text.

    Raises `InputError` if there is no ``{name}``, if one occurs twice, or if the user cannot set the value.
    """

    text: str

    def __post_init__(self) -> None:
        names = self._names
        if not names or len(set(names)) < len(names):
            raise InputError(f"{self}: expected each value once, as in 's{{seed}}-p{{B_p}}-n{{n}}-*'")
        if (parts := len(names) + self.text.count("*")) > _MOST_PARTS:
            excess = f"found {parts:,} values and *"
            raise InputError(f"{str(self)[:200]}: {excess}; expected at most {_MOST_PARTS}")

    def __str__(self) -> str:
        return f"--name-pattern {shown(self.text)}"

    def read(self, run: str, sources: Sequence[str] = ()) -> dict[str, Any]:
        """Return the values in the name of a run or, failing that, of a file that it was read from."""
        parts = self.text.count("/") + 1
        for name in (_ending(run, parts), run, *(_ending(source, parts) for source in sources), *sources):
            if texts := self.values(name):
                return {of: value_of(of, text, f"{self}: {name}") for of, text in texts.items()}
        return {}

    def values(self, name: str) -> dict[str, str]:
        """Return the values in a name; raise `InputError` if the name is ambiguous."""
        if len(name) > limits.LONGEST_NAME:
            return {}
        # If a * can match more or less of the name, both readings must give the same values.
        one, other = self._readings(name)
        if one != other:
            values = " or ".join(", ".join(f"{k} = {v}" for k, v in each.items()) for each in (one, other))
            raise InputError(f"{self}: {name} gives {values}; include more of the name around each value")
        return one

    @property
    def _names(self) -> list[str]:
        return [settable(name, str(self)) for name in _FIELD.findall(self.text)]

    @cached_property
    def _texts(self) -> list[re.Pattern[str]]:
        """The texts between ``*``, with a group for each value. A text matches at a place in one way."""
        out = []
        for text in self.text.split("*"):
            parts = _FIELD.split(text)
            parts[::2] = map(re.escape, parts[::2])
            parts[1::2] = [_WHOLE_VALUE if settable(name, "") in WHOLE else _VALUE for name in parts[1::2]]
            out.append(re.compile("".join(parts)))
        return out

    def _readings(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the values if each ``*`` matches as much as possible, and if it matches as little.

        For little, each text is at its first place after the text before; for much, at its last place before
        the next text. A single regular expression would try all combinations of places.
        """
        first, *others = self._texts
        begin, end = first.match(name) if others else first.fullmatch(name), len(name)
        if begin is None:
            return {}, {}

        def place(text: re.Pattern[str], starts: range, least: int, most: int) -> re.Match[str] | None:
            matches = (text.match(name, start) for start in starts)
            return next((match for match in matches if match and least <= match.end() <= most), None)

        little, much, at, bound = [begin], list[re.Match[str]](), begin.end(), end
        for number, text in enumerate(others, 1):
            match = place(text, range(at, end + 1), end if number == len(others) else at, end)
            if match is None:
                return {}, {}
            little.append(match)
            at = match.end()
        for text in reversed(others):
            match = place(text, range(bound, begin.end() - 1, -1), 0 if much else end, bound)
            if match is None:
                return {}, {}
            much.insert(0, match)
            bound = match.start()
        most, least = ([v for match in each for v in match.groups()] for each in ([begin, *much], little))
        return dict(zip(self._names, most, strict=True)), dict(zip(self._names, least, strict=True))


def _ending(path: str, parts: int) -> str:
    """Return the last ``parts`` parts of a path.

    >>> _ending("runs/n8/seed_0", 2)
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
        best = max(best, _offered(runs, parts, needs), key=lambda offered: len(offered[1]))
    return best


def words_that_differ(runs: Sequence[str]) -> list[str]:
    """Return a word of each name that not all names contain, or "" for a name without one.

    Runs that differ in a word, or in the number of a setting such as ``lr1e-6``, are not repetitions. The
    list is empty if the names differ only in numbers.

    >>> words_that_differ(["a/ppo-8", "a/grpo-8"]), words_that_differ(["run1", "run2-again"])
    (['ppo', 'grpo'], [])
    >>> words_that_differ(["a2_vi_42", "a3_enlang_42", "reproduce_rs2_42"])
    ['vi', 'enlang', 'reproduce']
    """
    words = [
        [m[0] for m in _WORD_OR_SETTING.finditer(run) if m[1].lower() not in _REPETITIONS] for run in runs
    ]
    shared = set(words[0]).intersection(*words[1:])
    differing = [next((word for word in of_run if word not in shared), "") for of_run in words]
    return differing if any(differing) else []


def _offered(runs: Sequence[str], parts: int, needs: Sequence[str]) -> tuple[str, list[str]]:
    names = [_ending(run, parts) for run in runs]
    if len(set(names)) < len(names) or len(names) < 2:
        return "", []
    matched: dict[str, list[re.Match[str]]] = {}
    for need in (need for need in needs if need in ("n", "B_p", "seed")):
        expression = re.compile(rf"(?:^|[^A-Za-z0-9])(?:{written(need)})(?:[-_=]|: ?)?([0-9]+)", re.I)
        matches = [list(expression.finditer(name)) for name in names]
        before = {of_run[0][0][: -len(of_run[0][1])] for of_run in matches if len(of_run) == 1}
        if len(before) == 1 and all(len(of_run) == 1 for of_run in matches):
            matched[need] = [of_run[0] for of_run in matches]
    order = sorted(matched, key=lambda need: matched[need][0].start())
    text, ends = "", [0] * len(names)
    for need in order:
        between = {name[end : of.start(1)] for name, end, of in zip(names, ends, matched[need], strict=True)}
        first = matched[need][0]
        text += between.pop() if text and len(between) == 1 else f"*{first[0][: -len(first[1])]}"
        text += f"{{{need}}}"
        ends = [of.end() for of in matched[need]]
    if not text:
        return "", []
    pattern = NamePattern(f"{text}*")
    wanted = [{ALIASES.get(need, need): int(matched[need][i][1]) for need in order} for i in range(len(runs))]
    try:  # as the pattern will be applied
        read = [pattern.read(run) for run in runs]
    except InputError:
        return "", []
    varies = len({tuple(values.items()) for values in read}) > 1
    return (pattern.text, [n for n in needs if n in matched]) if varies and read == wanted else ("", [])
