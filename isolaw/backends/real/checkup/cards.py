"""What a card can do at most, and what a training step costs: together the MFU."""

from __future__ import annotations

from dataclasses import dataclass

# Dense bfloat16 with float32 accumulation, TFLOP/s, from NVIDIA's data sheets (which print twice as much
# for most of them, "with sparsity"). By the name that nvidia-smi gives; the first that it contains.
_PEAKS = {
    "B200": 2250.0,
    "H200 NVL": 835.5,
    "H200": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.5,
    "H100": 989.4,
    "A100": 312.0,
    "L40S": 362.1,
    "RTX 4090": 165.2,
    "RTX 3090": 71.2,
}


def peak_tflops(name: str) -> float | None:
    """Return a card's peak in bfloat16, TFLOP/s, or None where it is not known.

    >>> peak_tflops("NVIDIA H100 80GB HBM3"), peak_tflops("NVIDIA H100 PCIe"), peak_tflops("NVIDIA H20")
    (989.4, 756.5, None)
    """
    words = f"{name} "
    return next((peak for card, peak in _PEAKS.items() if f"{card} " in words or f"{card}-" in words), None)


@dataclass(frozen=True)
class Shapes:
    """Of a model: parameters (a tied embedding once), layers, and heads times their size."""

    parameters: int
    layers: int
    width: int


def training_flops(shapes: Shapes, tokens: float, length: float) -> float:
    """Return the FLOPs of the forward and backward pass over ``tokens`` tokens in rows of ``length``.

    6 · N for each token, and 6 · layers · width · length for causal attention, which looks back at half of
    the row in the mean (Chowdhery et al., PaLM, arXiv 2204.02311, app. B, has 12 without the causal half).
    What gradient checkpointing computes again does not count.

    >>> f"{training_flops(Shapes(494_000_000, 24, 896), 1000, 0):.3g}"
    '2.96e+12'
    """
    return tokens * 6 * (shapes.parameters + shapes.layers * shapes.width * length)
