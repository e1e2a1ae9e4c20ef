"""`isolaw doctor --gpu`: whatever becomes of a stage, the report says so and keeps the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isolaw import doctor
from isolaw.backends.real import environment, gpu_selftest
from isolaw.cli.doctor import _report_lines

FACTS = doctor.to_dict(doctor.examine(), [])
STAGES = gpu_selftest.STAGES
HEAD = "import os, sys; from pathlib import Path; from isolaw.backends.real.gpu_selftest import _Record; "
# What the process of the last stage does, and the status and reason that it must have.
ENDS = {
    "good": ("r.measure(x=float('nan')); r.check('one', 1, '1', True)", "passed", None),
    "wrong": ("r.check('two', float('nan'), 'at most 1', False)", "failed", None),
    "killed": (
        "r.measure(before=2); print('last words', flush=True); os.kill(os.getpid(), 11)",
        "crashed",
        "SIGSEGV",
    ),
    "ended": ("r.set('error', 'a reason'); sys.exit(3)", "crashed", "a reason"),
    "slow": ("r.measure(before=3); os.system('sleep 600')", "timed out", "the stage did not end within 30 s"),
}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The code of each stage; all measure a number."""
    code = dict.fromkeys(STAGES, "r.measure(x=1)")

    def command(stage: str, folder: Path, device: str) -> list[str]:
        made = f"r = _Record(Path({str(folder)!r}), {stage!r})"
        return [sys.executable, "-c", f"{HEAD}{made}; {code[stage]}"]

    monkeypatch.setattr(gpu_selftest, "_command", command)
    return code


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_no_stage_loses_another(
    played: dict[str, str], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end == "slow":
        monkeypatch.setitem(STAGES, "speed", 30.0)
    told: list[tuple[str, str | None]] = []
    out = tmp_path / "report.json"
    grown = []

    def notify(stage: str, status: str | None, seconds: float) -> None:
        told.append((stage, status))
        grown.append(len(json.loads(out.read_text())["stages"]) if out.exists() else 0)

    played["speed"], status, why = ENDS[end]
    report = gpu_selftest.run("cpu", FACTS, out, notify)
    assert json.loads(out.read_text()) == json.loads(json.dumps(report).replace("NaN", "null"))
    assert grown == [0, 0, 1, 1, 2, 2]
    assert told == [(s, e) for s in STAGES for e in (None, status if s == "speed" else "passed")]
    assert report["passed"] == (status == "passed")
    assert report["stages"][0]["measured"] == {"x": 1}
    last = report["stages"][-1]
    assert last["status"] == status, last
    assert (why or "") in (last["why"] or "")
    text = "\n".join(_report_lines(report))
    assert ("failed: speed" in text) == (status != "passed")
    # What was measured before the end is kept, NaN is null, and the log's end is there.
    if end == "killed":
        assert last["measured"] == {"before": 2}
        assert last["log"][-1] == "last words"
    elif end == "slow":
        assert last["measured"] == {"before": 3}
    elif end == "good":
        assert last["measured"] == {"x": None}
    elif end == "wrong":
        assert last["checks"] == [{"what": "two", "found": None, "accepted": "at most 1", "passed": False}]
        assert "FAILED two: not measured (at most 1)" in text


def test_without_a_model_nothing_else_runs(played: dict[str, str]) -> None:
    played["model"] = "sys.exit(1)"
    report = gpu_selftest.run("cpu", FACTS, None, lambda *_: None)
    assert [stage["stage"] for stage in report["stages"]] == ["model"]
    assert not report["passed"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gpu"], 1, "no GPU: CUDA_VISIBLE_DEVICES is ''; `isolaw doctor --gpu --device cpu`"),
        (
            ["--gpu", "--device", "cpu", "--out", "foreign.json"],
            2,
            "foreign.json: exists and is not a report",
        ),
        (["--gpu", "--device", "cpu", "--out", "."], 2, "found a directory; expected a file name"),
        (["--gpu", "--device", "cpu", "--out", "foreign.json/such.json"], 2, "cannot write in"),
        (["--device", "cpu"], 2, "--device requires --gpu"),
    ],
)
def test_what_is_refused(
    isolaw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    environment.gpus.cache_clear()
    (tmp_path / "foreign.json").write_text('{"format": "isolaw.law/1"}')
    done, out, err = isolaw("doctor", *arguments)
    environment.gpus.cache_clear()
    assert (done, out) == (code, "")
    assert words in err
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.json"]
    assert (tmp_path / "foreign.json").read_text() == '{"format": "isolaw.law/1"}'


@pytest.mark.nightly
@pytest.mark.slow
def test_a_report_is_written_over_by_the_next(
    isolaw: Any, played: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for end, code in (("wrong", 1), ("good", 0)):
        played["speed"] = ENDS[end][0]
        done, out, _ = isolaw("doctor", "--gpu", "--device", "cpu", "--json")
        assert done == code
        assert json.loads(out) == json.loads(Path(gpu_selftest.OUT).read_text())
        assert json.loads(out)["passed"] == (code == 0)
    assert [path.name for path in tmp_path.iterdir()] == [gpu_selftest.OUT]


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_the_whole_on_the_cpu(preloaded: Path, tmp_path: Path, cpu_only: dict[str, str]) -> None:
    """Real vLLM, real DeepSpeed, all stages."""
    out = tmp_path / "report.json"
    done = subprocess.run(
        [preloaded / "isolaw", "doctor", "--gpu", "--device", "cpu", "--out", str(out)],
        env=cpu_only, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    report = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert report["format"] == gpu_selftest.FORMAT
    stages = {stage["stage"]: stage for stage in report["stages"]}
    assert [*stages] == [*gpu_selftest.STAGES]
    assert report["passed"]
    assert stages["speed"]["measured"]["sampler"] == "vllm"
    assert all(row["mfu"] is None for row in stages["speed"]["measured"]["speed"])
    assert all(0 < row["mismatch"] < 1e-4 for row in stages["speed"]["measured"]["speed"])
    assert done.stderr.count(": passed after") == len(stages)
    assert done.stdout.startswith("isolaw doctor --gpu, device cpu: passed")


@pytest.fixture
def cpu_only() -> dict[str, str]:
    """The environment without what this process has set for its own vLLM."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in names}
