"""Implement the executor `scripts`, which writes scripts that start the runs on machines without isolaw.

isolaw writes two scripts to ``DIR/scripts``. ``run.sh`` trains the run with a given number, and ``slurm.sh``
is an array of SLURM jobs that call it. The scripts find the sweep's folder relative to their own location, so
the folder can be copied to a cluster and back. If the user repeats the sweep command, it collects the trained
runs and writes scripts for the remaining runs. This executor supports only the command backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from isolaw.backends import command
from isolaw.config import ExecutorSection
from isolaw.executors.base import Resources, execute
from isolaw.executors.waiting import Event, Waiting
from isolaw.store import SweepStore

_RUN_SCRIPT = """\
#!/bin/sh
# Trains one run of {runs}: sh run.sh NUMBER
set -eu
sweep=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
begin() {{
  out=$sweep/$1
  if [ -e "$out/begun" ]; then
    echo "$out: begun already; isolaw sweep writes the script that continues it" >&2
    exit 1
  fi
  mkdir -p "$out"
  : >"$out/begun"
  cd "${{ISOLAW_FOLDER:-$2}}"
}}
case ${{1-}} in
{cases}
*) echo "usage: sh run.sh NUMBER, of {runs} runs" >&2; exit 2 ;;
esac
: >"$out/ended"
"""
_SLURM_SCRIPT = """\
#!/bin/sh
# sbatch slurm.sh, in this folder: a job for each run
#SBATCH --array=1-{runs}{at_a_time}
#SBATCH --time={minutes}
#SBATCH --cpus-per-task={cpus}
{options}{setup}
sh run.sh "$SLURM_ARRAY_TASK_ID"
"""


def run(
    directory: Path, waiting: Waiting, section: ExecutorSection, needs_by_run: Mapping[str, Resources]
) -> Iterator[Event]:
    """Collect the runs that a script has trained, and write scripts for the remaining runs."""
    store, remaining = SweepStore(directory.absolute()), []
    while run_id := waiting.next():
        if command.is_trained(store.run(run_id).out):
            for event in execute(directory, run_id):
                yield from waiting.settle(event)
        else:
            remaining.append(store.run(run_id).read_spec())
    folder = store.root.folder("scripts", make=True)
    cases = []
    for number, spec in enumerate(remaining, 1):
        lines = command.script(spec, store.run(spec.run_id).out, store.directory)
        cases.append("\n".join([f"{number})", *(f"  {line}" for line in lines), "  ;;"]))
    folder.write("run.sh", _RUN_SCRIPT.format(runs=len(remaining), cases="\n".join(cases)).encode())
    if not remaining:  # run.sh reports that no runs remain
        folder.remove("slurm.sh")
        return
    needs = next(iter(needs_by_run.values()))  # every run of the command backend has the same resources
    options = [f"#SBATCH --gpus-per-node={needs.gpus}"] * bool(needs.gpus)
    options += [f"#SBATCH --partition={section.partition}"] * bool(section.partition)
    options += [f"#SBATCH --{key}={value}" for key, value in section.sbatch.items()]
    text = _SLURM_SCRIPT.format(
        runs=len(remaining),
        at_a_time=f"%{section.jobs}" if section.jobs else "",
        minutes=round(section.time),
        cpus=needs.cpus,
        options="".join(f"{line}\n" for line in options),
        setup="".join(f"{line}\n" for line in section.setup),
    )
    folder.write("slurm.sh", text.encode())
    cause = (
        f"{folder.path} has scripts for {len(remaining)} of the runs (e.g. sh run.sh 1); when these runs "
        "have trained, repeat this command to collect their results"
    )
    yield Event("", "warning", cause=cause)
