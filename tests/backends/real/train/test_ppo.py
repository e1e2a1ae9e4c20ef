"""PPO in a run: its update against plain loops, the same however it is computed; its state; several updates.

Started by torchrun, this file is also the program of the processes (`main`).
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from isolaw.backend import UnreadableState
from isolaw.backends.real.train.loop import Run
from isolaw.backends.real.train.loop import train as steps
from isolaw.config import RunSpec

pytestmark = [pytest.mark.real, pytest.mark.slow]

PLAIN: dict[str, Any] = {"algorithm": "ppo", "gamma": 0.9, "gae_lambda": 0.8, "kl": 0.1, "lr": 5e-3}
# A stale policy, every term, and four updates on each batch.
RECIPE = PLAIN | {
    "staleness": 1, "epochs": 2, "minibatches": 2, "clip_low": 0.02, "clip_high": 0.03, "value_clip": 0.05,
    "entropy": 0.01, "importance_sampling": "token",
}  # fmt: skip
# Answers have up to four tokens, the end included: most are interrupted, and some of them are cut.
INTERRUPTED = {"interrupt_at": [1, 4], "answer_tokens": 2, "interrupt_phrase": "=1", "max_response_tokens": 6}
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def run(resolved):
    """A run that is made step by step, and closed."""
    made = []

    def begin(**more: Any) -> Run:
        made.append(one := Run(resolved(real={"sampler": "transformers"}, **more)))
        return one

    yield begin
    for one in made:
        one.close()


# -- against plain loops ----------------------------------------------------------------------------------


Row = tuple[list[int], list[int], list[int]]  # prompt, response, which of its tokens were inserted


def rows_of(batch: Any) -> list[Row]:
    drawn = batch.rollouts
    return list(zip(drawn.prompts, drawn.tokens, drawn.inserted, strict=True))


def places(row: Row) -> list[int]:
    """Where in a response its drawn tokens are."""
    _, tokens, (first, end) = row
    return [t for t in range(len(tokens)) if not first <= t < end]


def row_states(model: Any, row: Row) -> torch.Tensor:
    """The last hidden states before each drawn token of a response."""
    prompt, tokens, _ = row
    states = model.base_model(torch.tensor([prompt + tokens])).last_hidden_state[0]
    return states[[len(prompt) - 1 + t for t in places(row)]]


def row_values(model: Any, row: Row) -> torch.Tensor:
    return row_states(model, row) @ model.get_output_embeddings().weight[0]


def row_logprobs(model: Any, row: Row) -> torch.Tensor:
    drawn = [row[1][t] for t in places(row)]
    logits = row_states(model, row) @ model.get_output_embeddings().weight.T
    return torch.log_softmax(logits, -1)[range(len(drawn)), drawn]


def plain(model: Any) -> Any:
    """A copy with the model's own attention."""
    copied = copy.deepcopy(model)
    copied.set_attn_implementation("eager")
    return copied


def explicit(one: Run, batch: Any, own: dict[str, Any], beta: float, gamma: float, lam: float) -> list[Any]:
    """Advantages, values and targets of each token, in loops."""
    rewards = batch.rewards.flatten().tolist()
    out = []
    for row, reward in zip(rows_of(batch), rewards, strict=True):
        with torch.no_grad():
            values = row_values(own["critic"], row).tolist()
            kl = (row_logprobs(own["policy"], row) - row_logprobs(own["base"], row)).tolist()
        n = len(values)
        paid = [-beta * k for k in kl]
        paid[-1] += reward
        errors = [paid[t] + (gamma * values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)]
        raw = [sum((gamma * lam) ** (s - t) * errors[s] for s in range(t, n)) for t in range(n)]
        out.append([raw, values, [a + v for a, v in zip(raw, values, strict=True)]])
    tokens = [a for raw, *_ in out for a in raw]
    mean = math.fsum(tokens) / len(tokens)
    deviation = math.sqrt(math.fsum((a - mean) ** 2 for a in tokens) / (len(tokens) - 1) + 1e-8)
    return [([(a - mean) / deviation for a in raw], values, returns) for raw, values, returns in out]


@pytest.mark.parametrize(
    "more", [pytest.param({}, marks=pytest.mark.nightly), INTERRUPTED], ids=["whole", "interrupted"]
)
def test_an_update_is_that_of_plain_loops(run, made, more: dict[str, Any]) -> None:
    """Tokens that were inserted have no advantage, no target and no gradient: the next drawn one follows."""
    from transformers import AutoModelForCausalLM

    grid = {"problems_per_batch": [12], "rollouts_per_problem": [3]}  # some sums have two digits
    one = run(recipe=PLAIN | more, grid=grid, sweep={"seeds": [3], "compute": 360})
    for _ in range(6):
        one.advance()
    batch = one.generate()
    assert len(set(batch.lengths.flatten().tolist())) > 1
    interrupted = sum(end > 0 for _, end in batch.rollouts.inserted)
    assert 3 < interrupted < 36 if more else interrupted == 0
    trainers = {"policy": one.trainer, "critic": one.learner.ppo.critic}
    own = {name: plain(trainer.model) for name, trainer in trainers.items()}
    own["base"] = AutoModelForCausalLM.from_pretrained(made.model, dtype=torch.float32)
    expected = explicit(one, batch, own, 0.1, 0.9, 0.8)
    targets = one.learner.ppo.targets(
        batch, batch.rewards - one.learner.penalties(batch), one.learner.token_penalties(batch)
    )
    for row, columns in enumerate(expected):
        for found, column in zip((targets.advantages, targets.values, targets.returns), columns, strict=True):
            assert found[row, : len(column)].tolist() == pytest.approx(column, abs=1e-4)
            assert not found[row, len(column) :].any()
    assert targets.values.std() > 0.01  # the critic has learned something
    # The gradients of both: of means over the tokens of the batch.
    count = int(batch.lengths.sum())
    for row, (advantages, _, returns) in zip(rows_of(batch), expected, strict=True):
        policy = -(row_logprobs(own["policy"], row) * torch.tensor(advantages)).sum() / count
        value = (row_values(own["critic"], row) - torch.tensor(returns)).square().sum() / 2 / count
        (policy + value).backward()
    gradients: dict[str, Tensors] = {}
    for name, trainer in trainers.items():
        watch(trainer, lambda found, name=name: gradients.setdefault(name, found))
    measured = one.learner.update(batch, one.step + 1)
    for name, model in own.items():
        if name != "base":
            whole = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
            assert difference({key: gradients[name][key] for key in whole}, whole) <= 1e-3, name
    assert measured["critic_lr"] == pytest.approx(10 * measured["lr"])
    spread = torch.tensor([x for *_, column in expected for x in column]).var()
    off = torch.tensor([r - v for _, vs, rs in expected for v, r in zip(vs, rs, strict=True)]).var()
    assert measured["explained_variance"] == pytest.approx(float(1 - off / spread), abs=1e-3)


def watch(trainer: Any, note: Callable[[Tensors], Any]) -> None:
    """Have the gradient of each update noted."""
    update = trainer.update

    def watched(lr: float) -> float:
        found = trainer.gradients()
        norm = update(lr)
        note(found | {"norm": torch.tensor(norm)})
        return norm

    trainer.update = watched


def difference(one: Tensors, other: Tensors) -> float:
    """‖x - y‖ / ‖y‖ over all tensors together."""
    assert one.keys() == other.keys()
    square = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return math.sqrt(square / sum(float(value.double().square().sum()) for value in other.values()))


# -- several updates on a batch ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    ["ppo", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("grpo", "cispo"))],
)
def test_several_updates_on_a_batch_count_its_rollouts_once(train, algorithm: str) -> None:
    recipe = {"algorithm": algorithm, "epochs": 3, "minibatches": 2, "lr": 5e-3}
    curve = train(recipe=recipe, real={"sampler": "transformers"}, evaluation={"points": 1000})
    assert [c.compute for c in curve.checkpoints] == [0, 32, 64, 96, 128, 160]
    assert set(curve["train", "reuse"].values()) == {3.0}
    assert set(curve["train", "updates"].values()) == {6.0}
    assert min(curve["train", "ratio_max"].values()) > 1.01
    assert max(curve["train", "mismatch_max"].values()) <= 1e-4  # of the policy at the start of the batch
    top = 5e-3 * (16 / 1024) ** 0.5  # of the rollouts of a mini-batch
    assert list(curve["train", "lr"].values()) == pytest.approx([top] * 5)


def test_a_mini_batch_is_of_whole_groups_and_ratios_are_to_the_start(run) -> None:
    one = run(recipe={"minibatches": 4, "epochs": 2, "lr": 0.02, "clip_low": 1.0})
    batch = one.generate()
    old = one.learner.logprobs(batch.rollouts)
    seen, norms = [], []
    backward = one.trainer.backward
    watch(one.trainer, lambda found: norms.append(float(found["norm"])))
    one.trainer.backward = lambda rows, *more, **also: seen.append(rows) or backward(rows, *more, **also)
    before = {name: value.clone() for name, value in one.trainer.weights()}
    measured = one.learner.update(batch, 1)
    assert one.trainer.steps == 8
    assert measured["grad_norm"] == pytest.approx(np.mean(norms))
    for epoch in (seen[:4], seen[4:]):
        problems = [rows.prompts[::4] for rows in epoch]
        assert [len(rows) for rows in epoch] == [8] * 4
        assert all(rows.prompts[i] == rows.prompts[i - i % 4] for rows in epoch for i in range(8))
        assert sorted(p for problem in problems for p in problem) == sorted(batch.rollouts.prompts[::4])
    assert [rows.prompts for rows in seen[:4]] != [rows.prompts for rows in seen[4:]]
    for mine, theirs in zip(batch.old_logprobs, old, strict=True):
        assert torch.equal(mine, theirs)
    assert any(not torch.equal(value, before[name]) for name, value in one.trainer.weights())


def test_the_filter_leaves_out_mini_batches_without_any_rollout(run, reward) -> None:
    one = run(recipe={"minibatches": 8, "zero_variance_filter": True})
    batch = one.generate()
    count = int((batch.rewards.amax(1) > batch.rewards.amin(1)).sum())
    assert 0 < count < 8
    measured = one.learner.update(batch, 1)
    assert (one.trainer.steps, measured["updates"], measured["reuse"]) == (count, count, 1.0)


# -- its state --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_it_continues_from_any_checkpoint_also_with_single_rollouts(resolved, train, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "grid": {"problems_per_batch": [8], "rollouts_per_problem": [1]},
        "sweep": {"compute": 8 * 5},
        "recipe": RECIPE,
        "evaluation": {"points": 1000},
        "real": {"sampler": "transformers", "checkpoint_minutes": 1e-9},
    }
    whole = train(**more)
    assert min(whole["train", "critic_grad_norm"].values()) > 0
    for checkpoint in steps(resolved(**more), None):
        folder = tmp_path / str(checkpoint.step)
        folder.mkdir()
        checkpoint.save(folder)
    rest = list(steps(resolved(**more), tmp_path / "3"))
    lines = [c.line(0.0) for c in rest if c.rows]
    for line in lines:
        del line["seconds"], line["machine"]
    assert lines == [line for line in whole.lines() if line["step"] > 3]
    (tmp_path / "3" / "critic_exp_avg.safetensors").unlink()
    with pytest.raises(UnreadableState, match="critic_exp_avg"):
        list(steps(resolved(**more), tmp_path / "3"))


def test_its_state_is_as_large_as_planned(run, tmp_path: Path) -> None:
    from isolaw.backends.real import BACKEND

    one = run(recipe=PLAIN)
    one.advance()
    one.save(tmp_path)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert written == pytest.approx(BACKEND.needs(one.spec).disk_bytes, rel=0.05)


# -- however it is computed -------------------------------------------------------------------------------

# ZeRO's stage, tokens of a micro-batch, whether activations are computed again, the optimiser in host memory.
Placement = tuple[int, int, bool, bool]
ALONE: list[Any] = [
    pytest.param((1, 60, True, False), marks=pytest.mark.nightly),
    pytest.param((2, 1, False, True), marks=pytest.mark.nightly),
    (3, 60, True, True),
]
TOGETHER: list[Placement] = [(0, 60, True, False), (2, 60, False, True), (3, 16_384, False, False)]


def next_updates(spec: RunSpec, state: Path, placement: Placement, out: Path) -> None:
    """Continue the run from ``state`` by one step; write the first gradients and the state after it."""
    names = ("zero_stage", "micro_batch_tokens", "gradient_checkpointing", "offload_optimizer")
    placed = dict(zip(names, placement, strict=True))
    one = Run(spec.model_copy(update={"sources": {**spec.sources, **placed}}))
    one.restore(state)
    gradients: Tensors = {}
    for name, trainer in (("policy", one.trainer), ("critic", one.learner.ppo.critic)):

        def note(found: Tensors, name: str = name) -> None:
            if f"{name} norm" not in gradients:
                gradients.update({f"{name} {key}": value.clone() for key, value in found.items()})

        watch(trainer, note)
    one.advance()
    out.mkdir(parents=True, exist_ok=True)
    one.save(out)
    if one.trainer.rank == 0:
        save_file(gradients, out / "gradient.safetensors")
    one.close()


def main(folder: Path) -> None:
    spec = RunSpec.model_validate_json((folder / "spec.json").read_text())
    for number, placement in enumerate(TOGETHER):
        next_updates(spec, folder / "state", placement, folder / f"two-{number}")


@pytest.fixture(scope="module")
def begun(resolved: Callable[..., RunSpec], made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run's spec, its state with a batch in flight, and the next step by one process."""
    folder = tmp_path_factory.mktemp("updates")
    spec = resolved(
        grid={"problems_per_batch": [6], "rollouts_per_problem": [3]},
        recipe=RECIPE,
        problems={"set": str(made.easy)},
        real={"sampler": "transformers"},
    )
    (folder / "spec.json").write_text(spec.model_dump_json())
    one = Run(spec)
    for _ in range(4):
        one.advance()
    (folder / "state").mkdir()
    one.save(folder / "state")
    one.close()
    next_updates(spec, folder / "state", (0, 16_384, False, False), folder / "expected")
    return folder


def compare(found: Path, expected: Path) -> None:
    gradient = load_file(expected / "gradient.safetensors")
    own = load_file(found / "gradient.safetensors")
    for name in ("policy", "critic"):
        parts = [{key: x for key, x in one.items() if key.startswith(name)} for one in (own, gradient)]
        assert float(gradient[f"{name} norm"]) > 0.01
        assert difference(*parts) <= 1e-5, name
    for kind in ("model", "critic_model"):  # after four updates
        mine, theirs = (load_file(folder / f"{kind}.safetensors") for folder in (found, expected))
        assert difference(mine, theirs) <= 1e-4, kind
    means = [json.loads((folder / "loop.json").read_text())["since"]["sums"] for folder in (found, expected)]
    assert means[0].keys() == means[1].keys()
    for name, value in means[1].items():
        assert means[0][name] == pytest.approx(value, rel=1e-3, abs=1e-3), name
    assert {"value_loss", "value_clip_fraction", "explained_variance", "clip_fraction"} <= means[1].keys()


@pytest.mark.parametrize("placement", ALONE, ids=str)
def test_however_it_is_computed_the_updates_are_the_same(
    begun: Path, placement: Placement, tmp_path: Path
) -> None:
    spec = RunSpec.model_validate_json((begun / "spec.json").read_text())
    next_updates(spec, begun / "state", placement, tmp_path)
    compare(tmp_path, begun / "expected")


@pytest.mark.nightly  # in test_trainer.py two processes give the same gradients
def test_two_processes_give_the_same_updates(begun: Path, preloaded: Path) -> None:
    command = [preloaded / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, __file__, str(begun)], check=True, timeout=600)
    for number in range(len(TOGETHER)):
        compare(begun / f"two-{number}", begun / "expected")


def test_the_expected_updates_are_not_trivial(begun: Path) -> None:
    for kind in ("model", "critic_model"):
        before, after = (load_file(begun / name / f"{kind}.safetensors") for name in ("state", "expected"))
        assert 1e-4 < difference(after, before) < 0.1, kind
    since = json.loads((begun / "expected" / "loop.json").read_text())["since"]
    means = {name: value / since["counts"][name] for name, value in since["sums"].items()}
    assert means["value_clip_fraction"] > 0.01
    assert means["clip_fraction"] > 0.01


if __name__ == "__main__":
    main(Path(sys.argv[1]))
