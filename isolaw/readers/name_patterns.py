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
from isolaw.readers.names import ALIASES, WHOLE, as_number, settable, value_of, written

_FIELD = re.compile(r"\{(\w+)\}")
_FIELD_OR_ANY = re.compile(r"(\{\w+\}|\*)")
_DIGIT, _DIGIT_OR_POINT, _IN_VALUE = map(re.compile, ("[0-9]+", "[0-9.]+", "[^-_/ ]+"))
_MOST_PARTS = 40  # values and * in a pattern
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
        if len(self._parts) // 2 > _MOST_PARTS:
            excess = f"found {len(self._parts) // 2:,} values and *"
            raise InputError(f"{str(self)[:200]}: {excess}; expected at most {_MOST_PARTS}")

    def __str__(self) -> str:
        return f"--name-pattern {shown(self.text)}"

    def read(self, run: str, sources: Sequence[str] = ()) -> dict[str, Any]:
        """Return the values in the name of a run or, failing that, of a file that it was read from."""
        parts = self.text.count("/") + 1
        for name in (ending(run, parts), run, *(ending(source, parts) for source in sources), *sources):
            if texts := self.values(name):
                return {of: value_of(of, text, f"{self}: {name}") for of, text in texts.items()}
        return {}

    def values(self, name: str) -> dict[str, str]:
        """Return the values in a name; raise `InputError` if the name is ambiguous."""
        if len(name) > limits.LONGEST_NAME or any(text not in name for text in self._parts[::2]):
            return {}
        # If a * can match more or less of the name, both readings must give the same values.
        one, other = self._readings(name)
        if one != other:
            values = " or ".join(", ".join(f"{k} = {v}" for k, v in each.items()) for each in (one, other))
            raise InputError(f"{self}: {name} gives {values}; include more of the name around each value")
        return one

    @cached_property
    def _parts(self) -> list[str]:
        """The pattern, split: texts at even places, ``*`` and the names of values between them."""
        parts = _FIELD_OR_ANY.split(self.text)
        return [settable(part[1:-1], str(self)) if _FIELD.fullmatch(part) else part for part in parts]

    def _readings(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the values if each ``*`` matches as much as possible, and if it matches as little.

        A regular expression would try all combinations of matches. Here, the time is proportional to the
        length of the name times the number of parts.
        """
        spans = _Spans(name)
        ends = [
            [spans.of(part, at, is_text=i % 2 == 0) for at in range(len(name) + 1)]
            for i, part in enumerate(self._parts)
        ]
        # For each part and each place in the name: the last place up to there from which the rest fits.
        fits = [[-1] * len(name) + [len(name)]]
        for of_part in reversed(ends):
            after, last, places = fits[-1], -1, []
            for at, ranges in enumerate(of_part):
                last = at if any(after[high] >= low for low, high in ranges) else last
                places.append(last)
            fits.append(places)
        fits.reverse()
        readings = []
        for most in (True, False):
            at, values = 0, dict[str, str]()
            for i, part in enumerate(self._parts if fits[0][0] == 0 else ()):
                after = fits[i + 1]
                low, high = next((start, stop) for start, stop in ends[i][at] if after[stop] >= start)
                end = after[high]
                if part == "*" and not most:
                    end = next(place for place in range(low, high + 1) if after[place] == place)
                if i % 2 and part != "*":
                    values[part] = name[at:end]
                at = end
            readings.append(values)
        return readings[0], readings[1]


class _Spans:
    """Finds where a part of a pattern can end in a name, as ranges of places, the preferred range first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._digits, self._number, self._word = (
            _run_ends(name, characters) for characters in (_DIGIT, _DIGIT_OR_POINT, _IN_VALUE)
        )

    def of(self, part: str, at: int, is_text: bool) -> list[tuple[int, int]]:
        """Return the ranges of the ends of ``part`` if it starts at ``at``."""
        name = self._name
        if is_text:
            return [(at + len(part),) * 2] if name.startswith(part, at) else []
        if part == "*":
            return [(at, len(name))]
        if part in WHOLE:  # a whole number, and not a part of a longer one
            inside = at > 0 and self._digits[at - 1] >= at
            return [(self._digits[at],) * 2] if self._digits[at] > at and not inside else []
        out = []
        exponent = self._number[at]
        if exponent > at and name.startswith("e", exponent):  # such as 1e-6, which contains a "-"
            start = exponent + (2 if name.startswith("-", exponent + 1) else 1)
            if self._digits[start] > start:
                out.append((start + 1, self._digits[start]))
        return [*out, (at + 1, self._word[at])] if self._word[at] > at else out


def _run_ends(name: str, characters: re.Pattern[str]) -> list[int]:
    """Return, for each place in a name, the end of the run of these characters that starts there."""
    out = list(range(len(name) + 2))
    for run in characters.finditer(name):
        out[run.start() : run.end()] = [run.end()] * (run.end() - run.start())
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
        best = max(best, _offered(runs, parts, needs), key=lambda offered: len(offered[1]))
    return best


def offer_setting(runs: Sequence[str]) -> str:
    """Suggest a pattern for the one setting in which run names differ, such as ``*-lr{lr}*``, or "".

    >>> offer_setting(["n8-lr1e-6", "n8-lr2e-6"]), offer_setting(["n8-run1", "n8-run2"])
    ('*-lr{lr}*', '')
    """
    names = [ending(run, 1) for run in runs]
    matches = [{match[2].lower(): match for match in _SETTING.finditer(name)} for name in names]
    shared = set(matches[0]).intersection(*matches[1:]) if matches else set[str]()
    for word in sorted(shared - _REPETITIONS - {"n", "g", "k", "p", "bs", "s", "seed"}):
        numbers = [of_run[word][3] for of_run in matches]
        starts = {of_run[word][0].removesuffix(of_run[word][3]) for of_run in matches}
        if len({*numbers}) < len(names) or len(starts) > 1:
            continue
        text = f"*{starts.pop()}{{{word}}}*"
        try:
            read = [[str(value) for value in NamePattern(text).read(run).values()] for run in runs]
        except InputError:
            continue
        if read == [[str(as_number(number))] for number in numbers]:
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
    words = [re.findall(r"(?<![^-_/ .])[A-Za-z]{2,}(?![^-_/ .#])", run) for run in runs]
    shared = _REPETITIONS.union(set(words[0]).intersection(*words[1:]))
    differing = [next((word for word in of_run if word not in shared), "") for of_run in words]
    return differing if any(differing) else []


def _offered(runs: Sequence[str], parts: int, needs: Sequence[str]) -> tuple[str, list[str]]:
    names = [ending(run, parts) for run in runs]
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
