"""``isolaw split``: problems by how often a base model solves them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import interruptible, note, print_json

if TYPE_CHECKING:
    from isolaw.backends.real.rollout.split import Draw, Split


@click.command()
@click.option(
    "--model", required=True, type=click.Path(), help="Folder of the base model, Hugging Face format."
)
@click.option("--problems", required=True, type=click.Path(), help="The pool: a .jsonl or .parquet file.")
@click.option("--out", required=True, type=click.Path(), help="Where the sets go; continued if it is there.")
@click.option("--reward", default="exact", show_default=True, help="exact, math, or package.module:function.")
@click.option("--temperature", type=click.FloatRange(0, 10, min_open=True), default=0.6, show_default=True)
@click.option("--max-response-tokens", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option(
    "--samples", type=click.IntRange(1, 100_000), default=16, show_default=True, help="Of each problem."
)
@click.option(
    "--more-samples",
    type=click.IntRange(1, 100_000),
    default=128,
    show_default=True,
    help="Of those that are never solved.",
)
@click.option(
    "--validation",
    type=click.IntRange(min=1),
    help="Problems held out of each set; 300, at most a fifth of it, unless given.",
)
@click.option("--sampler", type=click.Choice(["vllm", "transformers"]), help="vllm where it is installed.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the samples.")
@click.option("--dry-run", is_flag=True, help="Say what would be sampled, load no model.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@interruptible()
def split(
    model: str,
    problems: str,
    out: str,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Sort a pool of problems into easy, hard and extremely hard sets.

    \b
    By the share that a base model solves, of 16 samples:
      easy            0.3 to 0.6
      hard            at most 0.0625
      extremely-hard  none, and none of 128 more
    Each becomes a folder of --out with train.jsonl and validation.jsonl, for problems.set of a sweep. A sweep
    reads nothing from a folder's name: give it problems.difficulty = "easy" or "hard", too. The same command
    again continues what was interrupted.
    """
    from isolaw.backends.real.rollout import rewards
    from isolaw.backends.real.rollout.split import plan

    work = plan(model, problems, out, options)
    left = work.left.total
    if dry_run:
        most = left + work.settings.more_samples * sum(q.id not in work.counts for q in work.questions)
        if as_json:
            print_json(
                {"problems": len(work.questions), "rollouts": {"least": left, "most": most}, "dry_run": True}
            )
        else:
            click.echo(f"{len(work.questions):,} problems; {left:,} to {most:,} rollouts are to be sampled.")
        return
    failures = 0
    if left:
        draw = _load(model, work)
        reward = rewards.get(work.settings.reward)
        try:
            _measure(work, draw, reward)
        finally:
            reward.close()
        failures = reward.failures
    report = work.write()
    if as_json:
        print_json({"format": "isolaw.split/1", "directory": out, **report})
    else:
        for line in _summary(work, report):
            click.echo(line)
    if failures:
        note(f"note: {failures:,} responses were given up by the reward and count as wrong")


def _load(model: str, work: Split) -> Draw:
    """Load the model; what its libraries print meanwhile goes to a file."""
    from isolaw.backends.real.rollout.split import open_draw
    from isolaw.errors import RunError

    work.folder.mkdir(parents=True, exist_ok=True)
    log = work.folder / "split.log"
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    with log.open("ab") as file:
        for stream, _ in kept:
            os.dup2(file.fileno(), stream)
    try:
        return open_draw(model, work.questions, work.settings)
    except Exception as error:  # of torch, transformers or vLLM
        raise RunError(f"{model}: cannot be loaded: {error} (more in {log})") from error
    finally:
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)


def _measure(work: Split, draw: Draw, reward: Any) -> None:
    """Sample with a progress bar on a terminal, quietly elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("sampling", total=work.left.total)
        for done, total in work.measure(draw, reward):
            progress.update(task, completed=done, total=total, description=f"{done:,} rollouts")


def _summary(work: Split, report: dict[str, Any]) -> list[str]:
    average = f"avg@{work.settings.samples}"
    lines = [f"{report['problems']:,} problems, {average} = {report[average]:.3f}"]
    if report["repeated_prompts"]:
        lines.append(f"{report['repeated_prompts']:,} more have a prompt that is there already: left out")
    for name, one in report["sets"].items():
        text = f"{name:<15} {one['problems']:>7,} problems"
        if one["problems"]:
            text += f", {average} = {one[average]:.3f}"
        if one["written"]:
            text += f": {work.folder / name} ({one['train']:,} train, {one['validation']:,} validation)"
        elif one["problems"]:
            text += ": too few for a training and a validation set, not written"
        lines.append(text)
    rest = report["problems"] - sum(one["problems"] for one in report["sets"].values())
    lines.append(f"{'in no set':<15} {rest:>7,} problems")
    if report["sets"]["easy"]["written"]:
        lines.append(
            f'A sweep on the easy problems: problems.set = "{work.folder / "easy"}", '
            'problems.difficulty = "easy"; for the others "hard".'
        )
    return lines
