"""Weights from the trainer to vLLM: one that does not arrive is found at once, in four architectures."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from isolaw.backends.real.options import TOLERANCE
from isolaw.backends.real.rollout.samplers import SamplerSettings, Weights
from isolaw.errors import RunError

pytestmark = [pytest.mark.real, pytest.mark.slow]

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
# Biases; a norm of each head; a tied head.
KINDS = {"Qwen2": {}, "Qwen3": {}, "Llama": {"tie_word_embeddings": True}}
OFTEN, NIGHTLY = ("Qwen2",), ("Llama", "Qwen3")
# What attention hardly sees: without positions its softmax would not change at all.
FAINT = {"model.layers.0.self_attn.k_proj.bias"}
PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]


@pytest.fixture(params=[*OFTEN, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in NIGHTLY)])
def model(request: pytest.FixtureRequest, made: Any, tmp_path: Path) -> tuple[str, Any]:
    """A folder with a small random model of an architecture, and the model."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(made.model)
    own = {"vocab_size": len(tokenizer), "tie_word_embeddings": False, **SIZES, **KINDS[request.param]}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{request.param}Config")(**own, **tokens)
    torch.manual_seed(0)
    built = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 1:  # norms and biases, which all start alike
                parameter += 0.3 * torch.randn_like(parameter)
    for file in Path(made.model).glob("*token*"):
        shutil.copy(file, tmp_path)
    built.save_pretrained(tmp_path)
    return str(tmp_path), built


@torch.no_grad()
def difference(sampler: Any, model: Any) -> float:
    """Mean |Δ log p| of drawn tokens between sampler and model."""
    drawn = sampler.generate(PROMPTS, [list(range(8))] * 2, temperature=1.0, top_p=1.0, max_tokens=8)
    gaps = []
    for prompt, tokens, told in zip(drawn.prompts, drawn.tokens, drawn.logprobs, strict=True):
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        exact = logits.log_softmax(-1)[range(len(tokens)), tokens]
        gaps.append((exact - torch.tensor(told)).abs())
    return float(torch.cat(gaps).mean())


@pytest.mark.nightly
def test_any_weight_that_does_not_arrive_is_found_at_once(
    model: tuple[str, Any], ended_samplers: None
) -> None:
    from isolaw.backends.real.rollout.sampler_group import open_sampler

    folder, policy = model
    sampler: Any = open_sampler(SamplerSettings("vllm", folder, "float32", 32))
    assert difference(sampler, policy) < TOLERANCE["float32"]  # from the folder's files
    whole = {name: p.detach() for name, p in policy.named_parameters()}
    with torch.no_grad():
        for parameter in whole.values():  # a first update
            parameter += 0.05 * torch.randn_like(parameter)
    assert difference(sampler, policy) > TOLERANCE["float32"]
    sampler.load(iter(whole.items()))
    assert difference(sampler, policy) < TOLERANCE["float32"]
    noise = {name: torch.empty_like(p).uniform_(-1e-3, 1e-3) for name, p in whole.items()}
    losing = ""

    def lose(module: Any) -> None:
        inner = module.load_weights

        def load(weights: Weights) -> Any:
            return inner((name, tensor) for name, tensor in weights if name != losing)

        module.load_weights = load

    sampler.llm.apply_model(lose)
    for name in whole:
        with pytest.raises(RunError, match=r"(the trainer|vLLM) left out"):
            sampler.load((other, p) for other, p in whole.items() if other != name)
        # vLLM loses it, where every weight is still as a new vLLM has it.
        losing = ""
        sampler.load(iter(noise.items()))
        losing = name
        with contextlib.suppress(RunError):  # which names it
            sampler.load(iter(whole.items()))
            gap = difference(sampler, policy)
            assert not gap <= TOLERANCE["float32"], name
            assert not gap <= TOLERANCE["bfloat16"] or name in FAINT, name
    losing = ""
    sampler.load(iter(whole.items()))
    assert difference(sampler, policy) < TOLERANCE["float32"]


@pytest.fixture
def ended_samplers() -> Iterator[None]:
    from isolaw.backends.real.rollout.samplers import close_samplers

    yield
    close_samplers()
