"""A sweep's directory on disk, safe against a kill at any instant.

::

    DIR/sweep.toml                     as written (when there was a file)
    DIR/sweep.json                     resolved
    DIR/lock                           held by the one engine that writes
    DIR/runs/<run_id>/spec.json
                      points.jsonl     one line per checkpoint
                      problems.json    ids of the problems whose results the lines hold, if they do
                      state/<step>/    what continues the run from there
                      log              what the libraries of a run printed, if they did
                      stop             while it is there the run shall end, with its state
                      DONE             how far it got, or
                      FAILED.json      why it stopped, and the last lines of the log
    DIR/points.parquet                 all runs, sorted by key; can always be rebuilt
    DIR/problems.parquet               results of single problems, where a backend records them
    DIR/recorded.parquet               the runs that a replay plays, unless they are in a table of the user

A checkpoint is one appended line. At most once a second, with at most a tenth of the time spent on it,
and at a run's end, the lines are synced and the state is published under a temporary name, synced and
renamed. Runs of less than a second are synced together, by the engine, once a second. On resume, lines
beyond the last published state are cut and a torn last line is dropped, so at most the last second (or ten
times what a state takes to write) is lost and nothing is counted twice. No pickles.

Below the directory isolaw opens every name through a handle of its folder and follows no link (`folder`); it
compares what it reads with a checksum (`checksums`). States may be on another disk (`states`).
"""

from isolaw.store.folder import Folder
from isolaw.store.run import RunStore
from isolaw.store.sweep import SweepStore

__all__ = ["Folder", "RunStore", "SweepStore"]
