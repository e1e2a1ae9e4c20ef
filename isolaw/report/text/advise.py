"""A document with a starting point from published results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.design.advice import Case, Caveat, StartingPoint
from isolaw.design.published import RECORDED, Basis, Span
from isolaw.evidence import amount, columns, count, number, share
from isolaw.first_sweeps import Advice, FirstSweep
from isolaw.report.document import Bullets, Caution, Document, Passage, Snippet, Stanza, Table
from isolaw.report.text import costs

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
_AGREEMENT = (
    "Publications disagree: n* rises with C, or a large n still improves the model (IsoCompute, BroRL); "
    "a small n suffices (It Takes Two); n* does not depend on C, or only B_p · n matters (GRPO is a "
    "U-statistic, Critical batch size)."
)
_ARTICLES = (
    "IsoCompute: arXiv 2603.12151. Tan et al.: arXiv 2509.25300. isolaw: recorded runs of a tiny model.",
    "BroRL: arXiv 2510.01180. It Takes Two: arXiv 2510.00977. GRPO is a U-statistic: arXiv 2603.01162. "
    "Critical batch size: OpenReview uK4kMpNx0W.",
)
_FAR = "Published results for other sizes are no evidence for yours: run the race first."
_CAVEATS = {
    Caveat.ONE_PUBLICATION: "Only one publication covers this budget, and its rows in the table share runs.",
    Caveat.BATCH_NOT_COMPARED: "No published result compares B_p at this budget; "
    "a publication used the B_p above.",
    Caveat.BATCH_LIMIT: "The limit on B_p · n keeps n below the published n*.",
    Caveat.DIFFICULTY_UNKNOWN: "You gave no difficulty, although n* may depend on it. It is easy if the base "
    "model's avg@16 is 0.3 to 0.6, and hard if it is at most 0.0625.",
    Caveat.SIZE_UNKNOWN: "You gave no model size; isolaw assumes about 7B.",
}


def document(advice: Advice, folder: str = "first", again: str = 'advice.write("first")') -> Document:
    """Return the document of an advice, which begins with where to start and what to run first.

    ``folder`` has the files of the sweeps, or ``again`` writes them there; it is empty if they are written.
    """
    case = advice.case
    answer: list[Stanza] = [
        *_answer(advice),
        f"The advice uses no run of your model and no simulation. Your case: C = {number(case.budget)} "
        f"rollouts{_case_text(case)}.",
        _FAR if case.far else _AGREEMENT,
        " ".join(RECORDED),
        *(Caution(_CAVEATS[code]) for code in advice.caveats),
    ]
    passages = [
        Passage("", answer),
        Passage("What to run first", _commands(advice, folder, again)),
        Passage(
            "Sources", [_table(advice), Bullets("", [*_ARTICLES, *(f"{k}: {t}." for k, t in _BASES.items())])]
        ),
    ]
    return Document(f"advice for C = {number(case.budget)}", passages, _data(advice))


def _data(advice: Advice) -> dict[str, Any]:
    """Return the advice as JSON-compatible data. The value of ``evidence`` is ``published``."""
    start = advice.start
    return {
        "evidence": "published",
        "simulated": False,
        "own_runs": 0,
        **advice.case.model_dump(),
        "start": start
        and {**asdict(start.allocation), "n_range": asdict(start.n), "batch_range": asdict(start.batch)},
        "sources": [{**asdict(reading), "steps": reading.steps} for reading in advice.readings],
        "caveats": list(advice.caveats),
        "final": advice.final and asdict(advice.final),
        "sweeps": {sweep.name: _sweep_data(sweep) for sweep in advice.sweeps},
    }


def _sweep_data(sweep: FirstSweep) -> dict[str, Any]:
    cost_facts = (
        None
        if sweep.cost is None
        else {**(sweep.spent.to_dict() if sweep.spent else {}), **sweep.cost.to_dict()}
    )
    return {"rollouts": sweep.rollouts, "cost": cost_facts, "file": sweep.sections}


def _answer(advice: Advice) -> list[str]:
    """Return where to start and why, which race to run, and how to find its lr: a line each."""
    if not advice.sweeps:
        most = advice.case.max_batch_rollouts
        limit = "" if most is None else f" with at most {most:,} rollouts a step"
        return [
            _start_line(advice),
            f"No sweep of three n, each with enough steps to learn, fits into this budget{limit}.",
        ]
    lr, batch, grid = advice.sweeps
    return [
        _start_line(advice), _race_line(grid, advice.case), _lr_line(lr, batch, advice.case),
        *_budget_lines(advice),
    ]  # fmt: skip


def _budget_lines(advice: Advice) -> list[str]:
    """Return what the sweeps take of the budget, and what they leave for the final run."""
    final, budget = advice.final, advice.case.budget
    left = amount(budget - advice.rollouts)
    if final is None:
        return [
            f"The sweeps take at most {amount(advice.rollouts)} rollouts; {left} remain for the final run."
        ]
    return [
        f"The sweeps take at most {amount(advice.rollouts)} rollouts; the {left} that remain buy a final run "
        f"of M = {final.steps:,} steps with n = {final.rollouts_per_problem} and B_p = "
        f"{final.problems_per_batch}."
    ]


def _start_line(advice: StartingPoint) -> str:
    """Return the starting point with its ranges, or the reason why there is none."""
    start, case = advice.start, advice.case
    if start is not None:
        split = start.allocation
        return (
            f"From published results alone, start with n = {split.rollouts_per_problem}, "
            f"B_p = {split.problems_per_batch}, M = {split.steps:,}: the sources have n* = {_span(start.n)} "
            f"and B_p = {_span(start.batch)}."
        )
    nearest = advice.nearest
    sizes = sorted(reading.source.size for reading in advice.readings)
    if case.far:
        size_range = f"{_size_text(sizes[0])}–{_size_text(sizes[-1])}"
        return (
            "From published results alone, no starting point: your model is over 100 times larger or smaller "
            f"than all models in the sources ({size_range})."
        )
    where = f" on {case.difficulty} problems" if case.difficulty else ""
    return (
        f"From published results alone, no starting point: no n* is known{where} at this C. The nearest "
        f"result: n* is {_span(nearest.n, nearest.covers)} at C = {number(nearest.compute)} on "
        f"{nearest.source.difficulty} problems ({_TITLES[nearest.source.key]})."
    )


def _race_line(grid: FirstSweep, case: Case) -> str:
    spec = grid.spec
    levels = ", ".join(map(str, spec.grid.rollouts_per_problem))
    price = "Its hours need the cost of a step." if grid.cost is None else costs.spent(grid.spent, grid.cost)
    return (
        f"Let a race choose n: n = {levels} with B_p = {spec.grid.problems_per_batch[0]} and "
        f"{count(len(spec.sweep.seeds), 'seed')}, up to C = {number(spec.sweep.compute)}. It spends at most "
        f"{_rollouts(grid, case)}. {price}"
    )


def _lr_line(lr: FirstSweep, batch: FirstSweep, case: Case) -> str:
    (b,), (n,) = lr.spec.grid.problems_per_batch, lr.spec.grid.rollouts_per_problem
    smaller, larger = batch.spec.grid.rollouts_per_problem
    return (
        f"Before the race, find its lr: try {len(lr.spec.grid.recipe_axes['lr'])} lr at n = {n} with "
        f"B_p = {b} ({_rollouts(lr, case)}), then test lr ∝ √B at n = {smaller} and {larger} "
        f"({_rollouts(batch, case)})."
    )


def _rollouts(sweep: FirstSweep, case: Case) -> str:
    return f"{number(sweep.rollouts)} rollouts, {share(sweep.rollouts / case.budget)} of the budget"


def _commands(advice: Advice, folder: str, write_call: str) -> list[Stanza]:
    """Return the commands that write and run the sweeps, in order."""
    if not advice.sweeps:
        return []
    purposes = ["find the lr; omit --dry-run to run it", "test lr ∝ √B", "choose n"]
    lr, batch, grid = (
        [str(commands.sweep_file(Path(folder, f"{sweep.name}.toml"), sweep.directory)), purpose]
        for sweep, purpose in zip(advice.sweeps, purposes, strict=True)
    )
    runs = [commands.unused(sweep.directory) for sweep in advice.sweeps]
    best, law = (str(commands.fit(runs[:most], ["--retune", "lr"])) for most in (1, 2))
    rows = [lr, [best, "print the best lr"], batch, [law, "fit how the best lr depends on B"], grid]
    write = f"To write the sweep files: {write_call}" if write_call else "The sweep files are written."
    return [write, "Each file says what to set in it before you run it:", Snippet(columns(rows), "  ")]


def _table(advice: StartingPoint) -> Table:
    rows = [["source", "model", "problems", "B_p", "C", "n", "n* at your C", "used", "from"]]
    for reading in advice.readings:
        source = reading.source
        batches = [str(batch) for batch in source.batches] or ["tuned"]
        rows.append([
            _TITLES[source.key], source.model, source.difficulty,
            batches[0] if len(batches) == 1 else f"{batches[0]}–{batches[-1]}",
            " to ".join(number(end) for end in source.range()), f"{source.n[0]}–{source.n[1]}",
            _span(reading.n, reading.covers), "yes" if reading.counts else "no", source.basis,
        ])  # fmt: skip
    return Table.of(rows)


def _span(span: Span, is_known: bool = True) -> str:
    """Return a number with its range; if the number is not ``is_known``, return only the range or bound."""
    value, low, high = (None if end is None else f"{end:,.0f}" for end in (span.value, span.low, span.high))
    range_text = (
        f"{low}–{high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""
    )
    if not is_known:
        return range_text or "unknown"
    if (low is None and high == value) or (high is None and low == value):
        return f"{value} or {'less' if low is None else 'more'}"
    return f"{value} ({range_text})" if range_text else str(value)


def _size_text(billions: float) -> str:
    return f"{billions:g}B" if billions >= 0.1 else f"{1000 * billions:g}M"


def _case_text(case: Case) -> str:
    facts = [f"{case.difficulty} problems"] if case.difficulty else []
    facts += [f"a model of {_size_text(case.model_size)}"] if case.model_size else []
    facts += [f"{case.n_train_problems:,} training problems"] if case.n_train_problems else []
    facts += [f"B_max = {case.max_batch_rollouts:,}"] if case.max_batch_rollouts else []
    return "".join(f"; {fact}" for fact in facts)
