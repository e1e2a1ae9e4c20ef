"""The cost of a step from the shape of a model: known models, files, what does not fit, and the dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import isolaw
from isolaw.backends.real.train.memory import from_shape
from isolaw.errors import InputError

_BILLIONS = {
    "qwen2.5-0.5b": 0.494, "qwen2.5-7b": 7.616, "qwen2.5-32b": 32.76, "qwen3-4b": 4.022, "qwen3-8b": 8.191,
    "llama-3.2-1b": 1.236, "llama-3.1-8b": 8.030,
}  # fmt: skip


@pytest.mark.parametrize("name", _BILLIONS)
def test_a_known_model_has_its_published_size(name: str) -> None:
    assert from_shape._decoder(name).parameters / 1e9 == pytest.approx(_BILLIONS[name], rel=1e-3)


def test_a_configuration_file_gives_the_cost_of_the_model_that_it_describes(tmp_path: Path) -> None:
    config = dict(zip(from_shape._KEYS, from_shape._KNOWN["qwen2.5-1.5b"], strict=True))
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


def test_a_week_of_eight_gpus_needs_no_weights_and_no_torch() -> None:
    code = (
        "import sys, isolaw; a = isolaw.advise('1344gpuh', 'easy', cost='qwen2.5-7b@h100-80g:8');"
        "print(sum(s.spent.gpu_hours.value for s in a.sweeps), {'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    hours, loaded = done.stdout.split(" ", 1)
    assert 0 < float(hours) < 0.8 * 1344
    assert loaded.strip() == "set()"
