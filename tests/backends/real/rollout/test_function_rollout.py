"""A user's rollout function in its processes: what it may do, and what counts as a failure."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isolaw.backends.real.rollout import function_rollout
from isolaw.backends.real.rollout.function_rollout import RolloutFunction
from isolaw.backends.real.rollout.problems import Problem, ProblemSet, write_set

MODULE = """
import asyncio, os, time
async def rollout(problem, generate):
    kind = problem.answer
    if kind == "raises": raise KeyError(problem.columns["why"])
    if kind == "leaves": raise SystemExit(3)
    if kind == "late": await asyncio.sleep(60)
    if kind == "blocks": time.sleep(60)
    if kind == "dies": os._exit(4)
    if kind == "none": return [problem.prompt]
    first = await generate([problem.prompt])
    if kind == "waits": await asyncio.sleep(0.7)
    if kind == "changes": await generate(["another", first])
    if kind == "forgets": return [problem.prompt]
    if kind == "number": await generate([problem.prompt, first, 3])
    again = [problem.prompt, first]
    if kind == "twice": await asyncio.gather(generate(again), generate(again))
    if kind == "bytes": await generate([problem.prompt, first, {"role": "tool", "content": b"1"}])
    if kind == "much": await generate([problem.prompt, first, "1" * 600_000])
    if kind == "edits":
        edited = [problem.prompt, first, {"role": "tool", "content": "1"}]
        second = await generate(edited)
        edited[2]["content"] = "2"
        return [*edited, second], 1.0
    if kind == "nan": return [problem.prompt, first], float("nan")
    conversation = [problem.prompt, first, f"<{first.finished}>"]
    if kind == "chat":
        message = {"role": "assistant", "content": str(first)}
        conversation = [problem.prompt, message, {"role": "tool", "content": "1"}]
    try:
        conversation.append(await generate(conversation))
    except Exception as error:
        if kind == "stubborn": await generate(conversation)
        if kind == "waits" or kind == "passes": raise
        return conversation, 0.25
    if kind == "waits": await asyncio.sleep(0.7)
    return conversation, 0.5
async def one(problem): return 1
def plain(problem, generate): return 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"led_{os.getpid()}_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(MODULE)
    yield name
    sys.modules.pop(name, None)


def told(kind: str, prompt: Any = "1+1=") -> dict[str, Any]:
    return vars(Problem("p", prompt, kind, {"why": "no key"}))


def test_what_becomes_of_each_rollout(module: str) -> None:
    """Side by side in one process; what one of them does is nothing to the others."""
    function = RolloutFunction(f"{module}:rollout", workers=1, limit=1.0)
    kinds = ["fine", "raises", "leaves", "late", "none", "changes", "forgets", "number", "twice", "nan"]
    kinds += ["chat", "limit", "passes", "stubborn", "waits", "bytes", "much", "edits"]
    try:
        replies = function.advance({k: told(kind) for k, kind in enumerate(kinds)})
        said = {kind: replies[k] for k, kind in enumerate(kinds)}
        assert {kind: reply["failed"] for kind, reply in said.items() if "failed" in reply} == {
            "raises": "it raised KeyError: 'no key'",
            "leaves": "it raised SystemExit: 3",
            "late": "late",
            "none": "it returned without a call of generate",
        }
        assert said["fine"] == {"added": ["1+1="], "tools": None}

        time.sleep(1.2)  # the model takes longer than a rollout may: that is not the rollout's time
        open_ones = [k for k, kind in enumerate(kinds) if "added" in said[kind]]
        replies = function.advance({k: ["5", kinds[k] != "fine"] for k in open_ones})
        said = {kinds[k]: reply for k, reply in replies.items()}
        assert said["changes"]["failed"].startswith("it raised ValueError: the conversation's item 0 changed")
        assert "lost items: only 1 of 2 remain" in said["forgets"]["failed"]
        assert "found 3 in a conversation; expected texts" in said["number"]["failed"]
        assert "the reward nan; expected a finite number" in said["nan"]["failed"]
        assert "not JSON serializable" in said["bytes"]["failed"]  # alone: its neighbours go on
        assert "more than 500,000 characters" in said["much"]["failed"]
        assert said["fine"] == {"added": ["<False>"], "tools": None}
        assert said["chat"]["added"] == [{"role": "tool", "content": "1"}]

        full = {"limit", "passes", "stubborn"}
        open_ones = [k for k, kind in enumerate(kinds) if "added" in said.get(kind, {})]
        replies = function.advance({k: None if kinds[k] in full else ["6", True] for k in open_ones})
        said = {kinds[k]: reply for k, reply in replies.items()}
        assert "sends one request to the model at a time" in said.pop("twice")["failed"]
        assert "item 2 changed" in said.pop("edits")["failed"]
        assert said == {
            "fine": {"reward": 0.5},
            "chat": {"reward": 0.5},
            "limit": {"reward": 0.25},  # caught, and it still returned
            "passes": {"reward": None},
            "stubborn": {"failed": "it raised RuntimeError: generate: the rollout reached its limit"},
            "waits": {"failed": "late"},  # 0.7 s twice
        }
    finally:
        function.close()


@pytest.mark.parametrize(("kind", "why"), [("blocks", "late"), ("dies", "exit status 4")])
def test_a_process_that_is_lost_takes_its_rollouts_and_no_others(module: str, kind: str, why: str) -> None:
    function = RolloutFunction(f"{module}:rollout", workers=2, limit=0.5)
    try:
        replies = function.advance({0: told("fine"), 1: told("fine"), 2: told(kind)})
        assert replies[0] == replies[2] == {"failed": why}
        assert "added" in replies[1]
        replies = function.advance(
            {0: told("fine"), 1: ["5", True], 2: ["5", True]}
        )  # 2 is of the old process
        assert "added" in replies[0]
        assert "added" in replies[1]
        assert replies[2] == {"failed": "the rollout was lost with its process"}
    finally:
        function.close()


def test_functions_that_are_none(module: str) -> None:
    (wrong,) = function_rollout.check_code(f"{module}:one")
    assert "does not take (problem, generate); found 'one(problem)'" in str(wrong)
    (wrong,) = function_rollout.check_code(f"{module}:plain")
    assert "the function is not asynchronous" in str(wrong)
    assert "expected async def f(problem, generate)" in str(wrong)
    (wrong,) = function_rollout.check("calculator")
    assert str(wrong) == "real.rollout: found 'calculator'; expected package.module:function"
    assert function_rollout.check_code(f"{module}:rollout") == []


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is not None, reason="verifiers is installed")
def test_an_environment_of_a_library_that_is_missing(module: str) -> None:
    """isolaw refuses the sweep, before a model is loaded."""
    Path(f"{module}.py").write_text(
        "from isolaw.backends.real.rollout.from_verifiers import rollout_of\n"
        "rollout = rollout_of({'taskset': {'id': 'gsm8k-v1'}})\n"
    )
    (wrong,) = function_rollout.check_code(f"{module}:rollout")
    assert "ImportError: verifiers is not installed: pip install verifiers" in str(wrong)


def test_columns_are_read_only_when_they_are_wanted(tmp_path: Path) -> None:
    rows = [Problem("a", "1+1=", "2", {"tests": ["x"], "level": 3}), Problem("b", "2+2=", "4")]
    write_set(tmp_path / "set", {"train": rows[:1], "validation": rows[1:]})
    plain, whole = (ProblemSet.read(tmp_path / "set", columns=columns) for columns in (False, True))
    assert plain.parts["train"][0].columns == {}
    assert whole.parts["train"][0].columns == {"tests": ["x"], "level": 3}
    assert plain == whole  # the columns are no part of a set's identity
    assert plain.digest("train") == whole.digest("train")
    assert plain.columns_digest(plain.parts) != whole.columns_digest(whole.parts)


def test_an_environment_of_gymnasiums_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the library: what counts is ``reset`` and ``step``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("guesses.py").write_text(
        "from isolaw.backends.real.rollout.from_gymnasium import rollout_of\n"
        "class Guess:\n"
        "    def __init__(self, number): self.number, self.left = number, 3\n"
        "    def reset(self, seed=None, options=None): return f'{options[\"hint\"]}? ', {}\n"
        "    def step(self, action):\n"
        "        self.left -= 1\n"
        "        right = action == str(self.number)\n"
        "        reward = 1.0 if right else -0.25\n"
        "        return 'yes' if right else 'more', reward, right, self.left == 0, {}\n"
        "    def close(self): pass\n"
        "rollout = rollout_of(lambda problem: Guess(int(problem.answer)))\n"
    )
    function = RolloutFunction("guesses:rollout", workers=1)
    asked = vars(Problem("g", "Guess. ", "7", {"hint": "small"}))
    try:
        said = function.advance({0: asked, 1: asked, 2: asked})
        assert said[0]["added"] == ["Guess. ", "small? "]
        said = function.advance({0: ["7", True], 1: ["5", True], 2: ["5", True]})
        assert said[0] == {"reward": 1.0}
        assert said[1]["added"] == ["more"]
        said = function.advance({1: ["6", True], 2: None})
        assert said[2] == {"reward": -0.25}  # at a limit, what it has so far
        assert function.advance({1: ["6", True]}) == {1: {"reward": -0.75}}
    finally:
        function.close()
        sys.modules.pop("guesses", None)
