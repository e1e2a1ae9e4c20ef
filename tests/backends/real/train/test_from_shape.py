"""The cost of a step from the shape of a model: known models, files, what does not fit, and the dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import isolaw
from isolaw.backends.real import models
from isolaw.errors import InputError

_BILLIONS = {
    "qwen2.5-0.5b": 0.494, "qwen2.5-7b": 7.616, "qwen2.5-32b": 32.76, "qwen3-4b": 4.022, "qwen3-8b": 8.191,
    "llama-3.2-1b": 1.236, "llama-3.1-8b": 8.030,
}  # fmt: skip


@pytest.mark.parametrize("name", _BILLIONS)
def test_a_known_model_has_its_published_size(name: str) -> None:
    assert models.decoder(name).parameters / 1e9 == pytest.approx(_BILLIONS[name], rel=1e-3)


def test_a_configuration_file_gives_the_cost_of_the_model_that_it_describes(tmp_path: Path) -> None:
    config = dict(zip(models._SIZE_KEYS, models._SIZES_OF["qwen2.5-1.5b"], strict=True))
    (tmp_path / "config.json").write_text(json.dumps(config))
    known = isolaw.read_cost("Qwen/Qwen2.5-1.5B-Instruct@a100-80g:2/512")
    for name in (tmp_path, tmp_path / "config.json"):
        assert isolaw.read_cost(f"{name}@a100-80g:2/512").step(32, 16) == known.step(32, 16)
    assert known.per_rollout == 256
    assert known.gpus == 2
    # Longer responses, more rollouts and fewer GPUs take longer.
    assert isolaw.read_cost("qwen2.5-1.5b@a100-80g:2/1024").step(32, 16) > known.step(32, 16)
    assert known.step(32, 32) > known.step(32, 16) > known.step(16, 16)
    assert isolaw.read_cost("qwen2.5-1.5b@a100-80g:1/512").step(32, 16) > known.step(32, 16)
    assert known.to_dict()["source"] == "estimate"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qwen2.5-8b@h100-80g:8", "did you mean qwen"),
        ("qwen2.5-7b@h100:8", "names are a10g-24g"),
        ("qwen2.5-7b@80g:8", "expected GPUs of known speed"),
        ("qwen2.5-32b@l4-24g:1", "does not fit"),
        ("x" * 5000 + "@h100-80g:8", "expected a config.json"),
    ],
)
def test_what_is_unknown_is_an_error(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        isolaw.read_cost(text)


@pytest.mark.slow
def test_a_week_of_eight_gpus_needs_no_weights_and_no_torch() -> None:
    code = (
        "import sys, isolaw; a = isolaw.advise('1344gpuh', 'easy', cost='qwen2.5-7b@h100-80g:8');"
        "print(sum(s.spent.gpu_hours.value for s in a.sweeps), a.case.model_size,"
        "a.sweeps[0].sections['real']['model']);"
        "print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers, loaded = done.stdout.splitlines()
    hours, size, model = numbers.split()
    assert 0 < float(hours) < 0.8 * 1344
    assert (float(size), model) == (7.6, "models/qwen2.5-7b")  # which the cost names
    assert loaded == "set()"


# `isolaw` on a machine that has nothing of the real backend.
_BARE = """
import sys
for name in ("torch", "transformers", "vllm", "deepspeed", "math_verify", "peft", "accelerate"):
    sys.modules[name] = None
from isolaw.cli import run
sys.exit(run())
"""


@pytest.mark.slow
def test_a_dry_run_needs_the_shape_of_the_model_alone(commands: Path, tmp_path: Path) -> None:
    """Neither weights nor a tokenizer, nor any package of the real backend: a known name or a config.json."""
    (tmp_path / "sums").mkdir()
    for part, sums in (("train", range(64)), ("validation", range(64, 80))):
        lines = [json.dumps({"prompt": f"{k}+1=", "answer": str(k + 1)}) + "\n" for k in sums]
        (tmp_path / "sums" / f"{part}.jsonl").write_text("".join(lines))
    config = {**models.config("qwen2.5-7b")}
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "config.json").write_text(json.dumps(config))

    def sweep(model: str, *words: str) -> subprocess.CompletedProcess[str]:
        settings = [
            f"real.model={model}", "real.reward=math", "problems.set=sums", "recipe.lora_rank=16",
            "grid.rollouts_per_problem=[8,32]", "grid.problems_per_batch=[32]", "sweep.compute=1e5",
        ]  # fmt: skip
        given = (f"--set={each}" for each in settings)
        command = ["sweep", "--backend=real", "--out=out", *given, *words]
        return subprocess.run(
            [commands / "python", "-c", _BARE, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    hours = []
    for model in ("models/Qwen2.5-7B", "shape"):
        done = sweep(model, "--dry-run", "--machine", "h100-80g:8", "--json")
        assert done.returncode == 0, done.stderr
        assert f"{model} has no weights here: isolaw can only plan with the model's sizes" in done.stderr
        hours.append(json.loads(done.stdout)["cost"]["gpu_hours"])
        assert json.loads(done.stdout)["memory"][0]["row_tokens"] < 1024 + 64  # the prompts are short
    assert hours[0] == hours[1] > 1
    done = sweep("shape", "--dry-run")
    assert (done.returncode, "plan for 8 GPUs of 80 GB with --machine h100-80g:8" in done.stderr) == (0, True)
    done = sweep("models/Qwen2.5-8B", "--dry-run", "--machine", "h100-80g:8")
    assert (done.returncode, "no such folder; expected the folder of a model" in done.stderr) == (2, True)
    assert "did you mean 'qwen2.5-7b'?" in done.stderr
    done = sweep("shape")  # training needs all of it
    assert done.returncode == 2
    for missing in ("torch is not installed", "needs peft and accelerate", "the folder has no *.safetensors"):
        assert missing in done.stderr
    assert not (tmp_path / "out").exists()
