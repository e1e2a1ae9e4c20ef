"""Models of other architectures: right row by row, or refused for a reason that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.errors import RunError

pytestmark = pytest.mark.real

# Wide weights: what is computed wrongly shows. Numbers of tokens cross the windows and longrope's length.
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
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
RIGHT: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True, "attention_dropout": 0.1},
    "Mistral": {"sliding_window": 12},
    "Gemma3Text": {"tie_word_embeddings": True, **WINDOW},
    "Qwen3Moe": EXPERTS,
    "Phi": {},  # its head has a bias
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "tie_word_embeddings": True},
}
LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "shared_expert_intermediate_size": 32,
    **EXPERTS,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Gemma2": ({}, "attention with softcap is not supported"),
    "Granite": ({"logits_scaling": 8.0, "initializer_range": 1e-3}, "scales or caps"),
    "Qwen3Next": (LINEAR, "pass a state from row to row"),
    "Lfm2": ({"layer_types": ["conv", "full_attention"]}, "pass a state from row to row"),
    "Doge": ({}, "attention with a mask of its own is not supported"),
    "StableLm": ({}, "do not pass the layout of rows to attention"),
    "GPTJ": ({"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, "its attention does not use"),
    "Qwen3_5Text": (LINEAR, "pass a state from row to row"),
    "GptOss": ({"num_local_experts": 4, "num_experts_per_tok": 2}, "attention with s_aux is not supported"),
    "Llama4Text": (
        {"num_local_experts": 2, "intermediate_size_mlp": 96},
        "cannot be called with packed rows",
    ),
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", REFUSED)
def test_another_architecture_is_refused_by_name(tmp_path: Path, name: str, dtype: str) -> None:
    from isolaw.backends.real.train import policy

    more, why = REFUSED[name]
    folder = saved(tmp_path, name, **more)
    device = torch.device("cpu")
    with pytest.raises(
        RunError, match=f"^{name.removesuffix('Text')}ForCausalLM cannot be trained: .*{why}"
    ) as raised:
        policy.check_packing(
            policy.Policy(policy.pretrained(folder, dtype, device)), dtype, device, varlen=False
        )
    assert str(raised.value).endswith(
        'backend = "command" sweeps with a trainer of your own (docs/trainers.md)'
    )


def test_a_row_beyond_longrope_is_refused(tmp_path: Path) -> None:
    # transformers takes the factors of the longest row for all rows of a forward pass.
    from isolaw.backends.real.train import packing, policy

    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 10}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    folder = saved(tmp_path, "Phi3", rope_parameters=rope, original_max_position_embeddings=10)
    device = torch.device("cpu")
    loaded = policy.Policy(policy.pretrained(folder, "float32", device))
    policy.check_packing(loaded, "float32", device, varlen=False)
    loaded(packing.pack(ROWS.rows([0, 1, 3]), device), 1.0)
    with pytest.raises(RunError, match="Phi3ForCausalLM cannot be trained on a row of 33 tokens"):
        loaded(packing.pack(ROWS, device), 1.0)
