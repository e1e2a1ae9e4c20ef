"""The document of a recipe check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isolaw.config.writing import toml_text
from isolaw.recipe_check.check import BatchRule, RecipeCheck, RecipeResult, RecipeVerdict
from isolaw.report.document import Document, Passage, Snippet, Table
from isolaw.report.text.numbers import columns, count, number
from isolaw.report.text.targets import rule_line

_EXPONENTS = {
    "sqrt": "√B rule",
    "sqrt_problems": "√B_p rule",
    "linear": "rule lr ∝ B",
    "constant": "constant-lr rule",
}
_MOVES = "The best lr depends on C, so check again for a larger C."
_STAGES = {
    "lr": "search for the lr",
    "lr-full": "the lr at the sweep's C",
    "batch": "other batch sizes",
    "terms": "KL and entropy terms",
}


def expected(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the expected number of runs and rollouts of each stage."""
    rows = [["folder", "", "runs", "to C", "rollouts"]]
    rows += [
        [
            own["stage"],
            _STAGES[own["stage"]],
            f"{own['runs']:,}",
            number(own["compute"]),
            number(own["rollouts"]),
        ]
        for own in stages
    ]
    runs, rollouts = (sum(own[key] for own in stages) for key in ("runs", "rollouts"))
    return [
        f"The recipe check needs about {runs} runs and {number(rollouts)} rollouts, depending on the lr "
        "search:",
        *(f"  {line}" for line in columns(rows, "<<>")),
    ]


def document(found: RecipeCheck) -> Document:
    """Return the document: the runs as evidence, the findings and the recipe."""
    b, n = found.base
    head = (
        f"The base lr is the lr at B_p = {b} and n = {n} (B = {b * n:,}). Rewards are the mean "
        f"{found.metric} on validation of {count(len(found.seeds), 'seed')}, with its standard error. The "
        f"check used {number(found.rollouts)} rollouts."
    )
    unchecked = f"The {_EXPONENTS[found.scaling]} is not checked, since the grid has only one batch size."
    findings = [
        *_lr(found),
        *(_batch(found, own) for own in found.batches),
        *([rule_line(found.lr_law)] if found.lr_law is not None else []),
        *([] if found.batches else [unchecked]),
        _terms(found),
        *_seeds(found),
    ]
    recipe = Snippet(toml_text({"recipe": found.recipe}).rstrip().split("\n"))
    passages = [
        Passage("", [head]),
        Passage("Runs", [_table(found.rows)]),
        Passage("Findings", findings),
        Passage("Recipe", [recipe]),
    ]
    return Document(f"recipe at B = {b * n:,}", passages, found.to_dict())


def _table(rows: Sequence[RecipeResult]) -> Table:
    lines = [["folder", "B_p", "n", "lr", "KL", "entropy", "C", "reward", "error", "against the best"]]
    for own in rows:
        reward = "" if own.reward is None else f"{own.reward:.3f}"
        error = "" if own.error is None or own.reward is None else f"{own.error:.3f}"
        verdict = "; ".join(filter(None, ["failed" if own.reward is None else own.verdict, own.note]))
        terms = [f"{own.terms[key]:g}" for key in ("kl", "entropy")]
        cell = [f"{own.problems_per_batch}", f"{own.rollouts_per_problem}", f"{own.lr:.4g}"]
        lines.append([own.stage, *cell, *terms, number(own.compute), reward, error, verdict])
    return Table.of(lines, "<>>>>>>>><")


def _lr(found: RecipeCheck) -> list[str]:
    if found.lr_undecided:
        rivals = f", but the runs do not exclude {_values(found.lr_undecided)}"
    elif len(found.seeds) > 1:
        rivals = " and better than the others beyond noise"
    else:
        rivals = ", but the runs do not exclude the others"
    lines = [f"lr = {found.lr:.4g} is the best at C = {number(found.compute)}{rivals}."]
    if found.horizon < found.compute:
        short = f"at C = {number(found.horizon)}"
        lines.append(
            f"The same lr is the best {short}."
            if found.lr_short == found.lr
            else f"The best {short} is lr = {found.lr_short:.4g}. "
            + ("The runs do not show whether the best lr depends on C." if found.slope is None else _MOVES)
        )
    if found.at_edge:
        lines.append("The best lr is at the edge of the values that ran; values beyond it may be better.")
    return lines


def _batch(found: RecipeCheck, own: BatchRule) -> str:
    size = own.problems_per_batch * own.rollouts_per_problem
    at, rule = f"At B = {size:,} the runs", f"the {_EXPONENTS[found.scaling]}"
    if own.verdict is RecipeVerdict.FAILED:
        return f"{at} do not decide on {rule}: runs with lr = {own.lr:.4g} failed."
    if own.verdict is RecipeVerdict.CONTRADICTED:
        return (
            f"{at} contradict {rule}: lr = {own.best:.4g} is better than {own.lr:.4g} beyond noise. Make lr "
            "an axis of the sweep."
        )
    if own.verdict is RecipeVerdict.SUPPORTED:
        return f"{at} support {rule}: lr = {own.lr:.4g} is better than half and twice this lr beyond noise."
    ahead = "the best of the three" if own.best == own.lr else f"behind {own.best:.4g}, within noise"
    return f"{at} do not decide on {rule}: lr = {own.lr:.4g} is {ahead}."


def _terms(found: RecipeCheck) -> str:
    if found.terms is None:
        return "The check did not compare KL and entropy terms, since the recipe sets both to 0."
    kept, other = (_on(values) for values in (found.terms_kept, found.terms_other))
    by = f'problems.difficulty = "{found.difficulty}"' if found.difficulty else "the sweep"
    if found.terms is RecipeVerdict.CONTRADICTED:
        return (
            f"The recipe has the KL and entropy terms {kept}, although {by} has them {other}: rewards with "
            f"the terms {other} are lower beyond noise."
        )
    if found.terms is RecipeVerdict.SUPPORTED:
        return (
            f"The recipe keeps the KL and entropy terms {kept}, as {by} has them: rewards with the terms "
            f"{other} are lower beyond noise."
        )
    reason = (
        "some failed"
        if found.terms is RecipeVerdict.FAILED
        else f"rewards with the terms {kept} and {other} do not differ beyond noise"
    )
    return (
        f"The runs do not decide on the KL and entropy terms: {reason}. The terms stay {kept}, as {by} has "
        "them."
    )


def _seeds(found: RecipeCheck) -> list[str]:
    return (
        ["One seed does not show the noise, so isolaw decides nothing. Add a seed."]
        if len(found.seeds) < 2
        else []
    )


def _on(values: Mapping[str, float]) -> str:
    return "on" if any(values.values()) else "off"


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
