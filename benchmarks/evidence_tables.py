"""The tables and sentences of docs/evidence.md, from the results of `benchmarks.evidence`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isolaw.evidence import number

RULES = {
    "isolaw": "isolaw", "paper": "the paper's method", "highest": "best measured", "isoflop": "IsoFLOP",
    "half": "half slope", "process": "plain process", "learnt": "learnt priors",
}  # fmt: skip


def _n(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _interval(quantity: Mapping[str, Any]) -> str:
    if quantity["interval"] is None:
        return "no answer" if quantity["value"] is None else f"{_n(quantity['value'])} (no interval)"
    low, high = (_n(end) if end is not None else "…" for end in quantity["interval"])
    return f"{_n(quantity['value'])} ({low} to {high})"


def _best(own: dict[str, Any]) -> str:
    """Return the reward of the n with the best outcome."""
    reward = own["came"][str(own["verdict"]["best"])]
    return f"{reward['reward']:.3f}" + ("" if reward["error"] is None else f" ± {reward['error']:.3f}")


def _case(own: dict[str, Any] | None) -> str:
    """Return the n that isolaw chose, its loss and expected loss, and n* if its interval missed."""
    if own is None:
        return "no answer"
    said, verdict = own["said"], own["verdict"]
    missed = f"; n\\* {_interval(said['n_star'])}" if verdict["n_star_held"] is False else ""
    lost, expected = _loss(verdict["lost"]["isolaw"]), _loss(said["expected_loss"])
    return f"{_n(said['chosen']['isolaw'])}: {lost} ({expected}){missed}"


def _rewards(own: dict[str, Any]) -> tuple[float, float]:
    """Return the mean error of the stated rewards, and the mean half width of their intervals."""
    stated = [
        (said["value"], *said["interval"], own["came"][n]["reward"])
        for n, said in own["said"]["rewards"].items()
        if said and n in own["came"]
    ]
    value, low, high, came = np.array(stated).T
    return np.abs(value - came).mean(), (high - low).mean() / 2


def _forecasts(sweep: dict[str, Any]) -> list[str]:
    """Return what an earlier estimator stated before the runs went on."""
    return [
        f"Before “{sweep['name']}” went on to C = {number(cut['said']['compute'])}: {_case(cut)}."
        for cut in sweep["cuts"]
        if "before" in cut and "verdict" in cut
    ]


def _end(moved: Mapping[str, Any], i: int) -> str:
    """Return the best n at one end, and the n that are as good."""
    best, tied = moved["best"][i], moved["tied"][i]
    others = [] if tied is None else [str(n) for n in tied if n != best]
    at_least = "≥ " if best == moved["largest"][i] else ""
    return at_least + str(best) + (f" ({', '.join(others)})" if others else "")


def movements(summary: dict[str, Any]) -> list[str]:
    """Return the table of the best n at the smallest and the largest comparable C of every sweep."""
    out = [
        "| sweep | from C | best n (as good) | to C | best n (as good) | exponent of n\\* in C |",
        "|---|--:|---|--:|---|---|",
    ]
    for sweep in summary["sweeps"]:
        if sweep["moved"] is not None:
            own = sweep["moved"]
            low, high = own["compute"]
            interval = "" if own["interval"] is None else " ({:.2f} to {:.2f})".format(*own["interval"])
            cells = [sweep["name"], number(low), _end(own, 0), number(high), _end(own, 1)]
            out.append("| " + " | ".join([*cells, f"{own['exponent']:.2f}{interval}"]) + " |")
    return out


def sentences(summary: dict[str, Any]) -> tuple[str, str, str]:
    """Return what the table says, in three sentences; `isolaw advise` prints them."""
    counted = [s for s in summary["sweeps"] if s["group"] and s["moved"]]
    groups = sorted({s["group"] for s in counted})
    means = [float(np.mean([s["moved"]["exponent"] for s in counted if s["group"] == g])) for g in groups]
    error = float(np.std(means, ddof=1) / np.sqrt(len(means)))
    up, down = ([s for s in counted if sign * s["moved"]["exponent"] > 0.02] for sign in (1, -1))
    sure = [s for s in counted if (q := s["moved"]["interval"]) and not q[0] <= 0 <= q[1]]
    steepest = max(counted, key=lambda s: s["moved"]["exponent"])
    return (
        f"In {len(counted)} recorded sweeps ({len(groups)} groups), the best n rose with C in {len(up)}, "
        f"fell in {len(down)} and stayed in {len(counted) - len(up) - len(down)}.",
        f"As a power of C, its mean exponent over the groups is {np.mean(means):.2f} ± {error:.2f}, from "
        f"{min(means):.2f} to {max(means):.2f} (largest: {steepest['group']}).",
        f"In {len(sure)} of the {sum(s['moved']['interval'] is not None for s in counted)} sweeps with "
        "several seeds, the 95 % interval of the exponent excludes 0.",
    )


def tables(summary: dict[str, Any]) -> str:
    """Return the page's tables, and the tally."""
    judging = [
        (sweep, cut | {"group": sweep["group"]})
        for sweep in summary["sweeps"]
        for cut in sweep["cuts"]
        if "verdict" in cut
    ]
    shares = sorted({judgement["share"] for _, judgement in judging if "share" in judgement})
    out = [
        *movements(summary),
        "",
        " ".join(sentences(summary)),
        "",
        "The next table has the n that isolaw chose, the loss and, in parentheses, the expected loss; n\\* "
        "only if its interval missed.",
        "",
        f"| sweep | best reward | {' | '.join(f'{share:.0%}' for share in shares)} |",
        "|---|--:|" + "---|" * len(shares),
    ]
    for sweep in summary["sweeps"]:
        cuts = {
            judgement["share"]: judgement for _, judgement in judging if _ is sweep and "share" in judgement
        }
        if cuts:
            last = next(iter(cuts.values()))
            cells = [sweep["name"], _best(last)]
            out.append("| " + " | ".join([*cells, *(_case(cuts.get(share)) for share in shares)]) + " |")
    out += ["", *_tally([judgement for _, judgement in judging]), ""]
    for sweep in summary["sweeps"]:
        for line in _forecasts(sweep):
            out += [line, ""]
    first = [next((c for c in s["cuts"] if "verdict" in c), None) for s in summary["sweeps"]]
    errors, halves = np.array([_rewards(item) for item in first if item]).T
    out += [
        f"At the earliest cut of each sweep, the mean error of the predicted rewards is {errors.min():.3f} "
        f"to {errors.max():.3f}. Their intervals are ±{halves.min():.3f} to ±{halves.max():.3f} wide."
    ]
    return "\n".join(out)


def _tally(cuts: list[dict[str, Any]]) -> list[str]:
    """Return a table of mean losses over groups of related sweeps, and sentences on the intervals."""
    cuts = [c for c in cuts if c["group"] and "share" in c]
    groups = sorted({c["group"] for c in cuts})
    out = [
        "| data used | groups | " + " | ".join(RULES.values()) + " |",
        "|---|--:" + "|--:" * len(RULES) + "|",
    ]
    for share in (*sorted({c["share"] for c in cuts}), None):
        chosen = [c for c in cuts if share in (None, c["share"])]
        cells = []
        for rule in RULES:
            means = _by_group(chosen, groups, lambda c, rule=rule: c["verdict"]["lost"][rule])
            error = np.std(means, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.nan
            missing = sum(c["verdict"]["lost"][rule] is None for c in chosen)
            cells.append(
                f"{np.mean(means):.4f} ± {error:.4f}" + (f" ({missing} without answer)" if missing else "")
            )
        seen = "all" if share is None else f"{share:.0%}"
        size = len({c["group"] for c in chosen})
        out.append(f"| {seen} | {size} | " + " | ".join(cells) + " |")
    held = [c["verdict"]["n_star_held"] for c in cuts if c["verdict"]["n_star_held"] is not None]
    inside, stated = (sum(c["verdict"][key] for c in cuts) for key in ("rewards_inside", "rewards_stated"))
    thirds = np.quantile([c["said"]["expected_loss"] for c in cuts], [1 / 3, 2 / 3])
    bins = ["| expected loss | cases | mean expected | mean realized |", "|---|--:|--:|--:|"]
    for i, name in enumerate((f"up to {thirds[0]:.4f}", "between", f"above {thirds[1]:.4f}")):
        own = [c for c in cuts if np.searchsorted(thirds, c["said"]["expected_loss"]) == i]
        said = np.mean([c["said"]["expected_loss"] for c in own])
        came = np.mean([c["verdict"]["lost"]["isolaw"] for c in own])
        bins.append(f"| {name} | {len(own)} | {said:.4f} | {came:.4f} |")
    return [
        *out,
        "",
        *bins,
        "",
        f"The 95 % interval of n\\* contains a best n in {sum(held)} of {len(held)} cases that have one. "
        f"Of {stated} 95 % intervals of rewards, {inside} contain the measured reward.",
    ]


def _by_group(
    cuts: list[dict[str, Any]], groups: list[str], value: Callable[[dict[str, Any]], float | None]
) -> list[float]:
    """Return the mean of a value over the cases of each group that has one."""
    out = []
    for group in groups:
        own = [v for c in cuts if c["group"] == group and (v := value(c)) is not None]
        out += [float(np.mean(own))] if own else []
    return out
