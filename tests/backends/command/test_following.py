"""A log read in pieces, as it grows, gives what the readers read of it when it is whole."""

import json
import random
import re
from pathlib import Path

import pytest

from isolaw.backends.command.following import GrowingLog, plain_framework
from isolaw.readers import frameworks
from isolaw.readers.read import read


def verl(step: int) -> str:
    line = f"(TaskRunner pid=7) step:{step} - critic/rewards/mean:{step / 50:.4f}"
    line += f" - critic/score/mean:{step / 50:.4f}"
    line += " - actor/entropy:0.5 - actor/kl_loss:0.1 - global_seqlen/mean:9.0"
    return line + (f" - val-core/math/reward/mean@4:{step / 40:.4f}\n" if step % 5 == 0 else "\n")


def trl(step: int) -> str:
    return (
        str({"loss": 0.1, "reward": step / 50, "reward_std": 0.1, "epoch": step / 10})
        + f"\n {step}%|█ | {step}/100 [00:01<00:09, 1.0it/s]\r"
    )


def own(step: int) -> str:
    more = {"eval_avg@4": step / 40} if step % 5 == 0 else {}
    return json.dumps({"step": step, "reward": step / 50, **more}) + "\n"


def row(step: int) -> str:
    head = "\ufeffstep,reward,eval_avg@4,text\r\n" if step == 1 else ""
    return f'{head}{step},{step / 50},{step / 40 if step % 5 == 0 else ""},"a, b"\r\n'


LOGS = {
    "veRL": ("log.txt", verl), "TRL": ("log.txt", trl), "none": ("log.jsonl", own), "CSV": ("log.csv", row),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_pieces_are_the_whole(name: str, tmp_path: Path) -> None:
    file, line = LOGS[name]
    path, rng = tmp_path / file, random.Random(name)
    text = "".join(map(line, range(1, 41)))
    framework = plain_framework("validation") if name in ("none", "CSV") else frameworks.named(name)
    growing = GrowingLog(str(path), framework, 0)
    at = 0
    with path.open("w") as log:
        while at < len(text):
            piece = text[at : at + rng.randint(1, 400)]
            at += len(piece)
            log.write(piece)
            log.flush()
            growing._next_read = 0.0
            steps = growing.read()
            assert max(steps, default=0) <= 40
    found = growing.read(final=True)
    assert list(found) == list(range(1, 41))
    assert found == GrowingLog(str(path), framework, 10**6).read(final=True)
    assert found[20][("train", "reward")] == 0.4
    if name != "TRL":
        assert len([step for step, values in found.items() if any(e != "train" for e, _ in values)]) == 8


def test_it_agrees_with_the_readers(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(map(verl, range(1, 41))))
    found = GrowingLog(str(path), frameworks.named("veRL"), 10**6).read(final=True)
    points = read(str(path), set=["n=4", "B_p=8"]).points
    rows = {
        (itertuple.step, itertuple.eval_set, itertuple.metric): itertuple.value
        for itertuple in points.itertuples()
    }
    assert rows == {
        (step, *target): value for step, result in found.items() for target, value in result.items()
    }


@pytest.mark.parametrize(
    ("framework", "text", "expected"),
    [
        (
            "none",
            "".join(map(verl, range(1, 8))),
            'none is JSON with "step". Its names are those of veRL: set',
        ),
        (
            "none",
            "round,reward\n1,0.1\n",
            "2 lines, but none is JSON .*; expected lines such as .*a CSV file",
        ),
        ("none", '{"round": 1, "reward": 0.1}\n', "1 line, but none is JSON"),
        ("veRL", '{"round": 1, "reward": 0.1}\n', "1 line, but none is a step of veRL"),
        ("none", "", "^$"),
        ("none", own(1), "^$"),
    ],
)
def test_a_log_without_steps_is_described(framework: str, text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    known = plain_framework("validation") if framework == "none" else frameworks.named(framework)
    log = GrowingLog(str(path), known, 10**6)
    log.read(final=True)
    assert re.search(expected, log.unread_reason())


def test_of_an_earlier_start_only_what_was_continued_from(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"step": s, "reward": 0.1}) + "\n" for s in range(1, 9)) + '{"step": 9, "rew'
    )
    log = GrowingLog(str(path), plain_framework("validation"), 4)
    assert list(log.read(final=True)) == [1, 2, 3, 4]
    with path.open("a") as file:
        file.write("\n" + "".join(json.dumps({"step": s, "reward": 0.2}) + "\n" for s in (5, 6)))
    log.taken_step = 0
    assert {s: v["train", "reward"] for s, v in log.read(final=True).items()} == {
        1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.2, 6: 0.2,
    }  # fmt: skip


def test_a_log_that_is_written_again_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(map(own, range(1, 9))))
    log = GrowingLog(str(path), plain_framework("validation"), 8)
    path.write_text("".join(map(own, range(9, 12))))
    assert list(log.read(final=True)) == list(range(1, 12))


def test_a_trainers_state_is_read_again(tmp_path: Path) -> None:
    log = GrowingLog(str(tmp_path / "checkpoint-*" / "trainer_state.json"), frameworks.named("TRL"), 0)
    for last in (2, 4):
        folder = tmp_path / f"checkpoint-{last}"
        folder.mkdir()
        history = [{"step": s, "reward": s / 10, "reward_std": 0.1, "loss": 0.0} for s in range(1, last + 1)]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": last, "log_history": history}))
        log._next_read = 0.0
        assert list(log.read()) == list(range(1, last + 1))
