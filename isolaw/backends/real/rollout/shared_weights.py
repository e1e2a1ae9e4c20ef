"""Weights in memory that trainer and sampler share: an unnamed file, which the kernel frees when both end.

The trainer writes a version, and the sampler copies it. Before the trainer writes the next one, it waits
until the sampler reports the copy (`remote_sampler`), so that no version is read half written.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch

from isolaw.backends.real.rollout.samplers import Weights

_ALIGNED = 64  # bytes


class SharedWeights:
    """The file ``number`` of this process, from `os.memfd_create`, as named tensors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._memory: mmap.mmap | None = None

    def write(self, weights: Weights) -> list[dict[str, Any]]:
        """Copy weights into the file; return where each is, for `read` (JSON-able)."""
        places, tensors, size = [], [], 0
        for name, tensor in weights:
            dtype = str(tensor.dtype).removeprefix("torch.")
            places.append({"name": name, "dtype": dtype, "shape": list(tensor.shape), "offset": size})
            tensors.append(tensor)
            size += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
        if os.fstat(self.number).st_size != size:
            os.ftruncate(self.number, size)
            self._memory = None
        for (_, shared), tensor in zip(self.read(places), tensors, strict=True):
            shared.copy_(tensor)
        return places

    def read(self, places: list[dict[str, Any]]) -> Weights:
        """Yield the tensors that `write` has placed; they are the file's own memory."""
        if self._memory is None or len(self._memory) != os.fstat(self.number).st_size:
            self._memory = mmap.mmap(self.number, 0)
        for place in places:
            shape, dtype = torch.Size(place["shape"]), getattr(torch, place["dtype"])
            flat = torch.frombuffer(self._memory, dtype=dtype, count=shape.numel(), offset=place["offset"])
            yield place["name"], flat.view(shape)
