"""The console of prime-rl's orchestrator, for runs without ``metrics.jsonl``.

::

    18:03:15 SUCCESS Step 12 | Time: 13.04s | Reward: 0.1160 | Seq. Length: 396.8 tokens/sample | …
    18:03:15 SUCCESS Step 12 |    2m 5s | Reward 0.1160 | Trainable 128/128 (100.0%) | …

The second form dates from 2026. The files contain terminal colour codes. The reward is the mean over the
rollouts of the step. ``Val. Reward`` is ignored, because the line does not show which policy it evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from isolaw.errors import DataError
from isolaw.readers import configs
from isolaw.readers.raw_log import Container, RawLog
from isolaw.readers.text_lines import clean, lines, unprefixed

_NUMBER = r"(-?\d{1,12}(?:\.\d{1,12})?)"
_BEFORE = r"Step (\d{1,9}) \| (?:(?:Time: )?[\d.hms ]{1,20} \| )?Reward:? "
_STEP = re.compile(rf"\b{_BEFORE}{_NUMBER} \|(.{{0,1000}})")
_LENGTH = re.compile(rf" Seq\. Length: {_NUMBER} tokens/sample")
# A color code ends in "m".
_IN_BYTES = re.compile(rf"(?:\b|m){_BEFORE}-?[\d.]{{1,20}} \|".encode())
# Generic file names, which do not identify the run.
_GENERIC = {"orchestrator", "rl", "output", "stdout"}


def is_console(_path: Path, head: bytes) -> bool:
    """Return whether the beginning of a file contains a step of the orchestrator."""
    return _IN_BYTES.search(head) is not None


def read(path: Path) -> Iterator[RawLog]:
    """Read a console; raise `DataError` if it cannot be read or has no step."""
    log = RawLog(str(path), "prime-rl-console", configs.run_name(path, _GENERIC))
    log.config, log.config_source = configs.beside(path)
    for _, line in lines(path, log, returns=True):
        if b"Reward" not in line:
            continue
        step = _STEP.search(unprefixed(clean(line))[1])
        if step:
            values = {"reward/all/mean": step[2]}
            if length := _LENGTH.search(step[3]):
                values["seq_len/all/mean"] = length[1]
            if "Val. Reward" in step[3]:
                log.dropped["validation rewards"] += 1
            log.add(values, float(step[1]))
    if not log.step:
        raise DataError(f"{path}: found no step; expected 'Step 1 | Time: 9.5s | Reward: 0.25 | …'")
    yield log


CONTAINER = Container("prime-rl-console", read, file=is_console)
