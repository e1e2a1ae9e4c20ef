"""LoRA: its gradient is the full one's projection, its sum with W is what is sampled, and it learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file

from isolaw import engine
from isolaw.backends.real import BACKEND
from isolaw.backends.real.algorithms.lora import LoRA
from isolaw.backends.real.export import export
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train.loop import Run
from isolaw.backends.real.train.loop import train as steps
from isolaw.store import SweepStore

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROWS = Rollouts(
    [[1, 5 + k % 4, 9] for k in range(8)],
    [[3 + k, 7, 2][: 1 + k % 3] for k in range(8)],
    [[]] * 8,
    [True] * 8,
)
Tensors = dict[str, torch.Tensor]


def weighted(rows: list[int], packed: Any, logp: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([(row % 5) - 1.5 for row in rows])
    return (weights[:, None] * packed.mask * logp).sum() / 8


@pytest.fixture
def trainer(made) -> Any:
    """Make trainers of the tiny model, which are closed."""
    from isolaw.backends.real.train.trainer import Trainer

    opened: list[Any] = []

    def make(lora: LoRA | None = None, **more: Any) -> Any:
        opened.append(Trainer(str(made.model), max_grad_norm=0.0, lora=lora, **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def gradients(one: Any) -> Tensors:
    one.backward(ROWS, weighted, temperature=0.8)
    return one.gradients()


def split(tensors: Tensors) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and B of each layer."""
    ends = ".lora_A.default.weight", ".lora_B.default.weight"
    names = [name.removesuffix(ends[0]) for name in tensors if name.endswith(ends[0])]
    assert len(tensors) == 2 * len(names)
    return {name: (tensors[name + ends[0]], tensors[name + ends[1]]) for name in names}


def test_its_gradient_is_the_projection_of_the_full_one(trainer) -> None:
    full = trainer()
    expected = gradients(full)
    one = trainer(LoRA(4, alpha=6.0))
    found, factors = split(gradients(one)), split(dict(one._trained()))
    assert len(found) == 2 * 7  # of each of two decoder layers, and neither embedding nor head
    for name, (to_a, to_b) in found.items():
        a, b = (factor.detach() for factor in factors[name])
        assert not b.any()
        assert not to_a.any()
        exact = 6.0 / 4 * expected[f"{name}.weight"] @ a.T
        assert float((to_b - exact).norm() / exact.norm()) <= 1e-5, name
    one.update(1e-2)
    gradients(one)
    one.update(1e-2)  # now neither is 0: at W + s B A, ∂L/∂A = s Bᵀ ∂L/∂W
    merged = {name: value.clone() for name, value in one.weights()}
    full.model.load_state_dict(merged)
    full.engine.zero_grad()
    expected, found = gradients(full), split(gradients(one))
    for name, (to_a, to_b) in found.items():
        a, b = (factor.detach() for factor in factors[name])
        whole = 6.0 / 4 * expected[f"{name}.weight"]
        for item, exact in ((to_a, b.T @ whole), (to_b, whole @ a.T)):
            assert float((item - exact).norm() / exact.norm()) <= 1e-4, name


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.nightly), 3])
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.nightly), "bfloat16"])
def test_every_stage_of_zero_trains_the_same_adapters(trainer, made, stage: int, dtype: str) -> None:
    lora = LoRA(4, seed=3)
    states, bases = [], []
    base = {k: v.to(getattr(torch, dtype)) for k, v in load_file(made.model / "model.safetensors").items()}
    for one in (trainer(lora, dtype=dtype), trainer(lora, dtype=dtype, zero_stage=stage)):
        reference = one.frozen_policy(str(made.model))
        gaps = []

        def loss(*args: Any, one=one, reference=reference, gaps=gaps) -> torch.Tensor:
            with torch.no_grad():
                gaps.append((args[2] - reference(args[1], 0.8)[0]).abs().max())
            return weighted(*args)

        for _ in range(3):
            one.backward(ROWS, loss, temperature=0.8)
            one.update(1e-3)
        assert float(gaps[0]) == 0.0 < float(gaps[1])  # the base model, without a copy of it
        weights = {name: value.clone() for name, value in one.weights()}
        assert weights.keys() == base.keys()
        changed = {name.split(".")[-2] for name in base if not torch.equal(weights[name], base[name])}
        assert changed == {*(f"{x}_proj" for x in "qkvo"), "gate_proj", "up_proj", "down_proj"}
        states.append(weights)
        bases.append(one.logprobs(ROWS, 0.8, reference))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=1e-6 if dtype == "float32" else 1e-2)
    for mine, theirs in zip(*bases, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", [pytest.param("grpo", marks=pytest.mark.nightly), "ppo"])
def test_it_continues_from_any_checkpoint_with_a_state_of_adapters(
    resolved: Callable[..., Any], train, tmp_path: Path, algorithm: str
) -> None:
    more: dict[str, Any] = {
        "sweep": {"compute": 4 * 32, "seeds": [1]},
        "recipe": {"algorithm": algorithm, "lora_rank": 3, "kl": 0.01, "staleness": 1, "lr": 1e-2},
        "evaluation": {"points": 1000},
        "real": {"sampler": "transformers", "checkpoint_minutes": 1e-9},
    }
    whole = train(**more)
    assert max(whole["train", "kl"].values()) > 1e-3
    for checkpoint in steps(resolved(**more), None):
        folder = tmp_path / str(checkpoint.step)
        folder.mkdir()
        checkpoint.save(folder)
    rest = list(steps(resolved(**more), tmp_path / "2"))
    lines = [c.line(0.0) for c in rest if c.rows]
    for line in lines:
        del line["seconds"], line["machine"]
    assert lines == [line for line in whole.lines() if line["step"] > 2]
    stored = load_file(tmp_path / "2" / "model.safetensors")
    assert all(".lora_" in name for name in stored)
    numbers = sum(value.numel() for value in stored.values())
    spec = resolved(**more)
    assert numbers == LoRA.of(spec.recipe).parameter_count(spec.sources["model"])
    expected = 12 * numbers * (2 if algorithm == "ppo" else 1)
    assert BACKEND.needs(spec).disk_bytes == expected


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.nightly), "bfloat16"])
def test_an_export_has_the_weights_that_are_sampled(sections, trainer, tmp_path: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM

    recipe = {"lora_rank": 5, "lora_alpha": 10.0, "lr": 2e-2}
    real = {"sampler": "transformers", "dtype": dtype, "logprob_tolerance": 0.5}
    engine.sweep(sections(recipe=recipe, real=real), tmp_path / "out")
    (run,) = (tmp_path / "out" / "runs").iterdir()
    export(run, tmp_path / "model")
    one = trainer(LoRA(5, 10.0), dtype=dtype)
    one.restore(SweepStore(tmp_path / "out").run(run.name).states.folder(5))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    own, sampled = dict(loaded.named_parameters()), dict(one.weights())
    assert own.keys() == sampled.keys()
    assert all(torch.equal(own[name], sampled[name]) for name in own)
    ids = torch.tensor([[1, 5, 9, 3, 7, 7, 2]])
    logits = []
    for model in (loaded, one.model):
        model.eval().set_attn_implementation("eager")
        with torch.no_grad():
            logits.append(model(input_ids=ids, use_cache=False).logits.float())
    gap = float((logits[0] - logits[1]).abs().max())
    assert gap <= (1e-4 if dtype == "float32" else 0.2)


@pytest.mark.parametrize("sampler", ["vllm", pytest.param("transformers", marks=pytest.mark.nightly)])
def test_sampler_and_trainer_agree_over_a_run(train, sampler: str) -> None:
    recipe = {"lora_rank": 8, "lr": 2e-2}
    curve = train(recipe=recipe, sweep={"compute": 12 * 32}, real={"sampler": sampler})
    assert max(curve["train", "mismatch"].values()) <= 1e-5  # the run itself asserts 1e-4 at each step
    assert curve.last.step == 12


@pytest.fixture
def rise(train, made) -> Callable[..., float]:
    def made_of(seed: int, **recipe: Any) -> float:
        curve = train(
            sweep={"compute": 16_384, "seeds": [seed]},
            grid={"problems_per_batch": [32]},
            recipe={"warmup_steps": 10, **recipe},
            problems={"set": str(made.sums), "n_train": None, "n_validation": None},
            evaluation={"points": 2},
            real={"sampler": "transformers"},
        )
        return float(curve["avg@4"][128] - curve["avg@4"][0])

    return made_of


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rank_as_large_as_the_layers_learns_what_the_whole_model_does(
    rise: Callable[..., float], seed: int
) -> None:
    """E = 64 is the most that a layer's rank can be."""
    lora, full = rise(seed, lora_rank=64, lr=3e-3), rise(seed, lr=1.5e-3)
    assert lora >= 0.15
    assert abs(lora - full) <= 0.15


def test_the_weights_beneath_stay_as_they_are(resolved) -> None:
    """Nothing adds up: after many hand-overs W is still the base model's."""
    one = Run(resolved(recipe={"lora_rank": 2, "lr": 2e-2}, real={"sampler": "transformers"}))
    try:
        base = {k: v.clone() for k, v in one.trainer.model.named_parameters() if not v.requires_grad}
        for _ in range(4):
            one.advance()
        assert all(torch.equal(dict(one.trainer.model.named_parameters())[k], v) for k, v in base.items())
    finally:
        one.close()
