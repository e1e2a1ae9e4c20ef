"""Facts that went wrong: each is found or asked, and none is taken without a word."""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isolaw.errors import IsolawError
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

LOGS = Path(__file__).parents[2] / "examples" / "logs"
TABLE = "step,run,B_p,n,acc\n" + "".join(
    f"{t},{run},32,{n},{0.3 + 0.01 * t + i * 0.003:.3f}\n"
    for i, (run, n) in enumerate([("p32_n4", 4), ("p32_n8", 8), ("p32_n16", 16)])
    for t in range(0, 30, 5)
)
COUNTED = "".join(
    json.dumps({"step": t, "env/all/total_episodes": 400, "env/all/reward/total": 0.3 + t / 100}) + "\n"
    for t in range(20)
)
TRAINER = "".join(
    json.dumps({"loss": 0.1, "reward": 0.3 + t / 100, "completion_length": 9.0, "step": t}) + "\n"
    for t in range(1, 21)
)


@dataclass(frozen=True)
class Corruption:
    """What is done to a sample, and what has to be said of it, which nobody says of the sound sample."""

    what: str
    sample: str
    says: str  # a pattern of the messages and notes
    change: Callable[[Path], None] = lambda _folder: None
    given: dict[str, Any] = field(default_factory=dict)  # and with it
    sound: dict[str, Any] = field(default_factory=dict)  # what reads the sound sample


def rewrite(glob: str, function: Callable[[str], str], first: int | None = None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = sorted(folder.rglob(glob))[:first]
        assert found, glob
        for path in found:
            text = path.read_text()
            changed = function(text)
            assert changed != text, glob
            path.write_text(changed)

    return change


def swap(one: str, other: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        texts = [(folder / name).read_text() for name in (other, one)]
        assert texts[0] != texts[1]
        for name, text in zip((one, other), texts, strict=True):
            (folder / name).write_text(text)

    return change


def copy(one: str, other: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        source, target = folder / one, folder / other
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    return change


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for item in changes:
            item(folder)

    return change


def append(one: str, other: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / one).write_text((folder / one).read_text() + (folder / other).read_text())

    return change


def remove(glob: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in sorted(folder.rglob(glob)):
            path.unlink()

    return change


def times(pattern: str, factor: float) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, lambda m: f"{m[1]}{float(m[2]) * factor:.6g}", text)


def again(text: str) -> str:
    """A training that starts anew in the same file, with other values."""
    rows = text.splitlines(keepends=True)
    return text + "".join(times(r'(mean(?:@4)?": )([0-9.]+)', 0.9)(row) for row in rows[:9])


def torn(text: str) -> str:
    return text[: len(text) - 30]


def without_line(text: str) -> str:
    rows = text.splitlines(keepends=True)
    return "".join([*rows[:5], rows[5][: len(rows[5]) // 2] + "\n", *rows[6:]])


def with_compute(text: str) -> str:
    head, *rows = text.splitlines()
    return "".join(
        f"{row}\n" for row in [f"C,{head}", *(f"{40 * int(row.split(',')[0])},{row}" for row in rows)]
    )


def swapped(text: str) -> str:
    return text.replace("p32_n4", "@").replace("p32_n8", "p32_n4").replace("@", "p32_n8")


def interleaved(text: str) -> str:
    rows = text.splitlines(keepends=True)
    own = [
        row + (json.dumps({"reward": 0.05, "step": t}) + "\n" if t % 5 == 0 else "")
        for t, row in enumerate(rows, 1)
    ]
    return "".join(own)


N8, N32 = "math/n8-seed0", "math/n32-seed0"
PATTERN = {"name_pattern": "n{n}-seed{seed}*"}
WRONG_N = r"n = 99 \(--set\), but the log has 8"
WRONG_B = r"B_p = 99 \(--set\), but the log has 32"
SAID_ACC = {"metric": "acc"}
COUNTED_SOUND = {"set": ["n=4"]}
TRAINER_SOUND = {"set": ["n=8", "B_p=4"]}
ACC = r'(mean@4": )([0-9.]+)'

CORRUPTIONS = [
    *(
        Corruption("a wrong n given", sample, WRONG_N, given={"set": ["n=99"]})
        for sample in ("verl", "easyr1", "skyrl", "slime", "prime-rl", "nemo-rl", "openrlhf", "open-instruct")
    ),
    Corruption(
        "a wrong B_p given",
        "tensorboard",
        r"rollouts per step = 256 .*but B_p · n = 99 · 8",
        given={"set": ["B_p=99"]},
    ),
    *(
        Corruption("a wrong B_p given", sample, WRONG_B, given={"set": ["B_p=99"]})
        for sample in ("verl", "verl-console", "easyr1")
    ),
    Corruption(
        "a wrong product given",
        "verl",
        r"rollouts per step = 99 \(--set\), but B_p · n",
        given={"set": ["B=99"]},
    ),
    Corruption(
        "two wrong ones given",
        "verl",
        r"n = 99 .*isolaw replaced the log's value",
        given={"set": ["n=99", "B_p=32"]},
    ),
    Corruption(
        "two wrong ones, rollouts counted",
        "counted",
        r"rollouts per step = 400 \(env/all/total_episodes",
        given={"set": ["n=16", "B_p=512"]},
        sound=COUNTED_SOUND,
    ),
    Corruption(
        "n that does not divide what is counted",
        "counted",
        r"not a multiple of n = 7",
        given={"set": ["n=7"]},
        sound=COUNTED_SOUND,
    ),
    Corruption(
        "two seeds swapped by hand",
        "verl",
        r"seed = 1 \(--set\), but the log has 0",
        given={"set": ["*seed0:seed=1", "*seed1:seed=0"]},
    ),
    Corruption(
        "two configurations swapped",
        "verl",
        r"n = 8 \(--name-pattern\), but the log has 32",
        swap(f"{N8}.yaml", f"{N32}.yaml"),
        PATTERN,
        PATTERN,
    ),
    Corruption(
        "two seeds' configurations swapped",
        "verl",
        r"seed = 0 \(--name-pattern\), but the log has 1",
        swap(f"{N8}.yaml", "math/n8-seed1.yaml"),
        PATTERN,
        PATTERN,
    ),
    Corruption(
        "one seed everywhere",
        "verl",
        r"2 runs of one configuration and seed",
        rewrite("*seed1.yaml", lambda t: re.sub(r"seed: 1", "seed: 0", t)),
    ),
    Corruption(
        "a file doubled under another name",
        "verl",
        r"another log of this run has the same values",
        both(copy(f"{N8}.jsonl", "math/copy.jsonl"), copy(f"{N8}.yaml", "math/copy.yaml")),
    ),
    Corruption(
        "a folder doubled", "easyr1", r"another log of this run has the same values", copy("n8-seed0", "copy")
    ),
    Corruption(
        "a file behind itself",
        "verl",
        r"repeated with the same values",
        append(f"{N8}.jsonl", f"{N8}.jsonl"),
    ),
    Corruption(
        "another run's rows behind a file",
        "verl",
        r"2 runs of one configuration and seed",
        append(f"{N8}.jsonl", "math/n8-seed1.jsonl"),
    ),
    Corruption(
        "steps that restart",
        "verl",
        r"2 runs of one configuration and seed",
        rewrite("n8-seed0.jsonl", again),
    ),
    Corruption(
        "percent in every run", "verl", r"was in percent \(up to", rewrite("*.jsonl", times(ACC, 100))
    ),
    Corruption(
        "percentage in one run",
        "verl",
        r"is in percent in .*; set percent=true or",
        rewrite("n8-seed0.jsonl", times(ACC, 100)),
    ),
    Corruption(
        "a unit that changes within a run",
        "verl",
        r"a fraction and a percentage in ",
        rewrite("n8-seed0.jsonl", lambda t: t[: len(t) // 2] + times(ACC, 100)(t[len(t) // 2 :])),
    ),
    Corruption("a torn last line", "verl", r"torn last line", rewrite("n8-seed0.jsonl", torn)),
    Corruption(
        "half a line",
        "verl",
        r"isolaw left out lines that are not JSON objects: line 6",
        rewrite("n8-seed0.jsonl", without_line),
    ),
    Corruption(
        "values that are not finite",
        "verl",
        r"values that are not finite",
        rewrite("n8-seed0.jsonl", lambda t: re.sub(r'(mean@4": )0\.\d+', r"\1NaN", t, count=3)),
    ),
    Corruption("no configuration", "verl", r"n and B_p unknown", remove("*.yaml")),
    Corruption(
        "n = 1 of groups",
        "verl",
        r"n is 1 .*the group size may be under another key; if n really is 1, set it",
        rewrite(
            "*.yaml", lambda t: re.sub(r"(\n +n: )\d+", r"\g<1>1", t) + "algorithm:\n  adv_estimator: grpo\n"
        ),
    ),
    Corruption(
        "a group size that does not divide the batch",
        "prime-rl",
        r"is not a multiple of n = 7",
        rewrite("rl.json", lambda t: re.sub(r'"group_size": ?\d+', '"group_size": 7', t)),
    ),
    Corruption("no configuration", "skyrl", r"n and B_p unknown", remove("*.yaml")),
    Corruption(
        "rows of an evaluation among those of training",
        "trainer",
        r"reward has several values at 4 steps, e.g. at step 5",
        rewrite("*.jsonl", interleaved),
        sound=TRAINER_SOUND,
    ),
    Corruption(
        "two trainings in one console",
        "verl-console",
        r"n8-seed0/slurm-1001#2",
        append("n8-seed0/slurm-1001.out", "n32-seed0/slurm-1001.out"),
    ),
    Corruption(
        "percentage in one run",
        "table",
        r"acc is in percent in .*, but at most ",
        rewrite("*.csv", lambda t: re.sub(r"(,16,)0\.(\d\d)(\d)", r"\1\2.\3", t)),
        sound=SAID_ACC,
    ),
    Corruption(
        "percent in every run",
        "table",
        r"acc was in percent",
        rewrite("*.csv", lambda t: re.sub(r"(,\d+,)0\.(\d\d)(\d)", r"\1\2.\3", t)),
        sound=SAID_ACC,
    ),
    Corruption(
        "rows twice",
        "table",
        "steps repeated with the same values; isolaw counts them once",
        rewrite("*.csv", lambda t: t + "".join(t.splitlines(keepends=True)[1:])),
        sound=SAID_ACC,
    ),
    Corruption(
        "a swapped label",
        "table",
        r"rollouts_per_problem is 8 in the name 'p32_n8'.*but 4 in the column",
        rewrite("*.csv", swapped),
        {"name_pattern": "*_n{n}", **SAID_ACC},
        {"name_pattern": "*_n{n}", **SAID_ACC},
    ),
    Corruption(
        "a text among numbers",
        "table",
        r"not a number|not numeric|no column 'acc'",
        rewrite("*.csv", lambda t: t.replace("0.353", "about a third")),
        sound=SAID_ACC,
    ),
    Corruption(
        "compute in another unit",
        "table",
        r"compute is 200, but B_p · n · step = ",
        rewrite("*.csv", with_compute),
        sound=SAID_ACC,
    ),
    Corruption(
        "steps that restart",
        "table",
        r"repeated \(run, step\)",
        rewrite(
            "*.csv", lambda t: t.replace("\n15,p32_n8", "\n0,p32_n8").replace("\n20,p32_n8", "\n5,p32_n8")
        ),
        sound=SAID_ACC,
    ),
    Corruption(
        "a batch that is not B_p · n",
        "table",
        r"B = 999 is not B_p · n = 32 · 4",
        given={"set": {"B": 999}, **SAID_ACC},
        sound=SAID_ACC,
    ),
    Corruption(
        "a cell of n left empty",
        "table",
        r"rollouts_per_problem is (empty|not a number)|is empty in line",
        rewrite("*.csv", lambda t: t.replace("10,p32_n8,32,8,", "10,p32_n8,32,,")),
        sound=SAID_ACC,
    ),
]


def place(sample: str, folder: Path) -> Path:
    own = folder / sample
    made = {
        "table": ("t.csv", TABLE),
        "counted": ("metrics.jsonl", COUNTED),
        "trainer": ("logging.jsonl", TRAINER),
    }
    if sample in made:
        own.mkdir()
        name, text = made[sample]
        (own / name).write_text(text)
    else:
        shutil.copytree(LOGS / sample, own)
    return own


def said(folder: Path, options: dict[str, Any]) -> str:
    """Return all that reading says, and which runs are ready."""
    try:
        reading = survey([folder], HowToRead.of(**options))
    except IsolawError as error:
        return str(error)
    lines = [*reading.notes, *reading.table_notes]
    for candidate in reading.candidates:
        lines += [candidate.run, candidate.message, *candidate.notes, *candidate.left_out]
    return "\n".join(lines)


@cache
def sound(sample: str, options: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return said(place(sample, Path(folder)), json.loads(options))


@pytest.mark.parametrize("own", CORRUPTIONS, ids=lambda own: f"{own.sample}: {own.what}")
def test_it_is_found_or_asked(own: Corruption, tmp_path: Path) -> None:
    assert not re.search(own.says, sound(own.sample, json.dumps(own.sound)))
    folder = place(own.sample, tmp_path)
    own.change(folder)
    assert re.search(own.says, said(folder, own.given or own.sound))


# Damage without a plan: what is read is what the sound files say, or something is said.

DAMAGED = ("easyr1", "nemo-rl", "open-instruct", "openrlhf", "prime-rl", "skyrl", "slime", "verl")


def read(folder: Path) -> tuple[dict[Any, Any], set[str]]:
    """Return the values and facts of the runs that are ready, and all that is said."""
    reading = survey([folder])
    known: dict[Any, Any] = {}
    for run in reading.ready:
        known |= {(run.run, name): fact.value for name, fact in run.facts.items()}
    points = reading.logged.points if reading.logged else None
    for row in points.itertuples() if points is not None else ():
        known[row.run_id, row.eval_set, row.metric, row.step] = row.value
    said = {*reading.notes}
    for log in reading.candidates:
        said |= {f"{log.run} {log.status} {log.message}", *log.notes, *map(str, log.left_out.items())}
    return {(key[0].replace(str(folder), ""), *key[1:]): value for key, value in known.items()}, {
        text.replace(str(folder), "") for text in said
    }


@cache
def undamaged(sample: str) -> tuple[dict[Any, Any], set[str]]:
    return read(LOGS / sample)


def damage(content: bytes, kind: str, other: bytes, draw: random.Random) -> bytes:
    rows, theirs = content.splitlines(keepends=True), other.splitlines(keepends=True)
    at, at_byte = draw.randrange(len(rows)), draw.randrange(1, len(content))
    if kind == "cut off":
        return content[:at_byte]
    if kind == "a hole of NUL bytes":
        return content[:at_byte] + bytes(4096) + content[at_byte + 300 :]
    if kind == "garbage":
        return content[:at_byte] + draw.randbytes(60) + content[at_byte:]
    if kind == "a block twice":
        return b"".join(rows[: at + 3] + rows[at:])
    if kind == "two lines swapped":
        rows[at], rows[-1] = rows[-1], rows[at]
    elif kind == "a line of another seed":
        rows.insert(at, theirs[min(at, len(theirs) - 1)])
    else:  # a line is lost
        del rows[at]
    return b"".join(rows)


KINDS = ("cut off", "a hole of NUL bytes", "garbage", "a block twice", "two lines swapped")
KINDS += ("a line of another seed", "a line is lost")


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_is_silent(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    sample, kind = DAMAGED[seed % len(DAMAGED)], KINDS[seed % len(KINDS)]
    folder = place(sample, tmp_path)
    known, said = undamaged(sample)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 500)
    path = draw.choice(files)
    of_seed = {"seed0": "seed1", "seed1": "seed0"}
    twin = Path(re.sub("seed[01]", lambda match: of_seed[match[0]], str(path)))
    path.write_bytes(damage(path.read_bytes(), kind, (twin if twin.exists() else path).read_bytes(), draw))
    try:
        values, now = read(folder)
    except IsolawError:
        return
    curves = {key[:3] for key in known}  # a garbled name is that of no metric
    wrong = {key: v for key, v in values.items() if known.get(key) != v and key[:3] in curves}
    assert not wrong or now - said, (path, kind, list(wrong.items())[:3])
