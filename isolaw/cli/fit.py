"""``isolaw fit``: from runs, or from ready-made points, to a law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from isolaw.cli.common import announce_compilation, constants, note, noted, pairs, print_json, shown
from isolaw.cli.options import law_keywords, law_options, setting_option
from isolaw.cli.read import read_sources, source_options

# Options that read logs or fit curves; ready-made points have none.
_RUNS_ONLY = {
    "metric",
    "eval_set",
    "setting",
    "fixed",
    "method",
    "curve",
    "records",
    "robust",
    "bootstrap",
    "seed",
    "figures",
    "by",
    "retune",
    "format",
    "settings",
    "group_by",
    "mapping",
}


@click.command()
@click.argument("sources", nargs=-1, type=click.Path())
@click.option("--points", type=click.Path(), help="Fit ready-made (compute, n_star) points of a CSV instead.")
@click.option(
    "--x",
    "x",
    type=click.Choice(["compute", "tokens", "wall_s", "steps"]),
    default="compute",
    show_default=True,
    help="What a budget counts; with --points, compute or steps (the law linear in M).",
)
@setting_option("fixed-bp")
@law_options
@source_options
@click.option("--out", type=click.Path(), help="Write the law here (and its draws beside it).")
@click.option(
    "--figures", type=click.Path(), metavar="DIR", help="Draw both figures into DIR, as PNG and SVG."
)
@click.option(
    "--by", metavar="NAME", help="A law for each value of an attribute, side by side: model, problem_set, lr."
)
@click.option(
    "--retune",
    metavar="NAME",
    help="Beside the law at one lr, the one with lr chosen anew for every n and C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the law as JSON.")
@click.pass_context
def fit(
    ctx: click.Context, /, sources: tuple[str, ...], points: str | None, x: str, as_json: bool, **options: Any
) -> None:
    """Fit the allocation law to SOURCE…: logs, a sweep's directory, or tables.

    What isolaw read says of the sources is what is fitted.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    unheeded = sorted(given & _RUNS_ONLY) if points is not None else []
    if unheeded:
        name = {"settings": "set"}.get(unheeded[0], unheeded[0].replace("_", "-"))
        raise click.UsageError(f"--{name} is not for --points")
    accepted = ("compute", "steps") if points is not None else ("compute", "tokens", "wall_s")
    if x not in accepted:
        raise click.UsageError(
            f"--x {x}: accepted {'with' if points else 'without'} --points: {', '.join(accepted)}"
        )
    if points is not None:
        if sources:
            raise click.UsageError("--points takes no SOURCE")
        _fit_points(points, x, as_json, options)
        return
    if not sources:
        raise click.UsageError(
            "nothing to fit: name logs, a sweep's directory or a table, or use --points FILE.csv"
        )
    _fit_runs(sources, as_json, {**options, "x": x})


def _fit_runs(sources: tuple[str, ...], as_json: bool, options: dict[str, Any]) -> None:
    import isolaw
    from isolaw.report.text import words

    keywords = {**law_keywords(options), "setting": options["setting"], "x": options["x"]}
    _check_out(options["out"])
    if options.get("retune") and options["out"]:
        _check_out(str(_retuned(options["out"])))
    if options["figures"] is not None and (not options["figures"] or Path(options["figures"]).is_file()):
        raise click.UsageError(f"--figures {options['figures']}: not a directory's name")
    reading = read_sources(sources, options["metric"], options)
    announce_compilation()
    runs = reading.runs
    for text in reading.notes:
        note(f"note: {text}")
    fixed = constants(options["fixed"], "--fixed")
    if options["retune"] is not None:
        if options["by"] is not None or options["figures"] or options["x"] != "compute":
            raise click.UsageError(
                "--retune goes with neither --by nor --figures, and with --x compute alone"
            )
        with noted(runs.notes):
            _fit_retuned(runs, options["retune"], fixed, keywords, options["out"], as_json)
        return
    if options["by"] is not None:
        with noted(runs.notes):
            _fit_by(runs, options["by"], fixed, keywords, options["out"], as_json)
        return
    with noted(runs.notes):
        law = isolaw.fit(runs, fixed=fixed, **keywords)
    saved = law.save(options["out"]) if options["out"] else None
    figures = []
    if options["figures"]:
        from isolaw.report.figures.law import write_figures

        figures = write_figures(law, runs, options["figures"])
    if as_json:
        print_json(law.to_dict())
    else:
        for line in words.law_summary(law.document):
            click.echo(shown(line))
    for flag in law.document.flags:
        note(f"note: {words.flag(flag)}")
    if figures and not as_json:
        click.echo("Figures: " + ", ".join(str(path) for path in figures))
    if saved and not as_json:
        click.echo(f"Law: {saved}. Next: isolaw predict {saved} --compute <rollouts>")
    elif not as_json:
        note("note: nothing was written; --out law.json keeps the law for isolaw predict")


def _fit_by(
    runs: Any, by: str, fixed: dict[str, Any], keywords: dict[str, Any], out: str | None, as_json: bool
) -> None:
    """One law for each value of an attribute; what cannot be fitted says why, and the others go on."""
    import isolaw
    from isolaw.errors import DataError, Refused, unknown
    from isolaw.report.text import words
    from isolaw.runs import plain

    table = runs.table()
    if by not in table.columns:
        raise DataError(f"--by: {unknown('column', by, table.columns, 'there are')}")
    laws, refused = {}, {}
    for value in sorted({plain(v) for v in table[by].dropna()}, key=str):
        try:
            laws[value] = isolaw.fit(runs, fixed={**fixed, by: value}, **keywords)
        except Refused as error:
            refused[value] = str(error)
            note(f"note: {by} = {value}: {error}")
            continue
        if out is not None:
            path = Path(out)
            laws[value].save(path.with_name(f"{path.stem}-{str(value).replace('/', '_')}{path.suffix}"))
    if not laws:
        raise Refused(f"for no {by} could a law be fitted")
    if as_json:
        documents = {str(value): law.to_dict() for value, law in laws.items()}
        print_json({"by": by, "laws": documents, "refused": {str(k): v for k, v in refused.items()}})
        return
    for line in words.side_by_side(by, {value: law.document for value, law in laws.items()}):
        click.echo(line)


def _fit_retuned(
    runs: Any, name: str, fixed: dict[str, Any], keywords: dict[str, Any], out: str | None, as_json: bool
) -> None:
    """The law at one value of ``name``, given or the best, and the one with it re-tuned."""
    import isolaw
    from isolaw.fits.metric import choose
    from isolaw.fits.studies.retune import retune
    from isolaw.report.text import words

    metric, eval_set, _ = choose(runs, keywords["metric"], keywords["eval_set"])
    others = {key: value for key, value in fixed.items() if key != name}
    tuned = retune(runs, metric, eval_set, name, others)
    value = fixed.get(name, tuned.best)
    laws = {
        "one": isolaw.fit(runs, fixed={**others, name: value}, **keywords),
        "retuned": isolaw.fit(tuned.runs, fixed=others, **keywords),
    }
    if out is not None:
        laws["one"].save(out)
        laws["retuned"].save(_retuned(out))
    if as_json:
        documents = {key: law.to_dict() for key, law in laws.items()}
        print_json(
            {"retune": name, name: value, "laws": documents, "chosen": tuned.chosen.to_dict("records")}
        )
        return
    for line in words.retuned(name, value, {k: law.document for k, law in laws.items()}, tuned.chosen):
        click.echo(shown(line))
    if out is not None:
        click.echo(shown(f"Laws: {out}, {_retuned(out)}. Next: isolaw predict {out} --compute <rollouts>"))


def _fit_points(path: str, x: str, as_json: bool, options: dict[str, Any]) -> None:
    import isolaw
    from isolaw.readers.points import read_points
    from isolaw.report.text import words

    _check_out(options["out"])
    mapping = (
        pairs(options["column"], "--column"),
        pairs(options["derive"], "--derive"),
        constants(options["constant"], "--constant"),
    )
    values, n_star = read_points(path, x, *mapping)
    document, _ = isolaw.fit_points(values, n_star, "steps" if x == "steps" else "compute")
    document = replace(document, sources=(path,))
    if options["out"]:
        from isolaw.fits.law import save_document

        save_document(document, options["out"])
    if as_json:
        print_json(document.to_dict())
        return
    for line in words.points_summary(document):
        click.echo(shown(line))
    if options["out"]:
        click.echo(f"Law: {options['out']} (it names n*(C), but no curves: isolaw predict needs runs)")


def _retuned(out: str) -> Path:
    """Where the second law of ``--retune`` is written."""
    return Path(out).with_stem(f"{Path(out).stem}-retuned")


def _check_out(out: str | None) -> None:
    """Refuse before the work what could not be written after it."""
    if out is not None:
        from isolaw.fits.law import check_writable

        check_writable(out)
