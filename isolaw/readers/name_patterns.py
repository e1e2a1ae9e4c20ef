"""``--name-pattern 's{seed}-p{B_p}-n{n}-*'``: values in the names of runs.

Names are not a reliable source, so isolaw applies only patterns that the user gives, and only for values that
the log lacks. It suggests a pattern if the names of runs that lack values differ in these values.

A pattern with ``/`` is matched against equally many final parts of a run's path.

>>> NamePattern("*-s{seed}-n{n}").values("grpo-s21-n128")
{'seed': '21', 'rollouts_per_problem': '128'}
>>> suggest(["grpo-s21-p8-n128-m4", "grpo-s22-p8-n32-m4"], ["n", "seed"])
('*-s{seed}-p8-n{n}*', ['n', 'seed'])
>>> suggest(["runs/p8_n4/seed_0", "runs/p8_n16/seed_0"], ["n", "seed"])
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
from isolaw.readers.names import ALIASES, WHOLE, settable, spellings_of, value_of

_VALUE_FIELD = re.compile(r"\{(\w+)\}")
# A whole number, not a part of a longer one; any other value as long as possible, such as 1e-6 or easy.
_INTEGER, _VALUE = r"(?<![0-9])([0-9]++)", r"((?>[0-9.]+e-?[0-9]+|[^-_/ ]+))"
_MAX_PARTS = 40  # values and * in a pattern


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
        if (part_count := len(names) + self.text.count("*")) > _MAX_PARTS:
            found_parts = f"found {part_count:,} values and *"
            raise InputError(f"{str(self)[:200]}: {found_parts}; expected at most {_MAX_PARTS}")

    def __str__(self) -> str:
        return f"--name-pattern {shown(self.text)}"

    def read(self, run: str, sources: Sequence[str] = ()) -> dict[str, Any]:
        """Return the values in the name of a run or, failing that, of a file that it was read from."""
        count = self.text.count("/") + 1
        for name in (_ending(run, count), run, *(_ending(source, count) for source in sources), *sources):
            if texts := self.values(name):
                return {key: value_of(key, text, f"{self}: {name}") for key, text in texts.items()}
        return {}

    def values(self, name: str) -> dict[str, str]:
        """Return the values in a name; raise `InputError` if the name is ambiguous."""
        if len(name) > limits.LONGEST_NAME:
            return {}
        # If a * can match more or less of the name, both readings must give the same values.
        greedy, lazy = self._readings(name)
        if greedy != lazy:
            values = " or ".join(", ".join(f"{k} = {v}" for k, v in read.items()) for read in (greedy, lazy))
            raise InputError(f"{self}: {name} gives {values}; include more of the name around each value")
        return greedy

    @property
    def _names(self) -> list[str]:
        return [settable(name, str(self)) for name in _VALUE_FIELD.findall(self.text)]

    @cached_property
    def _fixed_texts(self) -> list[re.Pattern[str]]:
        """The texts between ``*``, with a group for each value. A text matches at a place in one way."""
        expressions = []
        for text in self.text.split("*"):
            pieces = _VALUE_FIELD.split(text)
            pieces[::2] = map(re.escape, pieces[::2])
            pieces[1::2] = [_INTEGER if settable(name, "") in WHOLE else _VALUE for name in pieces[1::2]]
            expressions.append(re.compile("".join(pieces)))
        return expressions

    def _readings(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the values if each ``*`` matches as much as possible, and if it matches as little.

        For little, each text is at its first place after the text before; for much, at its last place before
        the next text. A single regular expression would try all combinations of places.
        """
        first_text, *other_texts = self._fixed_texts
        first_match, end = first_text.match(name) if other_texts else first_text.fullmatch(name), len(name)
        if first_match is None:
            return {}, {}

        def find_match(text: re.Pattern[str], starts: range, least: int, most: int) -> re.Match[str] | None:
            matches = (text.match(name, start) for start in starts)
            return next((match for match in matches if match and least <= match.end() <= most), None)

        lazy, greedy, start, bound = [first_match], list[re.Match[str]](), first_match.end(), end
        for number, text in enumerate(other_texts, 1):
            least = end if number == len(other_texts) else start
            match = find_match(text, range(start, end + 1), least, end)
            if match is None:
                return {}, {}
            lazy.append(match)
            start = match.end()
        for text in reversed(other_texts):
            match = find_match(text, range(bound, first_match.end() - 1, -1), 0 if greedy else end, bound)
            if match is None:
                return {}, {}
            greedy.insert(0, match)
            bound = match.start()
        greedy.insert(0, first_match)
        values, lazy_values = ([v for match in matches for v in match.groups()] for matches in (greedy, lazy))
        return dict(zip(self._names, values, strict=True)), dict(zip(self._names, lazy_values, strict=True))


def _ending(path: str, part_count: int) -> str:
    """Return the last ``part_count`` parts of a path.

    >>> _ending("runs/n8/seed_0", 2)
    'n8/seed_0'
    """
    return "/".join(PurePath(path).parts[-part_count:])


def suggest(runs: Sequence[str], needs: Sequence[str], roots: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Suggest a pattern for the needed values in which run names differ, and list these values.

    Of all endings of the runs' paths below ``roots``, the shortest one with the most values is used. The
    pattern is empty if names do not contain a value, or contain it in several places.
    """
    depths = [len(PurePath(run).parts) for run in runs]
    for root in map(PurePath, roots):
        depths = [
            len(PurePath(run).relative_to(root).parts) if PurePath(run).is_relative_to(root) else depth
            for run, depth in zip(runs, depths, strict=True)
        ]
    best: tuple[str, list[str]] = "", []
    for part_count in range(1, max(depths, default=0) + 1):
        best = max(
            best,
            _pattern_for(runs, part_count, needs),
            key=lambda match: len(match[1]),
        )
    return best


def _pattern_for(runs: Sequence[str], part_count: int, needs: Sequence[str]) -> tuple[str, list[str]]:
    names = [_ending(run, part_count) for run in runs]
    if len(set(names)) < len(names) or len(names) < 2:
        return "", []
    matches_of_need: dict[str, list[re.Match[str]]] = {}
    for need in (need for need in needs if need in ("n", "B_p", "seed")):
        expression = re.compile(rf"(?:^|[^A-Za-z0-9])(?:{spellings_of(need)})(?:[-_=]|: ?)?([0-9]+)", re.I)
        matches = [list(expression.finditer(name)) for name in names]
        if not all(len(of_run) == 1 for of_run in matches):
            continue
        matched = [match for (match,) in matches]
        if len({match[0].removesuffix(match[1]) for match in matched}) == 1:
            matches_of_need[need] = matched
    needs_in_order = sorted(matches_of_need, key=lambda need: matches_of_need[need][0].start())
    text, ends = "", [0] * len(names)
    for need in needs_in_order:
        matched = matches_of_need[need]
        between = {name[end : match.start(1)] for name, end, match in zip(names, ends, matched, strict=True)}
        prefix = matched[0][0].removesuffix(matched[0][1])
        text += f"{between.pop() if text and len(between) == 1 else f'*{prefix}'}{{{need}}}"
        ends = [match.end() for match in matched]
    if not text:
        return "", []
    pattern = NamePattern(f"{text}*")
    expected: list[dict[str, int]] = [{} for _ in runs]
    for need in needs_in_order:
        for values, match in zip(expected, matches_of_need[need], strict=True):
            values[ALIASES.get(need, need)] = int(match[1])
    try:  # as the pattern will be applied
        read = [pattern.read(run) for run in runs]
    except InputError:
        return "", []
    if read != expected or len({tuple(values.items()) for values in read}) == 1:
        return "", []
    return pattern.text, [need for need in needs if need in matches_of_need]
