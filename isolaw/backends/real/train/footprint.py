"""The bytes that training and sampling take on each GPU, phase by phase.

For a decoder of P parameters with L layers, residual stream E, MLP I, queries Q, keys K and vocabulary V
(`shapes.Decoder`), computed in b bytes a number by w processes, on micro-batches of N tokens::

    kept by the trainer, whatever it does (ZeRO, arXiv 1910.02054; what is divided is so from stage …)
        weights       b P    [÷ w: 3]
        optimiser     12 P   master weights and AdamW's two moments, float32 [÷ w: 1]; 0 if offloaded
        reference     b P    [÷ w: 3], where there is a KL term
    and during the passes
        gradients     4 P    sums in float32 [÷ w: 2]; 0 if offloaded
        buckets       what DeepSpeed exchanges at a time and, in stage 3, what is gathered of the weights
        activations   b N E  for each layer, and all of the layer that is computed again:
                      N (b (6 I + 5 E + 2 Q + 2 K + 2 D) + 8 E), D the size of a head
        logits        chunks of `CHUNK` numbers, and the gradient of the head's weight in float32

    kept by the sampler while it draws: its weights, and key-value cache up to real.gpu_memory of the card.

A phase takes what its largest moment does: training the backward pass of the head or that of the first layer,
or the update. These equations agree with what `benchmarks/memory.py` measures of the trainer's and
DeepSpeed's own code on tensors without data. **What no tensor holds is guessed** (`GUESSES`) until a GPU
has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from isolaw.backends.real.train.shapes import Decoder

GIB = 2**30
# What the trainer gives DeepSpeed: numbers exchanged at a time (more than a layer's matrix has in a model of
# 7 billion parameters, since ZeRO-2 keeps a larger gradient whole), and gathered weights that ZeRO-3 keeps.
BUCKET, LIVE = 100_000_000, 300_000_000
# Logits of the head's chunks: a quarter of a gibibyte in float32, of which a few copies are alive.
CHUNK = 2**26
SUB_GROUP = 1_000_000_000  # numbers that ZeRO-3 updates at a time, DeepSpeed's default
PHASES = ("sample", "compare", "train", "sync")
PARTS = (
    "weights",
    "gradients",
    "optimiser",
    "reference",
    "buckets",
    "activations",
    "logits",
    "sampler's weights",
    "sampler's cache",
    "reserve",
)


@dataclass(frozen=True)
class Guesses:
    """What nobody has measured here: bytes on a GPU that belong to no tensor.

    Attributes
    ----------
    driver
        of what ``nvidia-smi`` calls the card's memory, what no program gets.
    context
        CUDA's context of a process with torch's, vLLM's and cuBLAS's kernels.
    nccl
        NCCL's buffers, where there are several processes.
    graphs
        vLLM's CUDA graphs, which stay while it sleeps.
    fragmentation
        share of the trainer's tensors that the allocator holds beyond them.
    sampler_tokens, sampler_rows
        tokens and rows of a step of vLLM, whose activations and logits come out of its share.
    """

    driver: int = round(0.75 * GIB)
    context: int = round(0.75 * GIB)
    nccl: int = GIB
    graphs: int = round(1.5 * GIB)
    fragmentation: float = 0.03
    sampler_tokens: int = 16_384
    sampler_rows: int = 1_024


GUESSES = Guesses()


@dataclass(frozen=True)
class Load:
    """What a GPU has to do: a process's part of a run.

    Attributes
    ----------
    number_bytes
        of a weight or an activation (b).
    processes, zero_stage, offload_optimizer, gradient_checkpointing, micro_batch_tokens, tensor_parallel
        as in the section ``[real]``, with nothing open.
    row_tokens
        of the longest prompt and its response.
    reference
        whether there is a KL term.
    float32_head
        whether logits are computed in float32.
    vllm
        whether that is the sampler; else `transformers`, which never sleeps.
    gpu_bytes
        of the card.
    gpu_memory
        the sampler's share of it.
    """

    number_bytes: int
    processes: int
    zero_stage: int
    offload_optimizer: bool
    gradient_checkpointing: bool
    micro_batch_tokens: int
    tensor_parallel: int
    row_tokens: int
    reference: bool
    float32_head: bool
    vllm: bool
    gpu_bytes: int
    gpu_memory: float

    @property
    def stage(self) -> int:
        """The stage that DeepSpeed is given: master weights by name are kept from stage 1 on."""
        return max(self.zero_stage, 1) if self.number_bytes < 4 or self.offload_optimizer else self.zero_stage


Parts = dict[str, int]


def footprint(model: Decoder, load: Load) -> dict[str, Parts]:
    """Return the bytes of each part in each phase, by their names; parts of no bytes are left out."""
    kept = _kept(model, load)
    phases = {
        "sample": kept | sampler(model, load),
        "compare": kept | _forward(model, load) | _beside(model, load),
        "train": kept | _training(model, load) | _beside(model, load),
        "sync": kept | {"buckets": _syncing(model, load), "sampler's weights": _sampler_weights(model, load)},
    }
    for phase, parts in phases.items():
        own = sum(size for part, size in parts.items() if not part.startswith("sampler"))
        parts["reserve"] = _reserve(load) + round(GUESSES.fragmentation * own)
        phases[phase] = {part: round(parts[part]) for part in PARTS if parts.get(part)}
    return phases


def tensors(model: Decoder, load: Load) -> int:
    """Return the most bytes of tensors while training: what `benchmarks/memory.py` measures."""
    return sum((_kept(model, load) | _training(model, load)).values())


def host(model: Decoder, load: Load) -> int:
    """Return the bytes that a process keeps in host memory: the optimiser's, where they are offloaded."""
    each = 16 + load.number_bytes  # gradients, and the weights on their way back
    return each * model.parameters // load.processes if load.offload_optimizer else 0


# -- the trainer ------------------------------------------------------------------------------------------


def _kept(model: Decoder, load: Load) -> Parts:
    p, w, b, stage = model.parameters, load.processes, load.number_bytes, load.stage
    weights = b * p // (w if stage == 3 else 1)
    optimiser = 8 * p if stage == 0 else 12 * p // w  # whole weights in float32 are their own masters
    return {
        "weights": weights,
        "optimiser": 0 if load.offload_optimizer else optimiser,
        "reference": weights if load.reference else 0,
        # DeepSpeed keeps them from one step to the next.
        "gradients": _gradients(model, load) if stage in (1, 3) else 0,
        "buckets": _bucket(load) if stage == 3 else b * model.embedding if load.offload_optimizer else 0,
    }


def _gradients(model: Decoder, load: Load) -> int:
    p, w = model.parameters, load.processes
    if load.offload_optimizer and load.stage > 1:
        return 0
    if load.stage == 1 and load.number_bytes < 4:  # beside the sums, those that autograd leaves
        return (4 + load.number_bytes) * p
    if load.stage == 2 and load.number_bytes == 4:  # of whole parameters: those that have a part in its own
        return 4 * max(p // w, model.embedding)
    sums = 4 * p // (w if load.stage >= 2 else 1)
    if (
        load.stage == 2
    ):  # of what is larger than a bucket, those that autograd leaves of its own part stay, too
        large = sum(size for size in model.matrices if size > BUCKET) * model.layers
        large += model.embedding if model.embedding > BUCKET else 0
        sums += load.number_bytes * min(large, p // w)
    return sums


def _bucket(load: Load) -> int:
    return load.number_bytes * BUCKET


def _gathered(model: Decoder, load: Load, numbers: int) -> int:
    """Weights that ZeRO-3 has brought together from all processes: those in use and the next ones."""
    if load.stage < 3:
        return 0
    return load.number_bytes * min(model.parameters, numbers + BUCKET)


def _of_reference(model: Decoder, load: Load) -> int:
    """Weights of the reference that ZeRO-3 has brought together and still holds."""
    return load.number_bytes * min(model.parameters, LIVE) if load.reference and load.stage == 3 else 0


def _training(model: Decoder, load: Load) -> Parts:
    """The largest moment of the passes and the update, beyond what is kept."""
    b, stage = load.number_bytes, load.stage
    own = {"gradients": _gradients(model, load)}
    exchanged = _bucket(load) if stage > 1 or (stage == 1 and b == 4) else 0
    # The head's gradient waits for the embedding's; so does the weight under ZeRO-3, unless it is too large.
    waiting = 2 if stage == 3 and model.embedding <= LIVE else 1
    tied = waiting * b * model.embedding if model.tied and stage else 0
    saved = _saved(model, load)
    largest = max(model.matrices)
    layer = own | {
        "buckets": exchanged
        + b * largest
        + _gathered(model, load, model.layer)
        # The first layers' moment or the last ones': by then the reference's weights are gone.
        + max(tied, _of_reference(model, load)),
        "activations": saved + _again(model, load),
    }
    head = own | {
        "buckets": exchanged * (stage != 2)
        + _gathered(model, load, model.embedding)
        + _of_reference(model, load),
        "activations": saved + (3 * b + 4) * load.micro_batch_tokens * model.hidden,
        "logits": _logits(model, load, backward=True),
    }
    p = model.parameters // load.processes
    # The norm is taken in float64 (stages 1, 2); stage 3 lays the gradients of a sub-group side by side.
    step = {1: 8 * min(model.embedding, p), 2: 8 * min(model.embedding, p), 3: 4 * min(p, SUB_GROUP)}.get(
        stage, 0
    )
    update = own | {"buckets": 0 if load.offload_optimizer else step + (_bucket(load) if stage == 3 else 0)}
    return max(layer, head, update, key=lambda moment: sum(moment.values()))


def _saved(model: Decoder, load: Load) -> int:
    """Activations kept from the forward for the backward pass."""
    each = load.number_bytes * model.hidden
    if not load.gradient_checkpointing:
        each = _layer_saved(model, load)
    return load.micro_batch_tokens * model.layers * each


def _layer_saved(model: Decoder, load: Load) -> int:
    """A token's activations of a layer that its backward pass uses."""
    b, e, q, k = load.number_bytes, model.hidden, model.query, model.key_value
    return b * (4 * (model.intermediate + e) + 2 * q + 2 * k) + (8 * e if b < 4 else 0)


def _again(model: Decoder, load: Load) -> int:
    """A layer's activations and their gradients, at the most; the gradients alone where all are kept."""
    b, e, q, k = load.number_bytes, model.hidden, model.query, model.key_value
    if not load.gradient_checkpointing:
        return 2 * load.micro_batch_tokens * b * (model.intermediate + e)
    numbers = 6 * model.intermediate + 5 * e + 2 * q + 2 * k + 2 * model.head_size
    return load.micro_batch_tokens * (b * numbers + (8 * e if b < 4 else 0))  # RMSNorm's, in float32


def _logits(model: Decoder, load: Load, *, backward: bool) -> int:
    """Logits of a chunk and their softmax, and the head's gradient, all in float32."""
    head = 4 * model.embedding if load.float32_head and load.number_bytes < 4 else 0
    chunk = min(CHUNK, load.micro_batch_tokens * model.vocabulary)
    copies = 8 * chunk
    if not backward:
        return head + copies
    return head + 4 * model.embedding + max(copies, load.number_bytes * model.embedding)


def _forward(model: Decoder, load: Load) -> Parts:
    """A forward pass without gradients, of the policy or of the reference."""
    b, n, e = load.number_bytes, load.micro_batch_tokens, model.hidden
    kept = _bucket(load) if load.stage == 3 else 0
    return {
        "buckets": kept
        + _gathered(model, load, max(model.layer, model.embedding))
        + _of_reference(model, load),
        "activations": n * (b * (4 * model.intermediate + 2 * e) + 8 * e),
        "logits": _logits(model, load, backward=False),
    }


# -- the sampler ------------------------------------------------------------------------------------------


def sampler(model: Decoder, load: Load) -> Parts:
    """Return what the sampler takes while it draws: its weights, and the rest of its share for the cache."""
    weights = _sampler_weights(model, load)
    cache = max(sampler_needs(model, load) - weights, round(load.gpu_memory * load.gpu_bytes) - weights)
    if not load.vllm:
        cache = 0  # of its rows, which are few: it is no sampler for large models
    return {"sampler's weights": weights, "sampler's cache": cache}


def sampler_needs(model: Decoder, load: Load) -> int:
    """Return the least that vLLM takes: weights, work space, and the cache of one row of full length."""
    b = load.number_bytes
    tokens = b * GUESSES.sampler_tokens * (3 * model.intermediate // load.tensor_parallel + 4 * model.hidden)
    rows = 4 * 4 * GUESSES.sampler_rows * model.vocabulary
    keys = max(model.key_value // load.tensor_parallel, model.head_size)  # at least a head on each GPU
    cache = 2 * b * load.row_tokens * model.layers * keys
    return _sampler_weights(model, load) + max(tokens, rows) + cache


def _sampler_weights(model: Decoder, load: Load) -> int:
    untied = model.embedding if model.tied and load.vllm else 0  # vLLM's are, to be loaded anew
    return load.number_bytes * (model.parameters + untied) // load.tensor_parallel


def _syncing(model: Decoder, load: Load) -> int:
    """Weights are handed over one by one, each brought together from all processes."""
    if load.stage < 3:
        return 0
    return _bucket(load) + load.number_bytes * model.embedding


def _beside(model: Decoder, load: Load) -> Parts:
    return {} if load.vllm else {"sampler's weights": _sampler_weights(model, load)}


def _reserve(load: Load) -> int:
    several = GUESSES.nccl if load.processes > 1 else 0
    return GUESSES.driver + GUESSES.context + several + (GUESSES.graphs if load.vllm else 0)
