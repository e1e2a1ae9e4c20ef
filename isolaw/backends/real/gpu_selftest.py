"""Implement ``isolaw doctor --gpu``: sample and train on this machine with random weights.

Each of the `STAGES` runs in its own process (``python -m isolaw.backends.real.gpu_selftest NAME FOLDER
DEVICE``) with a time limit, so that a crash or a hang loses no other stage. On GPUs, the model has the shapes
of Qwen2.5-0.5B. On a CPU it is tiny.

======= =============================================================================
model   random models, a tokenizer for characters, and sums as problems
devices driver, libraries, and a matrix product on each GPU
speed   runs of the real backend: tokens per second of sampling and training, and MFU
======= =============================================================================

Importing this module does not load torch.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from isolaw import children, commands, doctor
from isolaw.backends.real import environment, models, random_model
from isolaw.documents.reading import read_json
from isolaw.errors import InputError, IsolawError
from isolaw.files import check_replaceable, replacing
from isolaw.machine import card_speed, visible_gpus

FORMAT = "isolaw.checkup/1"
OUT = "isolaw-gpu-report.json"
STAGES = {"model": 120.0, "devices": 120.0, "speed": 360.0}  # time limits in seconds
_MODULE = "isolaw.backends.real.gpu_selftest"  # in a stage's process, __name__ differs
_LOG_LINES = 30  # number of log lines to report for a failed stage
_STEPS = 3  # of a run of stage speed; the first is a warm-up
# Accepted error of a product of bfloat16 matrices summed in float32, compared with float64.
_ROUNDING = 2.0**-8


class _Record:
    """The measurements and checks of a stage, written to a file as they occur: a crash loses none."""

    def __init__(self, folder: Path, stage: str) -> None:
        self.path = folder / f"{stage}.json"
        self.content: dict[str, Any] = {"checks": [], "measured": {}, "error": ""}
        if self.path.is_file():
            self.content = read_json(self.path)

    def check(self, what: str, found: Any, accepted: str, passed: bool) -> None:
        """Add a check and its result."""
        check = {"what": what, "found": found, "accepted": accepted, "passed": bool(passed)}
        self.set("checks", [*self.content["checks"], check])

    def measure(self, **values: Any) -> None:
        """Add measurements; their names include the unit."""
        self.set("measured", {**self.content["measured"], **values})

    def set(self, key: str, value: Any) -> None:
        """Set a part of the record."""
        self.content[key] = value
        _write_json(self.path, self.content)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    text = to_json(document, indent=1, inf_nan_mode="null")  # JSON has no NaN
    with replacing(path) as temporary:
        temporary.write_bytes(text + b"\n")


def check_out(path: Path) -> None:
    """Raise `DataError` unless a report can be written to ``path``, a new file or an older report."""

    def is_report(path: Path) -> bool:
        with contextlib.suppress(InputError):
            return bool(read_json(path).get("format") == FORMAT)
        return False

    check_replaceable(path, "a report of isolaw doctor --gpu", OUT, is_report)


def check_device(device: str) -> None:
    """Raise `IsolawError` if ``device`` is ``cuda`` and no GPU is visible."""
    if device == "cuda" and not environment.gpus():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "nvidia-smi lists no GPU" if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}"
        instead = f"`{commands.doctor_gpu('--device', 'cpu')}` runs the same stages on the CPU"
        raise IsolawError(f"no GPU: {reason}; {instead} with a tiny model")


def run(
    device: str, facts: Mapping[str, Any], out: Path | None, notify: Callable[[str, str | None, float], None]
) -> dict[str, Any]:
    """Run all stages, write the report to ``out`` after each of them, and return it.

    ``device`` is ``cuda`` or ``cpu``, and ``facts`` is the result of `isolaw.doctor.to_dict`. ``notify`` gets
    the name of a stage with its status (None at its start) and its seconds. A failed model stage is the last.
    """
    began, started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    report: dict[str, Any] = {"format": FORMAT, "device": device, "passed": False, "began": began}
    report |= {"seconds": 0.0, "machine": dict(facts), "stages": []}
    with tempfile.TemporaryDirectory(prefix="isolaw-checkup-", ignore_cleanup_errors=True) as folder:
        for name in STAGES:
            notify(name, None, 0.0)
            report["stages"].append(stage := _run_stage(name, Path(folder), device))
            notify(name, stage["status"], stage["seconds"])
            report["seconds"] = round(time.monotonic() - started, 1)
            statuses = [entry["status"] for entry in report["stages"]]
            report["passed"] = statuses == ["passed"] * len(STAGES)
            if out:
                _write_json(out, report)
            if statuses[0] != "passed":
                break
    return report


def _run_stage(name: str, folder: Path, device: str) -> dict[str, Any]:
    """Run a stage in its own process, and return its part of the report."""
    started, log = time.monotonic(), folder / f"{name}.log"
    gpus = visible_gpus() if device == "cuda" else []
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus if name == "devices" else gpus[:1])}
    status, ending = "passed", ""
    with log.open("wb") as output:
        stdio: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            command, limit = _command(name, folder, device), STAGES[name]
            if code := children.run(command, limit, env={**os.environ, **visible}, **stdio).returncode:
                ending = f"exit status {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
                status = "crashed"
        except subprocess.TimeoutExpired:
            status, ending = "timed out", f"the stage did not end within {STAGES[name]:.0f} s"
    record = _Record(folder, name).content
    if status == "passed" and any(not check["passed"] for check in record["checks"]):
        status = "failed"
    lines = [] if status == "passed" else log.read_text(encoding="utf-8", errors="replace").splitlines()
    reason = (status == "crashed" and record["error"]) or ending or None
    report = {"stage": name, "status": status, "why": reason, "seconds": round(time.monotonic() - started, 1)}
    return report | {key: record[key] for key in ("checks", "measured")} | {"log": lines[-_LOG_LINES:]}


def _command(name: str, folder: Path, device: str) -> list[str]:
    return [sys.executable, "-P", "-m", _MODULE, name, str(folder), device]


def _check_devices(device: str, record: _Record) -> None:
    """Import the libraries, and multiply matrices on each device."""
    import torch

    machine = doctor.examine()
    findings = doctor.diagnose(machine)
    faults = [f"{finding.what} (mend: {finding.mend})" for finding in findings if finding.fault]
    record.check("faults that isolaw doctor finds", faults or "none", "none", not faults)
    record.measure(python=platform.python_version())
    devices = [torch.device("cpu")]
    if device == "cuda":
        count, expected = torch.cuda.device_count(), machine.visible_gpus
        record.check("GPUs that torch sees", count, str(expected), count == expected)
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        record.measure(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), nccl=nccl)
        devices = [torch.device("cuda", index) for index in range(count)]
    size = 8192 if device == "cuda" else 256
    for target in devices:
        generator = torch.Generator(target).manual_seed(0)
        a, b = (torch.randn(size, size, generator=generator, device=target).bfloat16() for _ in range(2))
        expected_product, times = a[:64].double() @ b.double(), []
        for _ in range(10):
            began = time.perf_counter()
            float((product := a @ b)[0, 0])  # waits for the device
            times.append(time.perf_counter() - began)
        error = float((product[:64].double() - expected_product).abs().max() / expected_product.abs().max())
        what = f"{target}: error of a bfloat16 matrix product"
        record.check(what, error, f"at most {_ROUNDING:g}", error <= _ROUNDING)
        record.measure(**{f"{target}_matrix_tflops": round(2 * size**3 / min(times) / 1e12, 3)})


def _measure_speed(folder: Path, device: str, record: _Record) -> None:
    """Time a short run at a small and at a large n; the second reuses the sampler."""
    from isolaw.backends.real.rollout.problems import ProblemSet
    from isolaw.backends.real.train import loop

    on_gpu, sections = device == "cuda", random_model.sections(folder, device)
    prompts = ProblemSet.read(folder / "problems").parts["train"]
    prompt_tokens = sum(len(str(problem.prompt)) + 1 for problem in prompts) / len(prompts)  # with its <bos>
    rows: list[dict[str, Any]] = []
    for b, n in ((32, 8), (1, 512)) if on_gpu else ((4, 8), (1, 64)):
        spec = random_model.spec_of(sections, _STEPS, b, n)
        checkpoints = [c for c in loop.train(spec, None) if c.step]
        first, last = checkpoints[0], checkpoints[-1]
        seconds = {part: last.seconds[part] - first.seconds.get(part, 0.0) for part in last.seconds}
        tokens, responses = (last.tokens or 0) - (first.tokens or 0), last.compute - first.compute
        trained_tokens = tokens + prompt_tokens * responses
        rows.append(
            {
                "problems_per_batch": b,
                "rollouts_per_problem": n,
                "sampled_tokens_per_s": round(tokens / seconds["generate"], 1),
                "trained_tokens_per_s": round(trained_tokens / seconds["train"], 1),
                "mfu": _flops_share(folder, trained_tokens, trained_tokens / responses, seconds["train"]),
                "mismatch": max(r.value for c in checkpoints for r in c.rows if r.metric == "mismatch"),
                "seconds_of_a_step": {k: v / (last.step - first.step) for k, v in seconds.items()},
            }
        )
        record.measure(speed=rows, sampler=spec.options["sampler"])


def _flops_share(folder: Path, tokens: float, length: float, seconds: float) -> float | None:
    """Return the MFU of training, the share of the GPU's peak FLOP/s, or None for an unknown GPU."""
    from isolaw.backends.real.train.memory import step_time

    card, decoder = card_speed(environment.gpu_name()), models.decoder(folder / "model")
    if card is None or not environment.gpus():
        return None
    return round(tokens * step_time.flops(decoder, length, passes=3) / seconds / card.flops, 4)


def _main(name: str, folder: str, device: str) -> None:
    """Run a stage and end the process, with exit status 1 if the stage raised an error."""
    # Exit on SIGTERM, so that the processes that the stage has started end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    environment.prepare()
    work_folder, status = Path(folder), 0
    record = _Record(work_folder, name)
    try:
        if name == "model":
            parameters = random_model.write(work_folder, device)
            record.measure(architecture="Qwen2", parameters=parameters, weights="random")
        elif name == "devices":
            _check_devices(device, record)
        else:
            _measure_speed(work_folder, device, record)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        record.set("error", line if isinstance(error, IsolawError) else f"{type(error).__name__}: {line}")
        sys.excepthook(*sys.exc_info())
        status = 1
    environment.leave(status)


if __name__ == "__main__":
    _main(*sys.argv[1:])
