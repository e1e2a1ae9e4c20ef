"""A sweep's directory on disk, safe against a kill at any instant.

::

    DIR/sweep.toml                     the sweep file as written (if there was one)
    DIR/sweep.json                     the resolved sweep
    DIR/lock                           held by the one engine that writes
    DIR/runs/<run_id>/spec.json
                      points.jsonl     one line per checkpoint
                      problems.json    ids of the problems whose results the lines hold, if any
                      state/<step>/    what continues the run from there
                      log              output of the run's libraries, if any
                      stop             asks the run to save its state and end
                      DONE             how far it got, or
                      FAILED.json      why it stopped, and the last lines of the log
    DIR/points.parquet                 all runs, sorted by key; can always be rebuilt
    DIR/problems.parquet               results of single problems, if the backend records them
    DIR/recorded.parquet               the runs that a replay plays, unless a table of the user's holds them

A checkpoint is one appended line. At a run's end, and before that at most once a second and for at most a
tenth of the time, the lines are synced and the state is written under a temporary name, synced and renamed
(published). Runs of less than a second are synced together, by the engine, once a second. On resume, lines
beyond the last published state are cut and a torn last line is dropped. So at most the last second is lost
(or ten times as long as a state takes to write), and nothing is counted twice. There are no pickles.

Below the directory isolaw opens every name through a handle of its folder and follows no link (`folder`), and
compares what it reads with a checksum (`checksums`). States may be on another disk (`states`).
"""

from isolaw.store.folder import Folder
from isolaw.store.run import RunStore
from isolaw.store.sweep import SweepStore

__all__ = ["Folder", "RunStore", "SweepStore"]
