"""GRPO with TRL on a problem set, as `isolaw sweep` starts it (examples/trl.toml). ::

    python examples/trl_grpo.py --model MODEL --problems SET --output_dir DIR --num_generations 4 …

``SET`` has ``train.jsonl`` and ``validation.jsonl`` with ``prompt`` and ``answer``; all other arguments are
those of TRL's `GRPOConfig`. A response is right if it equals the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser


@dataclass
class Arguments:
    """Arguments that are not TRL's."""

    model: str
    problems: str


def right(completions: list[str], answer: list[str], **_: object) -> list[float]:
    """Return a reward for each completion."""
    return [float(text.strip() == expected) for text, expected in zip(completions, answer, strict=True)]


def main() -> None:
    """Train, from the start or from ``resume_from_checkpoint``."""
    own, config = TrlParser([Arguments, GRPOConfig]).parse_args_and_config()
    files = {part: str(Path(own.problems) / f"{part}.jsonl") for part in ("train", "validation")}
    data = load_dataset("json", data_files=files, cache_dir=str(Path(config.output_dir) / "data"))
    trainer = GRPOTrainer(
        own.model, right, config, train_dataset=data["train"], eval_dataset=data["validation"]
    )
    trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)


if __name__ == "__main__":
    main()
