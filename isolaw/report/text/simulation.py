"""The document of a prediction, by a law or by simulation."""

from __future__ import annotations

from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.prediction import Prediction
from isolaw.report.document import Bullets, Document, Passage, Stanza, Table, cautions
from isolaw.report.text import law
from isolaw.report.text import prediction as words
from isolaw.report.text.numbers import count, number, share

_SHOWN = 8  # configurations


def document(found: Prediction) -> Document:
    """Return the recommendation of a law, or of an ensemble and, if given, of a law.

    `isolaw.predict_by_simulation` predicts by an ensemble.
    """
    if found.document is not None:
        return Document.of("prediction", words.prediction_summary(found, found.document), found.to_dict())
    preset, best = found.preset, found.options[0]
    assert preset is not None
    metric, low, high = preset.reward.partition(" on ")[0], *(found.compared or (0, 0))
    by_law: list[Stanza] = [
        "isolaw predict also accepts a law of the same runs, and then compares both recommendations."
    ]
    if found.law is not None and found.law.document is not None:
        by_law = [Bullets("The fitted law:", words.prediction_summary(found.law, found.law.document), "  ")]
    head: list[Stanza] = [
        f"This prediction is from a calibrated simulator: preset {preset.name} with "
        f"{count(found.members or 0, 'member')}, fitted to {preset.reward} up to C = "
        f"{number(preset.measured)}.",
        words.answer(found),
        *([] if found.cost is None else [words.cost_line(found, found.cost)]),
        f"The expected loss is {best.expected_loss:.4f} in {metric} against the best configuration with n "
        f"from {number(low)} to {number(high)}; for {share(best.probability or 0.0)} of members the loss is "
        f"at most {TOLERANCE}.",
        f"Predicted {metric} over the members: {found.reward}.",
        f"The mean reward is highest at n* = {law.star(found.n_star)}, B_p* = {law.star(found.b_star)} and "
        f"M* = {law.star(found.m_star)}.",
        f"The allocation makes {number(found.epochs)} passes over {preset.n_train:,} training problems.",
    ]
    passages = [
        Passage("", head),
        Passage("Configurations", [*_options(found), *cautions(found.flags)]),
        Passage("The law", by_law),
    ]
    return Document(f"prediction by {preset.name}", passages, found.to_dict())


def _options(found: Prediction) -> list[Stanza]:
    rows = []
    for option in found.options[:_SHOWN]:
        a, ends = option.allocation, option.reward.interval or (None, None)
        rows.append(
            {
                "B_p": str(a.problems_per_batch),
                "n": f"{a.rollouts_per_problem:,}",
                "M": f"{a.steps:,}",
                "reward": f"{option.reward.value:.3f}",
                "95 % interval": "–".join("" if end is None else f"{end:.3f}" for end in ends),
                "expected loss": f"{option.expected_loss:.4f}",
                f"within {TOLERANCE}": share(option.probability or 0.0),
                "": "" if option.measured else "not measured",
            }
        )
    more = len(found.options) - _SHOWN
    note = [f"Not shown: {count(more, 'configuration')} with a larger expected loss."] if more > 0 else []
    return [Table.by_column(rows, ">>>>>>><"), *note]
