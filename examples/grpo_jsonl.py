"""GRPO without a framework, as `isolaw sweep` starts it (examples/grpo_jsonl.toml); its log is JSON lines.

The model samples n responses to each of B_p problems and makes one step of AdamW on them. The environment
variables `ISOLAW_…` hold its settings; `ISOLAW_RESUME` is the checkpoint to continue from. A response is
right if it equals the answer.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

B_P, N, STEPS = (int(os.environ[f"ISOLAW_{name}"]) for name in ("B_P", "N", "STEPS"))
SEED, EVERY = int(os.environ["ISOLAW_SEED"]), int(os.environ["ISOLAW_EVERY"])
OUT, RESUME, LR = Path(os.environ["ISOLAW_OUT"]), os.environ["ISOLAW_RESUME"], float(os.environ["ISOLAW_LR"])
folder, problems = sys.argv[1:]
train, validation = (
    [json.loads(line) for line in Path(problems, f"{part}.jsonl").read_text().splitlines()]
    for part in ("train", "validation")
)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(RESUME or folder)
optimiser = torch.optim.AdamW(model.parameters(), lr=LR)
done = 0
if RESUME:
    optimiser.load_state_dict(torch.load(f"{RESUME}/optimiser.pt", weights_only=True))
    done = int(Path(RESUME).name.removeprefix("step-"))


def sample(asked: list[dict[str, str]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return prompts with responses, a mask of the response tokens, and the rewards."""
    inputs = tokenizer([problem["prompt"] for problem in asked], return_tensors="pt", padding=True)
    start = inputs.input_ids.shape[1]
    with torch.no_grad():
        tokens = model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=6)
    texts = tokenizer.batch_decode(tokens[:, start:], skip_special_tokens=True)
    rewards = [float(text == problem["answer"]) for text, problem in zip(texts, asked, strict=True)]
    mask = tokens != tokenizer.pad_token_id
    mask[:, :start] = False
    return tokens, mask, torch.tensor(rewards)


with (OUT / "metrics.jsonl").open("a") as log:
    for step in range(done + 1, STEPS + 1):
        torch.manual_seed(1_000_003 * SEED + step)  # so that a training that was interrupted is the same
        asked = random.Random(f"{SEED} {step}").sample(train, B_P)
        tokens, mask, rewards = sample([problem for problem in asked for _ in range(N)])
        groups = rewards.reshape(B_P, N)
        advantages = (
            (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        ).flatten()
        logits = model(tokens, attention_mask=tokens != tokenizer.pad_token_id).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        loss = -(advantages[:, None] * logprobs * mask[:, 1:]).sum() / mask.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        record = {"step": step, "n": N, "B_p": B_P, "reward": rewards.mean().item()}
        print(json.dumps(record), file=log, flush=True)
        if step % EVERY == 0 or step == STEPS:
            _, _, right = sample(validation)
            print(json.dumps({"step": step, "eval/reward": right.mean().item()}), file=log, flush=True)
            model.save_pretrained(OUT / f"step-{step}")
            torch.save(optimiser.state_dict(), OUT / f"step-{step}/optimiser.part")
            os.rename(OUT / f"step-{step}/optimiser.part", OUT / f"step-{step}/optimiser.pt")
