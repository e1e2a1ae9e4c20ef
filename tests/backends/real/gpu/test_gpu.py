"""What only a GPU can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from isolaw import engine
from isolaw.backends.real import environment
from isolaw.errors import RunError
from tests.backends.real.gpu.workload import Workload

pytestmark = [pytest.mark.gpu, pytest.mark.real, pytest.mark.slow]


def test_attention_sees_its_own_row(work: Workload) -> None:
    """Log-probabilities of rows of unequal lengths, batched on the GPU, against each alone on the CPU."""
    from transformers import AutoModelForCausalLM

    from isolaw.backends.real.rollout.samplers import Rollouts
    from isolaw.backends.real.train.trainer import Trainer

    generator = torch.Generator().manual_seed(0)
    lengths = [(5, 1), (40, 300), (7, 65), (130, 17), (64, 64), (1, 511)]
    rows = [[torch.randint(1000, (n,), generator=generator).tolist() for n in pair] for pair in lengths]
    prompts, tokens = ([row[i] for row in rows] for i in (0, 1))
    rollouts = Rollouts(prompts, tokens, [[0.0] * len(t) for t in tokens], [True] * len(rows))
    trainer = Trainer(str(work.model), dtype="bfloat16")
    try:
        found = [values.float().cpu() for values in trainer.logprobs(rollouts, 1.0)]
    finally:
        trainer.close()
    exact = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
    for (prompt, response), mine in zip(rows, found, strict=True):
        with torch.no_grad():
            logits = exact(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        theirs = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        # Rounding (0.05 on an H200); a row that saw another one would differ by several.
        assert float((mine - theirs).abs().mean()) < 0.3, (len(prompt), len(response))


@pytest.mark.parametrize("window", [None, 1, 16, 200])
def test_the_kernel_sees_the_window_that_side_by_side_attention_sees(window: int | None) -> None:
    """Whether the token itself counts is each kernel's convention; half precision hides no whole token."""
    from isolaw.backends.real.rollout.samplers import Rollouts
    from isolaw.backends.real.train import packing

    lengths = (5, 300, 17, 65)
    rows = Rollouts([[k] for k in range(4)], [[1] * (n - 1) for n in lengths], [], [])
    torch.manual_seed(0)
    parts = [torch.randn(1, h, sum(lengths), 64, device="cuda", dtype=torch.bfloat16) for h in (4, 2, 2)]
    found, exact = (
        packing._attention(
            None,
            *parts,
            None,
            layout=packing.pack(rows, parts[0].device, varlen=varlen).layout,
            sliding_window=window,
        )[0]
        for varlen in (True, False)
    )
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0.02)


def test_out_of_memory_is_told_in_one_message(work: Workload) -> None:
    from isolaw.backends.real.train import loop

    spec = work.spec(1, 8, 8, real={"sampler": "transformers"})
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(RunError, match=r"out of memory .* lower real\.micro_batch_tokens"):
            list(loop.train(spec, None))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_vllm_finds_its_memory_taken(small: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM wakes in memory that it had given up; its allocator raises an error of its own."""
    from isolaw.backends.real.train import loop
    from isolaw.backends.real.train.learner import Learner

    held = []
    update = Learner.update

    def greedy(self: Learner, *batch: Any) -> dict[str, float]:
        measured = update(self, *batch)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        held.append(torch.empty(free - 2**29, dtype=torch.uint8, device="cuda"))
        return measured

    monkeypatch.setattr(Learner, "update", greedy)
    spec = small.spec(2, 8, 8, recipe={"max_response_tokens": 32}, real={"sampler": "vllm"})
    with pytest.raises(RunError, match=r"out of memory .* lower real\.micro_batch_tokens"):
        list(loop.train(spec, None))


@pytest.mark.skipif(environment.gpus() < 2, reason="needs two GPUs")
def test_samplers_of_two_processes_agree_with_their_trainers(small: Workload, tmp_path: Path) -> None:
    data = small.sections(8, 8, sweep={"compute": 5 * 64}, real={"processes": 2, "zero_stage": 2})
    table = engine.sweep(data, tmp_path / "out").to_pandas()
    mismatch = table[table.metric == "mismatch"].value
    assert len(mismatch)
    assert float(mismatch.max()) < 0.03
