"""The section of responses: which it shows, how it says what it leaves out, and that they stay text."""

from __future__ import annotations

from isolaw.backend import Response
from isolaw.config import RunSpec
from isolaw.report.page import responses
from isolaw.store.sweep import SavedResponses


def kept(runs: int, evaluations: int, each: int = 8, text: str = "4") -> list[SavedResponses]:
    """The responses of some runs, in the order of a sweep."""
    out = []
    for seed in range(runs):
        spec = RunSpec(backend="real", problems_per_batch=4, rollouts_per_problem=8, seed=seed, compute=64)
        for step in range(evaluations):
            own = [Response("validation", f"{i}", "2+2=", text, "4", 1.0, 2, i == 1) for i in range(each)]
            out.append(SavedResponses(spec, step, 32 * step, own))
    return out


def test_it_shows_all_of_few_and_spreads_many() -> None:
    few = kept(2, 3)
    assert responses._choose(few) == few
    assert len(responses.section(few).lines) == 1
    steps = [one.step for one in responses._choose(kept(1, 61))]
    assert steps == [0, 15, 30, 45, 60]
    many = kept(12, 61)  # 96 responses at one evaluation of each
    shown = responses._choose(many)
    assert [one.step for one in shown] == [0, 30, 60] * 12
    assert responses.section(many).lines[1].startswith("The table has 288 of 5,856 kept responses")
    crowd = responses._choose(kept(60, 4))
    assert sum(len(one.responses) for one in crowd) <= responses._MOST_RESPONSES
    assert {one.step for one in crowd} == {3}
    assert responses._choose([]) == []


def test_a_row_has_the_texts_and_their_run() -> None:
    one = kept(1, 1, 2, "a\x00b\x1b[31m\n\tc")
    table = responses._table(one)
    first, second = ([cell.text for cell in row] for row in table.rows)
    assert first == [
        "n = 8, B_p = 4, seed 0", "0", "validation", "2+2=", "a␀b␛[31m\n\tc", "4", "1", "2",
    ]  # fmt: skip
    assert second[-1] == "2, cut"
