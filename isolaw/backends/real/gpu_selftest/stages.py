"""Run one stage in a process: ``python -m isolaw.backends.real.gpu_selftest.stages NAME FOLDER DEVICE``.

On GPUs, the model has the shapes of Qwen2.5-0.5B. On a CPU it is tiny.
"""

from __future__ import annotations

import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from isolaw import doctor
from isolaw.backends.real import BACKEND, environment, gpu_selftest
from isolaw.backends.real.gpu_selftest import Record
from isolaw.backends.real.rollout.problems import Problem, ProblemSet, write_set
from isolaw.backends.real.train.memory import step_time
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.config import RunSpec
from isolaw.errors import IsolawError, SpecError
from isolaw.machine import card_speed

environment.prepare()

import torch  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors  # noqa: E402
from tokenizers.models import BPE  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

CHARACTERS = "0123456789+-*="
_SPECIAL = ("<pad>", "<bos>", "<eos>")
_HALF_BILLION = {  # from the config.json of Qwen2.5-0.5B
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "tie_word_embeddings": True,
}
_STEPS = 3  # of a run of stage speed; the first is a warm-up
_SIDE = {"cuda": 8192, "cpu": 256}  # of a matrix
# Accepted error of a product of bfloat16 matrices summed in float32, compared with float64.
_ROUNDING = 2.0**-8


def make_tokenizer(size: int = 0, context: int = 32) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each character of arithmetic; it prepends ``<bos>`` to texts.

    It is filled up to ``size`` tokens with ``<17>``, ``<18>``, …, which no text contains.

    >>> tokenizer = make_tokenizer()
    >>> tokenizer("17+25=").input_ids
    [1, 4, 10, 13, 5, 8, 16]
    >>> tokenizer.decode([7, 5, 2], skip_special_tokens=True)
    '42'
    """
    known = (*_SPECIAL, *CHARACTERS)
    vocabulary = {token: i for i, token in enumerate((*known, *(f"<{i}>" for i in range(len(known), size))))}
    # Byte pairs without merges: `AutoTokenizer` would convert the file of a Qwen2 model to this anyway.
    tokenizer = Tokenizer(BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<pad>",  # the default would add a token without an embedding
        padding_side="left",
        model_max_length=context,
    )


def make_model(seed: int = 0, dtype: torch.dtype = torch.float32, **shapes: object) -> Qwen2ForCausalLM:
    """Return a Qwen2 model with random weights; without ``shapes`` it is tiny, with 0.13 M parameters.

    Weights are larger than usual. With the usual initial standard deviation of 0.02, the next token would be
    nearly uniform over a large vocabulary. Stale weights would then go unnoticed, and a tiny model would
    learn slowly.
    """
    tiny = {
        "vocab_size": len(_SPECIAL) + len(CHARACTERS),
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,  # heads of size 32: vLLM's attention on a CPU needs at least 32
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = Qwen2Config(**(tiny | shapes), dtype=str(dtype).removeprefix("torch."))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).to(dtype)


class Workload:
    """A model, problems and runs in a folder, for a device (``cuda`` or ``cpu``)."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device, self.on_gpu = folder, device, device == "cuda"
        self.dtype = "bfloat16" if self.on_gpu else "float32"
        self.model, self.problems = folder / "model", folder / "problems"

    def make(self, shapes: dict[str, Any] | None = None) -> int:
        """Write the model and the problems; return the number of parameters."""
        logging.disable_progress_bar()
        sums = [Problem(f"{a}+{b}", f"{a}+{b}=", str(a + b)) for a in range(24) for b in range(a + 1)]
        write_set(self.problems, {"train": sums[:256], "validation": sums[256:288]})
        model, tokenizer = make_model(), make_tokenizer()
        if self.on_gpu:
            shapes = {**(shapes or _HALF_BILLION), "max_position_embeddings": 4096, "initializer_range": 0.05}
            model = make_model(0, torch.bfloat16, **shapes)
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
            # This lr changes log-probabilities far more than rounding does, so that stale weights are
            # noticed.
            "recipe": {"lr": 2e-4 if self.on_gpu else 5e-4, "lr_scaling": "constant", "warmup_steps": 1}
            | {"kl": 0.0, "entropy": 0.0, "temperature": 1.0}
            | {"max_response_tokens": 512 if self.on_gpu else 16},
            "problems": {"set": str(self.problems), "n_validation": 4},
            "evaluation": {"points": 2, "samples": 1, "metrics": ["avg@1"]},
            "real": {"model": str(self.model), "reward": f"{gpu_selftest.__name__}:parity"}
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


def model(work: Workload, record: Record) -> None:
    """Write the model and the problems."""
    record.measure(architecture="Qwen2", parameters=work.make(), weights="random")


def devices(work: Workload, record: Record) -> None:
    """Import the libraries, and multiply matrices on each device."""
    machine = doctor.examine()
    findings = doctor.diagnose(machine) + doctor.try_imports(machine)
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


def speed(work: Workload, record: Record) -> None:
    """Time a short run at a small and at a large n; the second reuses the sampler."""
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
    card = card_speed(torch.cuda.get_device_name()) if work.on_gpu else None
    decoder = Decoder.read(work.model)
    if card is None or decoder is None:
        return None
    return round(tokens * step_time.flops(decoder, length, passes=3) / seconds / card.flops, 4)


def _main(name: str, folder: str, device: str) -> None:
    """Run a stage and end the process, with exit status 1 if the stage raised an error."""
    # Exit on SIGTERM, so that the processes that the stage has started end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    record = Record.of(Path(folder), name)
    status = 0
    try:
        {"model": model, "devices": devices, "speed": speed}[name](Workload(Path(folder), device), record)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        record.fail(first if isinstance(error, IsolawError) else f"{type(error).__name__}: {first}")
        sys.excepthook(*sys.exc_info())
        status = 1
    environment.leave(status)


if __name__ == "__main__":
    _main(*sys.argv[1:])
