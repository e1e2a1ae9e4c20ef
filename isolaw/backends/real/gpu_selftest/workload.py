"""Define the runs of the stages: short trainings of models with random weights on generated problems.

On GPUs, the model has the shapes of Qwen2.5-0.5B. The sweep of stage resume has a smaller model, so that
its state is written quickly. On a CPU, both models are tiny.

The reward is 1 for responses with an even number of characters. A model with random weights earns it for
about half of its responses, so that advantages and gradients are not 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isolaw.backends.real import BACKEND
from isolaw.config import RunSpec
from isolaw.errors import SpecError


def parity(prompt: Any, response: str, answer: str) -> float:
    """Return 1 for a response with an even number of characters, else 0."""
    return float(len(response) % 2 == 0)


class Workload:
    """Models, problems and runs in a folder, for a device (``cuda`` or ``cpu``)."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device, self.on_gpu = folder, device, device == "cuda"
        # (B_p, n) of a batch, and of the batches of stage speed. Then the maximum tokens of a response, and
        # of a response in stage speed.
        self.batch = (8, 8) if self.on_gpu else (4, 4)
        self.speed_batches = ((32, 8), (1, 512)) if self.on_gpu else ((4, 8), (1, 64))
        self.response, self.long_response = (512, 512) if self.on_gpu else (8, 16)
        self.dtype = "bfloat16" if self.on_gpu else "float32"
        self.model, self.small, self.problems = (folder / name for name in ("model", "small", "problems"))

    def sections(self, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the content of a sweep file; each argument replaces keys of the section with its name."""
        data: dict[str, dict[str, Any]] = {
            "sweep": {"backend": "real", "seeds": [0]},
            "grid": {"problems_per_batch": [self.batch[0]], "rollouts_per_problem": [self.batch[1]]},
            "limits": {"max_batch_rollouts": 65_536},
            # This lr changes log-probabilities far more than rounding does, so that stale weights are
            # noticed.
            "recipe": {"lr": 2e-4 if self.on_gpu else 5e-4, "lr_scaling": "constant", "warmup_steps": 1}
            | {"kl": 0.0, "entropy": 0.0, "temperature": 1.0, "max_response_tokens": self.response},
            "problems": {"set": str(self.problems), "n_validation": 4},
            "evaluation": {"points": 2, "samples": 1, "metrics": ["avg@1"]},
            "real": {"model": str(self.model), "reward": f"{__name__}:parity", "dtype": self.dtype}
            | {"checkpoint_minutes": 1e-9},  # a checkpoint after every step
            "executor": {"kind": "inline"},
        }
        return {name: {**data.get(name, {}), **more.get(name, {})} for name in {**data, **more}}

    def spec(self, steps: int, **more: dict[str, Any]) -> RunSpec:
        """Return the resolved spec of a run of ``steps`` steps; raise `SpecError` if it cannot run here."""
        data = self.sections(**more)
        (b,), (n,) = data["grid"]["problems_per_batch"], data["grid"]["rollouts_per_problem"]
        run = {
            "backend": "real",
            "problems_per_batch": b,
            "rollouts_per_problem": n,
            "seed": 0,
            "recipe": data["recipe"],
            "problems": data["problems"],
            "options": data["real"],
            "compute": steps * b * n,
            "evaluation": {**data["evaluation"], "start": b * n, "end": steps * b * n},
        }
        resolved = BACKEND.resolve(RunSpec.model_validate(run))
        if issues := BACKEND.check(resolved):
            raise SpecError(issues)
        return resolved
