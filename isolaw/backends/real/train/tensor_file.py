"""Float32 tensors written to a safetensors file one after another, so that no process holds all of them.

A file is the length of its header (8 bytes), the header (JSON: type, shape and place of each tensor) and the
tensors' bytes (https://huggingface.co/docs/safetensors). ``safetensors.torch.save_file`` writes the same from
tensors that are all in memory: for weights and moments of P parameters these are 12 P bytes, 85 GiB for 7B.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from isolaw.errors import RunError


def write(path: Path, shapes: Mapping[str, Sequence[int]], tensors: Iterable[torch.Tensor]) -> None:
    """Write tensors as float32, in the order of their ``shapes``; each is used before the next is asked for.

    Raise `RunError` for a tensor of another shape.

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
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            if list(tensor.shape) != list(shape):
                raise RunError(f"{path}: {name}: found shape {list(tensor.shape)}; expected {list(shape)}")
            file.write(tensor.detach().float().cpu().contiguous().reshape(-1).numpy())
