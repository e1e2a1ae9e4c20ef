"""The command ``isolaw export``: write the model of a run as a Hugging Face folder."""

from __future__ import annotations

import click

from isolaw.cli.common import interruptible, json_option, print_result
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination


@click.command(cls=ShortHelp)
@click.argument("run", type=click.Path())
@click.option("--out", required=True, type=Destination(), help="Folder of the model, new or empty.")
@json_option
@interruptible()
def export(run: str, out: str) -> None:
    """Write the model of a real run as a Hugging Face folder.

    RUN is OUT/runs/<run_id> of the sweep in OUT, or OUT/<run_id>. An unambiguous prefix of the run id is
    enough. isolaw exports the last state that the run saved (the final state if the run is done) and prints
    the step of this state.
    """
    from isolaw.backends.real import export as real

    done = real.export(run, out)
    lines = [
        f"{out}: step {done['step']:,} of run {done['run_id'][:12]}, after {done['compute']:,} rollouts; "
        f"{done['parameters']:,} parameters in {done['dtype']}",
        f'AutoModelForCausalLM.from_pretrained("{out}") loads it, and so does vLLM.',
    ]
    print_result(done, lines)
