"""Words by which logs and tables call what is measured: on training batches, or on held-out problems."""

from __future__ import annotations

TRAINING = {"train", "training", "rollout", "batch"}
HELD_OUT = {
    *("val", "valid", "validation", "validating", "validate", "eval", "evaluation", "evaluating", "evaluate"),
    *("test", "testing", "holdout", "heldout"),
}
# What a field is called that says which of the two a row is of.
PHASES = ("split", "phase", "mode", "stage", "eval_set", "kind", "type", "set")


def eval_set_of(value: object) -> str:
    """Return ``train`` or ``validation`` for a text that is one of their names; "" for any other.

    >>> eval_set_of("Eval"), eval_set_of("train"), eval_set_of("aime24")
    ('validation', 'train', '')
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    return "validation" if word in HELD_OUT else "train" if word in TRAINING else ""
