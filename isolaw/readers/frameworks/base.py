"""`Framework`: a framework's names of metrics and settings. Each module defines one as ``FRAMEWORK``.

`isolaw.readers.frameworks.FRAMEWORKS` lists the modules.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from isolaw.metrics import STEP_SECONDS
from isolaw.readers.names import MAYBE, UNITS, WHOLE, counts, plain
from isolaw.readers.raw_log import RawLog, finite, whole

Target = tuple[str, str]  # (eval_set, metric)
APART = "rollouts are generated while the policy is trained"
_HELD_OUT = re.compile(r"(?:val(?:id(?:ation)?)?|eval(?:uation)?|held_?out)[/_.]|test/", re.I)
_ALSO_N = {*MAYBE["rollouts_per_problem"].split(), *UNITS}  # names of a constant that may not be a count
_NUMBERS = ("lr", "kl", "entropy", "temperature")


@dataclass(frozen=True)
class Fact:
    """A value for a run from its log, with an origin such as ``"data.train_batch_size in config.yaml"``.

    If the value is None, it is unknown, and ``origin`` describes the other values that would determine it.
    """

    value: Any
    origin: str

    def but(self, caveat: str) -> Fact:
        """Return this fact with a caveat added to its origin."""
        return Fact(self.value, f"{self.origin} ({caveat})")


class Config:
    """A configuration with flat keys, and its source.

    Each method accepts the names that a setting has had, and returns the first one with a suitable value as a
    `Fact`, or None.

    >>> config = Config({"n": 8, "lr": "1e-6", "name": ""}, "config.yaml")
    >>> config.count("group_size", "n")
    Fact(value=8, origin='n in config.yaml')
    >>> config.number("lr").value, config.text("name"), config.boolean("n")
    (1e-06, None, None)
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.where = f" in {source}" if source else ""

    def fact(self, name: str, value: Any) -> Fact:
        """Return ``value`` as a fact with the setting ``name`` as its origin."""
        return Fact(value, f"{name}{self.where}")

    def number(self, *names: str) -> Fact | None:
        """Return the first of these settings that is a finite number (or its text), or None."""
        return self._first(names, lambda value: None if math.isnan(number := finite(value)) else number)

    def count(self, *names: str, least: int = 1) -> Fact | None:
        """Return the first of these settings that is a whole number of at least ``least``, or None."""
        return self._first(names, lambda value: whole(value, least))

    def text(self, *names: str) -> Fact | None:
        """Return the first of these settings that is a nonempty text, or None."""
        return self._first(names, lambda value: value if isinstance(value, str) and value else None)

    def boolean(self, *names: str) -> Fact | None:
        """Return the first of these settings that is true or false, or None."""
        return self._first(names, lambda value: value if isinstance(value, bool) else None)

    def is_true(self, *names: str) -> bool:
        """Return whether any of these settings is true."""
        return any(self.values.get(name) is True for name in names)

    def _first(self, names: Collection[str], sound: Callable[[Any], Any]) -> Fact | None:
        values = ((name, sound(self.values.get(name))) for name in names)
        return next((self.fact(name, value) for name, value in values if value is not None), None)


Facts = Mapping[str, Fact | None]


@dataclass(frozen=True)
class Framework:
    """The rules for one framework's logs: its metrics, its configuration, and how to recognise it."""

    name: str  # the name for users, e.g. ``veRL``
    # Maps a key to (eval_set, metric) in isolaw's names, e.g. ("aime24", "avg@8"); metrics of training have
    # the set ``train``. None for metrics that are not kept (timings, learning rates). Other names are kept
    # unchanged. `by_rules` builds such a function from a table.
    metric: Callable[[str], Target | None]
    # Patterns of metric keys and of settings that no other framework has. A log belongs to the framework if,
    # for one tuple, each pattern matches a whole key. Keys that frameworks share (``loss``) must not suffice.
    own_keys: tuple[tuple[str, ...], ...] = ()
    own_config: tuple[tuple[str, ...], ...] = ()
    # A fact → the settings that contain it. Facts have isolaw's names: ``rollouts_per_problem``,
    # ``problems_per_batch``, ``rollouts_per_step`` (any two determine the third), ``seed``, ``algorithm``,
    # ``logging_steps`` (updates between records, for logs without steps), and attributes (``lr``, ``kl``).
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Metric keys that contain, in every record, the number of rollouts in the step.
    counts: tuple[str, ...] = ()
    # Facts determined by several settings, such as ``on_policy`` (one optimizer step per batch, and no
    # asynchrony). The function gets the facts from ``settings``, and its results replace them. It must not
    # guess.
    more_facts: Callable[[Config, Facts], Facts] = lambda _config, _facts: {}
    # Keys that count update steps, the best first. If a log has none of them, the container's own step
    # counts.
    step_keys: tuple[str, ...] = ()
    # Keys of the seconds of a whole step, which become ``step_seconds`` of ``train``.
    seconds_keys: tuple[str, ...] = ()
    counted_by_trackers: bool = True  # whether W&B's own step counts updates, rather than calls to log
    first_step: int = 1  # the number of the first update in the framework's count, 1 or 0
    # Whether an evaluation in the record of step s, counted from 0, measures the policy after s updates.
    evaluates_first: bool = False
    # True if any key that starts with val, eval or test belongs to an evaluation, regardless of the rules.
    prefixed: bool = True
    # Converts the configuration into the form that ``settings`` expects.
    flat: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: config

    def recognises(self, keys: Collection[str], config: Mapping[str, Any]) -> bool:
        """Return whether these metric keys or this configuration belong to the framework."""
        return _match(self.own_keys, keys) or _match(self.own_config, self.flat(config))

    def target(self, key: str) -> Target | None:
        """Return the (eval_set, metric) of a key, or None if the metric is not kept."""
        target = ("train", STEP_SECONDS) if key in self.seconds_keys else self.metric(key)
        held_out = target and target[0] == "train" and self.prefixed and _HELD_OUT.match(key)
        return ("validation", target[1]) if target and held_out else target

    def is_counter(self, key: str) -> bool:
        """Return whether a key counts the rollouts of a step, the rollouts so far, or the steps."""
        return key in (*self.counts, *self.step_keys) or _so_far(key)

    def counted(self, log: RawLog) -> list[Fact]:
        """Return the rollouts per step if a log counts them: one fact, or two if the number changes once.

        Returns no facts if the number varies (e.g. with a filter), and ignores a smaller last batch.
        """
        keys = {key: log.series[key] for key in self.counts if key in log.series}
        counted = {f"{key} in every record": (series.record, series.value) for key, series in keys.items()}
        for key in (key for key in log.series if key not in keys and _so_far(key)):
            series = log.series[key]
            if len(set(series.value)) > 1:
                counted[f"{key}, by step"] = series.record, self._a_step(log, key)
            elif len(series.value) > 1 and plain(key.rpartition("/")[2]) not in _ALSO_N and "tim" not in key:
                counted[f"{key} in every record"] = series.record, series.value
        for where, (record, values) in counted.items():
            at = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1])] if values else []
            steady = len(at) == 1 or (len(at) == 2 and min(at[1], len(values) - at[1]) > 1)
            known = [count for i in at if steady and (count := whole(values[i], 1))]
            if len(at) == len(known) > 0 and known != [1]:
                after = [f"{where}{word}" for word in ("", f" from record {record[at[-1]] + 1} on")]
                return [Fact(value, text) for value, text in zip(known, after, strict=False)]
        return []

    def _a_step(self, log: RawLog, key: str) -> array[float]:
        """Return the increase of a count per step, from one record to the next."""
        keys = [step_key for step_key in self.step_keys if step_key in log.series]
        steps = dict(enumerate([] if keys or log.of_tracker else log.step))
        for name in reversed(keys):
            steps |= dict(zip(log.series[name].record, log.series[name].value, strict=True))
        count = zip(log.series[key].record, log.series[key].value, strict=True)
        points = [(steps[record], value) for record, value in count if record in steps]
        rises = [(s1 - s0, v1 - v0) for (s0, v0), (s1, v1) in pairwise(points)]
        return array("d", [value / step for step, value in rises if step > 0])

    def facts(self, config: Mapping[str, Any], source: str) -> dict[str, Fact]:
        """Return the facts in a run's configuration, which was read from ``source``."""
        flattened = Config(self.flat(config), source)
        facts: dict[str, Fact | None] = {}
        for name, settings in self.settings.items():
            if name in WHOLE:
                facts[name] = flattened.count(*settings, least=WHOLE[name])
            else:
                facts[name] = flattened.number(*settings) if name in _NUMBERS else flattened.text(*settings)
        facts |= self.more_facts(flattened, facts)
        return {name: fact for name, fact in facts.items() if fact is not None}


def _so_far(key: str) -> bool:
    """Return whether the name of a key shows that it counts the rollouts of a step, or all so far."""
    return counts(key.rpartition("/")[2]) == "rollouts"


def _match(patterns: tuple[tuple[str, ...], ...], names: Collection[str]) -> bool:
    """Return whether, for some tuple, every pattern matches a name."""
    return any(
        all(any(map(re.compile(pattern, re.S).fullmatch, names)) for pattern in alternatives)
        for alternatives in patterns
    )


def by_rules(
    *rules: tuple[str, str, str | Callable[[int], str]], names: Mapping[str, str], not_kept: str
) -> Callable[[str], Target | None]:
    """Return a function that maps a framework's keys to (eval_set, metric) by rules, for `Framework.metric`.

    A rule is (pattern, eval_set, metric), and the first rule whose pattern matches the whole key applies. If
    the pattern has a group ``set``, its text is the evaluation set instead. If the metric is a function, it
    is called with the number in the group ``k``. If the metric is empty, the text of the group ``name`` is
    looked up in ``names``. A name that is not in ``names`` is kept unchanged, or dropped if ``not_kept``
    matches it.
    """
    compiled = [(re.compile(pattern, re.S), eval_set, metric) for pattern, eval_set, metric in rules]
    dropped = re.compile(not_kept, re.S)

    def metric(key: str) -> Target | None:
        for pattern, eval_set, metric in compiled:
            if match := pattern.fullmatch(key):
                groups = match.groupdict()
                eval_set = groups.get("set") or eval_set
                if metric:
                    return eval_set, metric if isinstance(metric, str) else metric(int(groups["k"]))
                name = groups["name"]
                kept = name in names or not dropped.fullmatch(name)
                return (eval_set, names.get(name, name)) if kept else None
        return None

    return metric


def best(k: int) -> str:
    """Return the metric "at least one of k samples is correct", which for k = 1 is the mean."""
    return "pass@1" if k == 1 else f"best@{k}"


def one_update(
    batch: int, trained: Fact | None, passes: Fact | None, apart: Fact | None, what: str = "rollouts"
) -> Fact | None:
    """Return whether each batch of rollouts makes one optimiser step, on the policy that generated it.

    An update uses ``trained`` of the ``batch`` rollouts (or ``what``) of a batch, and each batch is used
    ``passes`` times. ``apart`` is true if generation runs in parallel to training, with older weights, and
    None if that is unknown.
    """
    if apart and apart.value:
        return Fact(False, f"{apart.origin}: {APART}")
    if trained is None:
        return None
    epochs = f"; {passes.origin} = {passes.value}" if passes else ""
    origin = f"{trained.value} {what} per update ({trained.origin}), {batch} per batch{epochs}"
    if trained.value < batch or (passes is not None and passes.value > 1):
        return Fact(False, origin)
    return Fact(True, origin) if apart else None
