"""Splitting a pool: thresholds, what is written, and what happens when it is interrupted or repeated."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.backends.real import environment
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout import split as splitting
from isolaw.backends.real.rollout.problems import Problem, ProblemSet, read_pool, write_set
from isolaw.backends.real.rollout.split import SplitFolder, _difficulty, _SplitSettings
from isolaw.cli.problems import _summary
from isolaw.errors import DataError

SETTINGS = _SplitSettings("m", "p", "exact", "transformers", temperature=0.6, max_response_tokens=8)


@given(st.integers(1, 64), st.data())
def test_thresholds(samples: int, data: st.DataObject) -> None:
    """Integers only: 0.3 = 3/10, 0.6 = 6/10, 0.0625 = 1/16."""
    c = data.draw(st.integers(0, samples))
    later = data.draw(st.integers(0, 128)) if c == 0 else None
    easy, hard = 3 * samples <= 10 * c <= 6 * samples, 16 * c <= samples
    expected = "easy" if easy else None
    if hard:
        expected = "hard" if c or later else "extremely-hard"
    assert _difficulty(c, samples, later) == expected


def pool(count: int = 200) -> list[Problem]:
    return [Problem(str(i), f"{i}?", "yes") for i in range(count)]


class Model:
    """Solves problem i with probability (i mod 20) / 19, a tenth of that for the first 40."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.asked: list[tuple[str, int]] = []
        self.left = stop_after

    def __call__(self, questions: Sequence[Problem], seeds: Sequence[Sequence[int]]) -> list[str]:
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        self.asked += [
            (q.id, seed) for q, question in zip(questions, seeds, strict=True) for seed in question
        ]
        return [
            "yes" if seed % 1900 < int(q.id) % 20 * (10 if int(q.id) < 40 else 100) else "no"
            for q, question in zip(questions, seeds, strict=True)
            for seed in question
        ]


def done(
    folder: Path,
    model: Model,
    questions: Sequence[Problem] | None = None,
    settings: _SplitSettings = SETTINGS,
) -> SplitFolder:
    work = SplitFolder(folder, pool() if questions is None else questions, settings)
    for _ in work.measure(model, rewards.get("exact")):
        pass
    work.write()
    return work


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_sets_hold_what_was_counted(tmp_path: Path) -> None:
    model = Model()
    work = done(tmp_path, model)
    rows = [json.loads(line) for line in (tmp_path / "counts.jsonl").read_text().splitlines()]
    first = {r["id"]: r["correct"] for r in rows if r["samples"] == 16}
    later = {r["id"]: r["correct"] for r in rows if r["samples"] == 128}
    assert len(first) == 200
    assert set(later) == {i for i, c in first.items() if c == 0}
    assert len(model.asked) == 16 * 200 + 128 * len(later)
    assert len(set(model.asked)) == len(model.asked)  # no sample is drawn twice

    expected = {i: _difficulty(c, 16, later.get(i)) for i, c in first.items()}
    assert work.report is not None
    for name in splitting._SETS:
        parts = ProblemSet.read(tmp_path / name).parts
        there = {q.id for questions in parts.values() for q in questions}
        assert there == {i for i, found in expected.items() if found == name}
        summary = work.report["sets"][name]
        assert summary["problems"] == len(there) == summary["train"] + summary["validation"]
        assert len(parts["validation"]) == len(there) // 5
        assert summary["avg@16"] == pytest.approx(sum(first[i] for i in there) / len(there) / 16)
        assert {q.answer for q in parts["train"]} == {"yes"}
    assert sum(work.report["histogram"]) == 200
    assert work.report["avg@16"] == pytest.approx(sum(first.values()) / 16 / 200)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_an_interrupted_split_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    monkeypatch.setattr(splitting, "_ROLLOUTS_AT_ONCE", 1600)
    whole = done(tmp_path / "whole", Model())
    model = Model(stop_after=batches)
    with pytest.raises(KeyboardInterrupt):
        done(tmp_path / "part", model)
    with (tmp_path / "part" / "counts.jsonl").open("a") as file:
        file.write('{"id": "7", "sam')  # as a power cut leaves it
    rest = Model()
    assert SplitFolder(tmp_path / "part", pool(), SETTINGS).left <= whole.left + 16 * 200 + 128 * 200
    done(tmp_path / "part", rest)
    assert files(tmp_path / "part") == files(tmp_path / "whole")
    assert not set(model.asked) & set(rest.asked)
    again = Model()
    assert done(tmp_path / "part", again).left == 0
    assert again.asked == []


def test_progress_reaches_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "_ROLLOUTS_AT_ONCE", 320)
    work = SplitFolder(tmp_path, pool(), SETTINGS)
    assert work.left == 3200
    seen = list(work.measure(Model(), rewards.get("exact")))
    assert len(seen) > 10
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(seen))
    assert seen[-1][0] == seen[-1][1] > 3200


def test_killed_between_the_sets_and_the_report(tmp_path: Path) -> None:
    done(tmp_path, Model())
    before = files(tmp_path)
    header = json.loads((tmp_path / "split.json").read_text())
    (tmp_path / "split.json").write_text(json.dumps(header | {"report": None}))
    done(tmp_path, Model())
    assert files(tmp_path) == before


def test_samples_belong_to_the_problem(tmp_path: Path) -> None:
    """Neither the pool's order nor what else is in it changes the counts; another seed does."""
    counts = done(tmp_path / "a", Model()).counts
    assert done(tmp_path / "b", Model(), pool()[::-1]).counts == counts
    few = done(tmp_path / "c", Model(), pool(50)).counts
    assert few == {i: counts[i] for i in few}
    assert done(tmp_path / "d", Model(), settings=replace(SETTINGS, seed=1)).counts != counts


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "hard").mkdir()
    with pytest.raises(DataError, match="already contains hard; choose another folder"):
        SplitFolder(tmp_path, pool(), SETTINGS)
    other = tmp_path / "other"
    done(other, Model())
    before = files(other)
    with pytest.raises(
        DataError, match=r"contains another split \(temperature 0.6, not 1.0; seed 0, not 3\)"
    ):
        SplitFolder(other, pool(), replace(SETTINGS, temperature=1.0, seed=3))
    (other / "split.json").write_text("{}")
    with pytest.raises(DataError, match="not a file of isolaw problems"):
        SplitFolder(other, pool(), SETTINGS)
    assert files(other) == before | {"split.json": b"{}"}


def test_what_is_too_small_is_not_written(tmp_path: Path) -> None:
    work = done(tmp_path, Model(), pool(24), replace(SETTINGS, validation=4))
    assert work.report is not None
    for name, one in work.report["sets"].items():
        assert one["written"] == (one["problems"] > 4) == (tmp_path / name).exists()
        if one["written"]:
            assert one["validation"] == 4
    assert {one["written"] for one in work.report["sets"].values()} == {True, False}


def test_the_summary_says_what_a_sweep_is_to_be_given(tmp_path: Path) -> None:
    work = done(tmp_path, Model())
    assert work.report is not None
    given = f'problems.set = "{tmp_path / "easy"}" and problems.difficulty = "easy"'
    assert given in _summary(work, work.report)[-1]


def test_no_problem_is_in_both_parts_under_two_names(tmp_path: Path) -> None:
    twice = [*pool(), *(Problem(f"{1000 + i}", f" {i}?\n", "yes") for i in range(200))]
    work = done(tmp_path, Model(), twice)
    assert (len(work.problems), work.repeated_prompts) == (200, 200)
    assert {q.id for q in work.problems} == {q.id for q in pool()}
    for name in splitting._SETS:
        ProblemSet.read(tmp_path / name)


@pytest.mark.parametrize("bad", ["[1]", '{"id": "3"}', "7", '{"id": "3", "samples": 16, "correct": 17}', "x"])
def test_counts_that_are_not_a_splits(tmp_path: Path, bad: str) -> None:
    done(tmp_path, Model())
    lines = (tmp_path / "counts.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "counts.jsonl").write_text("".join([*lines[:4], bad + "\n", *lines[5:]]))
    with pytest.raises(DataError, match=r"counts.jsonl:5: not a line of isolaw problems"):
        SplitFolder(tmp_path, pool(), SETTINGS)


def test_opening_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "counts.jsonl").write_text("another program's, without an end of line")
    before = files(tmp_path)
    with pytest.raises(DataError, match=r"already contains counts.jsonl; choose another folder"):
        SplitFolder(tmp_path, pool(), SETTINGS)
    assert files(tmp_path) == before
    done(tmp_path / "a", Model())
    with (tmp_path / "a" / "counts.jsonl").open("a") as file:
        file.write('{"id": "7", "sam')
    before = files(tmp_path)
    assert SplitFolder(tmp_path / "a", pool(), SETTINGS).left == 0
    assert files(tmp_path) == before


@pytest.mark.parametrize("content", ["[]", "7", '{"settings": [1], "report": null}', None])
def test_a_header_that_is_not_a_splits(tmp_path: Path, content: str | None) -> None:
    header = tmp_path / "split.json"
    header.mkdir() if content is None else header.write_text(content)
    with pytest.raises(DataError, match=r"split.json: not a file of isolaw problems"):
        SplitFolder(tmp_path, pool(), SETTINGS)


# A real model


@pytest.fixture
def sums(made: Any, tmp_path: Path) -> list[object]:
    """The command that splits sums, some of which the tiny model has no hope with."""
    known = read_pool(made.model.parent / "pool.jsonl")[:60]
    beyond = [Problem(f"{i}", f"{i}{i}{i}*{i}=", f"{i * 10101 * i}") for i in range(11, 19)]
    write_set(tmp_path, {"pool": [*known, *beyond]})
    return [
        "problems",
        "--model",
        made.model,
        "--problems",
        tmp_path / "pool.jsonl",
        "--max-response-tokens",
        6,
    ]


@pytest.mark.real
@pytest.mark.slow
def test_the_command(sums: list[object], isolaw: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    command = [*sums, "--out", tmp_path / "out", "--sampler", "transformers", "--more-samples", 32]
    code, stdout, _ = isolaw(*command, "--dry-run")
    assert (code, stdout) == (0, "68 problems; 1,088 to 3,264 rollouts to sample.\n")
    assert not (tmp_path / "out").exists()
    code, stdout, _ = isolaw(*command, "--json")
    report = json.loads(stdout)
    assert code == 0
    assert report["problems"] == 68
    assert report["histogram"][0] >= 8
    assert report["sets"]["extremely-hard"]["avg@16"] == 0
    train = ProblemSet.read(tmp_path / "out" / "extremely-hard").parts["train"]
    assert sum("*" in q.prompt for q in train) >= 5
    before = files(tmp_path / "out")
    code, stdout, _ = isolaw(*command)
    assert code == 0
    assert stdout.splitlines()[0] == f"68 problems, avg@16 = {report['avg@16']:.3f}"
    assert files(tmp_path / "out") == before
    code, _, stderr = isolaw(*command, "--temperature", 1)
    assert code == 2
    assert "contains another split (temperature 0.6, not 1.0); choose another folder" in stderr


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_the_command_with_vllm(
    sums: list[object], isolaw: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Both samplers find the same model: avg@16 differs by less than four standard errors."""
    command = [*sums, "--more-samples", "16", "--json", "--out"]
    _, stdout, _ = isolaw(*command, tmp_path / "vllm", "--sampler", "vllm")
    ours = json.loads(stdout)["avg@16"]
    _, stdout, _ = isolaw(*command, tmp_path / "transformers", "--sampler", "transformers")
    assert ours == pytest.approx(json.loads(stdout)["avg@16"], abs=4 * (2 * 0.25 / (68 * 16)) ** 0.5)


@pytest.mark.real
def test_a_model_that_cannot_be_loaded(
    sums: list[object], isolaw: Callable[..., tuple[int, str, str]], made: Any, tmp_path: Path
) -> None:
    shutil.copytree(made.model, tmp_path / "cut")
    header = b'{"w": {"dtype": "none", "shape": [0], "data_offsets": [0, 0]}}'  # all that a check looks at
    content = len(header).to_bytes(8, "little") + header
    (tmp_path / "cut" / "model.safetensors").write_bytes(content)
    command = [*sums, "--model", tmp_path / "cut", "--out", tmp_path / "out", "--sampler", "transformers"]
    code, stdout, stderr = isolaw(*command)
    assert (code, stdout) == (1, "")
    assert stderr.startswith(f"isolaw: {tmp_path}/cut: loading failed: ")
    assert str(tmp_path / "out" / "split.log") in stderr


@pytest.mark.real
def test_wrong_input_is_told_at_once(
    sums: list[object], isolaw: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "1"}\n')
    wrong = [
        "--model",
        tmp_path / "none",
        "--problems",
        tmp_path / "bad.jsonl",
        "--reward",
        "math_",
        "--out",
        tmp_path / "o",
    ]
    code, stdout, stderr = isolaw("problems", *wrong)
    assert (code, stdout) == (2, "")
    assert "isolaw: 3 issues" in stderr
    assert f"--model: {tmp_path}/none: no such folder" in stderr
    assert "--reward: found 'math_'" in stderr
    assert f"{tmp_path}/bad.jsonl: no 'answer' anywhere" in stderr
    code, _, stderr = isolaw(*sums, "--max-response-tokens", 23, "--out", tmp_path / "o")
    assert code == 2
    assert "expected at most 9 (32 of context − 23 of response)" in stderr
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    for out, told in (
        ("file/o", "a file"),
        ("loop", "not a folder's name"),
    ):
        wrong = ["--out", tmp_path / out, "--temperature", "nan", "--dry-run"]
        code, _, stderr = isolaw(*sums, *wrong, "--max-response-tokens", 23, "--reward", "math_")
        assert code == 2
        assert "isolaw: 4 issues" in stderr
        assert "--out: " in stderr
        assert told in stderr
        assert "--temperature: found nan; expected above 0, at most 10" in stderr
        assert "(32 of context − 23 of response)" in stderr
    code, _, stderr = isolaw(*sums, "--out", tmp_path / "nowhere", "--dry-run")
    assert (code, "which does not exist" in stderr) == (2, True)
    code, _, stderr = isolaw("problems", *wrong, "--model", "m" * 5000, "--problems", tmp_path / "loop")
    assert code == 2
    assert "--model: not a folder's name: " in stderr
    assert "--problems: not a folder's name: " in stderr
    assert not (tmp_path / "o").exists()


def test_without_what_a_model_needs(
    isolaw: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "installed", lambda name: False)
    code, _, stderr = isolaw(
        "problems", "--model", tmp_path, "--problems", tmp_path / "p.jsonl", "--out", tmp_path / "o"
    )
    assert code == 2
    assert "torch is not installed; `isolaw doctor` prints the command that installs it" in stderr


@pytest.mark.real
@pytest.mark.parametrize(("gpus", "processes"), [(0, None), (1, None), (8, 8)])
def test_every_gpu_samples(
    gpus: int, processes: int | None, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isolaw.backends.real.rollout import sampler_group, split

    opened: list[Any] = []
    monkeypatch.setattr(split.environment, "gpus", lambda: gpus)
    monkeypatch.setattr(split.environment, "prepare", lambda: None)
    monkeypatch.setattr(sampler_group, "open_sampler", opened.append)
    settings = _SplitSettings(
        model="m", pool="p", reward="exact", sampler="vllm", temperature=1.0, max_response_tokens=6
    )
    split.open_draw(str(made.model), [Problem("a", "1+1=", "2")], settings)
    assert [one.processes for one in opened] == [processes]


@pytest.mark.real
def test_samplers_take_the_last_gpus_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that trains does so on the first one; `isolaw problems` has nothing to train."""
    from isolaw.backends.real.rollout import sampler_group
    from isolaw.backends.real.rollout.samplers import SamplerSettings

    taken: list[str] = []
    stand_in = SimpleNamespace(wait=lambda: None, close=lambda: None)
    monkeypatch.setattr(sampler_group, "visible_gpus", lambda: list("0123"))
    monkeypatch.setattr(sampler_group.environment, "gpus", lambda: 4)
    monkeypatch.setattr(sampler_group, "RemoteSampler", lambda s, n, gpu: taken.append(gpu) or stand_in)
    for count, gpus in ((4, "0123"), (3, "123"), (1, "3"), (0, "")):
        taken.clear()
        sampler_group.SamplerGroup(SamplerSettings("vllm", "m", "float32", 8, processes=count)).close()
        assert "".join(taken) == gpus
