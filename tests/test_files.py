"""Where isolaw writes: nothing that belongs to a sweep, under a name of its kind, with the usual mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from isolaw import engine, files
from isolaw.cli import cli
from isolaw.cli.options import Destination
from isolaw.errors import DataError
from isolaw.runs import Runs
from isolaw.store import SweepStore, locks, sweep

Call = Callable[..., tuple[int, str, str]]
Tree = Callable[[Path], dict[str, bytes | None]]


@pytest.fixture
def made(tiny: Callable[..., Any], tmp_path: Path) -> Path:
    engine.sweep(tiny(grid={"rollouts_per_problem": [2, 4, 8]}, evaluation={"points": 20}), tmp_path / "made")
    return tmp_path / "made"


def state(made: Path) -> Path:
    return next((made / "runs").iterdir()) / "state" / "99"


# Options that name what is read; all others with a path are destinations.
READ = {
    "predict law", "predict cost", "report sources", "fit sources", "read sources",
    "export run", "advise cost", "model-size file", "model-size runs",
    "problems model", "problems pool", "status directory", "sweep file", "sweep cost",
    "run-one directory", "answer sources", "answer cost", "report cost",
    "compare cost", "demo directory",  # the last is checked as what `isolaw sweep --out` writes
}  # fmt: skip
# What each command needs to come to its destination.
WORDS: dict[str, list[str]] = {
    "advise": ["--budget", "1e6"], "answer": ["MADE", "--compute", "1e5"],
    "doctor": ["--gpu", "--device", "cpu"],
    "export": ["RUN"],
    "fit": ["MADE", "--draws", "0"], "read": ["MADE"], "report": ["MADE"],
    "problems": ["--model", "m", "--problems", "p"], "sweep": [],
}  # fmt: skip


def paths(kind: type[click.Path]) -> set[tuple[str, str]]:
    return {
        (name, str(option.name))
        for name, command in cli.commands.items()
        for option in command.params
        if isinstance(option.type, click.Path) and (type(option.type) is kind)
    }


def test_every_option_with_a_path_reads_or_writes() -> None:
    assert {f"{command} {name}" for command, name in paths(click.Path)} == READ
    assert {command for command, _ in paths(Destination)} == WORDS.keys()


@pytest.mark.parametrize(("command", "name"), sorted(paths(Destination)))
def test_no_command_writes_into_a_run(isolaw: Call, tree: Tree, made: Path, command: str, name: str) -> None:
    (made / "link").symlink_to(made / "runs")
    inside = state(made)
    option = next(param for param in cli.commands[command].params if param.name == name)
    known = {"MADE": made, "RUN": inside.parents[1], "SWEEP": made / "sweep.json"}
    required = [
        word
        for param in cli.commands[command].params
        if isinstance(param, click.Option) and param.required and isinstance(param.type, Destination)
        if param is not option
        for word in (param.opts[0], made.parent / "elsewhere")
    ]
    before = tree(made)
    for place in (
        inside,
        made / "runs" / "new" / "below",
        made / "link" / "new",
        made / "sub" / ".." / "RUNS" / "x.json",
        made / "points.parquet",
    ):
        words = [known.get(word, word) for word in WORDS[command]]
        code, _, err = isolaw(command, *words, *required, option.opts[0], place)
        assert (code, "is inside the sweep" in err) == (2, True), err
        assert tree(made) == before


def test_what_a_sweep_owns_is_what_the_store_makes() -> None:
    assert {*sweep._OWN_ENTRIES, locks.CLOCK} == files.SWEEP_ENTRIES


@pytest.mark.slow
def test_the_rest_of_a_sweep_is_the_users(made: Path, isolaw: Call) -> None:
    for place in (
        made / "law.json",
        made / "figures",
        made / "my" / "runs" / "law.json",
        made / "report.html",
    ):
        assert files.check_destination(place) == place
    assert isolaw("fit", made, "--draws", 0, "--out", made / "law.json")[0] == 0
    assert isolaw("report", made, "-o", made / "report.html")[0] == 0
    SweepStore(made).check()


def test_a_folder_that_only_looks_like_a_sweep_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "sweep.json").write_text("{}")
    files.check_destination(tmp_path / "runs" / "mine" / "law.json")


def test_a_sweep_without_its_file(made: Path) -> None:
    (made / "sweep.json").unlink()
    with pytest.raises(DataError, match="inside the sweep"):
        files.check_destination(state(made))


def test_functions_refuse_it_too(made: Path, synthetic: Callable[..., Runs]) -> None:
    runs = synthetic([(8, 4)], seeds=1, checkpoints=4)
    with pytest.raises(DataError, match="inside the sweep"):
        runs.to_parquet(state(made))
    with pytest.raises(DataError, match="inside the sweep"), files.replacing(made / "runs" / "x"):
        pass
    with pytest.raises(DataError, match="inside the sweep"):
        engine.sweep({"sweep": {"compute": 1000}}, made / "runs" / "inner")


@pytest.mark.parametrize("name", ["a\0b", "loop", "x" * 5000])
def test_a_path_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError):
        files.check_replaceable(tmp_path / name, "a law", "law.json", lambda _: True)


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        (["read", "MADE", "-o", "x.csv"], ".parquet"),
        (["read", "MADE", "-o", "x"], ".parquet"),
        (["fit", "MADE", "--draws", "0", "--out", "law.toml"], ".json"),
        (["report", "MADE", "-o", "page.json"], ".html"),
        (["doctor", "--gpu", "--device", "cpu", "--out", "report.txt"], ".json"),
    ],
    ids=lambda own: " ".join(own) if isinstance(own, list) else own,
)
def test_a_name_and_its_format_agree(
    isolaw: Call, made: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], accepted: str
) -> None:
    monkeypatch.chdir(made.parent)
    before = sorted(os.listdir())
    code, _, err = isolaw(*({"MADE": "made"}.get(word, word) for word in words))
    assert code == 2
    assert accepted in err
    assert words[-1] in err
    assert sorted(os.listdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("umask", [pytest.param(0o002, marks=pytest.mark.nightly), 0o077])
def test_modes_follow_the_umask(isolaw: Call, tiny: Callable[..., Any], tmp_path: Path, umask: int) -> None:
    """Of everything that isolaw writes for the user, and of a library's files in a new folder."""
    before = os.umask(umask)
    try:
        out = tmp_path / "made"
        grid = {"rollouts_per_problem": [2, 4, 8]}
        engine.sweep(tiny(grid=grid, evaluation={"points": 20}), out)
        assert isolaw("read", out, "-o", tmp_path / "runs.parquet")[0] == 0
        assert isolaw("report", out, "--draws", 0, "--out", tmp_path / "page.html")[0] == 0
        assert isolaw("advise", "--budget", "1e6", "--write", tmp_path / "first")[0] == 0
        library = tmp_path / "library"
        library.mkdir()
        (library / "weights").touch(0o600)
        files.give_usual_modes(library)
    finally:
        os.umask(before)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 20
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in written}
    assert {path: oct(mode) for path, mode in modes.items() if mode != 0o666 & ~umask} == {}


def test_nothing_is_written_through_a_link_to_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.symlink_to("elsewhere.html")
    with pytest.raises(DataError, match="which does not exist"):
        files.check_destination(page)
    (tmp_path / "figures").symlink_to("gone")
    with pytest.raises(DataError, match=r"figures: found a link to .*gone, which"):
        files.check_destination(tmp_path / "figures" / "more" / "page.html")
    (tmp_path / "elsewhere.html").write_text("")
    assert files.check_destination(page) == tmp_path / "elsewhere.html"
