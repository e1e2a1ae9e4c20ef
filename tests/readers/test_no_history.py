"""Files of runs that logged nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw.readers.sources import _no_history_reason

# wandb/latest-run/files/output.log of github.com/jianghoucheng/Agent_On_Policy_Distillation, in full.
BEGAN = """\
wandb: Detected [openai] in use.
wandb: Use W&B Weave for improved LLM call tracing. Weave is installed but not imported. Add `import weave` \
to the top of your script.
wandb: For more information, check out the docs at: https://weave-docs.wandb.ai/
Checkpoint tracker file does not exist: /data0/user10/qwen3_4b_opd/latest_checkpointed_iteration.txt
Training from scratch
Training Progress:   0%|          | 0/59723 [00:00<?, ?it/s]
"""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("output.log", BEGAN, ("training began, but no step was logged", "veRL")),
        ("empty.wandb", "", ("the file is empty", "")),
        ("blank.jsonl", "\n", ("the file is empty", "")),
        ("notes.md", BEGAN, None),
        ("train.log", "Training Progress:   0%|", None),
    ],
)
def test_why_there_is_no_history(name: str, text: str, found: tuple[str, str] | None) -> None:
    assert _no_history_reason(Path(name), text.encode()) == found
