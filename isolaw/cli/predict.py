"""``isolaw predict``: the allocation for a budget."""

from __future__ import annotations

import click

from isolaw.cli.common import print_json, shown


@click.command()
@click.argument("law", type=click.Path())
@click.option("--compute", type=float, required=True, help="The budget C, in rollouts.")
@click.option("--max-batch-rollouts", type=click.IntRange(min=1), help="The hardware's cap on B_p · n.")
@click.option("--n-train-problems", type=click.IntRange(min=1), help="D, to count epochs.")
@click.option("--json", "as_json", is_flag=True, help="Print the prediction as JSON.")
def predict(
    law: str, compute: float, max_batch_rollouts: int | None, n_train_problems: int | None, as_json: bool
) -> int:
    """Say how to split a budget, by the law in LAW (made with isolaw fit … --out).

    Beyond ten times the compute to which three n ran, isolaw recommends nothing: it says which runs to
    extend, gives the answer for the largest budget that has one, and exits with 1.
    """
    from isolaw.fits.law import Law
    from isolaw.report.text import answer as answer_words

    fitted = Law.load(law)
    options = {"max_batch_rollouts": max_batch_rollouts, "n_train_problems": n_train_problems}
    prediction = fitted.predict(compute, **options)
    if as_json:
        print_json(prediction.to_dict())
    else:
        nearest = answer_words.instead(fitted, prediction, **options)
        for line in answer_words.prediction_summary(prediction, fitted.document, nearest):
            click.echo(shown(line))
    return 0 if prediction.options else 1
