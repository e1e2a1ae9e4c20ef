"""Models of other architectures than the tiny model: right row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from isolaw.backends.real.rollout.samplers import Rollouts

pytestmark = pytest.mark.real

# Wide weights: what is computed wrongly shows. Numbers of tokens cross the window.
COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
RIGHT: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True, "attention_dropout": 0.1},
    "Mistral": {"sliding_window": 12},
}
PROMPTS = [[5, 6, 7, 8], [9], list(range(3, 20)), [9]]
RESPONSES = [[11, 12, 13, 14, 15, 16], [17], list(range(20, 36)), []]
ROWS = Rollouts(PROMPTS, RESPONSES, [[0.0] * len(t) for t in RESPONSES], [True] * 4)


def saved(folder: Path, name: str, **more: Any) -> str:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **more})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.0)  # biases that are not 0
    model.save_pretrained(folder)
    return str(folder)


def weighted(rows: Any, packed: Any, logp: Any, entropy: Any) -> Any:
    return sum(((row + 1) * values.sum() for row, values in zip(rows, logp, strict=False)), logp.sum() * 0)


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.nightly), 3])
@pytest.mark.parametrize("name", RIGHT)
def test_another_architecture_is_right_row_by_row(tmp_path: Path, name: str, stage: int) -> None:
    from isolaw.backends.real.train.trainer import Trainer

    folder = saved(tmp_path, name, **RIGHT[name])
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    exact = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        logits = plain(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 :]
        chosen = torch.tensor(response, dtype=torch.long)
        exact.append((logits[: len(response)] / 0.7).log_softmax(-1).gather(-1, chosen[:, None])[:, 0])
    sum((row + 1) * values.sum() for row, values in enumerate(exact)).backward()

    trainer = Trainer(folder, zero_stage=stage, micro_batch_tokens=30, max_grad_norm=0.0)
    try:
        for mine, theirs in zip(trainer.logprobs(ROWS, 0.7), exact, strict=True):
            torch.testing.assert_close(mine, theirs.detach(), atol=1e-4, rtol=1e-4)
        trainer.backward(ROWS, weighted, temperature=0.7)
        found = trainer.gradients()
    finally:
        trainer.close()
    gradient = {key: p.grad for key, p in plain.named_parameters() if p.grad is not None}
    assert gradient.keys() <= found.keys()
    whole = torch.cat([value.flatten() for value in gradient.values()]).norm()
    for key, value in gradient.items():
        assert (found[key] - value).norm() <= 1e-4 * value.norm() + 1e-6 * whole, key
