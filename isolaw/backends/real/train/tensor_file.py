"""Write float32 tensors to a safetensors file one after another, so that they need not all be in memory.

A file consists of the length of its header (8 bytes), the header, and the bytes of the tensors. The header is
JSON with type, shape and offsets of each tensor (https://huggingface.co/docs/safetensors).
``safetensors.torch.save_file`` writes the same file but needs all tensors in memory. Weights and moments of P
parameters are 12 P bytes, which is 85 GiB for 7B.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from isolaw.errors import RunError


def write(path: Path, shapes: Mapping[str, Sequence[int]], tensors: Iterable[torch.Tensor]) -> None:
    """Write tensors as float32, in the order of ``shapes``.

    Each tensor is written before the next one is taken from the iterator. Raise `RunError` if a tensor has
    another shape.

    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> path = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> write(path, {"w": [1, 2], "b": []}, iter([torch.ones(1, 2), torch.tensor(3.0)]))
    >>> load_file(path)["w"], load_file(path)["b"]
    (tensor([[1., 1.]]), tensor(3.))
    """
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors to 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            if list(tensor.shape) != list(shape):
                raise RunError(f"{path}: {name}: found shape {list(tensor.shape)}; expected {list(shape)}")
            file.write(tensor.detach().float().cpu().contiguous().reshape(-1).numpy())
