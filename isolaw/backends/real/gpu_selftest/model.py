"""Run the first stage: create random models, character-level tokenizers, and sums as problems."""

from __future__ import annotations

from pathlib import Path

from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload
from isolaw.backends.real.rollout.problems import Problem, write_set

environment.prepare()

import torch  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors  # noqa: E402
from tokenizers.models import BPE  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

CHARACTERS = "0123456789+-*="
SPECIAL = ("<pad>", "<bos>", "<eos>")
_CONTEXT = 4096
# The shapes of Qwen2.5-0.5B (from its config.json), and of a small model with a state of 60 MB.
_HALF_BILLION = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "tie_word_embeddings": True,
}
_SMALL = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def make_tokenizer(size: int = 0, context: int = 32) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each character of arithmetic; it prepends ``<bos>`` to texts.

    It is filled up to ``size`` tokens with ``<17>``, ``<18>``, …, which no text contains.

    >>> tokenizer = make_tokenizer()
    >>> tokenizer("17+25=").input_ids
    [1, 4, 10, 13, 5, 8, 16]
    >>> tokenizer.decode([7, 5, 2], skip_special_tokens=True)
    '42'
    """
    known = (*SPECIAL, *CHARACTERS)
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
        "vocab_size": len(SPECIAL) + len(CHARACTERS),
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


def run(work: Workload, record: Record) -> None:
    """Write the models and the problems that the other stages use."""
    logging.disable_progress_bar()
    sums = [Problem(f"{a}+{b}", f"{a}+{b}=", str(a + b)) for a in range(24) for b in range(a + 1)]
    write_set(work.problems, {"train": sums[:256], "validation": sums[256:288]})
    if work.on_gpu:
        parameters = _large(work.model, _HALF_BILLION)
        _large(work.small, _SMALL)
    else:
        parameters = _save(work.model, make_model(), make_tokenizer())
        work.small.symlink_to(work.model)
    record.measure(architecture="Qwen2", parameters=parameters, weights="random")


def _large(folder: Path, shapes: dict[str, int]) -> int:
    more = {**shapes, "max_position_embeddings": _CONTEXT, "initializer_range": 0.05}
    tokenizer = make_tokenizer(shapes["vocab_size"], _CONTEXT)
    return _save(folder, make_model(0, torch.bfloat16, **more), tokenizer)


def _save(folder: Path, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> int:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
