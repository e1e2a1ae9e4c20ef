"""Whatever values hold, they arrive in the command as they are, and nothing of them is executed."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolaw.backends.command import BACKEND, template
from isolaw.backends.command.options import CommandOptions
from isolaw.config import Recipe, RunSpec
from isolaw.errors import SpecError

SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"
HOSTILE = [
    "$(touch x)",
    "`id`",
    "a b",
    "it's",
    'say "x"',
    "line\nline",
    "-rf",
    "; rm -r .",
    "$HOME",
    "*",
    "{n}",
    "",
]


def spec(run: object, **recipe: object) -> RunSpec:
    return RunSpec(
        backend="command", problems_per_batch=4, rollouts_per_problem=8, seed=1, compute=640,
        recipe=Recipe(**recipe), options={"run": run},
    )  # fmt: skip


def shown(command: template.Invocation, cwd: object = None) -> list[str]:
    done = subprocess.run(command.words, capture_output=True, text=True, check=True, cwd=cwd)
    return json.loads(done.stdout)


@pytest.mark.parametrize("out", HOSTILE)
@pytest.mark.parametrize("shell", [True, False])
def test_hostile_values_arrive(out: str, shell: bool, tmp_path: object) -> None:
    words = (sys.executable, "-c", SHOW, "{out}", "--x={out}")
    line = f"{sys.executable} -c '{SHOW}' {{out}} --x={{out}}"
    options = CommandOptions(run=line if shell else words, shell=shell)
    command = template.command_of(options, {"out": out, "n": "8"})
    assert shown(command, tmp_path) == [out, f"--x={out}"]
    assert command.environment["ISOLAW_OUT"] == out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_the_printed_line_is_the_command(out: str) -> None:
    options = CommandOptions(run=(sys.executable, "-c", SHOW, "{out}", "{{n}}", "{n}"))
    command = template.command_of(options, {"out": out, "n": "8"})
    done = subprocess.run(["/bin/sh", "-c", command.line], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [out, "{n}", "8"]


def test_values_are_those_of_the_run() -> None:
    values = template.values_of(spec("x", lr=1e-6, top_p=0.9), CommandOptions(run="x"), "out")
    assert values["lr"] == repr(1e-6 * (32 / 1024) ** 0.5)  # the run's own, of B = 32
    assert [values[name] for name in ("B_p", "n", "B", "steps", "seed", "top_p")] == [
        "4",
        "8",
        "32",
        "20",
        "1",
        "0.9",
    ]
    assert "temperature" not in values  # the trainer's own


def test_a_longer_horizon_evaluates_as_often() -> None:
    first = spec("x").model_copy(update={"evaluation": spec("x").evaluation.model_copy(update={"end": 640})})
    longer = first.model_copy(update={"compute": 64_000})
    options = CommandOptions(run="x")
    values, more = (template.values_of(value, options, "") for value in (first, longer))
    assert values["every"] == more["every"]
    assert int(more["steps"]) == 100 * int(values["steps"])


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("train.sh {m}", "command.run: found '{m}'"),
        ("train.sh {step}", "did you mean 'steps'"),
        ("train.sh {kl}", "set recipe.kl"),
        ("train.sh 'x", "quotes are closed"),
        ("no-such-program {n}", "no such program"),  # on this machine
        ("", "command.run"),
        ([], "command.run"),
        (["true", 3], "command.run"),
    ],
)
def test_wrong_commands_are_refused(run: object, message: str) -> None:
    try:
        checked = BACKEND.resolve(spec(run))
        issues = BACKEND.check(checked) or BACKEND.check_here(checked)
    except SpecError as error:
        issues = error.issues
    assert message in "; ".join(map(str, issues))


def test_the_identity_is_what_decides_the_training(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run_id(**options: object) -> str:
        return BACKEND.resolve(spec("sh train.sh").model_copy(update={"options": options})).run_id

    (tmp_path / "train.sh").write_text("one")
    first = run_id(run="sh train.sh", files=["train.sh"])
    assert run_id(run="sh train.sh", files=["train.sh"], gpus=8, silent_minutes=1, log="x") == first
    assert run_id(run="sh train.sh --more", files=["train.sh"]) != first
    (tmp_path / "train.sh").write_text("two")
    assert run_id(run="sh train.sh", files=["train.sh"]) != first
    with pytest.raises(SpecError, match=r"missing\.sh: No such file"):
        run_id(run="sh train.sh", files=["missing.sh"])


def test_a_framework_is_one_whose_logs_isolaw_reads() -> None:
    assert CommandOptions(run="x", framework="VERL").framework == "veRL"
    with pytest.raises(SpecError, match=r"command\.framework: .* veRL"):
        BACKEND.resolve(spec("x").model_copy(update={"options": {"run": "x", "framework": "vrl"}}))
