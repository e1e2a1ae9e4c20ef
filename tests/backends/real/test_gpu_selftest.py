"""`isolaw doctor --gpu`: whatever becomes of a stage, the report says so and has all the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isolaw import doctor
from isolaw.backends.real import environment, gpu_selftest
from isolaw.backends.real.gpu_selftest import SelftestStage, text
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload

FACTS = doctor.to_dict(doctor.examine(), [])
HEAD = (
    "import os, sys; from pathlib import Path; from isolaw.backends.real.gpu_selftest.record import Record; "
)
# What the process of a stage does, and the status and reason that it must have.
STAGES = {
    "good": ("r.measure(x=float('nan')); r.check('one', 1, '1', True)", "passed", None),
    "wrong": ("r.at_most('two', float('nan'), 1.0)", "failed", None),
    "away": ("r.skip('no such thing here')", "skipped", "no such thing here"),
    "killed": (
        "r.measure(before=2); print('last words', flush=True); os.kill(os.getpid(), 11)",
        "crashed",
        "SIGSEGV",
    ),
    "ended": ("r.fail('a reason'); sys.exit(3)", "crashed", "a reason"),
    "slow": ("r.measure(before=3); os.system('sleep 600')", "timed out", "the stage did not end within 5 s"),
}  # fmt: skip


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages above, and a model that is made at once."""

    def command(stage: SelftestStage, folder: Path, device: str) -> list[str]:
        code = STAGES[stage.name][0] if stage.name in STAGES else "r.measure(x=1)"
        return [sys.executable, "-c", f"{HEAD}r = Record.of(Path({str(folder)!r}), {stage.name!r}); {code}"]

    limits = {"slow": 5.0}
    stages = tuple(SelftestStage(name, limits.get(name, 60.0), 1.0, 1.0) for name in STAGES)
    monkeypatch.setattr(gpu_selftest, "_STAGES", stages)
    monkeypatch.setattr(gpu_selftest, "_command", command)


def test_no_stage_loses_another(played: None) -> None:
    told: list[gpu_selftest.StageProgress] = []
    grown: list[list[str]] = []
    started = time.monotonic()

    def so_far(report: dict[str, Any]) -> None:
        assert not report["passed"]
        grown.append([stage["stage"] for stage in report["stages"]])

    report = gpu_selftest.run("cpu", (), FACTS, told.append, so_far)
    assert grown == [["model", *STAGES][: k + 1] for k in range(len(STAGES) + 1)]
    assert time.monotonic() - started < 300  # nobody waited for the one that sleeps
    stages = {stage["stage"]: stage for stage in report["stages"]}
    assert [*stages] == ["model", *STAGES]
    for name, (_, status, why) in STAGES.items():
        assert stages[name]["status"] == status, stages[name]
        assert (why or "") in (stages[name]["why"] or "")
    assert not report["passed"]
    # What was measured before the end is kept, NaN is null, and the log's end is there.
    assert stages["killed"]["measured"] == {"before": 2}
    assert stages["killed"]["log"][-1] == "last words"
    assert stages["slow"]["measured"] == {"before": 3}
    assert stages["good"]["measured"] == {"x": None}
    assert stages["wrong"]["checks"] == [
        {"what": "two", "found": None, "accepted": "at most 1", "passed": False}
    ]
    json.dumps(report, allow_nan=False)
    # Time left falls to nothing; every stage begins and ends.
    assert [(p.stage, p.status) for p in told[:3]] == [("model", None), ("model", "passed"), ("good", None)]
    assert [p.left_s for p in told] == sorted((p.left_s for p in told), reverse=True)
    assert told[-1].left_s == 0
    lines = "\n".join(text.lines(report))
    assert "failed: wrong, killed, ended, slow" in lines
    assert "FAILED two: not measured (at most 1)" in lines
    assert "away       skipped" in lines


def test_time_that_is_up_is_no_pass(played: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_selftest, "LIMIT_S", 0.5)
    report = gpu_selftest.run("cpu", ("good",), FACTS, lambda progress: None)
    assert [stage["status"] for stage in report["stages"]] == ["timed out"]
    assert not report["passed"]


def test_a_stage_that_was_chosen(played: None) -> None:
    report = gpu_selftest.run("cpu", ("good",), FACTS, lambda progress: None)
    assert [stage["stage"] for stage in report["stages"]] == ["model", "good"]
    assert report["passed"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gpu"], 1, "no GPU: CUDA_VISIBLE_DEVICES is ''; `isolaw doctor --gpu --device cpu`"),
        (["--gpu", "--device", "cpu", "--only", "speeed"], 2, "did you mean 'speed'?"),
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


def test_a_report_is_written_over_by_the_next(
    isolaw: Any, played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_selftest, "NAMES", tuple(STAGES))
    for only, code in (("wrong", 1), ("good", 0)):
        done, out, _ = isolaw("doctor", "--gpu", "--device", "cpu", "--only", only, "--json")
        assert done == code
        assert json.loads(out) == json.loads(Path(gpu_selftest.OUT).read_text())
        assert json.loads(out)["passed"] == (code == 0)
    assert [path.name for path in tmp_path.iterdir()] == [gpu_selftest.OUT]


def test_help_names_the_stages_and_the_report(isolaw: Any) -> None:
    words = " ".join(isolaw("doctor", "--help")[1].split()).replace("- ", "-")
    assert ", ".join(gpu_selftest.NAMES) in words
    assert gpu_selftest.OUT in words


# The stages themselves, on the CPU


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    pytest.importorskip("torch")
    from isolaw.backends.real.gpu_selftest import model

    made = Workload(tmp_path_factory.mktemp("work"), "cpu")
    model.run(made, Record.of(made.folder, "model"))
    return made


@pytest.mark.real
@pytest.mark.slow
def test_weights_that_do_not_arrive_are_noticed(
    work: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isolaw.backends.real.gpu_selftest import cycles
    from isolaw.backends.real.rollout.samplers import TransformersSampler

    spec = Workload.spec

    def with_transformers(self: Workload, steps: int, **more: Any) -> Any:
        return spec(self, steps, **{**more, "real": {**more["real"], "sampler": "transformers"}})

    monkeypatch.setattr(Workload, "spec", with_transformers)
    monkeypatch.setattr(TransformersSampler, "load", lambda self, weights: [None for _ in weights])
    noted = Record.of(tmp_path, "cycles")
    cycles.run(work, noted)
    failed = [check["what"] for check in noted.checks if not check["passed"]]
    assert failed[0].startswith("mean |Δ log p| between sampler and trainer")


def test_memory_that_grows_is_noticed() -> None:
    from isolaw.backends.real.gpu_selftest.cycles import growth

    flat = [{"host_mib": 100.0 + (i < 3) * 400} for i in range(20)]
    leaking = [{"host_mib": 100.0 + 20 * i} for i in range(20)]
    assert growth(flat, "host_mib") == 0
    assert growth(leaking, "host_mib") == 200
    assert growth([{"host_mib": None}] * 20, "host_mib") is None


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
    assert [*stages] == ["model", *gpu_selftest.NAMES]
    assert {name for name, stage in stages.items() if stage["status"] != "passed"} == {"peaks"}
    assert stages["peaks"]["status"] == "skipped"
    assert len(stages["gradients"]["checks"]) == 4
    assert 0 < max(check["found"] for check in stages["gradients"]["checks"]) < 0.1
    assert any("attention" in name for name in stages["gradients"]["measured"]["attention"])
    assert len(stages["cycles"]["measured"]["cycles"]) == 20
    assert stages["speed"]["measured"]["sampler"] == "vllm"
    assert all(row["mfu"] is None for row in stages["speed"]["measured"]["speed"])
    assert stages["resume"]["measured"]["identical"] is True
    # A line for each stage with the time left, and a page.
    assert done.stderr.count("min left") == len(stages)
    assert done.stdout.startswith("isolaw doctor --gpu, device cpu: passed")


@pytest.fixture
def cpu_only() -> dict[str, str]:
    """The environment without what this process has set for its own vLLM."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in names}
