"""Store a sweep in a directory that remains valid if isolaw is killed at any time.

::

    DIR/sweep.toml                     the sweep file as written by the user, if there was one
    DIR/sweep.json                     the resolved sweep
    DIR/lock                           lock of the only engine that writes
    DIR/runs/<run_id>/spec.json
                      points.jsonl     one line per checkpoint
                      problems.json    ids of the problems with per-problem results, if any
                      state/<step>/    the state from which the run can resume
                      log              output of the run's libraries, if any
                      stop             a request that the run save its state and end
                      DONE             the horizon that the run has finished, or
                      FAILED.json      the cause of a failure, and the last lines of the log
    DIR/points.parquet                 all runs, sorted by key; can always be rebuilt
    DIR/problems.parquet               per-problem results, if the backend records them
    DIR/recorded.parquet               the runs that a sweep replays

A checkpoint is one appended line. Regularly, and at the end of a run, isolaw syncs the lines and publishes a
state. It writes the state under a temporary name, syncs it, and renames it, at most once a second and for at
most a tenth of the time. For runs of less than a second, the engine syncs all runs together once a second.
When a run resumes, lines after the last published state and an incomplete last line are removed. A kill
therefore loses at most one second of work, or ten times the time that writing a state takes. Nothing is
counted twice. There are no pickles.

Below the directory, isolaw opens every name through a handle of its folder and follows no links (`folder`),
and it checks all content with checksums (`checksums`). States can be on another disk (`states`).
"""

from isolaw.store.folder import Folder
from isolaw.store.run import RunStore
from isolaw.store.sweep import SweepStore

__all__ = ["Folder", "RunStore", "SweepStore"]
