"""A model with random weights, and problems for it, to try a machine (`gpu_selftest`) and in tests.

Importing this module does not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolaw.backends.real import BACKEND
from isolaw.config import RunSpec
from isolaw.errors import SpecError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

_CHARACTERS = "0123456789+-*="
_SPECIAL = ("<pad>", "<bos>", "<eos>")
# From the config.json of Qwen2.5-0.5B.
_HALF_BILLION = {
    "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "tie_word_embeddings": True,
}  # fmt: skip


def parity(prompt: Any, response: str, answer: str) -> float:
    """Return 1 for a response with an even number of characters, else 0.

    A model with random weights earns it for about half of its responses, so that advantages are not 0.
    """
    return float(len(response) % 2 == 0)


def make_tokenizer(size: int = 0, context: int = 32) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each character of arithmetic; it prepends ``<bos>`` to texts.

    It is filled up to ``size`` tokens with ``<17>``, ``<18>``, …, which no text contains.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    names = (*_SPECIAL, *_CHARACTERS)
    vocabulary = {name: i for i, name in enumerate((*names, *(f"<{i}>" for i in range(len(names), size))))}
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

    defaults: dict[str, object] = {
        "vocab_size": len(_SPECIAL) + len(_CHARACTERS),
        "hidden_size": 64,
        "intermediate_size": 256,
    }
    # Heads of size 32: vLLM's attention on a CPU needs at least 32.
    defaults |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    defaults |= {"max_position_embeddings": 32, "initializer_range": 0.1, "tie_word_embeddings": False}
    defaults |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**(defaults | shapes), dtype=dtype)).to(getattr(torch, dtype))


def write(folder: Path, device: str, shapes: Mapping[str, Any] = _HALF_BILLION) -> int:
    """Write a model and problems for a device; return the number of parameters.

    On a CPU, the model is tiny, else it has the given shapes.
    """
    from transformers.utils import logging

    from isolaw.backends.real.rollout.problems import Problem, write_set

    logging.disable_progress_bar()
    problems = [Problem(f"{a}+{b}", f"{a}+{b}=", str(a + b)) for a in range(24) for b in range(a + 1)]
    write_set(folder / "problems", {"train": problems[:256], "validation": problems[256:288]})
    model, tokenizer = make_model(), make_tokenizer()
    if device == "cuda":
        shapes = {**shapes, "max_position_embeddings": 4096, "initializer_range": 0.05}
        model, tokenizer = make_model(0, "bfloat16", **shapes), make_tokenizer(shapes["vocab_size"], 4096)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return sum(parameter.numel() for parameter in model.parameters())


def sections(folder: Path, device: str) -> dict[str, dict[str, Any]]:
    """Return the sections of a sweep file that trains the model that `write` wrote, without its grid."""
    on_gpu = device == "cuda"
    return {
        # This lr changes log-probabilities far more than rounding does: stale weights would show.
        "recipe": {"lr": 2e-4 if on_gpu else 5e-4, "lr_scaling": "constant", "warmup_steps": 1}
        | {"kl": 0.0, "entropy": 0.0, "temperature": 1.0, "max_response_tokens": 512 if on_gpu else 16},
        "problems": {"set": str(folder / "problems"), "n_validation": 4},
        "evaluation": {"points": 2, "samples": 1, "metrics": ["avg@1"]},
        "real": {"model": str(folder / "model"), "reward": f"{__name__}:parity"}
        | {"dtype": "bfloat16" if on_gpu else "float32", "checkpoint_minutes": 1e-9},  # after every step
    }


def spec_of(data: Mapping[str, Mapping[str, Any]], steps: int, b: int, n: int) -> RunSpec:
    """Return the resolved spec of a run of the given steps; raise `SpecError` if it cannot run here."""
    c = steps * b * n
    run = {
        "backend": "real", "problems_per_batch": b, "rollouts_per_problem": n, "seed": 0,
        "recipe": data["recipe"], "problems": data["problems"], "options": data["real"], "compute": c,
        "evaluation": {**data["evaluation"], "start": b * n, "end": c},
    }  # fmt: skip
    resolved = BACKEND.resolve(RunSpec.model_validate(run))
    if issues := BACKEND.check(resolved):
        raise SpecError(issues)
    return resolved
