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

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from isolaw import children, commands, doctor
from isolaw.backends.real import BACKEND, environment
from isolaw.config import RunSpec
from isolaw.documents.reading import read_json
from isolaw.errors import InputError, IsolawError, SpecError
from isolaw.files import check_replaceable, replacing
from isolaw.machine import card_speed, visible_gpus

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

FORMAT = "isolaw.checkup/1"
OUT = "isolaw-gpu-report.json"
STAGES = {"model": 120.0, "devices": 120.0, "speed": 360.0}  # time limits in seconds
_MODULE = "isolaw.backends.real.gpu_selftest"  # in a stage's process, __name__ differs
_LOG_LINES = 30  # number of log lines to report for a failed stage
_STOPPING_S = 5.0

CHARACTERS = "0123456789+-*="
_SPECIAL = ("<pad>", "<bos>", "<eos>")
# From the config.json of Qwen2.5-0.5B.
_HALF_BILLION = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864}
_HALF_BILLION |= {"num_hidden_layers": 24, "num_attention_heads": 14, "tie_word_embeddings": True}
_STEPS = 3  # of a run of stage speed; the first is a warm-up
_SIDE = {"cuda": 8192, "cpu": 256}  # of a matrix
# Accepted error of a product of bfloat16 matrices summed in float32, compared with float64.
_ROUNDING = 2.0**-8


def parity(prompt: Any, response: str, answer: str) -> float:
    """Return 1 for a response with an even number of characters, else 0.

    A model with random weights earns it for about half of its responses, so that advantages are not 0.
    """
    return float(len(response) % 2 == 0)


@dataclass
class Record:
    """The measurements and checks of a stage, in a file that is written as they occur: a crash loses none."""

    path: Path
    # Each check has the keys `what` (the condition), `found`, `accepted` and `passed`.
    checks: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)  # values by name; names include the unit
    error: str = ""  # the error that ended the stage

    @classmethod
    def of(cls, folder: Path, stage: str) -> Record:
        """Return the current record of a stage, which can be empty."""
        path = folder / f"{stage}.json"
        return cls(path, **(read_json(path) if path.is_file() else {}))

    def check(self, what: str, found: Any, accepted: str, passed: bool) -> None:
        """Add a check and its result."""
        self.checks.append({"what": what, "found": found, "accepted": accepted, "passed": bool(passed)})
        self.write()

    def measure(self, **values: Any) -> None:
        """Add measurements by name."""
        self.measured |= values
        self.write()

    def write(self) -> None:
        """Write the file."""
        _write_json(self.path, {k: v for k, v in asdict(self).items() if k != "path"})


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    text = to_json(document, indent=1, inf_nan_mode="null")  # JSON has no NaN
    with replacing(path) as temporary:
        temporary.write_bytes(text + b"\n")


def check_out(path: Path) -> None:
    """Raise `DataError` unless a report can be written to ``path``, a new file or an older report."""
    check_replaceable(path, "a report of isolaw doctor --gpu", OUT, _is_report)


def _is_report(path: Path) -> bool:
    try:
        return bool(read_json(path).get("format") == FORMAT)
    except InputError:
        return False


def check_device(device: str) -> None:
    """Raise `IsolawError` if ``device`` is ``cuda`` and no GPU is visible."""
    if device == "cpu" or environment.gpus():
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "nvidia-smi lists no GPU" if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}"
    raise IsolawError(
        f"no GPU: {why}; `{commands.doctor_gpu('--device', 'cpu')}` runs the same stages on the CPU with a "
        "tiny model"
    )


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
            report["stages"].append(stage := _stage(name, Path(folder), device))
            notify(name, stage["status"], stage["seconds"])
            report["seconds"] = round(time.monotonic() - started, 1)
            statuses = [each["status"] for each in report["stages"]]
            report["passed"] = statuses == ["passed"] * len(STAGES)
            if out:
                check_out(out)
                _write_json(out, report)
            if statuses[0] != "passed":
                break
    return report


def _stage(name: str, folder: Path, device: str) -> dict[str, Any]:
    """Run a stage in its own process, and return its part of the report."""
    started, log = time.monotonic(), folder / f"{name}.log"
    status, why = _execute(name, folder, device, log)
    record = Record.of(folder, name)
    lines = [] if status == "passed" else log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        "stage": name,
        "status": status,
        "why": why or None,
        "seconds": round(time.monotonic() - started, 1),
        "checks": record.checks,
        "measured": record.measured,
        "log": lines[-_LOG_LINES:],
    }


def _execute(name: str, folder: Path, device: str, log: Path) -> tuple[str, str]:
    """Return the status of a stage, and the reason if it ended badly."""
    gpus = visible_gpus() if device == "cuda" else []
    visible = ",".join(gpus if name == "devices" else gpus[:1])
    with log.open("wb") as output:
        process = children.start(
            _command(name, folder, device),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        )
        try:
            code = process.wait(STAGES[name])
        except subprocess.TimeoutExpired:
            return "timed out", f"the stage did not end within {STAGES[name]:.0f} s"
        finally:
            children.end(process, grace=_STOPPING_S)
    record = Record.of(folder, name)
    if code:
        ending = f"exit status {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        return "crashed", record.error or ending
    return ("passed" if all(check["passed"] for check in record.checks) else "failed"), ""


def _command(name: str, folder: Path, device: str) -> list[str]:
    return [sys.executable, "-P", "-m", _MODULE, name, str(folder), device]


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a report as lines of text, to paste into an issue."""
    machine = report["machine"]
    versions = [f"{name} {version}" for name, version in machine["packages"].items() if version]
    wrong = [stage["stage"] for stage in report["stages"] if stage["status"] != "passed"]
    outcome = f"failed: {', '.join(wrong)}" if wrong else "passed"
    yield f"isolaw doctor --gpu, device {report['device']}: {outcome}"
    yield f"{report['began']}, {report['seconds']:.0f} s"
    yield f"Python {machine['python']}, {machine['system']} {machine['machine']}, {machine['cores']} cores"
    for index, gpu in enumerate(machine["gpus"]):
        yield f"GPU {index}: {gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB, driver {gpu['driver']}"
    yield ", ".join(versions)
    for stage in report["stages"]:
        why = f": {stage['why']}" if stage["why"] else ""
        yield f"\n{stage['stage']:<11}{stage['status']}, {stage['seconds']:.0f} s{why}"
        for check in stage["checks"]:
            mark = "ok" if check["passed"] else "FAILED"
            yield f"  {mark:<7}{check['what']}: {_short(check['found'])} ({check['accepted']})"
        for name, value in stage["measured"].items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping):
                yield f"  {name}:"
                yield from _table(value)
            else:
                yield f"  {name}: {_short(value)}"
        if stage["log"]:
            yield "  last lines of the log:"
            yield from (f"    {line}" for line in stage["log"])


def _table(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    names = [name for name in rows[0] if not isinstance(rows[0][name], Mapping)]
    cells = [names, *([_short(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    for row in cells:
        yield "    " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _short(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool) or not isinstance(value, float):
        return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def make_tokenizer(size: int = 0, context: int = 32) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each character of arithmetic; it prepends ``<bos>`` to texts.

    It is filled up to ``size`` tokens with ``<17>``, ``<18>``, …, which no text contains.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    known = (*_SPECIAL, *CHARACTERS)
    vocabulary = {token: i for i, token in enumerate((*known, *(f"<{i}>" for i in range(len(known), size))))}
    # Byte pairs without merges: `AutoTokenizer` would convert the file of a Qwen2 model to this anyway.
    tokenizer = Tokenizer(BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    pad, bos, eos = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=pad,  # the default would add a token without an embedding
        padding_side="left",
        model_max_length=context,
    )


def make_model(seed: int = 0, dtype: str = "float32", **shapes: object) -> Qwen2ForCausalLM:
    """Return a Qwen2 model with random weights; without ``shapes`` it is tiny, with 0.13 M parameters.

    Weights are larger than usual. With the usual initial standard deviation of 0.02, the next token would be
    nearly uniform over a large vocabulary. Stale weights would then go unnoticed, and a tiny model would
    learn slowly.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tiny: dict[str, object] = {
        "vocab_size": len(_SPECIAL) + len(CHARACTERS),
        "hidden_size": 64,
        "intermediate_size": 256,
    }
    # Heads of size 32: vLLM's attention on a CPU needs at least 32.
    tiny |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    tiny |= {"max_position_embeddings": 32, "initializer_range": 0.1, "tie_word_embeddings": False}
    tiny |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**(tiny | shapes), dtype=dtype)).to(getattr(torch, dtype))


class Workload:
    """A model, problems and runs in a folder, for a device (``cuda`` or ``cpu``)."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device, self.on_gpu = folder, device, device == "cuda"
        self.dtype = "bfloat16" if self.on_gpu else "float32"
        self.model, self.problems = folder / "model", folder / "problems"

    def make(self, shapes: dict[str, Any] | None = None) -> int:
        """Write the model and the problems; return the number of parameters."""
        from transformers.utils import logging

        from isolaw.backends.real.rollout.problems import Problem, write_set

        logging.disable_progress_bar()
        sums = [Problem(f"{a}+{b}", f"{a}+{b}=", str(a + b)) for a in range(24) for b in range(a + 1)]
        write_set(self.problems, {"train": sums[:256], "validation": sums[256:288]})
        model, tokenizer = make_model(), make_tokenizer()
        if self.on_gpu:
            shapes = {**(shapes or _HALF_BILLION), "max_position_embeddings": 4096, "initializer_range": 0.05}
            model = make_model(0, self.dtype, **shapes)
            tokenizer = make_tokenizer(shapes["vocab_size"], 4096)
        model.save_pretrained(self.model)
        tokenizer.save_pretrained(self.model)
        return sum(parameter.numel() for parameter in model.parameters())

    def sections(self, b: int, n: int, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the content of a sweep file; each argument replaces keys of the section with its name."""
        data: dict[str, dict[str, Any]] = {
            "sweep": {"backend": "real", "seeds": [0]},
            "grid": {"problems_per_batch": [b], "rollouts_per_problem": [n]},
            "limits": {"max_batch_rollouts": 65_536},
            # This lr changes log-probabilities far more than rounding does: stale weights would show.
            "recipe": {"lr": 2e-4 if self.on_gpu else 5e-4, "lr_scaling": "constant", "warmup_steps": 1}
            | {"kl": 0.0, "entropy": 0.0, "temperature": 1.0}
            | {"max_response_tokens": 512 if self.on_gpu else 16},
            "problems": {"set": str(self.problems), "n_validation": 4},
            "evaluation": {"points": 2, "samples": 1, "metrics": ["avg@1"]},
            "real": {"model": str(self.model), "reward": f"{_MODULE}:parity"}
            | {"dtype": self.dtype, "checkpoint_minutes": 1e-9},  # a checkpoint after every step
            "executor": {"kind": "inline"},
        }
        return {name: {**data.get(name, {}), **more.get(name, {})} for name in {**data, **more}}

    def spec(self, steps: int, b: int, n: int, **more: dict[str, Any]) -> RunSpec:
        """Return the resolved spec of a run of ``steps`` steps; raise `SpecError` if it cannot run here."""
        data = self.sections(b, n, **more)
        run = {
            "backend": "real",
            "problems_per_batch": b,
            "rollouts_per_problem": n,
            "seed": 0,
            "recipe": data["recipe"],
            "problems": data["problems"],
            "options": data["real"],
            "compute": steps * b * n,
            "evaluation": {**data["evaluation"], "start": b * n, "end": steps * b * n},
        }
        resolved = BACKEND.resolve(RunSpec.model_validate(run))
        if issues := BACKEND.check(resolved):
            raise SpecError(issues)
        return resolved


def _model(work: Workload, record: Record) -> None:
    """Write the model and the problems."""
    record.measure(architecture="Qwen2", parameters=work.make(), weights="random")


def _devices(work: Workload, record: Record) -> None:
    """Import the libraries, and multiply matrices on each device."""
    import torch

    machine = doctor.examine()
    findings = doctor.diagnose(machine)
    faults = [f"{finding.what} (mend: {finding.mend})" for finding in findings if finding.fault]
    record.check("faults that isolaw doctor finds", faults or "none", "none", not faults)
    record.measure(python=platform.python_version())
    places = [torch.device("cpu")]
    if work.on_gpu:
        count, named = torch.cuda.device_count(), machine.visible_gpus
        record.check("GPUs that torch sees", count, str(named), count == named)
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        record.measure(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), nccl=nccl)
        places = [torch.device("cuda", index) for index in range(count)]
    for place in places:
        error, tflops = _product(place)
        what = f"{place}: error of a bfloat16 matrix product"
        record.check(what, error, f"at most {_ROUNDING:g}", error <= _ROUNDING)
        record.measure(**{f"{place}_matrix_tflops": tflops})


def _product(place: torch.device) -> tuple[float, float]:
    """Return the maximum error of a matrix product relative to its largest entry, and its TFLOP/s."""
    import torch

    side = _SIDE[place.type]
    generator = torch.Generator(place).manual_seed(0)
    a, b = (torch.randn(side, side, generator=generator, device=place).bfloat16() for _ in range(2))
    exact = a[:64].double() @ b.double()
    error = float(((a @ b)[:64].double() - exact).abs().max() / exact.abs().max())
    times = []
    for _ in range(10):
        began = time.perf_counter()
        float((a @ b)[0, 0])  # waits for the device
        times.append(time.perf_counter() - began)
    return error, round(2 * side**3 / min(times) / 1e12, 3)


def _speed(work: Workload, record: Record) -> None:
    """Time a short run at a small and at a large n; the second reuses the sampler."""
    from isolaw.backends.real.rollout.problems import ProblemSet
    from isolaw.backends.real.train import loop

    prompts = ProblemSet.read(work.problems).parts["train"]
    prompt = sum(len(str(problem.prompt)) + 1 for problem in prompts) / len(prompts)  # with its <bos>
    rows: list[dict[str, Any]] = []
    for b, n in ((32, 8), (1, 512)) if work.on_gpu else ((4, 8), (1, 64)):
        spec = work.spec(_STEPS, b, n)
        checkpoints = [c for c in loop.train(spec, None) if c.step]
        first, last = checkpoints[0], checkpoints[-1]
        seconds = {part: last.seconds[part] - first.seconds.get(part, 0.0) for part in last.seconds}
        tokens, responses = (last.tokens or 0) - (first.tokens or 0), last.compute - first.compute
        trained = tokens + prompt * responses
        rows.append(
            {
                "problems_per_batch": b,
                "rollouts_per_problem": n,
                "sampled_tokens_per_s": round(tokens / seconds["generate"], 1),
                "trained_tokens_per_s": round(trained / seconds["train"], 1),
                "mfu": _mfu(work, trained, trained / responses, seconds["train"]),
                "mismatch": max(r.value for c in checkpoints for r in c.rows if r.metric == "mismatch"),
                "seconds_of_a_step": {k: v / (last.step - first.step) for k, v in seconds.items()},
            }
        )
        record.measure(speed=rows, sampler=spec.options["sampler"])
        # A run stops if the mismatch exceeds its tolerance: the sampler then lacks weights.
        what = f"n = {n}: mean |Δ log p| between sampler and trainer, largest of {_STEPS} steps"
        record.check(what, rows[-1]["mismatch"], "less than real.logprob_tolerance", True)


def _mfu(work: Workload, tokens: float, length: float, seconds: float) -> float | None:
    """Return the MFU of training, the share of the GPU's peak FLOP/s, or None for an unknown GPU."""
    import torch

    from isolaw.backends.real.train.memory import step_time
    from isolaw.backends.real.train.memory.decoder import Decoder

    card = card_speed(torch.cuda.get_device_name()) if work.on_gpu else None
    decoder = Decoder.read(work.model)
    if card is None or decoder is None:
        return None
    return round(tokens * step_time.flops(decoder, length, passes=3) / seconds / card.flops, 4)


def _main(name: str, folder: str, device: str) -> None:
    """Run a stage and end the process, with exit status 1 if the stage raised an error."""
    # Exit on SIGTERM, so that the processes that the stage has started end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    environment.prepare()
    record = Record.of(Path(folder), name)
    status = 0
    try:
        {"model": _model, "devices": _devices, "speed": _speed}[name](Workload(Path(folder), device), record)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        record.error = first if isinstance(error, IsolawError) else f"{type(error).__name__}: {first}"
        record.write()
        sys.excepthook(*sys.exc_info())
        status = 1
    environment.leave(status)


if __name__ == "__main__":
    _main(*sys.argv[1:])
