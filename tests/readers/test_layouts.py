"""How people lay out their runs: one pattern, one command, and what is printed works."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import isolaw
from isolaw.cli import run
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.proposals import proposed
from isolaw.readers.survey import survey

NS, STEPS = (4, 8, 16), range(0, 60, 5)


def verl(n: int, seed: int) -> str:
    rows = [{"step": t, "data": {"val-core/math/acc/mean@1": curve(n, seed, t)}} for t in STEPS]
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(n: int, seed: int) -> str:
    return "step,val_acc,loss\n" + "".join(f"{t},{curve(n, seed, t)},0.5\n" for t in STEPS)


def lines(n: int, seed: int) -> str:
    return "".join(json.dumps({"step": t, "accuracy": curve(n, seed, t)}) + "\n" for t in STEPS)


def curve(n: int, seed: int, step: int) -> float:
    return round(0.2 + 0.001 * step * n**0.5 + 0.003 * ((7 * seed + step) % 5), 4)


LAYOUTS = {
    "qwen_bs256_n{n}/seed_{seed}/metrics.jsonl": verl,
    "n{n}/seed{seed}/log.jsonl": verl,
    "n{n}/seed{seed}.jsonl": verl,
    "qwen/bs256/n{n}/s{seed}.csv": table,
    "n{n}_s{seed}.csv": table,
    "rollout_n-{n}/run/seed={seed}.jsonl": lines,
}


def printed(capsys: pytest.CaptureFixture[str], before: str) -> list[str]:
    """Return the words of the command that was printed after these."""
    text = capsys.readouterr().out
    (command,) = re.findall(rf"{before}: isolaw (.*)", text)
    return shlex.split(command.replace("B_p=<number>", "B_p=8"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [pytest.param(item, marks=[pytest.mark.nightly] * item.endswith(".csv")) for item in LAYOUTS]
)
def test_one_pattern_settles_a_layout_and_its_runs_fit(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in NS:
        for seed in (1, 2):
            path = tmp_path / "n99" / layout.format(n=n, seed=seed)  # above the folder: of no run
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(LAYOUTS[layout](n, seed))
    monkeypatch.chdir(tmp_path)
    assert run(["read", "n99"]) == 2
    words = printed(capsys, "To read these logs")
    assert words.count("--name-pattern") == 1
    assert not any(word.startswith(("n99:", "n=")) for word in words)
    assert run(words) == 0
    words = printed(capsys, "6 of 6 logs are ready")
    assert words[0] == "fit"
    assert run([*words, "--draws", "0"]) == 0
    given = dict(pairwise(words))
    settings = [later for option, later in pairwise(words) if option == "--set"]
    reading = survey(
        ["n99"],
        HowToRead.of(metric=given.get("--metric"), set=settings, name_pattern=given["--name-pattern"]),
    )
    runs = reading.runs.table()
    assert sorted(zip(runs["rollouts_per_problem"], runs["seed"], strict=True)) == [
        (n, seed) for n in NS for seed in (1, 2)
    ]


def test_runs_of_an_export_with_metrics_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = ",".join(f'"run_n{n} - val/acc"' for n in NS)
    rows = "".join(f"{t},{','.join(str(curve(n, 0, t)) for n in NS)}\n" for t in STEPS)
    (tmp_path / "wandb.csv").write_text(f"Step,{head}\n{rows}")
    assert run(["read", str(tmp_path / "wandb.csv")]) == 2
    add = capsys.readouterr().err.splitlines()[-1]
    assert add == "  Add --name-pattern '*_n{n}*' --set 'B_p=<number>'"
    options = shlex.split(add.replace("<number>", "8"))[1:]
    assert run(["read", str(tmp_path / "wandb.csv"), *options]) == 0


@pytest.mark.parametrize("given", [[], ["--set", "seed=42"]])
@pytest.mark.parametrize("names", [("run1", "run2"), ("ppo", "grpo"), ("s1", "s2")])
def test_seeds_are_asked_for(
    names: tuple[str, ...], given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(names):
        (tmp_path / f"{name}.csv").write_text(table(8, seed))
    options = ["--set", "n=8", "--set", "B_p=4", *given, "--metric", "val_acc"]
    assert run(["read", str(tmp_path), *options]) == 2
    words = printed(capsys, "To read these logs")
    if names == ("s1", "s2") and not given:
        assert words[-2:] == ["*s{seed}*", "--save"]
    else:
        asked = [f"{name}:seed=<number>" for name in sorted(names)]
        assert words[-5:] == ["--set", asked[0], "--set", asked[1], "--save"]
    if not given:  # else the first seed would replace none
        assert run([word.replace("<number>", str(i)) for i, word in enumerate(words)]) == 0


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_part_of_a_run_is_said_to_be_one(overlap: int, tmp_path: Path) -> None:
    header, *rows = table(8, 0).splitlines(keepends=True)
    (tmp_path / "part1.csv").write_text("".join([header, *rows[: len(rows) // 2 + overlap]]))
    (tmp_path / "part2.csv").write_text("".join([header, *rows[len(rows) // 2 :]]))
    parts = survey([tmp_path], HowToRead.of(set=["n=8", "B_p=4"], metric="val_acc")).candidates
    assert "If one continues the other, append its rows to the file of the other" in parts[0].message


def test_runs_of_one_name_are_asked_for_by_their_files(tmp_path: Path) -> None:
    for name, shift in (("a", 0.0), ("b", 0.1)):
        rows = [f"{t},{run},4,8,{curve(8, 0, t) + shift}\n" for run in ("x", "y") for t in STEPS]
        (tmp_path / f"{name}.csv").write_text("step,run_id,B_p,n,avg@4\n" + "".join(rows))
    how = HowToRead.of(columns={"run_id": "run_id"})
    options, _ = proposed(survey([tmp_path], how).candidates)
    assert [f"{tmp_path}/a.csv:seed=<number>" in options.options(), len(options.options())] == [True, 4]


def test_rows_of_an_evaluation_are_not_of_training(tmp_path: Path) -> None:
    csv = "step,split,acc\n1,train,0.9\n2,train,0.8\n2,eval,0.3\n3,train,0.7\n4,eval,0.4\n"
    (tmp_path / "t.csv").write_text(csv)
    points = isolaw.read(tmp_path / "t.csv", set={"n": 8, "B_p": 4}, metric="acc").points
    assert points[points["eval_set"] == "validation"]["value"].tolist() == [0.3, 0.4]

    record = {"loss": 0.1, "reward": 0.9, "reward_std": 0.1, "completion_length": 9.0, "epoch": 0.1}
    rows = [{**record, "step": t} for t in range(1, 9)]
    marked = [{"reward": 0.3, "step": t, "phase": "eval"} for t in (4, 8)]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *marked]))
    points = isolaw.read(tmp_path / "logging.jsonl", set=["n=8", "B_p=4"]).points
    assert points[points["metric"] == "reward"].groupby("eval_set")["value"].unique().map(list).to_dict() == {
        "train": [0.9],
        "validation": [0.3],
    }
    bare = [
        row
        for t in range(1, 9)
        for row in ([rows[t - 1], {"reward": 0.3, "step": t}] if t % 4 == 0 else [rows[t - 1]])
    ]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bare))
    (own,) = survey([tmp_path / "logging.jsonl"], HowToRead.of(set=["n=8", "B_p=4"])).candidates
    assert "reward has several values at 2 steps, e.g. at step 4: 0.9 and 0.3" in own.message


def test_a_pattern_that_tells_nothing_apart_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files with the same runs, whose names have the seeds that both files have."""
    for name, shift in (("first", 0.0), ("second", 0.01)):
        rows = [f"{t},{s},4,8,{curve(8, s, t) + shift}\n" for s in (0, 1) for t in STEPS]
        (tmp_path / f"{name}.csv").write_text("step,seed,B_p,n,avg@4\n" + "".join(rows))
    run(["read", *map(str, tmp_path.iterdir())])
    text = capsys.readouterr().out
    assert "2 runs of one configuration and seed" in text
    assert "--name-pattern" not in text
