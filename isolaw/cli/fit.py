"""The command ``isolaw fit``: fit a law to runs or to ready-made points."""

from __future__ import annotations

from dataclasses import replace
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
from isolaw.cli.help import Further, ShortHelp
from isolaw.cli.options import Destination
from isolaw.errors import Refused

if TYPE_CHECKING:
    from isolaw.fits.law import Law
    from isolaw.runs import Runs

_OTHERWISE = "other units and ready-made points"
_FOR_POINTS = {"points", "x", "columns", "set", "out", "as_json"}
# Options of a law of n*, rejected with --to-target.
_OF_A_LAW = {
    *("x", "hold", "method", "curve", "records", "robust", "draws", "seed", "out", "figures"),
    *("by", "retune", "points"),
}


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, type=click.Path())
@click.option(
    "--points", type=click.Path(), cls=Further, group=_OTHERWISE,
    help="Fit a CSV table of (compute, n_star) points instead.",
)  # fmt: skip
@click.option(
    "--x", type=click.Choice(["compute", "tokens", "wall_s", "steps"]), default="compute",
    cls=Further, group=_OTHERWISE,
    help="Unit of the budget. With --points: compute, or steps for a law linear in M.",
)  # fmt: skip
@shared.hold_option("B_p")
@shared.law_options
@shared.source_options
@click.option("--out", type=Destination(), help="Write the law to this file, and its draws next to it.")
@click.option("--figures", type=Destination(), metavar="DIR", help="Draw both figures as PNG and SVG in DIR.")
@click.option("--by", metavar="NAME", help="Fit a law for each value of NAME, e.g. model, problem_set or lr.")
@click.option(
    "--retune", metavar="NAME",
    help="Also fit a law with NAME (lr) re-tuned for every (n, C); for lr, also its scaling rule.",
)  # fmt: skip
@click.option(
    "--to-target",
    metavar="REWARD,…",
    callback=shared.rewards,
    help="Instead of a law, report rollouts, steps and hours to these rewards (or auto), the critical batch, "
    "and how the best lr grows with B_p and n.",
)
@shared.further_cost_options
@json_option
@click.pass_context
def fit(ctx: click.Context, /, sources: tuple[str, ...], points: str | None, x: str, **options: Any) -> None:
    """Fit the allocation law n*(C) to runs, or B_p*(C) with --hold n.

    A SOURCE is a log, a directory of logs, a sweep's directory, or a table; isolaw read lists its runs.
    """
    if points is None and not sources:
        raise click.UsageError(
            "found no SOURCE; expected logs, a sweep's directory or a table, or --points FILE.csv"
        )
    for name, option in shared.given(ctx).items():
        if points is not None and name not in _FOR_POINTS:
            label = option.opts[0] if isinstance(option, click.Option) else "SOURCE"
            raise click.UsageError(f"--points cannot be combined with {label}")
    expected = ("compute", "steps") if points is not None else ("compute", "tokens", "wall_s")
    if x not in expected:
        where = "with" if points is not None else "without"
        raise click.UsageError(f"--x: found {x}; expected {', '.join(expected)} {where} --points")
    if options["to_target"] is not None:
        _to_target(ctx, sources, options)
    elif options["cost"] is not None or options["price"] is not None:
        raise click.UsageError("--cost and --price require --to-target")
    elif points is not None:
        _fit_points(points, x, options)
    else:
        _fit_runs(sources, {**options, "x": x})


def _fit_runs(sources: tuple[str, ...], options: dict[str, Any]) -> None:
    from isolaw.fits.document.files import check_writable

    out, by, retune = options["out"], options["by"], options["retune"]
    if retune is not None and (by is not None or options["figures"] or options["x"] != "compute"):
        raise click.UsageError(
            "--retune requires --x compute, and cannot be combined with --by and --figures"
        )
    if options["figures"] is not None and (not options["figures"] or Path(options["figures"]).is_file()):
        raise click.UsageError(f"--figures: found {options['figures']!r}; expected a directory")
    if out is not None:
        for path in (out, _retuned(out)) if retune else (out,):
            check_writable(path)
    runs = shared.read_to_fit(sources, options).runs
    keywords = {**shared.law_keywords(options), "hold": options["hold"], "x": options["x"]}
    with notes_on_failure(runs.notes):
        if retune is not None:
            _fit_retuned(runs, retune, keywords, out)
        elif by is not None:
            _fit_by(runs, by, keywords, out)
        else:
            _fit_one(runs, keywords, out, options["figures"])


def _to_target(ctx: click.Context, sources: tuple[str, ...], options: dict[str, Any]) -> None:
    import isolaw
    from isolaw.report.text.law import notes
    from isolaw.report.text.targets import document

    for name, option in shared.given(ctx).items():
        if name in _OF_A_LAW:
            raise click.UsageError(f"--to-target cannot be combined with {option.opts[0]}")
    cost = shared.cost_of(options)
    runs = shared.read_to_fit(sources, {**options, "retune": True}).runs
    keywords = {name: options[name] for name in ("metric", "eval_set", "where", "price")}
    with notes_on_failure(runs.notes):
        found = isolaw.to_target(runs, options["to_target"] or None, cost=cost, **keywords)
    print_document(document(found))
    print_notes(notes(found.flags))


def _fit_one(runs: Runs, keywords: dict[str, Any], out: str | None, figures: str | None) -> None:
    import isolaw
    from isolaw.report.text.fit import law_lines
    from isolaw.report.text.law import notes

    law = isolaw.fit(runs, **keywords)
    if out:
        law.save(out)
    drawn = []
    if figures:
        from isolaw.report.figures.law import write_figures

        drawn = write_figures(law, runs, figures)
    print_result(law.to_dict(), [] if as_json() else law_lines(law))
    print_notes(notes(law.document.flags))
    if as_json():
        return
    if drawn:
        print_lines([f"Figures: {', '.join(map(str, drawn))}"])
    if out:
        print_lines([f"Saved the law to {out}.{_next(law, out)}"])
    else:
        note("note: the law is not saved; add --out law.json to use it in isolaw predict")


def _next(law: Law, out: str) -> str:
    """Return the command that predicts a budget beyond the runs, if the law has a recommendation there."""
    from isolaw.report.text.prediction import budget_beyond

    budget = budget_beyond(law)
    return f" For a larger budget: {commands.predict(out, budget)}" if budget else ""


def _fit_by(runs: Runs, by: str, keywords: dict[str, Any], out: str | None) -> None:
    from isolaw.fits.studies.axis import fit_by
    from isolaw.report.text.studies import side_by_side

    found = fit_by(runs, by, keywords)
    print_notes(f"{by} = {value}: {why}" for value, why in found.refused.items())
    for value, law in found.laws.items() if out is not None else ():
        path = Path(str(out))
        law.save(path.with_stem(f"{path.stem}-{str(value).replace('/', '_')}"))
    print_result(found.to_dict(), side_by_side(by, found.documents))


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
        found = fit_retuned(runs, name, keywords)
    except Refused as error:
        if rule is None:
            raise
        note(f"note: no law with {name} re-tuned: {error}")
        own = Document.of(
            f"{name} re-tuned", lr_lines(rule), {"simulated": runs.simulated.json, "retune": name, **more}
        )
        print_document(own)
        return
    lines = retuned_summary(name, found.value, found.documents, found.chosen)
    lines += [] if rule is None else Passage("", lr_lines(rule)).lines()
    if out is not None:
        found.one.save(out)
        found.retuned.save(_retuned(out))
        lines.append(f"Laws: {out}, {_retuned(out)}.{_next(found.one, out)}")
    print_result({**found.to_dict(), **more}, lines)


def _fit_points(path: str, x: str, options: dict[str, Any]) -> None:
    import isolaw
    from isolaw.fits.document.files import check_writable, save
    from isolaw.fits.flags import flags_of_simulated
    from isolaw.readers.tables import read_points
    from isolaw.report.text.studies import points_summary

    out = options["out"]
    if out is not None:
        check_writable(out)
    values, n_star, simulated = read_points(path, x, shared.how_to_read(options))
    document, _ = isolaw.fit_points(values, n_star, "steps" if x == "steps" else "compute")
    flags = (*flags_of_simulated(simulated), *document.flags)
    document = replace(document, sources=(path,), flags=flags)
    lines = points_summary(document)
    if out:
        save(document, out)
        lines.append(f"Saved the law to {out}. It has no learning curves, which isolaw predict requires.")
    print_result(document.to_dict(), lines)


def _retuned(out: str) -> str:
    """Return the path of the second law that ``--retune`` writes."""
    return str(Path(out).with_stem(f"{Path(out).stem}-retuned"))
