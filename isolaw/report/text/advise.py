"""A document with a starting point from published results."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from isolaw import commands
from isolaw.design.advice import Advice, Case, Caveat, Differs, SourceReading
from isolaw.design.published import Basis, Leans, Span
from isolaw.design.sweep_file import FIRST
from isolaw.fits.frontier import TOLERANCE
from isolaw.report.document import Bullets, Document, Passage, Snippet, Stanza, Table
from isolaw.report.text.numbers import columns, number, share

_TITLES = {
    "isocompute-joint": "IsoCompute, n and B_p tuned",
    "isocompute-32": "IsoCompute, n tuned",
    "isocompute-curves": "IsoCompute, curves",
    "tan": "Tan et al.",
    "arithmetic-easy": "isolaw, easy sums",
    "arithmetic-hard": "isolaw, hard sums",
}
_BASES = {
    Basis.POINTS: "the law through the points of a figure. The range is the 95 % prediction interval of a "
    "point, if points are independent",
    Basis.CURVES: "the highest fitted curve of a figure, which gives no uncertainty",
    Basis.RUNS: "isolaw's fit to recorded runs of one or two seeds. The range is a 95 % interval",
}
_WHERE = (
    "IsoCompute: arXiv 2603.12151. Tan et al.: arXiv 2509.25300. isolaw: recorded runs of a tiny model.",
)
_CAVEATS = {
    Caveat.ONE_PUBLICATION: "Only one publication covers this budget, and its rows in the table share runs.",
    Caveat.BATCH_NOT_COMPARED: "No published result compares B_p at this budget; "
    "a publication used the B_p above.",
    Caveat.BATCH_LIMIT: "B_max keeps n below the published n*.",
    Caveat.DIFFICULTY_UNKNOWN: "You gave no difficulty, although n* may depend on it. Measure the base "
    "model's avg@16, and pass --difficulty easy (0.3 to 0.6) or hard (at most 0.0625).",
    Caveat.SIZE_UNKNOWN: "You gave no model size; isolaw assumes about 7B. Pass --model-size.",
}
_UNPUBLISHED = (
    "the value of n* on hard problems (at most 0.0625 right): the figures show an easy and a mixed set",
    "models other than Qwen2.5, tasks other than mathematics, algorithms other than GRPO",
    "the variation of n* between seeds: one sweep has a single seed, and the figures do not show seeds",
    "n above 512 and B_p below 32, for a model of that size",
)


def document(advice: Advice, out: str | None = None, again: str | None = None) -> Document:
    """Return the document of an advice. Its first sentence names the evidence.

    ``out`` is the file of the recommended sweep. Without it, ``again`` is the command that writes such a
    file.
    """
    first = [
        f"From published results alone: {_answer(advice)}",
        "The advice uses no run of your model and no simulation. Your case: "
        f"C = {number(advice.case.budget)} rollouts{_known(advice.case)}.",
        _agreement(advice),
    ]
    differ = [f"{_TITLES[own.source.key]}: {_differences(own, advice.case)}." for own in advice.readings]
    passages = [
        Passage("", first),
        Passage(
            "Sources", [_table(advice), Bullets("", [*_WHERE, *(f"{k}: {t}." for k, t in _BASES.items())])]
        ),
        Passage("Starting point", _start(advice)),
        Passage("Differences", [Bullets("How the sources differ from your case:", differ)]),
        Passage("Other publications", [] if advice.case.far else [_statements(advice)]),
        Passage(
            "Not published",
            [Bullets("No published result here covers these questions:", [f"{t}." for t in _UNPUBLISHED])],
        ),
        Passage("What to run first", _sweep(advice, out or commands.unused("first.toml"), again)),
    ]
    return Document(f"advice for C = {number(advice.case.budget)}", passages, _data(advice))


def _data(advice: Advice) -> dict[str, Any]:
    """Return the advice as JSON-compatible data. The value of ``evidence`` is ``published``."""
    start, sweep = advice.start, advice.sweep
    return {
        "evidence": "published",
        "simulated": False,
        "own_runs": 0,
        **advice.case.model_dump(),
        "start": start
        and {**asdict(start.allocation), "n_range": asdict(start.n), "batch_range": asdict(start.batch)},
        "sources": [{**asdict(own), "covers": own.covers, "steps": own.steps} for own in advice.readings],
        "caveats": list(advice.caveats),
        "statements": [asdict(own) for own in advice.statements],
        "unpublished": list(_UNPUBLISHED),
        "sweep": sweep and advice.sections(),
        "sweep_rollouts": sweep and sweep.rollouts,
    }


def _answer(advice: Advice) -> str:
    """Return the starting point with its ranges, or the reason why there is none."""
    start, case = advice.start, advice.case
    if start is not None:
        a = start.allocation
        return (
            f"n = {a.rollouts_per_problem}, B_p = {a.problems_per_batch}, M = {a.steps:,}. "
            f"In the sources, n* is {_span(start.n)} and B_p is {_span(start.batch)}."
        )
    near = advice.nearest
    sizes = sorted(own.source.size for own in advice.readings)
    if case.far:
        ends = f"{_size(sizes[0])}–{_size(sizes[-1])}"
        return (
            "no starting point: your model is over 100 times larger or smaller than all models in the "
            f"sources ({ends})."
        )
    kind = f" on {case.difficulty} problems" if case.difficulty else ""
    return (
        f"no starting point, since no n* is known{kind} at this C. The nearest result: n* is "
        f"{_span(near.n, near.covers)} at C = {number(near.compute)} on {near.source.difficulty} problems "
        f"({_TITLES[near.source.key]})."
    )


def _agreement(advice: Advice) -> str:
    """State whether publications agree on n."""
    if advice.case.far:
        return "Published results for other sizes are no evidence for yours: run the sweep below first."
    by = {lean: [own.title for own in advice.statements if own.leans is lean] for lean in Leans}
    parts = [
        f"{text} ({', '.join(by[lean])})"
        for lean, text in (
            (Leans.RISES, "n* rises with C, or a large n still improves the model"),
            (Leans.SMALL, "a small n suffices"),
            (Leans.CONSTANT, "n* does not depend on C, or only B_p · n matters"),
        )
        if by[lean]
    ]
    return f"Publications {'disagree' if len(parts) > 1 else 'say'}: {'; '.join(parts)}."


def _statements(advice: Advice) -> Bullets:
    """Return the statements of other publications about n."""
    kind = f"{advice.case.difficulty} problems" if advice.case.difficulty else "your case"
    lines = []
    for own in advice.statements:
        size = "size not known" if own.sizes is None else _size(own.sizes[0])
        lines.append(
            f"{own.title} ({own.publication}; {size}; {own.difficulty or 'difficulty not known'}; varied: "
            f"{own.varied}; lr {own.lr}): {own.says}."
        )
    lead = f"These publications comment on n for {kind}, but none gives an n*(C) to average:"
    return Bullets(lead, lines)


def _table(advice: Advice) -> Table:
    rows = [["source", "model", "problems", "B_p", "C", "n", "n* at your C", "used", "from"]]
    for own in advice.readings:
        source = own.source
        batches = [str(b) for b in source.batches] or ["tuned"]
        rows.append([
            _TITLES[source.key], source.model, source.difficulty,
            batches[0] if len(batches) == 1 else f"{batches[0]}–{batches[-1]}",
            " to ".join(number(end) for end in source.range()), f"{source.n[0]}–{source.n[1]}",
            _span(own.n, own.covers), "yes" if own.counts else "no", source.basis,
        ])  # fmt: skip
    return Table.of(rows)


def _span(span: Span, known: bool = True) -> str:
    """Return a number with its range; if the number is not ``known``, return only the range or bound."""
    value, low, high = (None if end is None else f"{end:,.0f}" for end in (span.value, span.low, span.high))
    ends = (
        f"{low}–{high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""
    )
    if not known:
        return ends or "unknown"
    if (low is None and high == value) or (high is None and low == value):
        return f"{value} or {'less' if low is None else 'more'}"
    return f"{value} ({ends})" if ends else str(value)


def _start(advice: Advice) -> list[Bullets]:
    start, case = advice.start, advice.case
    caveats = [_CAVEATS[code] for code in advice.caveats]
    if start is None:
        return [Bullets("", caveats)] if caveats else []
    a = start.allocation
    steps = sorted(own.steps for own in advice.readings if own.counts and own.steps is not None)
    ends = "an unknown number of"
    if steps:
        ends = " to ".join(f"{m:,}" for m in dict.fromkeys((steps[0], steps[-1])))
    lead = f"Start with n = {a.rollouts_per_problem}, B_p = {a.problems_per_batch}, M = {a.steps:,}."
    lines = [
        f"n* is {_span(start.n)}, the mean of the sources used. The range covers the ranges of all of them.",
        f"B_p is {_span(start.batch)}. In this range, the reward in the figure is within {TOLERANCE} of the "
        "best.",
        f"M is C / (B_p · n) steps. In the sources, the best n trained for {ends} steps at their B_p.",
    ]
    if Caveat.BATCH_NOT_COMPARED in advice.caveats:
        del lines[1]
    if case.n_train_problems is not None:
        epochs = a.problems_per_batch * a.steps / case.n_train_problems
        lines.append(f"Each of your {case.n_train_problems:,} problems is drawn {number(epochs)} times.")
    return [Bullets(lead, [*lines, *caveats])]


def _differences(own: SourceReading, case: Case) -> str:
    source = own.source
    texts = {
        Differs.DIFFICULTY: f"its problems are {source.difficulty}, and yours are {case.difficulty}",
        Differs.MODEL_SIZE: f"its model has {_size(source.size)} parameters, and yours has "
        f"{_size(case.model_size or 0)}",
        Differs.PROBLEMS: f"it has {source.problems or 0:,} problems, and you have "
        f"{case.n_train_problems or 0:,}",
        Differs.BATCH: "its B_p differs from the B_p of the starting point",
        Differs.BUDGET: f"its range of C does not include {number(case.budget)}",
    }
    return "; ".join(texts[code] for code in own.differs) or "no known difference"


def _size(billions: float) -> str:
    return f"{billions:g}B" if billions >= 0.1 else f"{1000 * billions:g}M"


def _known(case: Case) -> str:
    parts = [f"{case.difficulty} problems"] if case.difficulty else []
    parts += [f"a model of {_size(case.model_size)}"] if case.model_size else []
    parts += [f"{case.n_train_problems:,} training problems"] if case.n_train_problems else []
    parts += [f"B_max = {case.max_batch_rollouts:,}"] if case.max_batch_rollouts else []
    return "".join(f"; {part}" for part in parts)


def _sweep(advice: Advice, file: str, again: str | None) -> list[Stanza]:
    sweep, budget = advice.sweep, advice.case.budget
    if sweep is None:
        return ["No sweep of three n, each with enough steps to learn, costs less than this budget."]
    levels = ", ".join(map(str, sweep.rollouts_per_problem))
    return [
        f"The cheapest sweep that improves this advice runs n = {levels} with "
        f"B_p = {sweep.problems_per_batch} and one seed up to C = {number(sweep.compute)}.",
        f"The sweep costs {number(sweep.rollouts)} rollouts, {share(sweep.rollouts / budget)} of the budget. "
        "Set problems.set and real.model in its file before you run it:",
        Snippet(
            columns(
                [
                    *([[again, "write the sweep file"]] if again else []),
                    [str(commands.sweep_file(file, FIRST)), "show its plan; omit --dry-run to run it"],
                    [str(commands.plan_larger(file, budget)), "compare larger sweeps on simulated truths"],
                ]
            ),
            "  ",
        ),
        "isolaw sweep then prints the command that fits n*(C) of your model. Your budget is "
        f"{budget / sweep.compute:.2g} times the compute of each run of this sweep.",
    ]
