"""Rewards: exact, math-verify in workers that can hang and die, and a user's function."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from isolaw import guard
from isolaw.backends.real.rollout import reward_processes, rewards
from isolaw.backends.real.rollout.problems import Problem, ProblemSet
from isolaw.backends.real.rollout.worker_rewards import Math
from isolaw.errors import RunError, SpecError

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs math-verify (make real-cpu)"
)


def asked(answer: str, name: str = "p1") -> Problem:
    return Problem(name, f"what is {answer}?", answer)


def test_exact_ignores_white_space_around_an_answer_and_nothing_else() -> None:
    reward = rewards.get("exact")
    responses = ["42", " 42\n", "42.", "042", "4 2", ""]
    assert reward([asked(" 42 ")] * 6, responses) == [1, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="shorter"):
        reward([asked("42")] * 2, ["42"])
    reward.close()


def test_correct_is_a_reward_of_at_least_one() -> None:
    assert rewards.is_correct(np.array([[1.0, 0.999], [1.5, -1.0]])).tolist() == [
        [True, False],
        [True, False],
    ]


# math


HANGS = "$9^{9^{9^{9}}}$"


@pytest.fixture
def verified(request: pytest.FixtureRequest) -> Iterator[Math]:
    """One worker; a limit of two seconds where a test waits for it."""
    reward = Math(workers=1, limit=getattr(request, "param", 30.0))
    yield reward
    reward.close()


waits = pytest.mark.parametrize("verified", [2.0], indirect=True)


def worker_of(reward: Math) -> subprocess.Popen[bytes]:
    worker = reward.pool.idle.get()
    reward.pool.idle.put(worker)
    assert worker.process is not None
    return worker.process


@needs_math_verify
@pytest.mark.slow
def test_math_compares_expressions(verified: Math) -> None:
    cases = [
        ("42", r"so it is \boxed{42}", 1), ("42", r"\boxed{41}", 0), ("42", "", 0), ("42", "no idea", 0),
        ("0.5", r"$\frac{1}{2}$", 1), (r"\frac{1}{2}", "0.5", 1), ("1,000", "1000", 1),
        ("x^2+1", "$1+x^2$", 1), ("(1, 2)", "$(1,2)$", 1), ("(1, 2)", "$(2,1)$", 0),
        (r"$\sqrt{2}$", r"\boxed{2^{1/2}}", 1),
    ]  # fmt: skip
    found = verified([asked(answer) for answer, _, _ in cases], [response for _, response, _ in cases])
    assert found == [value for _, _, value in cases]
    assert verified.failures == 0


@needs_math_verify
@pytest.mark.slow
@waits
def test_a_hung_worker_is_ended_and_replaced(verified: Math) -> None:
    assert verified([asked("1")], ["1"]) == [1.0]
    hung = worker_of(verified)
    started = time.monotonic()
    assert verified([asked("3", "a"), asked("4", "b")], [HANGS, "4"]) == [0.0, 1.0]
    assert time.monotonic() - started < 60  # a worker's start is in it
    assert verified.failures == 1
    assert hung.returncode == -signal.SIGALRM
    assert worker_of(verified).pid != hung.pid


@pytest.mark.nightly
@needs_math_verify
@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(verified: Math) -> None:
    assert verified([asked("1")], ["1"]) == [1.0]
    (pid,) = guard.descendants(worker_of(verified).pid)  # the one that answers, below its guard
    os.kill(pid, signal.SIGKILL)
    assert verified([asked("2"), asked("2")], ["2", r"\boxed{2}"]) == [0.0, 1.0]
    assert verified.failures == 1


@pytest.mark.nightly
@needs_math_verify
@pytest.mark.slow
@waits
def test_a_stopped_worker_is_not_waited_for_for_ever(verified: Math, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_processes, "_GRACE_S", 0.5)
    assert verified([asked("1")], ["1"]) == [1.0]
    (pid,) = guard.descendants(worker_of(verified).pid)
    os.kill(pid, signal.SIGSTOP)  # its alarm does not reach it
    assert verified([asked("2")], ["2"]) == [0.0]
    assert verified.failures == 1
    assert verified([asked("2")], ["2"]) == [1.0]


@needs_math_verify
@pytest.mark.slow
@waits
def test_equal_responses_are_looked_at_once_and_all_counted(verified: Math) -> None:
    started = time.monotonic()
    assert verified([asked("3")] * 20, [HANGS] * 20) == [0.0] * 20
    assert verified.failures == 20
    assert time.monotonic() - started < 40  # 20 times the limit, were each of them waited for


@needs_math_verify
@pytest.mark.slow
def test_a_worker_ends_with_its_trainer_even_when_it_hangs(ended) -> None:
    code = (
        "import os, threading, time\nfrom isolaw.backends.real.rollout.worker_rewards import Math\n"
        "from isolaw.backends.real.rollout.problems import Problem\n"
        "reward, q = Math(workers=1, limit=2.0), Problem('a', 'b', '3')\nreward([q], ['3'])\n"
        "worker = reward.pool.idle.get(); reward.pool.idle.put(worker)\n"
        "print(worker.process.pid, flush=True)\n"
        "threading.Thread(target=reward, args=([q], ['$9^{9^{9^{9}}}$']), daemon=True).start()\n"
        "time.sleep(0.5)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    patience = time.monotonic() + 300
    while not ended(int(done.stdout)):
        assert time.monotonic() < patience, "the worker outlives its trainer"
        time.sleep(0.1)


@needs_math_verify
@pytest.mark.slow
def test_closing_ends_the_workers(verified: Math) -> None:
    verified([asked("1")], ["1"])
    process = worker_of(verified)
    verified.close()
    assert process.returncode is not None


@needs_math_verify
@pytest.mark.slow
def test_the_forms_of_answers_of_math_and_gsm8k_are_read(verified: Math) -> None:
    """Money, units, bases, sets, intervals, matrices, words: a form that is not read can never be correct."""
    forms = (Path(__file__).parents[1] / "data/answers.txt").read_text().splitlines()
    assert len(forms) >= 300
    problems = [asked(form) for form in forms]
    assert verified.unreadable(problems) == []
    said = [f"So it is $\\boxed{{{form.strip('$')}}}$." for form in forms]
    right = verified(problems, said)
    unlike = [form for form, value in zip(forms, right, strict=True) if not value]
    assert unlike == [r"\[\frac{1}{3}\]", r"\text{The answer is 5}"]  # read one way bare, another way boxed
    assert not any(verified(problems, ["I do not know."] * len(forms)))
    money = asked(r"\$32,\!348")
    assert verified([money] * 3, [r"\boxed{\$32,348}", r"\boxed{32348}", r"\boxed{\$32,349}"]) == [1, 1, 0]


@needs_math_verify
@pytest.mark.slow
def test_equal_responses_are_judged_once(verified: Math, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, right, wrong, sent = asked("\\frac{1}{2}"), "It is $0.5$.", "It is $2$.", []
    judge = verified.pool.replies
    monkeypatch.setattr(verified.pool, "replies", lambda rows: (sent.append(rows), judge(rows))[1])
    assert verified([problem] * 3, [right, wrong, right]) == [1.0, 0.0, 1.0]
    assert sent == [[(problem.answer, right), (problem.answer, wrong)]]


@pytest.mark.slow
def test_answers_that_cannot_be_read_are_listed_with_their_lines(tmp_path: Path) -> None:
    answers = ["1", r"\ldots", "2", r"\ldots", r"\$3"]
    rows = [{"prompt": f"{n}", "answer": answer} for n, answer in enumerate(answers)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "validation.jsonl").write_text('{"prompt": "x", "answer": "1"}\n')
    problems = ProblemSet.read(tmp_path).parts["train"]
    (issue,) = rewards.answer_issues("math", problems, "train.jsonl")
    assert r"cannot read 2 of 5 answers: line 2 '\\ldots'; line 4 '\\ldots'" in str(issue)
    assert rewards.answer_issues("exact", problems, "train.jsonl") == []


@needs_math_verify
@pytest.mark.slow
def test_an_answer_that_cannot_be_read_stops_the_run(verified: Math) -> None:
    with pytest.raises(RunError, match=r"problem 'p7': math-verify cannot parse the answer '\\\\ldots'"):
        verified([asked("1"), asked(r"\ldots", "p7")], ["1", "1"])


def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    reward = Math(workers=1)
    with pytest.raises(RunError, match="the worker of the math reward does not start"):
        reward([asked("1")], ["1"])
    reward.close()


# A user's function

MODULE = """
import os, time
import numpy as np
def half(prompt, response, answer): return 0.5 if response in answer else 0
def truth(prompt, response, answer): return np.bool_(response == answer)
def single(prompt, response, answer): return np.float32(1.5)
def seen(prompt, response, answer): return float((prompt, response, answer) == ("what is 12?", "1", "12"))
def raises(prompt, response, answer): raise KeyError(answer)
def word(prompt, response, answer): return "1.0"
def nothing(prompt, response, answer): pass
def nan(prompt, response, answer): return float("nan")
def infinite(prompt, response, answer): return float("inf")
def huge(prompt, response, answer): return 10**400
def leaves(prompt, response, answer): raise SystemExit(3)
def two(response, answer): return 1.0
def prints(prompt, response, answer): print("no reply"); return 1.0
def length(prompt, response, answer): return len(response)
def slow(prompt, response, answer): time.sleep(60 if response == "slow" else 0); return 1.0
def dies(prompt, response, answer): return os._exit(3) if response == "die" else 1.0
def complex_(prompt, response, answer): return 1j
ONE = 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module on Python's path, of a name of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"graders_{os.getpid()}_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(MODULE)
    path = list(sys.path)
    yield name
    assert sys.path == path
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("function", "value"),
    [("half", 0.5), ("truth", 0.0), ("single", 1.5), ("seen", 1.0), ("prints", 1.0), ("length", 1.0)],
)
def test_a_users_function(module: str, function: str, value: float) -> None:
    reward = rewards.get(f"{module}:{function}")
    found = reward([asked("12")], ["1"])
    assert found == [value]
    assert type(found[0]) is float
    reward.close()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "it raised KeyError: '12'"),
        ("word", "it returned '1.0'; expected a finite number"),
        ("nothing", "it returned None; expected a finite number"),
        ("nan", "it returned nan; expected a finite number"),
        ("infinite", "it returned inf; expected a finite number"),
        ("huge", f"it returned {10**400!r}; expected a finite number"),
        ("leaves", "it raised SystemExit: 3"),
        ("complex_", "it returned 1j; expected a finite number"),
    ],
)
def test_what_a_users_function_must_not_do(module: str, function: str, said: str) -> None:
    reward = rewards.get(f"{module}:{function}")
    with pytest.raises(RunError) as error:
        reward([asked("12", "aime-7")], ["1"])
    assert str(error.value) == f"reward {module}:{function}, problem 'aime-7', response '1': {said}"


@pytest.mark.slow
def test_replies_are_the_same_for_any_number_of_workers(module: str) -> None:
    responses = ["x" * (i % 7) for i in range(150)]
    for workers_ in (1, 3):
        reward = rewards.get(f"{module}:length", workers=workers_)
        assert reward([asked("1")] * 150, responses) == [float(i % 7) for i in range(150)]
        assert reward([], []) == []
        reward.close()


@pytest.mark.slow
@pytest.mark.parametrize(("function", "late"), [("slow", "slow"), ("dies", "die")])
def test_late_calls_count_as_failures_and_end_nothing_else(module: str, function: str, late: str) -> None:
    reward = rewards.get(f"{module}:{function}", workers=1, limit=1.5)
    assert reward([asked("1")] * 4, ["1", late, "2", "3"]) == [1.0, 0.0, 1.0, 1.0]
    assert reward.failures == 1
    assert reward([asked("1")], ["4"]) == [1.0]
    assert reward.failures == 1
    reward.close()


def test_the_hash_of_a_function_follows_its_file(module: str) -> None:
    before = rewards.digest(f"{module}:half")
    assert before == rewards.digest(f"{module}:word")
    Path(f"{module}.py").write_text(MODULE + "# changed\n")
    assert rewards.digest(f"{module}:half") != before
    assert rewards.digest("exact") is None
    assert rewards.digest("sys:exit") is None  # of no file


# Names


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exct", "found 'exct'; expected exact, math, or package.module:function (did you mean 'exact'?)"),
        ("Math", "found 'Math'; expected exact, math, or package.module:function (did you mean 'math'?)"),
        (":f", "found ':f'; expected exact, math, or package.module:function"),
        (
            "nowhere.at.all:f",
            "no module 'nowhere.at.all' in the packages of Python; found 'nowhere.at.all:f'",
        ),
        ("os.nowhere:f", "no module 'os.nowhere' in the packages of Python; found 'os.nowhere:f'"),
        ("json.decodr:f", "no module 'json.decodr' in the packages of Python; found 'json.decodr:f'"),
        ("json.decoder:JSONDecodr", "json.decoder: no such function; found 'JSONDecodr' (did you mean 'json"),
        ("os.path:jion", "os.path: no such function; found 'jion' (did you mean 'os.path:join'?)"),
        ("os.path:sep", "os.path: is not a function; found 'sep'"),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    (problem,) = rewards.check(name) or rewards.check_code(name)
    assert str(problem).startswith(f"real.reward: {said}")
    with pytest.raises(SpecError):
        rewards.get(name)


def test_a_module_that_fails_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "broken_grader.py").write_text("1 / 0\ndef f(): pass\n")
    assert not rewards.check("broken_grader:f", "--reward", str(tmp_path))
    (problem,) = rewards.check_code("broken_grader:f", "--reward", str(tmp_path))
    assert str(problem).startswith(
        "--reward: cannot import 'broken_grader': ZeroDivisionError: division by zero"
    )


def test_a_module_that_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "script_grader.py").write_text("import sys\nsys.exit(3)\ndef f(): pass\n")
    assert not rewards.check("script_grader:f", folder=str(tmp_path))
    (problem,) = rewards.check_code("script_grader:f", folder=str(tmp_path))
    assert str(problem).startswith("real.reward: cannot import 'script_grader': SystemExit: 3")


def test_a_file_is_not_a_module(module: str) -> None:
    (problem,) = rewards.check(f"{module}.py:half")
    assert problem.nearest == f"{module}:half"


def test_a_function_of_other_arguments(module: str) -> None:
    (problem,) = rewards.check_code(f"{module}:two")
    told = f"real.reward: {module}: does not take (prompt, response, answer); found 'two(response, answer)'"
    assert str(problem) == told
    assert (
        rewards.check("builtins:min") == rewards.check_code("builtins:min") == []
    )  # says nothing of its arguments


CODE = "import os\nopen('executed', 'w').close()\n"


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("kept:f", "def f(prompt, response, answer): return 1", None),
        ("package.kept:f", "def f(): pass", None),
        ("package.other:f", "", "no module 'package.other' in "),
    ],
)
def test_a_name_is_checked_without_executing_its_module(
    name: str, body: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(CODE)
    file = tmp_path / "package" / "kept.py" if name.startswith("package.kept") else tmp_path / "kept.py"
    file.write_text(CODE + body)
    issues = rewards.check(name, folder=str(tmp_path))
    assert [str(issue) for issue in issues] == [] if said is None else said in str(issues[0])
    if said is None:
        assert rewards.file_of(name, str(tmp_path)) == file
        assert rewards.digest(name, str(tmp_path)) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert not (tmp_path / "executed").exists()
    assert rewards.check(name)  # the working directory is not on the path by itself


def test_math_without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not rewards.check("math")  # a dry run does not need it
    (problem,) = rewards.check_code("math")
    assert "math-verify is not installed: pip install math-verify" in str(problem)
