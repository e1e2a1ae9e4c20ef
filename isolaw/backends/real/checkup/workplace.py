"""What the stages work with: a folder with models of random weights and problems, and runs on them.

On GPUs the model has the shapes of Qwen2.5-0.5B, and the sweep that is killed a smaller one, whose state is
on the disk in a moment; on a CPU both are tiny. Nothing is downloaded.

The reward is the parity of a response's length in characters: about half of what random weights write gets
it, so that advantages and gradients are not 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

REWARD = f"{__name__}:parity"


def parity(prompt: Any, response: str, answer: str) -> float:
    """Return 1 for a response of an even number of characters, else 0."""
    return float(len(response) % 2 == 0)


@dataclass(frozen=True)
class Sizes:
    """How much a device is given to do.

    Attributes
    ----------
    response, long_response
        tokens of a response; of those whose speed is measured.
    problems, rollouts
        B_p and n of a batch.
    speed
        (B_p, n) of the batches whose speed is measured.
    """

    response: int
    long_response: int
    problems: int
    rollouts: int
    speed: tuple[tuple[int, int], ...]


_SIZES = {
    "cuda": Sizes(512, 512, 8, 8, ((32, 8), (1, 512))),
    "cpu": Sizes(8, 16, 4, 4, ((4, 8), (1, 64))),
}


@dataclass(frozen=True)
class Workplace:
    """A folder, and the device that is examined."""

    folder: Path
    device: str

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs are examined."""
        return self.device == "cuda"

    @property
    def sizes(self) -> Sizes:
        """How much there is to do."""
        return _SIZES[self.device]

    @property
    def dtype(self) -> str:
        """What the device trains in unless told otherwise."""
        return "bfloat16" if self.on_gpu else "float32"

    @property
    def model(self) -> Path:
        """The model of most stages."""
        return self.folder / "model"

    @property
    def small(self) -> Path:
        """The model of the sweep that is killed."""
        return self.folder / "small"

    @property
    def problems(self) -> Path:
        """The problem set."""
        return self.folder / "problems"

    def sections(self, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a sweep file as data; each argument changes keys of a section."""
        data: dict[str, dict[str, Any]] = {
            "sweep": {"backend": "real", "seeds": [0]},
            "grid": {
                "problems_per_batch": [self.sizes.problems],
                "rollouts_per_problem": [self.sizes.rollouts],
            },
            "limits": {"max_batch_rollouts": 65_536},
            # A step that moves log-probabilities by far more than rounding does, so that stale weights show.
            "recipe": {"lr": 2e-4 if self.on_gpu else 5e-4, "lr_scaling": "constant", "warmup_steps": 1}
            | {"kl": 0.0, "entropy": 0.0, "temperature": 1.0, "max_response_tokens": self.sizes.response},
            "problems": {"set": str(self.problems), "n_validation": 4},
            "evaluation": {"points": 2, "samples": 1, "metrics": ["avg@1"]},
            "real": {"model": str(self.model), "reward": REWARD, "dtype": self.dtype}
            # A checkpoint after every step; whoever takes it need not write it.
            | {"checkpoint_minutes": 1e-9},
            "executor": {"kind": "inline"},
        }
        return {name: {**data.get(name, {}), **more.get(name, {})} for name in {**data, **more}}

    def spec(self, steps: int, **more: dict[str, Any]) -> Any:
        """Return a single run of ``steps`` steps, as the backend resolves it (`RunSpec`).

        Raises
        ------
        SpecError
            something that it needs is not installed, or the like.
        """
        from isolaw.backends.real import BACKEND
        from isolaw.config import RunSpec, SweepSpec
        from isolaw.errors import SpecError

        sweep = SweepSpec.parse(self.sections(**more))
        (b,), (n,) = sweep.grid.problems_per_batch, sweep.grid.rollouts_per_problem
        run = RunSpec(
            backend="real",
            problems_per_batch=b,
            rollouts_per_problem=n,
            seed=0,
            recipe=sweep.recipe,
            problems=sweep.problems,
            options=sweep.real,
            compute=steps * b * n,
            evaluation=sweep.evaluation.model_copy(update={"start": b * n, "end": steps * b * n}),
        )
        resolved = BACKEND.resolve(run)
        if problems := BACKEND.check(resolved):
            raise SpecError(problems)
        return resolved
