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
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32, "max_position_embeddings": 32,
}  # fmt: skip
WHOLE = struct.pack("<Q", len(HEADER)) + HEADER + b"1234"


def changed(**keys: Any) -> str:
    return json.dumps(LLAMA | keys)


def without(key: str) -> str:
    return json.dumps({name: value for name, value in LLAMA.items() if name != key})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
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


def test_weights_that_are_no_file(folder: Path) -> None:
    (folder / "a.safetensors").mkdir()
    (folder / "b.safetensors").symlink_to(folder / "nowhere")
    assert len(models.check(folder)) == 2


@pytest.mark.parametrize("value", ["true", "0", "-1", "1e400", "NaN", '"32"', "32.5", "[]"])
def test_a_context_that_is_none(folder: Path, value: str) -> None:
    text = json.dumps(LLAMA).replace('"max_position_embeddings": 32', f'"max_position_embeddings": {value}')
    (folder / "config.json").write_text(text)
    (problem,) = models.check(folder)
    assert "expected an integer of at least 1" in str(problem)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        models.context(folder)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        (without("max_position_embeddings"), "max_position_embeddings is missing"),
        (
            changed(architectures=["Qwen2ForSequenceClassification"]),
            "architectures: found ['Qwen2ForSequenceClassification']; expected a causal language model",
        ),
        *(
            (
                changed(model_type=kind),
                f"model_type: found {kind!r}; expected one of llama, mistral, qwen2, qwen3; "
                'backend = "command" sweeps with a trainer of your own (docs/trainers.md)',
            )
            for kind in ("gemma3_text", "qwen3_5_moe", "gpt_oss", "mixtral")
        ),
        (without("vocab_size"), "the sizes of a model of type llama are incomplete or invalid"),
        (changed(hidden_size="big"), "the sizes of a model of type llama are incomplete or invalid"),
        (
            changed(rope_scaling={"type": "longrope"}),
            "rope_type: found longrope, with which positions depend",
        ),
        (changed(rope_parameters={"rope_type": "longrope"}), "rope_type: found longrope"),
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
