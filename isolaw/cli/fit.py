"""The command ``isolaw fit``: fit a law to runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw import commands
from isolaw.cli import options as shared
from isolaw.cli.common import (
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
from isolaw.errors import Refused

if TYPE_CHECKING:
    from isolaw.fits.law import Law
    from isolaw.runs import Runs


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@shared.hold_option("n")
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
        for path in (out, _retuned(out)) if retune else (out,):
            check_writable(path)
    runs = shared.read_to_fit(sources, options, together=not retune).runs
    keywords = shared.law_keywords(options)
    with notes_on_failure(runs.notes):
        if retune is not None:
            _fit_retuned(runs, retune, keywords, out)
        else:
            _fit_one(runs, keywords, out)


def _fit_one(runs: Runs, keywords: dict[str, Any], out: str | None) -> None:
    import isolaw
    from isolaw.report.text.fit import law_lines
    from isolaw.report.text.law import notes

    law = isolaw.fit(runs, **keywords)
    if out:
        law.save(out)
    print_result(law.to_dict(), [] if as_json() else law_lines(law))
    print_notes(notes(law.document.flags))
    if as_json():
        return
    if out:
        print_lines([f"Saved the law to {out}.{_next(law, out)}"])
    else:
        note("note: the law is not saved; add --out law.json to use it in isolaw predict")


def _next(law: Law, out: str) -> str:
    """Return the command that predicts a budget beyond the runs, if the law has a recommendation there."""
    from isolaw.report.text.prediction import budget_beyond

    budget = budget_beyond(law)
    return f" For a larger budget: {commands.predict(out, budget)}" if budget else ""


def _fit_retuned(runs: Runs, name: str, keywords: dict[str, Any], out: str | None) -> None:
    from isolaw.fits.studies.retune import fit_retuned
    from isolaw.fits.studies.targets import lr_law
    from isolaw.report.document import Document, Passage
    from isolaw.report.text.studies import retuned_summary
    from isolaw.report.text.targets import lr_lines

    others = {key: value for key, value in keywords["where"].items() if key != name}
    rule = lr_law(runs, keywords["metric"], keywords["eval_set"], others) if name == "lr" else None
    more = {} if name != "lr" else {"lr_law": rule and rule.to_dict()}
    try:
        result = fit_retuned(runs, name, keywords)
    except Refused as error:
        if rule is None:
            raise
        note(f"note: no law with {name} re-tuned: {error}")
        data = {"simulated": runs.simulated.json, "retune": name, **more}
        print_document(Document.of(f"{name} re-tuned", lr_lines(rule), data))
        return
    lines = retuned_summary(name, result.value, result.documents, result.chosen)
    lines += [] if rule is None else Passage("", lr_lines(rule)).lines()
    if out is not None:
        result.one.save(out)
        result.retuned.save(_retuned(out))
        lines.append(f"Laws: {out}, {_retuned(out)}.{_next(result.one, out)}")
    print_result({**result.to_dict(), **more}, lines)


def _retuned(out: str) -> str:
    """Return the path of the second law that ``--retune`` writes."""
    return str(Path(out).with_stem(f"{Path(out).stem}-retuned"))
