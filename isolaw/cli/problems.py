"""The command ``isolaw problems``: sort problems by how often a base model solves them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import interruptible, json_option, note, print_result, progress_bar
from isolaw.cli.help import Further, ShortHelp
from isolaw.cli.options import Destination, pairs

if TYPE_CHECKING:
    from isolaw.backends.real.rollout.split import Draw, SplitFolder

_SAMPLING = "how responses are sampled"


def _parse_arguments(
    ctx: click.Context, option: click.Parameter, values: Sequence[str]
) -> dict[str, bool | int | float | str] | None:
    """Return NAME=VALUE options as a dictionary, with values parsed as in a sweep file, or None if empty."""
    from isolaw.documents.reading import parse_toml
    from isolaw.errors import InputError

    arguments: dict[str, bool | int | float | str] = {}
    for name, text in pairs(ctx, option, values, allow_empty=True).items():
        try:
            value = parse_toml(f"value = {text}", option.opts[0])["value"]
        except InputError:
            value = text
        arguments[name] = value if isinstance(value, bool | int | float) else str(value)
    return arguments or None


@click.command(cls=ShortHelp)
@click.option("--model", type=click.Path(), help="Base model, a folder in Hugging Face format.")
@click.option("--problems", "pool", type=click.Path(), help="Problem pool, a .jsonl or .parquet file.")
@click.option("--out", type=Destination(), help="Directory of the sets; continued if it exists.")
@click.option("--reward", default="exact", help="Reward: exact, math, or package.module:function.")
@click.option("--system", cls=Further, group=_SAMPLING, help="System message before each prompt.")
@click.option(
    "--chat-template", multiple=True, cls=Further, group=_SAMPLING, metavar="NAME=VALUE",
    callback=_parse_arguments,
    help="Argument of the chat template, e.g. enable_thinking=false.",
)  # fmt: skip
@click.option(
    "--temperature", cls=Further, group=_SAMPLING, type=click.FloatRange(0, 10, min_open=True), default=0.6,
    help="Sampling temperature.",
)  # fmt: skip
@click.option(
    "--max-response-tokens", cls=Further, group=_SAMPLING, type=click.IntRange(min=1), default=1024,
    help="Maximum length of a response.",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(1, 100_000), default=16, help="Samples of each problem.")
@click.option(
    "--more-samples", cls=Further, group=_SAMPLING, type=click.IntRange(1, 100_000), default=128,
    help="Additional samples of each problem that has no correct sample.",
)  # fmt: skip
@click.option(
    "--sampler", cls=Further, group=_SAMPLING, type=click.Choice(["vllm", "transformers"]),
    help="Sampling engine.  [default: vllm if installed]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the number of rollouts without loading a model.")
@json_option
@interruptible()
def problems(model: str | None, pool: str | None, out: str | None, dry_run: bool, **options: Any) -> None:
    """Sort a pool of problems into easy, hard and extremely hard sets.

    \b
    The sets differ in the share of 16 samples of a base model that are correct:
      easy            0.3 to 0.6
      hard            at most 0.0625
      extremely-hard  none, and none of 128 additional samples

    Each set is a folder of --out with train.jsonl and validation.jsonl, for problems.set of a sweep. Also set
    problems.difficulty = "easy" or "hard": a sweep does not infer it from the folder's name. The same command
    continues an interrupted split.
    """
    if model is None or pool is None or out is None:
        required = {"--model": model, "--problems": pool, "--out": out}
        missing = ", ".join(name for name, value in required.items() if value is None)
        raise click.UsageError(f"{missing}: missing")
    from isolaw.backends.real.rollout import rewards
    from isolaw.backends.real.rollout.split import open_split

    split = open_split(model, pool, out, options)
    left = split.left
    if dry_run:
        most = left + split.settings.more_samples * sum(q.id not in split.counts for q in split.problems)
        count, rollouts = len(split.problems), {"least": left, "most": most}
        plan = {"problems": count, "rollouts": rollouts, "dry_run": True}
        print_result(plan, [f"{count:,} problems; {left:,} to {most:,} rollouts to sample."])
        return
    failures = 0
    if left:
        named = rewards.get(split.settings.reward, where="--reward", folder=os.getcwd())
        with closing(named) as reward:
            draw = _load(model, split)
            with progress_bar("sampling", left) as update:
                for done, total in split.measure(draw, reward):
                    update(completed=done, total=total, description=f"{done:,} rollouts")
        failures = reward.failures
    report = split.write()
    result = {"directory": out, **report}
    print_result(result, _summary(split, report))
    if failures:
        note(f"note: the reward gave up on {failures:,} responses; they count as wrong")


def _load(model: str, split: SplitFolder) -> Draw:
    """Load the model, and redirect the output of its libraries to a file."""
    from isolaw.backends.real.rollout.split import open_draw
    from isolaw.errors import RunError

    split.folder.mkdir(parents=True, exist_ok=True)
    log = split.folder / "split.log"
    saved_streams = [(stream, os.dup(stream)) for stream in (1, 2)]
    with log.open("ab") as file:
        for stream, _ in saved_streams:
            os.dup2(file.fileno(), stream)
    try:
        return open_draw(model, split.problems, split.settings)
    except Exception as error:  # raised by torch, transformers or vLLM
        raise RunError(f"{model}: loading failed: {error} (see {log})") from error
    finally:
        for stream, saved in saved_streams:
            os.dup2(saved, stream)
            os.close(saved)


def _summary(split: SplitFolder, report: dict[str, Any]) -> list[str]:
    average = f"avg@{split.settings.samples}"
    lines = [f"{report['problems']:,} problems, {average} = {report[average]:.3f}"]
    if report["repeated_prompts"]:
        lines.append(f"isolaw left out {report['repeated_prompts']:,} problems that repeat a prompt.")
    for name, counts in report["sets"].items():
        text = f"{name:<15} {counts['problems']:>7,} problems"
        if counts["problems"]:
            text += f", {average} = {counts[average]:.3f}"
        if counts["written"]:
            sizes = f"{counts['train']:,} train, {counts['validation']:,} validation"
            text += f": {split.folder / name} ({sizes})"
        elif counts["problems"]:
            text += ": not written, since a training and a validation set need more problems"
        lines.append(text)
    unassigned = report["problems"] - sum(counts["problems"] for counts in report["sets"].values())
    lines.append(f"{'in no set':<15} {unassigned:>7,} problems")
    if report["sets"]["easy"]["written"]:
        lines.append(
            f'For a sweep on the easy problems, set problems.set = "{split.folder / "easy"}" and '
            'problems.difficulty = "easy"; for the other sets, the difficulty is "hard".'
        )
    return lines
