"""Plain words for a backtest: what each rule would have chosen, and lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from isolaw.report.text import words


def backtest_summary(result: Mapping[str, Any]) -> list[str]:
    """Return what a backtest found: a table of regrets, and a verdict."""
    judged = (
        f"{result['seeds']} seeds, each left out of the fit in turn"
        if result["held_out"] == "seed"
        else "one seed, so by its own later checkpoints"
    )
    lines = [f"Fitted up to C = {words.number(result['fit_below'])}; judged on {judged}. Regret in reward:"]
    columns = [f"C = {words.number(c)}" for c in result["budgets"]]
    lines.append("  " + " ".join([" " * 16, *(f"{c:>17}" for c in columns), f"{'mean':>8}"]))
    for rule, found in result["rules"].items():
        cells = [
            f"{lost:.4f} (n {_span([n for _, n in places])})"
            for lost, places in zip(found["regret"], found["allocations"], strict=True)
        ]
        lines.append(
            "  " + " ".join([f"{rule:16}", *(f"{c:>17}" for c in cells), f"{found['mean_regret']:8.4f}"])
        )
    if result["seeds"] > 1:
        lines.append("Regret is the mean over the seeds; n from the least to the most that was chosen.")
    return [*lines, *backtest_verdict(result)]


_TIMES = {1: "once", 2: "twice"}


def _span(values: list[int]) -> str:
    """The least and the most of values, once where they are the same."""
    return "–".join(dict.fromkeys(map(str, (min(values), max(values)))))


def choices(result: Mapping[str, Any], rule: str) -> list[str]:
    """Return what a rule chose, by budget: n, B_p if that varies, and how often where seeds differ."""
    chosen = {name: found["allocations"] for name, found in result["rules"].items()}
    several = len({b for budgets in chosen.values() for places in budgets for b, _ in places}) > 1
    return [_chosen(places, several) for places in chosen[rule]]


def _chosen(places: list[list[int]], several: bool) -> str:
    """One budget's choices, (B_p, n) of each split, the most frequent first.

    >>> _chosen([[16, 4], [16, 64], [16, 4]], False), _chosen([[16, 4], [16, 4]], True)
    ('n 4 twice, n 64 once', 'n 4 at B_p 16')
    """
    found = sorted(Counter(map(tuple, places)).items(), key=lambda own: (-own[1], own[0]))
    names = [f"n {n}" + (f" at B_p {b}" if several else "") for (b, n), _ in found]
    if len(found) == 1:
        return names[0]
    times = [_TIMES.get(often, f"{often} times") for _, often in found]
    return ", ".join(" ".join(pair) for pair in zip(names, times, strict=True))


def _against(result: Mapping[str, Any]) -> list[str]:
    """Whether each baseline lost more, and whether that is more than noise."""
    out = []
    for rule, found in result["rules"].items():
        if rule == "isolaw":
            continue
        difference, error = found["against_isolaw"].values()
        noise = "" if error is None else f" (standard error over seeds {error:.4f})"
        more = "more" if difference >= 0 else "less"
        out.append(f"{rule} loses {abs(difference):.4f} {more} than isolaw's choice{noise}.")
    return out


def backtest_verdict(result: Mapping[str, Any]) -> list[str]:
    """Return how far off n* was, and whether the baselines lost more than isolaw's choice."""
    error = result["rules"]["isolaw"]["n_star_error"]
    mean = " on average over the seeds" if result["seeds"] > 1 else ""
    said = f"n* was off by {', '.join(f'{e:+.1f}' for e in error)} doublings{mean}."
    return [said, *_against(result)]
