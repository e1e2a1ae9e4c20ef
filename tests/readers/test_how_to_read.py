"""How to read a source: keywords, options, and ``isolaw.toml``, which ``isolaw read --save`` writes."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw as library
from isolaw.cli.common import shown
from isolaw.config import SweepSpec
from isolaw.errors import InputError, SpecError
from isolaw.readers.how_to_read import Assignment, HowToRead, _read_reading_file, settings_of
from isolaw.readers.resolve import glob_for, set_option
from isolaw.readers.survey import survey

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three logs of veRL without a configuration."""
    for n in (8, 32, 128):
        rows = [
            {"step": s, "data": {"val-core/math/acc/mean@4": 0.5 - 1 / (s + n), "critic/score/mean": 0.1}}
            for s in range(1, 31)
        ]
        path = tmp_path / "logs" / f"n{n}" / "metrics.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "logs"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{n},{s},{0.5 - 1 / (s + n)}" for n in (8, 16, 32) for s in range(1, 30)]
    path = tmp_path / "tables" / "mine.csv"
    path.parent.mkdir()
    path.write_text("\n".join(["group_size,global_step,holdout_acc", *rows]) + "\n")
    return path


def facts(source: Path, **more: Any) -> set[tuple[int, int]]:
    runs = survey([source], HowToRead.of(**more)).runs
    return set(runs.points[["problems_per_batch", "rollouts_per_problem"]].itertuples(index=False, name=None))


@pytest.mark.slow
def test_what_is_saved_is_found_by_everything_that_reads(isolaw: Call, logs: Path) -> None:
    given = ["--name-pattern", "n{n}", "--set", "B_p=32", "--set", "*n8:seed=3", "--only", "!*n128*"]
    code, _, err = isolaw("read", logs, *given, "--save")
    assert code == 0, err
    file = logs / "isolaw.toml"
    assert f"saved {file}" in err
    assert tomllib.loads(file.read_text()) == {
        "name_pattern": ["n{n}"], "only": ["!*n128*"], "set": {"B_p": 32, "*n8": {"seed": 3}},
    }  # fmt: skip
    runs = library.read(logs)
    assert f"isolaw reads with the options in {file}" in runs.notes
    assert facts(logs) == {(32, 8), (32, 32)}
    assert set(runs.points["seed"]) == {0, 3}
    page = logs.parent / "page.html"
    for command in (["fit"], ["answer", "--compute", "1e5"], ["report", "-o", page]):
        err = isolaw(*command[:1], logs, *command[1:], "--draws", 5)[2]
        assert f"note: isolaw reads with the options in {file}\n" in err
    assert facts(logs / "n8" / "metrics.jsonl", set=["n=4", "B_p=2"]) == {(2, 4)}  # not next to it


def test_options_win_over_the_file_and_isolaw_says_so(isolaw: Call, logs: Path) -> None:
    file = logs / "isolaw.toml"
    file.write_text('name_pattern = ["n{n}"]\nonly = ["*n8"]\n[set]\nB_p = 32\n[set."*n8"]\nseed = 5\n')
    assert facts(logs, only="*n32") == {(32, 32)}
    runs = library.read(logs, set={"seed": 7, "B_p": 16})
    assert set(runs.points["seed"]) == {7}  # although the file is about this run alone
    assert set(runs.points["problems_per_batch"]) == {16}
    note = f"isolaw reads with the options in {file}; those of this call take precedence"
    assert runs.notes[0] == note
    assert note in isolaw("read", logs, "--only", "*n32", "--set", "B_p=16")[2]


def test_the_printed_command_saves_what_is_filled_in(isolaw: Call, logs: Path, table: Path) -> None:
    file = logs / "isolaw.toml"
    out = isolaw("read", logs)[1]
    command = f"isolaw read {logs} --name-pattern '*n{{n}}*' --set 'B_p=<number>' --save"
    assert f"To read these logs: {command}\n  Fill in <number> there. " in out
    assert f"--save writes the options to {file}, which all commands find.\n" in out
    code, _, err = isolaw(*shlex.split(command.replace("<number>", "64"))[1:])
    assert code == 0
    assert f"saved {file}, which all commands find. Next, with your budget" in err
    assert facts(logs) == {(64, 8), (64, 32), (64, 128)}

    given = ["--column", "n=group_size", "--set", "B_p=4", "--save"]
    code, _, err = isolaw("read", table, *given)
    file = table.parent / "isolaw.toml"
    assert (code, file.exists()) == (2, False)  # it lacks the step and the reward
    assert f"note: {file} is not written, because no run is ready\n" in err
    assert isolaw("read", table, *given, "--column", "step=global_step", "--metric", "holdout_acc")[0] == 0
    assert tomllib.loads(file.read_text()) == {
        "files": ["mine.csv"], "metric": "holdout_acc", "set": {"B_p": 4},
        "columns": {"n": "group_size", "step": "global_step"},
    }  # fmt: skip


def test_without_options_nothing_is_saved(isolaw: Call, logs: Path) -> None:
    code, _, err = isolaw("read", logs, "--save")
    assert (code, (logs / "isolaw.toml").exists()) == (2, False)
    assert "--save: found no option of reading; there is nothing to save" in err


def test_a_table_keeps_its_file_to_itself(isolaw: Call, table: Path) -> None:
    given = ["--column", "n=group_size", "--column", "step=global_step", "--metric", "holdout_acc"]
    out = table.with_name("points.parquet")
    assert isolaw("read", table, *given, "--set", "B_p=4", "--save", "--out", out)[0] == 0
    assert facts(table) == facts(out) == {(4, 8), (4, 16), (4, 32)}
    other = table.with_name("other.csv")
    other.write_text(table.read_text())
    with pytest.raises(InputError, match="3 columns or values are missing"):
        library.read(other)


def test_two_folders_have_each_their_own(logs: Path) -> None:
    for i, n in enumerate((8, 32)):
        (logs / f"n{n}" / "isolaw.toml").write_text(f"[set]\nn = {n}\nB_p = {2 + i}\nseed = {i}\n")
    reading = survey([logs / "n8", logs / "n32"])
    shown = {(group.facts["problems_per_batch"].value, group.n) for group in reading.ready}
    assert shown == {(2, 8), (3, 32)}
    assert len(reading.read_as) == 2


def test_a_file_is_never_replaced(isolaw: Call, logs: Path) -> None:
    file = logs / "isolaw.toml"
    file.write_text("# mine\n")
    code, _, err = isolaw("read", logs, "--set", "B_p=32", "--save")
    assert (code, file.read_text()) == (2, "# mine\n")
    assert f"{file}: exists and stays unchanged" in err
    assert "    [set]\n    B_p = 32" in err
    file.unlink()
    file.symlink_to(logs.parent / "elsewhere.toml")  # a link to nowhere
    assert isolaw("read", logs, "--set", "B_p=32", "--save")[0] == 2
    assert not (logs.parent / "elsewhere.toml").exists()
    code, _, err = isolaw("read", logs / "n8", logs / "n32", "--set", "B_p=32", "--save")
    assert code == 2
    assert "expected one folder, or files of one folder" in err


def test_all_mistakes_are_named_at_once(logs: Path) -> None:
    file = logs / "isolaw.toml"
    file.write_text('onyl = ["a"]\ngroup_by = 3\n[colums]\nn = "k"\n[set]\nB_p = [1]\n')
    with pytest.raises(SpecError) as raised:
        library.read(logs)
    text = str(raised.value)
    for part in (
        f"{file}:1: onyl: unknown key; found ['a'] (did you mean 'only'?)", f"{file}:2: group_by: found 3",
        f"{file}:3: [colums]", f"{file}:6: set.B_p: found [1]",
    ):  # fmt: skip
        assert part in text
    file.write_text('format = "verl"\nonyl = ["a"]\n')
    with pytest.raises(SpecError, match=rf"(?s)2 issues.*{file}:1: format: found 'verl'; expected auto"):
        library.read(logs)
    file.write_text('format = "jsonl"\n[columns]\nn = "k"\n')
    with pytest.raises(InputError, match=rf"^{file}: format: found 'jsonl' next to the columns; "):
        library.read(logs)
    file.write_text("[set]\nB_q = 1\nstep = 2\n")
    with pytest.raises(InputError, match=rf"^{file}: set.step: step comes from the log"):
        library.read(logs)
    file.write_text("[sweep]\nbackend = 'bandit'\n")  # a sweep's file of this name
    assert facts(logs, set=["B_p=4"], name_pattern="n{n}") == {(4, 8), (4, 32), (4, 128)}


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12)


@given(
    globs=st.dictionaries(WORDS, st.integers(0, 9), max_size=3),
    only=st.lists(WORDS, max_size=2),
    columns=st.dictionaries(st.sampled_from(["seed", "step", "kl"]), WORDS, max_size=3),
    value=st.one_of(st.booleans(), st.integers(-5, 5), st.floats(-1, 1), WORDS),
)
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    globs: dict[str, int],
    only: list[str],
    columns: dict[str, str],
    value: Any,
) -> None:
    settings = {"lr": value, **{glob: {"seed": seed} for glob, seed in globs.items()}}
    how = HowToRead.of(only=only, columns=columns, set=settings)
    path = tmp_path_factory.mktemp("saved") / "isolaw.toml"
    path.write_text(how.toml())
    read = _read_reading_file(path)
    assert read is not None
    assert read.model_dump() == how.model_dump()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n=16", ("rollouts_per_problem", 16, "")),
        ("rollouts_per_problem=16", ("rollouts_per_problem", 16, "")),
        ("B_p=512", ("problems_per_batch", 512, "")),
        ("B=4096", ("rollouts_per_step", 4096, "")),
        ("seed=0", ("seed", 0, "")),
        ("lr=1e-6", ("lr", 1e-6, "")),
        ("model=Qwen/Qwen2.5-7B", ("model", "Qwen/Qwen2.5-7B", "")),
        ("model=hf:org/name", ("model", "hf:org/name", "")),
        ("on_policy=True", ("on_policy", True, "")),
        ("percent=false", ("percent", False, "")),
        ("problem_set=17", ("problem_set", "17", "")),
        ("runs/*:n=8", ("rollouts_per_problem", 8, "runs/*")),
        ("*n=8*:n=8", ("rollouts_per_problem", 8, "*n=8*")),
        ("a:1:seed=3", ("seed", 3, "a:1")),
        (" n = 8".replace(" ", ""), ("rollouts_per_problem", 8, "")),
    ],
)
def test_forms_of_a_setting(text: str, expected: tuple[str, object, str]) -> None:
    (rule,) = HowToRead.of(set=[text]).rules
    assert isinstance(rule, Assignment)
    assert (rule.name, rule.value, rule.glob) == expected


def test_a_mapping_says_the_same() -> None:
    texts = HowToRead.of(set=["n=16", "a*:seed=1", "on_policy=true"])
    assert HowToRead.of(set={"n": 16, "a*:seed": 1, "on_policy": True}) == texts
    assert HowToRead.of(set={"n": 16, "a*": {"seed": 1}, "on_policy": True}) == texts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n", ["NAME=VALUE", "GLOB:NAME=VALUE"]),
        ("n=", ["NAME=VALUE"]),
        ("=3", ["NAME=VALUE"]),
        ("n=0", ["rollouts_per_problem must be a whole number, 1 or more"]),
        ("n=8.5", ["whole number"]),
        ("n=many", ["whole number"]),
        ("n=1e9999", ["whole number"]),
        ("seed=-1", ["seed must be a whole number, 0 or more"]),
        ("on_policy=maybe", ["true or false"]),
        ("rollouts_per_prblem=8", ["did you mean 'rollouts_per_problem'?"]),
        ("seeds=8", ["did you mean 'seed'?"]),
        ("compute=1", ["compute comes from the log"]),
        ("C=1", ["compute comes from the log"]),
        ("value=1", ["cannot be set"]),
    ],
)
def test_settings_that_are_refused(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        HowToRead.of(set=[text])
    for word in ["--set", *words]:
        assert word in str(error.value)


def test_one_text_is_not_a_list_of_them() -> None:
    with pytest.raises(InputError, match="set: found 'n=16'"):
        HowToRead.of(set="n=16")


def test_a_glob_goes_before_none_and_the_later_before_the_earlier() -> None:
    how = HowToRead.of(set=["runs/a*:n=8", "n=16", "n=32", "*a:n=4", "seed=1"])

    def n(run: str, *sources: str) -> object:
        return {name: one.value for name, one in settings_of([how], run, sources).items()}

    assert n("runs/a") == {"rollouts_per_problem": 4, "seed": 1}
    assert n("runs/ab") == {"rollouts_per_problem": 8, "seed": 1}
    assert n("runs/b") == {"rollouts_per_problem": 32, "seed": 1}


@pytest.mark.parametrize("glob", ["runs/n8", "n8", "runs/*", "*.jsonl", "/data/runs/n8/*"])
def test_a_glob_is_of_the_name_or_of_a_source(glob: str) -> None:
    assert Assignment("seed", 1, glob).matches("runs/n8", ["/data/runs/n8/metrics.jsonl"])
    assert not Assignment("seed", 1, glob).matches("other/n16", ["/x/n16/metrics.log"])


@pytest.mark.parametrize("run", ["runs/a", "n=8/seed=1", "a:n=8", "[x] *?", "it's", "x y"])
def test_what_is_suggested_is_accepted_and_is_for_that_run_alone(run: str) -> None:
    flag, text = shlex.split(shown(set_option(glob_for(run), "seed", 1)))
    assert flag == "--set"
    (setting,) = HowToRead.of(set=[text]).rules
    assert isinstance(setting, Assignment)
    assert (setting.name, setting.value) == ("seed", 1)
    assert setting.matches(run, [])
    assert not setting.matches(run + "2", [])


def test_frames_have_no_file(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(table.parent)
    Path("isolaw.toml").write_text("[set]\nB_p = 4\n")
    frame = pd.read_csv(table)
    with pytest.raises(InputError, match="B_p"):
        library.read(frame, columns={"n": "group_size", "step": "global_step"}, metric="holdout_acc")


def test_a_file_is_about_its_own_folder_alone(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (logs / "n8" / "isolaw.toml").write_text("[set]\nn = 8\nB_p = 2\n")
    monkeypatch.chdir(logs / "n8")
    assert [group.sources for group in survey([".", "../n32"]).ready] == [
        ["metrics.jsonl"]
    ]  # ../n32 still asks
    (logs / "isolaw.toml").write_text('name_pattern = ["n{n}"]\n[set]\nB_p = 32\n')
    n8 = logs / "n8"
    assert (
        f"isolaw ignores {n8 / 'isolaw.toml'}: it applies only if {n8} is named as a source"
        in survey([logs]).notes
    )
    assert not any("ignores" in text for text in survey([logs, logs / "n8"]).notes)
    for sources in ([logs, logs / "n8"], [logs / "n8", logs]):  # the nearest wins
        points = survey(sources).runs.points
        assert set(points.loc[points["rollouts_per_problem"] == 8, "problems_per_batch"]) == {2}
    (logs / "n8" / "isolaw.toml").write_text('group_by = "file"\n')
    reading = survey([logs / "n8", logs / "n32"])
    assert [Path(candidate.run).name for candidate in reading.candidates] == ["metrics.jsonl", "n32"]


def test_a_file_that_contradicts_the_logs_or_itself_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "verl"
    shutil.copytree("examples/logs/verl", folder)
    file = folder / "isolaw.toml"
    file.write_text("[set]\nn = 5\nB_p = 6\nseed = 9\n")  # of other logs
    (own, *_) = survey([folder]).candidates
    assert set(own.needs) >= {"n", "B_p", "seed"}
    for part in (f"n = 5 ({file}), but the log has 8", f"B_p = 6 ({file}), but the log has 32", "seed = 9"):
        assert part in own.message
    file.write_text("[set]\nB_p = 32\nproblems_per_batch = 64\n")
    with pytest.raises(InputError, match="found 32 and 64 under two names of problems_per_batch"):
        library.read(folder)


@pytest.mark.parametrize("source", [".", "logs", "absolute", "../{name}/logs"])
def test_globs_hold_however_the_source_is_spelled(
    source: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'only = ["!logs/n128*"]\nname_pattern = ["n{n}"]\n[set]\nB_p = 32\n[set."logs/n8*"]\nseed = 3\n'
    (logs / "isolaw.toml").write_text(text)
    monkeypatch.chdir(logs if source == "." else logs.parent)
    named = str(logs) if source == "absolute" else source.format(name=logs.parent.name)
    points = survey([named]).runs.points
    assert set(points.groupby("rollouts_per_problem")["seed"].first().items()) == {(8, 3), (32, 0)}


def many(line: str, number: int) -> str:
    return "".join(line.format(i) + "\n" for i in range(number))


MISTAKES = {
    "unknown keys": (many("key{0} = 1", 2_000), "2,000 issues"),
    "tables": (many("[table{0}]\nx = 1", 9_000), "9,000 issues"),
    "columns": ("[columns]\n" + many("k{0} = 1", 15_000), "15,000 issues"),
    "metrics": (many("[metrics.a{0}]\nx = 1", 6_000), "12,000 issues"),
    "globs": ("only = [" + "'*a*a*a*a*b'," * 5_000 + "]", "at most 1,?000 items"),
    "patterns": ("name_pattern = [" + "'*{n}'," * 5_000 + "]", "at most 20 items"),
    "a long key": ("a" * 200_000 + " = 1", "unknown key"),
    "nesting": ("a = " + "[" * 200_000, "nested too deeply"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_without_number_are_one_short_message(tmp_path: Path, kind: str) -> None:
    text, match = MISTAKES[kind]
    path = tmp_path / "isolaw.toml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(InputError, match=match) as caught:
        _read_reading_file(path)
    assert time.process_time() - began < 5  # a tenth of it where nothing else runs
    assert len(str(caught.value)) < 10_000


def test_settings_without_number_are_read_in_time(tmp_path: Path) -> None:
    path = tmp_path / "isolaw.toml"
    path.write_text("[set]\n" + many("key{0} = 1", 15_000))
    began = time.process_time()
    _read_reading_file(path)
    assert time.process_time() - began < 5


def test_a_sweep_file_with_thousands_of_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[sweep]\n" + many("key{0} = 1", 9_000))
    began = time.process_time()
    with pytest.raises(InputError, match=r"(?s)9,000 issues.*sweep.toml:2: sweep.key0.*and 8,980 more"):
        SweepSpec.read(path)
    assert time.process_time() - began < 5


def raw_folder(tmp_path: Path, parent: bytes = b"logs", name: bytes = b"t\xe9.csv") -> str:
    """A table whose path is not UTF-8."""
    folder = os.fsencode(tmp_path) + b"/" + parent
    os.makedirs(folder, exist_ok=True)
    rows = "".join(f"r{n},{n},8,{s},0.{s}\n" for n in (4, 8) for s in range(1, 9))
    with open(folder + b"/" + name, "w") as file:
        file.write("run_id,group,bp,it,acc\n" + rows)
    return os.fsdecode(folder + b"/" + name)


@pytest.mark.parametrize("options", [["--save"], ["--out", "o.parquet"], ["--json"], ["--verbose"]])
@pytest.mark.parametrize("place", [(b"logs", b"t\xe9.csv"), (b"caf\xe9", b"t.csv"), (b"a", b"\xff.jsonl")])
def test_a_name_that_is_not_utf_8_is_one_message(
    isolaw: Call,
    tmp_path: Path,
    options: list[str],
    place: tuple[bytes, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = raw_folder(tmp_path, *place)
    code, _, error = isolaw("read", source, *options)
    assert code == 2
    assert "not UTF-8" in error
    assert "\\udc" in error  # the name, in characters that a terminal can show
    assert os.listdir(os.path.dirname(source)) == [os.path.basename(source)]
    assert not (tmp_path / "o.parquet").exists()


def test_a_name_that_is_not_utf_8_hides_no_other(isolaw: Call, logs: Path) -> None:
    raw_folder(logs, b".")
    code, _, error = isolaw("read", str(logs), "--set", "B_p=8", "--name-pattern", "n{n}")
    assert code == 0
    assert "isolaw did not read files whose names are not UTF-8: " in error


@pytest.mark.parametrize("named", ["runs.csv", "."])
def test_a_file_that_is_a_link_out_of_its_folder_is_not_read(tmp_path: Path, named: str) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    (tmp_path / "secret.toml").write_text("metric = 'secret'")
    (folder / "isolaw.toml").symlink_to("../secret.toml")
    (folder / "runs.csv").write_text("n,B_p,step,avg@4\n8,16,1,0.5\n8,16,2,0.6\n")
    reading = survey([folder / named])
    assert len(reading.runs) == 1
    assert sum(str(folder / "isolaw.toml") in note for note in reading.notes) == 1


@pytest.mark.parametrize("run", ["runs/a", "a:n=8", "[x] *?", 'it\'s "b"', ""])
def test_what_python_is_told_are_keywords_of_read(run: str) -> None:
    how = HowToRead.of(
        set=[f"{glob_for(run)}:n=8" if run else "n=8", "B_p=32"],
        columns={"C": "steps*8", "seed": "trial no."},
        only=["*n8*", "!*debug*"], name_pattern="s{seed}-*", group_by="file", metric="val acc",
    )  # fmt: skip
    keywords = eval(f"dict({how.spelling})")
    assert keywords.keys() <= inspect.signature(library.read).parameters.keys()
    assert HowToRead.of(**keywords).toml() == how.toml()
    one = eval(f"dict({set_option(glob_for(run) if run else '', 'seed', 1)})")
    assert [
        (rule.name, rule.value, rule.matches(run or "any", [])) for rule in HowToRead.of(**one).rules
    ] == [("seed", 1, True)]
