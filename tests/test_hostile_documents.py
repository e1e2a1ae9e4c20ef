# ruff: noqa: E501 - documents on a line
"""Hostile documents of every kind: one message and exit status 2 each, in little time and memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isolaw.simulators.presets import FOLDER

LIMIT_S, LIMIT_MB = 4.0, 500  # 100 MB of no form take 1 s on an idle machine
DEEP = 50_000

SWEEP = '[sweep]\ncompute = 20000\nseeds = 1\n[grid]\nrollouts_per_problem = [4, 8]\n[bandit]\nmodel = "interference"\n'
COSTS = '[gpu]\nname = "h100"\n'
# What a TOML value may be replaced by.
VALUES = ["inf", "-inf", "nan", "1e999", "-1", "0", "9" * 400, "1e300", '""', "[]", "{}", "true", "[[[[]]]]",
          '"\\u0000"', "1979-05-27", f'"{"x" * 100_000}"']  # fmt: skip


def texts(sound: str, rng: random.Random) -> dict[str, bytes]:
    """Documents made of a sound one: cut, flipped, nested, of other encodings, with other values."""
    plain = sound.encode()
    lines = sound.splitlines()
    out = {
        "empty": b"",
        "a NUL": b"\0" * 1000,
        "UTF-16": sound.encode("utf-16"),
        "not UTF-8": b"\xff\xfe" + plain,
        "a key of many parts": ("a" + ".a" * DEEP + " = 1\n").encode(),
        "quoted parts": ('"a"' + '."a"' * DEEP + " = 1\n").encode(),
        "a table of many parts": ("[a" + ".a" * DEEP + "]\n").encode(),
        "deep lists": (f"{sound}\nx = {'[' * DEEP}{']' * DEEP}\n").encode(),
        "deep tables": (f"{sound}\nx = {'{a=' * 3000}1{'}' * 3000}\n").encode(),
        "100 MB": b"# x\n" * 25_000_000,
        "a long number": f"{sound}\nx = {'9' * 200_000}\n".encode(),
        "two of a key": (sound + "\n" + sound).encode(),
        "a list": b"[1, 2]",
        "HTML": b"<html><body>404</body></html>",
    }
    keys = [i for i, line in enumerate(lines) if "=" in line and not line.startswith(("#", "["))]
    for number, value in enumerate(VALUES):
        at = rng.choice(keys)
        changed = [*lines]
        changed[at] = f"{lines[at].partition('=')[0]}= {value}"
        out[f"line {at} is {value[:20]}"] = "\n".join(changed).encode()
        if number % 3 == 0:
            cut = rng.randrange(len(plain) // 2, len(plain) - 1)
            out[f"cut at {cut}"] = plain[:cut]
            flipped = bytearray(plain)
            for _ in range(3):
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            out[f"flipped {number}"] = bytes(flipped)
    return out


def documents(sound: dict[str, Any], rng: random.Random) -> dict[str, bytes]:
    """The same of a JSON document."""
    plain = json.dumps(sound)
    out = {
        name: text for name, text in texts("x = 1\n", rng).items() if name[:4] not in ("line", "flip", "cut ")
    }
    out["NaN"] = plain.replace("0.", "NaN.", 1).encode()
    out["deep"] = (f'{{"format": {"[" * DEEP}{"]" * DEEP}}}').encode()
    for number in range(14):
        cut = rng.randrange(1, len(plain) - 1)
        out[f"cut at {cut}"] = plain[:cut].encode()
        key = rng.choice(list(sound))
        for value in ([], {}, None, "x", -1, 1e308, [[1]], {"a": 1}):
            if rng.random() < 0.2:
                out[f"{key} is {value!r} ({number})"] = json.dumps({**sound, key: value}).encode()
    return out


# Executes all in one process, so that its memory is an upper bound for each.
RUN = """
import contextlib, io, json, re, sys, time, warnings
warnings.simplefilter("ignore")
from isolaw.cli import run
jobs, out = json.load(open(sys.argv[1])), []
for name, words in jobs:
    said, printed = io.StringIO(), io.StringIO()
    began = time.process_time()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        try:
            code = run(words)
        except SystemExit as error:
            code = error.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"[:300]
    peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
    out.append([name, code, time.process_time() - began, said.getvalue()[:3000], printed.getvalue()[:300], peak])
print(json.dumps({"results": out, "mb": peak}))
"""


@pytest.fixture(scope="module")
def kinds(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[dict[str, bytes], list[str]]]:
    """Of each kind: the documents, and the command that reads one ({} is its path)."""
    folder = tmp_path_factory.mktemp("sound")
    rng = random.Random(34)
    (folder / "t.csv").write_text("b,n,step,avg\n8,4,1,0.5\n8,4,2,0.6\n")
    (folder / "s.toml").write_text(SWEEP)
    preset = (FOLDER / "published-easy.toml").read_text().partition("[provenance]")[0]
    law = {"format": "isolaw.law/1", "hold": "B_p", "fixed": {}, "metric": "avg@4", "x": {"range": [0.1, 1.0]},
           "grid": [8, 16], "frontier": [], "curves": [], "warnings": [], "sources": []}  # fmt: skip
    report = {"format": "isolaw.gpu/1", "device": "cpu", "machine": {"gpus": []},
              "stages": [{"stage": "speed", "measured": {"speed": []}}]}  # fmt: skip
    out, cost = str(folder / "out"), ["advise", "--compute", "1e6", "--cost", "{}"]
    return {
        "sweep file": (texts(SWEEP, rng), ["sweep", "{}", "--out", out, "--dry-run"]),
        "preset": (
            texts(preset, rng),
            ["sweep", "--set", "bandit.preset={}", "--out", out, "--dry-run"],
        ),
        "law": (documents(law, rng), ["predict", "{}", "--compute", "1e5"]),
        "costs": (
            texts(COSTS, rng),
            cost,
        ),
        "report": (
            documents(report, rng),
            cost,
        ),
    }


@pytest.mark.slow
def test_each_ends_with_a_message(kinds: dict[str, Any], tmp_path: Path) -> None:
    jobs, empty = [], tmp_path / "empty"
    empty.mkdir()
    for kind, (made, words) in kinds.items():
        for number, (name, content) in enumerate(made.items()):
            path = tmp_path / f"{kind} {number}.{'json' if kind in ('law', 'report') else 'toml'}"
            path.write_bytes(content)
            jobs.append((f"{kind}: {name}", [word.replace("{}", str(path)) for word in words]))
        for name, path in (("a directory", empty), ("nothing", tmp_path / "none")):
            jobs.append((f"{kind}: {name}", [word.replace("{}", str(path)) for word in words]))
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-c", RUN, str(tmp_path / "jobs.json")]
    done = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=500).stdout)
    assert len(done["results"]) >= 200
    wrong = []
    for name, code, seconds, said, printed, _ in done["results"]:
        # A change may leave a document as it may be.
        messages = said.count("isolaw: ") + said.count("\nError: ")
        fine = code == 0 or (code in (1, 2) and messages == 1)
        if (
            not fine
            or "Traceback" in said
            or (code == 2 and seconds > LIMIT_S)
            or "nan" in printed.lower().split()
        ):
            wrong.append((name, code, round(seconds, 2), said[-200:], printed))
    assert wrong == [], "\n".join(f"{n} | {c} | {s} | {t[-160:]!r} | {p[:60]!r}" for n, c, s, t, p in wrong)
    counts = Counter(str(code) for _, code, *_ in done["results"])
    assert counts["2"] > 0.8 * len(done["results"]), counts
    peaks = [(0.0, "")] + [(result[5], result[0]) for result in done["results"]]
    rises = [(round(b[0] - a[0]), b[1]) for a, b in pairwise(peaks) if b[0] > a[0] + 50]
    assert done["mb"] < LIMIT_MB, rises
