"""The folder of a model: what is damaged is told before anything is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from isolaw.backends.real import models
from isolaw.errors import DataError, SpecError

HEADER = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
WHOLE = struct.pack("<Q", len(HEADER)) + HEADER + b"1234"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"max_position_embeddings": 32, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    assert models.check(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234",
        WHOLE[:-1],
        WHOLE[:20],
        b"version https://git-lfs.github.com/spec/v1",
        b"\2" + bytes(7) + b"[]",
        WHOLE.replace(b"shape", b"BatchShape"),
    ],
)
def test_weights_that_are_not_whole(folder: Path, content: bytes) -> None:
    (folder / "model-2.safetensors").write_bytes(content)
    (problem,) = models.check(folder)
    assert str(problem) == f"real.model: {folder}/model-2.safetensors: incomplete safetensors file"


def test_parameters_are_counted_over_all_files(folder: Path) -> None:
    assert models.parameters(folder) == 4
    (folder / "model-2.safetensors").write_bytes(WHOLE.replace(b"[4]", b"[9]"))
    assert models.parameters(folder) == 13


def test_weights_that_are_no_file(folder: Path) -> None:
    (folder / "a.safetensors").mkdir()
    (folder / "b.safetensors").symlink_to(folder / "nowhere")
    assert len(models.check(folder)) == 2


@pytest.mark.parametrize("value", ["true", "0", "-1", "1e400", "NaN", '"32"', "32.5", "[]"])
def test_a_context_that_is_none(folder: Path, value: str) -> None:
    (folder / "config.json").write_text(f'{{"max_position_embeddings": {value}}}')
    (problem,) = models.check(folder)
    assert "expected an integer of at least 1" in str(problem)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        models.context(folder)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "max_position_embeddings is missing"),
        ('{"text_config": 3}', "max_position_embeddings is missing"),
        (
            '{"max_position_embeddings": 8, "architectures": ["BertModel"]}',
            "architectures: found ['BertModel']; expected a causal language model",
        ),
        *(
            (
                f'{{"max_position_embeddings": 8, "model_type": "{kind}"}}',
                f'model_type: found {kind}, which has {why}; backend = "command" sweeps with a trainer of '
                "your own (docs/trainers.md)",
            )
            for kind, why in {
                "qwen3_5_moe": "linear attention, which passes a state from row to row",
                "gpt_oss": "attention with sinks",
            }.items()
        ),
        *(
            (
                f'{{"max_position_embeddings": 8, "model_type": "{kind}", "{key}": 8}}',
                "found a mixture of experts, whose weights may not all reach the sampler; backend = ",
            )
            for kind, key in (
                ("qwen3_moe", "num_experts"),
                ("mixtral", "num_local_experts"),
                ("deepseek_v3", "n_routed_experts"),
            )
        ),
    ],
)
def test_configs(folder: Path, config: str, told: str) -> None:
    (folder / "config.json").write_text(config)
    (problem,) = models.check(folder)
    assert str(problem).startswith(f"real.model: {folder}/config.json: {told}")


@pytest.mark.parametrize("name", ["a\0b", "m" * 5000, "loop"])
def test_no_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (problem,) = models.check(name)
    assert str(problem).startswith("real.model: not a folder's name: ")
    assert len(str(problem)) < 400
    with pytest.raises(SpecError):
        models.folder(name, "problems.set")


@pytest.mark.real
def test_tokenizers(made: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for damaged in ("{", "[]", '{"model": 3}'):
        (folder / "tokenizer.json").write_text(damaged)
        with pytest.raises(DataError, match=r"isolaw cannot load its tokenizer: ."):
            models.tokenizer(folder)
    loaded = models.tokenizer(made.model)
    assert len(loaded(["1" * 500]).input_ids[0]) > 500
    assert "Token indices" not in caplog.text
