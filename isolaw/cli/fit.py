"""The commands ``fit`` and ``model-size``: fit a law to runs, or to model sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw import commands
from isolaw.cli import options as shared
from isolaw.cli.common import (
    announce_compilation,
    as_json,
    json_option,
    note,
    notes_on_failure,
    print_document,
    print_lines,
    print_notes,
    print_result,
)
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination
from isolaw.errors import DataError, Refused

if TYPE_CHECKING:
    from isolaw.fits.law import Law
    from isolaw.runs import Runs


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option(
    "--hold", type=click.Choice(["B_p", "B", "n", "nothing"]), show_default="from how B_p and n vary",
    help="Quantity to hold fixed: B_p, the batch B = B_p · n, n (a law of B_p), or nothing.",
)  # fmt: skip
@shared.law_options
@click.option(
    "--method", type=click.Choice(["surface", "paper"]), default="surface",
    help="surface: n* maximises a smooth reward surface over n. paper: n* has the highest learning "
    "curve, as in arXiv 2603.12151.",
)  # fmt: skip
@click.option(
    "--retune", metavar="NAME",
    help="Also fit a law with NAME (lr) re-tuned for every (n, C); for lr, also its scaling rule.",
)  # fmt: skip
@shared.source_options
@click.option("--out", type=Destination(), help="Write the law to this file, and its draws next to it.")
@json_option
def fit(sources: tuple[str, ...], out: str | None, **options: Any) -> None:
    """Fit the allocation law n*(C) to runs, or B_p*(C) with --hold n.

    A SOURCE is a log, a directory of logs, a sweep's directory, or a table; isolaw read lists its runs.
    """
    from isolaw.fits.document.files import check_writable

    retune = options["retune"]
    if out is not None:
        for path in (out, _retuned_path(out)) if retune else (out,):
            check_writable(path)
    runs = shared.read_to_fit(sources, options, together=not retune).runs
    announce_compilation()
    keywords = shared.law_keywords(options)
    with notes_on_failure(runs.notes):
        if retune is not None:
            _fit_retuned(runs, retune, keywords, out)
        else:
            _fit_one(runs, keywords, out)


def _fit_one(runs: Runs, keywords: dict[str, Any], out: str | None) -> None:
    import isolaw
    from isolaw.report.text.law import notes
    from isolaw.report.text.prediction import law_lines

    law = isolaw.fit(runs, **keywords)
    if out:
        law.save(out)
    print_result(law.to_dict(), [] if as_json() else law_lines(law))
    print_notes(notes(law.document.flags))
    if as_json():
        return
    if out:
        print_lines([f"Saved the law to {out}.{_next_command(law, out)}"])
    else:
        note("note: the law is not saved; add --out law.json to use it in isolaw predict")


def _next_command(law: Law, out: str) -> str:
    """Return the command that predicts a budget beyond the runs, if the law has a recommendation there."""
    from isolaw.report.text.prediction import budget_beyond

    budget = budget_beyond(law)
    return f" For a larger budget: {commands.predict(out, budget)}" if budget else ""


def _fit_retuned(runs: Runs, name: str, keywords: dict[str, Any], out: str | None) -> None:
    from isolaw.fits.metric import choose
    from isolaw.fits.studies.retune import final_rewards, fit_retuned, points_with
    from isolaw.fits.studies.targets import lr_law
    from isolaw.report.document import Passage
    from isolaw.report.text.studies import lr_lines, retuned_summary, reward_lines

    where = {key: value for key, value in keywords["where"].items() if key != name}
    reward = keywords["metric"], keywords["eval_set"]
    law_of_lr = lr_law(runs, *reward, where) if name == "lr" else None
    data: dict[str, Any] = {"simulated": runs.simulated.json, "retune": name}
    lines = []
    try:
        data[name], laws, chosen = fit_retuned(runs, name, keywords)
        data["laws"] = {key: law.document.to_dict() for key, law in laws.items()}
        data["chosen"] = chosen.to_dict("records")
        lines = retuned_summary(name, data[name], laws, chosen)
    except Refused as error:
        if out is not None:
            raise
        try:
            points = points_with(runs, *choose(runs, *reward)[:2], name, where)
            rewards, chosen, data[name] = final_rewards(points, name)
            data["chosen"] = chosen.to_dict("records")
            data["rewards"] = rewards.astype(object).where(rewards.notna(), None).to_dict("records")
            lines = reward_lines(name, rewards, chosen)
        except (DataError, Refused):
            if law_of_lr is None:
                raise
        note(f"note: no law with {name} re-tuned: {error}")
    if name == "lr":
        data["lr_law"] = law_of_lr and law_of_lr.to_dict()
        lines += [] if law_of_lr is None else Passage("", lr_lines(law_of_lr)).lines()
    if out is not None:
        laws["one"].save(out)
        laws["retuned"].save(_retuned_path(out))
        lines.append(f"Laws: {out}, {_retuned_path(out)}.{_next_command(laws['one'], out)}")
    print_result(data, lines)


def _retuned_path(path: str) -> str:
    """Return the path of the second law that ``--retune`` writes."""
    return str(Path(path).with_stem(f"{Path(path).stem}-retuned"))


@click.command("model-size", cls=ShortHelp)
@click.argument("file", type=click.Path())
@click.option(
    "--runs", type=click.Path(), help="Table of single runs for the intervals, if the rows of FILE are means."
)
@click.option(
    "--x", type=click.Choice(["compute", "data"]), default="compute",
    help="Training resource X: compute in FLOPs, or data in prompts.",
)  # fmt: skip
@shared.draws_option
@shared.seed_option
@shared.table_options
@json_option
def model_size(file: str, runs: str | None, x: Any, **options: Any) -> None:
    """Fit the model-size law to evaluations of several sizes.

    \b
      log10 L = −K(N) · log10 X + E(N),    K(N) = K_max / (1 + N0 / N),    L = 1 − reward

    FILE is a table with the columns model_size, step, compute or data, and reward or loss; map other names
    with --column. Optional columns are run, and runs (the number of runs that a row averages).
    """
    from isolaw.fits.studies.model_size import SizeCurves, fit_sizes
    from isolaw.readers.table_columns import apply, lacking
    from isolaw.readers.table_files import load
    from isolaw.report.text.studies import size_document

    how = shared.how_to_read(options)
    table = apply(how, load(file), file)
    single_runs = None
    if runs is not None:  # single runs can lack columns that only the means have
        single_runs = load(runs)
        present = {name: text for name, text in how.columns.items() if not lacking(text, single_runs.columns)}
        single_runs = apply(how.but(columns=present), single_runs, runs)
    curves = SizeCurves.from_table(table, x, single_runs, (file, runs or file))
    law = fit_sizes(curves, options["draws"], options["seed"])
    extra_data = {
        "sources": [file] if runs is None else [file, runs],
        "bootstrap": {"draws": options["draws"], "seed": options["seed"]},
    }
    print_document(size_document(law, extra_data))
    print_notes([flag.text for flag in law.flags])
