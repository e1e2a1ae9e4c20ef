"""The first stage: models of random weights, their tokenizers, and problems of arithmetic."""

from __future__ import annotations

from pathlib import Path

from isolaw.backends.real import arithmetic, environment
from isolaw.backends.real.checkup.record import Record
from isolaw.backends.real.checkup.workplace import Workplace

environment.prepare()

import torch  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

from isolaw.backends.real import tiny  # noqa: E402

_CONTEXT = 4096
# The shapes of Qwen2.5-0.5B (its config.json), and a model whose state takes 60 MB.
_HALF_BILLION = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
_SMALL = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


def run(work: Workplace, record: Record) -> None:
    """Make everything that the other stages need."""
    logging.disable_progress_bar()
    arithmetic.write(work.problems, ["add-100"], n_train=256, n_validation=32)
    if work.on_gpu:
        parameters = _make(work.model, _HALF_BILLION)
        _make(work.small, _SMALL)
    else:
        parameters = _save(work.model, tiny.make_model(), tiny.make_tokenizer())
        work.small.symlink_to(work.model)
    record.measure(architecture="Qwen2", parameters=parameters, weights="random")


def _make(folder: Path, shapes: dict[str, int]) -> int:
    # With the usual initial standard deviation of 0.02 the next token would be nearly uniform over the
    # vocabulary, and stale weights would not show.
    config = Qwen2Config(
        **shapes,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.05,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    return _save(folder, model, tiny.make_tokenizer(shapes["vocab_size"], _CONTEXT))


def _save(folder: Path, model: Qwen2ForCausalLM, tokenizer: object) -> int:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]
    return sum(parameter.numel() for parameter in model.parameters())
