"""Share weights between trainer and samplers through memory.

The memory is an unnamed file, which the kernel frees when all processes have ended. The trainer writes a
version of the weights, and each sampler copies it. Before it writes the next version, the trainer waits until
all samplers report their copies (`sampler_group`). Samplers therefore never read a partly written version.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch

from isolaw.backends.real.rollout.samplers import Weights

_ALIGNED = 64  # bytes


class SharedWeights:
    """Named tensors in the file with descriptor ``number``, which `os.memfd_create` returned."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._memory: mmap.mmap | None = None

    def write(self, weights: Weights) -> list[dict[str, Any]]:
        """Copy weights into the file one by one; return the position of each, in JSON types, for `read`."""
        places, end = [], 0
        for name, tensor in weights:
            dtype = str(tensor.dtype).removeprefix("torch.")
            places.append({"name": name, "dtype": dtype, "shape": list(tensor.shape), "offset": end})
            left = memoryview(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
            at, end = end, end + -(-len(left) // _ALIGNED) * _ALIGNED
            while left:  # one call writes at most 2 GiB
                written = os.pwrite(self.number, left, at)
                left, at = left[written:], at + written
        os.ftruncate(self.number, end)
        return places

    def read(self, places: list[dict[str, Any]]) -> Weights:
        """Yield the tensors that `write` stored; they share the memory of the file."""
        if self._memory is None or len(self._memory) != os.fstat(self.number).st_size:
            self._memory = mmap.mmap(self.number, 0)
        for place in places:
            shape, dtype = torch.Size(place["shape"]), getattr(torch, place["dtype"])
            flat = torch.frombuffer(self._memory, dtype=dtype, count=shape.numel(), offset=place["offset"])
            yield place["name"], flat.view(shape)
