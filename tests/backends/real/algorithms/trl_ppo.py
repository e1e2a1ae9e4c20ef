"""TRL's PPO on a small batch: the numbers of ``trl_ppo.json``, by TRL's own code. ::

    pip download trl==0.11.4 --no-deps -d /tmp/a && unzip -d /tmp/a /tmp/a/trl-0.11.4-py3-none-any.whl
    pip download trl==0.25.1 --no-deps -d /tmp/b && unzip -d /tmp/b /tmp/b/trl-0.25.1-py3-none-any.whl
    cd tests/backends/real/algorithms && python trl_ppo.py /tmp/a /tmp/b > trl_ppo.json

TRL is not imported, for neither version runs with the transformers that vLLM wants: `_old` takes functions of
0.11.4 out of its files, and `_new` the statements of 0.25.1's training loop. From a full-length response both
compute the same. Where one ends before, 0.25.1 gives the reward to a padding token after it, whose value it
also trains; 0.11.4 gives it to the last token, as isolaw, so the padded batch is compared with 0.11.4.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ROWS, WIDTH = 6, 5
CONFIG = {"gamma": 0.97, "lam": 0.9, "cliprange": 0.1, "cliprange_value": 0.15, "kl_coef": 0.2}
Tensors = dict[str, torch.Tensor]


def batch(padded: bool) -> Tensors:
    """A batch after an update: current and old log-probabilities and values."""
    random = torch.Generator().manual_seed(1707)

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(*(shape or (ROWS, WIDTH)), generator=random)

    lengths = torch.tensor([5, 1, 3, 2, 4, 5] if padded else [WIDTH] * ROWS)
    old = uniform(-3, -0.3)
    own = {
        "logprobs": old + uniform(-0.3, 0.3),
        "old_logprobs": old,
        "reference_logprobs": old + uniform(-0.5, 0.5),
        "old_values": (before := uniform(-0.5, 1)),
        "values": before + uniform(-0.4, 0.4),
    }
    mask = torch.arange(WIDTH) < lengths[:, None]
    own = {name: value.masked_fill(~mask, 0.0) for name, value in own.items()}
    return own | {"mask": mask, "scores": (uniform(0, 1, ROWS) > 0.5).float()}


def _functions(path: Path, names: set[str]) -> str:
    """The source of functions and methods of a file."""
    source = path.read_text()
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name in names]
    assert {node.name for node in nodes} == names
    return "from __future__ import annotations\n" + "\n".join(
        textwrap.dedent(ast.get_source_segment(source, node, padded=True) or "") for node in nodes
    )


def _old(folder: Path, own: Tensors) -> Tensors:
    scope: dict[str, Any] = {"torch": torch, "warnings": warnings, "Mapping": Mapping}
    core = {
        "masked_mean",
        "masked_var",
        "masked_whiten",
        "clip_by_value",
        "entropy_from_logits",
        "flatten_dict",
    }
    exec(_functions(folder / "trl" / "core.py", core), scope)
    methods = {"compute_rewards", "_kl_penalty", "compute_advantages", "loss"}
    exec(_functions(folder / "trl" / "trainer" / "ppo_trainer.py", methods), scope)
    config = SimpleNamespace(**CONFIG, kl_penalty="kl", whiten_rewards=False, vf_coef=1.0, ratio_threshold=10)
    trainer = SimpleNamespace(config=config, kl_ctl=SimpleNamespace(value=CONFIG["kl_coef"]))
    trainer._kl_penalty = lambda *given: scope["_kl_penalty"](trainer, *given)
    mask = own["mask"].float()
    rewards, *_ = scope["compute_rewards"](
        trainer, own["scores"], own["old_logprobs"], own["reference_logprobs"], mask
    )
    values, advantages, returns = scope["compute_advantages"](trainer, own["old_values"], rewards, mask)
    logprobs, vpreds = (own[name].clone().requires_grad_() for name in ("logprobs", "values"))
    policy, value, _ = scope["loss"](
        trainer, own["old_logprobs"], values, torch.zeros(ROWS, WIDTH, 2), vpreds, logprobs, mask, advantages,
        returns,
    )  # fmt: skip
    return _found(own["mask"], rewards, advantages, returns, policy, value, logprobs, vpreds)


def _new(folder: Path, own: Tensors) -> Tensors:
    path = folder / "trl" / "trainer" / "ppo_trainer.py"
    source = path.read_text()

    def between(first: str, last: str) -> str:
        """The statements of the loop from one line up to another, without the latter."""
        start = source.index(first)
        start = source.rindex("\n", 0, start) + 1
        return textwrap.dedent(source[start : source.rindex("\n", 0, source.index(last, start)) + 1])

    args = SimpleNamespace(**CONFIG, kl_estimator="k1", vf_coef=1.0, whiten_rewards=False)
    nothing = ~own["mask"]
    assert not nothing.any()
    logprobs, vpreds = (own[name].clone().requires_grad_() for name in ("logprobs", "values"))
    scope: dict[str, Any] = {
        "torch": torch, "args": args, "scores": own["scores"], "logprobs": own["old_logprobs"],
        "ref_logprobs": own["reference_logprobs"], "values": own["old_values"], "padding_mask": nothing,
        "padding_mask_p1": nothing, "responses": torch.zeros(ROWS, WIDTH),
        "sequence_lengths": torch.full((ROWS,), WIDTH - 1), "sequence_lengths_p1": torch.full((ROWS,), WIDTH),
    }  # fmt: skip
    exec(_functions(path, {"masked_mean", "masked_var", "masked_whiten"}), scope)
    exec(between("# 4. compute rewards", "empty_cache()"), scope)
    scope |= {
        "mb_values": own["old_values"], "mb_return": scope["returns"], "mb_advantage": scope["advantages"],
        "mb_logprobs": own["old_logprobs"], "new_logprobs": logprobs, "vpred": vpreds,
        "micro_batch_inds": list(range(ROWS)),
    }  # fmt: skip
    exec(between("vpredclipped = torch.clamp", "accelerator.backward(loss)"), scope)
    names = ("rewards", "advantages", "returns", "pg_loss", "vf_loss")
    return _found(own["mask"], *(scope[name] for name in names), logprobs, vpreds)


def _found(
    mask: torch.Tensor,
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    policy: torch.Tensor,
    value: torch.Tensor,
    logprobs: torch.Tensor,
    vpreds: torch.Tensor,
) -> Tensors:
    (to_policy,) = torch.autograd.grad(policy, logprobs)
    (to_value,) = torch.autograd.grad(value, vpreds)
    rows = {"rewards": rewards, "advantages": advantages, "returns": returns}
    rows |= {"policy_gradient": to_policy, "value_gradient": to_value}
    rows = {name: found.masked_fill(~mask, 0.0) for name, found in rows.items()}
    return rows | {"policy_loss": policy.detach(), "value_loss": value.detach()}


def main(old: Path, new: Path) -> None:
    cases = {"0.11.4, padded": (_old, old, True), "0.11.4": (_old, old, False), "0.25.1": (_new, new, False)}
    out: dict[str, Any] = {"config": CONFIG}
    for name, (compute, folder, padded) in cases.items():
        own = batch(padded)
        found = compute(folder, own)
        out[name] = {
            "batch": {key: value.tolist() for key, value in own.items()},
            "found": {key: value.tolist() for key, value in found.items()},
        }
    print(json.dumps(out))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
