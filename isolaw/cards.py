"""GPUs by name, to plan for machines that are not at hand: ``h100-80g:8`` are eight H100 of 80 GB."""

from __future__ import annotations

import re
from dataclasses import dataclass

from isolaw.errors import Issue, SpecError, nearest

# What nvidia-smi calls the memory of each, in MiB, by NVIDIA's and cloud providers' published listings.
_MIB = {
    "a10g-24g": 23_028,
    "a100-40g": 40_960,
    "a100-80g": 81_920,
    "b200-180g": 183_359,
    "h100-80g": 81_559,
    "h200-141g": 143_771,
    "l4-24g": 23_034,
    "l40s-48g": 46_068,
    "rtx3090-24g": 24_576,
    "rtx4090-24g": 24_564,
}


@dataclass(frozen=True)
class Cards:
    """The GPUs of one machine: how many, and the bytes of each."""

    count: int
    gpu_bytes: int


def cards(text: str, where: str = "--machine") -> Cards:
    """Return the GPUs of a machine from ``NAME:COUNT``; the count is 1 where it is left out.

    >>> cards("h100-80g:8")
    Cards(count=8, gpu_bytes=85520809984)
    >>> cards("80g:2").gpu_bytes / 2**30
    80.0

    Raises
    ------
    SpecError
        no such name or form.
    """
    name, _, count = text.strip().lower().partition(":")
    free = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]+)?)g(?:i?b)?", name)
    mib = float(free[1]) * 2**10 if free else _MIB.get(name, 0)
    if not mib or not re.fullmatch(r"[1-9][0-9]{0,3}|", count):
        accepted = f"a name, or a memory in GiB as 80g, and :COUNT; names are {', '.join(_MIB)}"
        close = nearest(name, _MIB) if name not in _MIB else ""
        raise SpecError([Issue(where, found=text, accepted=accepted, nearest=close)])
    return Cards(int(count or 1), int(mib * 2**20))
