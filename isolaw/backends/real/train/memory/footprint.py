"""Compute the memory of training and sampling on each GPU, in bytes, for each phase of a step.

Consider a decoder of P parameters with L layers, residual stream E, MLP I, queries Q, keys K, heads of size D
and vocabulary V (`decoder.Decoder`). It has b bytes per number, w processes, and micro-batches of N tokens::

    kept by the trainer (ZeRO, arXiv 1910.02054; in brackets: the stage from which w processes share it)
        weights       b P    [3]
        optimiser     12 P   master weights and AdamW's two moments in float32 [1]; 0 if offloaded
        reference     b P    [3], only with a KL term
        critic        all of the above and the persistent gradients, with P minus the head; only with PPO
    also during the passes
        gradients     4 P    sums in float32 [2]; 0 if offloaded
        buckets       DeepSpeed's communication buffers and, in stage 3, the gathered weights
        activations   b N E  for each layer, plus all activations of the layer that is recomputed:
                      N (b (6 I + 5 E + 2 Q + 2 K + 2 D) + 8 E)
        logits        chunks of `CHUNK` numbers, and the gradient of the head's weight in float32

    With LoRA adapters of P' numbers, optimiser and gradients have P' numbers, and weights have P + P'. The
    reference is the model with its adapters disabled, and the head's weight has no gradient.

    kept by the sampler while it draws: its weights, and a key-value cache up to real.gpu_memory of the GPU.
    Samplers in separate processes have their own GPUs. These GPUs have only the phase "sample", and the
    GPUs of trainers have all other phases.

    in the host memory of the first machine, which has m processes
        programs      m × the libraries, and the libraries of samplers in separate processes
        weights       b P for each process while it loads the model; in stage 3 only for the first process
        optimiser     (16 + b) P' / w for each process, if offloaded, after the model is loaded
        state         the largest tensor in float32 for each process, while a state is written or read
        transfer      b P for each process that has samplers in separate processes

The memory of a phase is its peak memory. For training, the peak is in the backward pass of the head, the
backward pass of the first layer, or the update. `benchmarks/memory.py` measures the trainer's and DeepSpeed's
code on tensors without data, and agrees with these equations. `OVERHEADS` covers memory outside tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.train.memory.decoder import Decoder

GIB = 2**30
# DeepSpeed's settings in the trainer: numbers per communication bucket, and gathered weights that ZeRO-3
# keeps. A bucket is larger than any layer's matrix in a model of 7 billion parameters, because ZeRO-2 keeps
# larger gradients whole.
BUCKET, LIVE = 100_000_000, 300_000_000
# Logits per chunk of the head: a quarter of a gibibyte in float32. A few copies exist at a time.
CHUNK = 2**26
SUB_GROUP = 1_000_000_000  # numbers that ZeRO-3 updates at a time; DeepSpeed's default
PARTS = (
    "weights", "gradients", "optimiser", "reference", "critic", "buckets", "activations", "logits",
    "sampler's weights", "sampler's cache", "reserve",
)  # fmt: skip
_BytesByPart = dict[str, int]


@dataclass(frozen=True)
class _Overheads:
    """Bytes outside tensors: measured for one process on one H200 (docs/gpu), guessed for several processes.

    The comments give the measured values in GiB in parentheses.
    """

    driver: int = round(0.65 * GIB)  # part of nvidia-smi's total that programs cannot use (0.60)
    context: int = round(1.7 * GIB)  # CUDA context, kernels of torch, DeepSpeed and cuBLAS (1.29 to 1.67)
    nccl: int = GIB  # NCCL buffers with several processes: a guess
    graphs: int = GIB  # vLLM's CUDA graphs, which persist while it sleeps (at most 0.7 for a 0.5 B model)
    program: int = 4 * GIB  # host memory of a process with torch, vLLM and DeepSpeed (3.2)
    fragmentation: float = 0.03  # the allocator's excess over the trainer's tensors, a share (0.005-0.03)
    streams: int = round(2.85 * GIB)  # freed by ZeRO-3 on one stream, needed on another (2.63 to 2.84)
    # Maximum tokens and rows of a vLLM step; their activations and logits are part of vLLM's share.
    sampler_tokens: int = 16_384
    sampler_rows: int = 1_024


OVERHEADS = _Overheads()


@dataclass(frozen=True)
class Demand:
    """The properties of a run and its machine that determine memory, besides the section ``[real]``."""

    model: Decoder
    gpu_bytes: int  # memory of the smallest GPU
    row_tokens: int  # tokens of the longest prompt and its response
    reference: bool  # whether there is a KL term
    critic: bool = False  # whether there is a value model
    lora_rank: int | None = None  # None: full fine-tuning
    host_bytes: int = 0  # host memory of this machine; 0: unknown
    gpus: int = 0  # GPUs of this machine, one per process; 0: as many as the run has processes


class Footprint:
    """The memory of a run on each GPU in bytes, for a section ``[real]`` with all keys filled in."""

    def __init__(self, demand: Demand, options: RealOptions) -> None:
        self.demand, self.options, self.model = demand, options, demand.model
        self.b, self.w = 2 if options.dtype == "bfloat16" else 4, options.processes
        self.offloads = bool(options.offload_optimizer)
        # DeepSpeed keeps master weights by name from stage 1.
        self.stage = max(options.zero_stage, 1) if self.b < 4 or self.offloads else options.zero_stage
        # A row that is longer than the micro-batch limit gets its own micro-batch.
        self.tokens = max(options.micro_batch_tokens or 0, demand.row_tokens)
        model, rank = self.model, demand.lora_rank
        adapters = model.adapter_sizes(rank) if rank else ()
        self.adapter_size = model.layers * sum(adapters)
        self.lora_numbers = (rank or 0) * len(adapters) // 2  # between A and B of a layer, per token
        # Trained parameters: their number, and those of the matrices of a layer and of the largest tensor.
        self.trained_size = self.adapter_size or model.parameters
        self.matrix_sizes = adapters or model.matrix_sizes
        self.largest_tensor = max(adapters) if adapters else model.embedding_size
        self.uses_vllm = options.sampler == "vllm"

    def phases(self) -> dict[str, _BytesByPart]:
        """Return the bytes of each part (`PARTS`) in each phase; omit parts of 0 bytes."""
        trainer_state, is_async = self._trainer_state(), self.options.streaming > 0
        sampler = {} if is_async else {"sampler's weights": self._sampler_weights()}
        resident = {} if self.uses_vllm else sampler
        phases = {
            "sample": ({} if is_async else trainer_state) | self._sampler_bytes(),
            "compare": trainer_state | self._forward_bytes() | resident,
            "train": trainer_state | self._training_bytes() | resident,
            "sync": trainer_state | {"buckets": self._sync_bytes()} | sampler,
        }
        rank_reserve = OVERHEADS.nccl * (self.w > 1) + OVERHEADS.streams * (self.stage == 3)
        for phase, parts in phases.items():
            tensors = sum(size for part, size in parts.items() if not part.startswith("sampler"))
            reserve = OVERHEADS.driver + OVERHEADS.context + round(OVERHEADS.fragmentation * tensors)
            reserve += rank_reserve * (not is_async or phase != "sample")
            reserve += OVERHEADS.graphs * (self.uses_vllm and (not is_async or phase == "sample"))
            parts["reserve"] = reserve
            phases[phase] = {part: round(parts[part]) for part in PARTS if parts.get(part)}
        return phases

    def tensor_bytes(self) -> int:
        """Return the peak bytes of the training tensors, for comparison with `benchmarks/memory.py`."""
        return sum((self._trainer_state() | self._training_bytes()).values())

    def host_peak(self) -> int:
        """Return the peak host memory of all processes on the first machine."""
        demand, model = self.demand, self.model
        processes = min(self.w, demand.gpus or self.w)
        loading = self.b * model.parameters * (1 if self.stage == 3 else processes)
        # The critic and the reference are loaded after the policy's optimiser was created.
        later_loading = loading if demand.critic or (demand.reference and not self.adapter_size) else 0
        size = 16 + self.b  # bytes of offloaded optimiser, gradients, and weights copied back to the GPU
        critic_parameters = self.adapter_size or model.critic.parameters
        parameters = self.trained_size + critic_parameters * demand.critic
        offloaded = processes * (size * parameters // self.w) if self.offloads else 0
        largest_tensors = processes * 4 * self.largest_tensor
        samplers = -(-self.options.streaming * processes // self.w)
        transferred = self.b * model.parameters * min(processes, samplers)
        programs = (processes + samplers) * OVERHEADS.program
        return programs + transferred + max(loading, offloaded + max(later_loading, largest_tensors))

    def sampler_minimum(self) -> int:
        """Return the minimum memory of vLLM: weights, work space, and the cache of one full-length row."""
        b, model = self.b, self.model
        tokens = b * OVERHEADS.sampler_tokens * (3 * model.intermediate + 4 * model.hidden)
        rows = 4 * 4 * OVERHEADS.sampler_rows * model.vocabulary
        cache = 2 * b * self.demand.row_tokens * model.layers * model.key_value
        return self._sampler_weights() + max(tokens, rows) + cache

    # -- the trainer --------------------------------------------------------------------------------------

    def _trainer_state(self) -> _BytesByPart:
        p, b, stage = self.trained_size, self.b, self.stage
        weights = b * (self.model.parameters + self.adapter_size) // (self.w if stage == 3 else 1)
        optimiser = 8 * p if stage == 0 else 12 * p // self.w  # stage 0 is float32, without master weights
        return {
            "weights": weights,
            "optimiser": 0 if self.offloads else optimiser,
            "reference": weights if self.demand.reference and not self.adapter_size else 0,
            # In stages 1 and 3, DeepSpeed keeps the gradients from one step to the next.
            "gradients": self._gradient_bytes() if stage in (1, 3) else 0,
            "buckets": b * BUCKET if stage == 3 else b * self.largest_tensor if self.offloads else 0,
            "critic": self._critic_bytes(),
        }

    def _critic_bytes(self) -> int:
        """Return the bytes that the critic keeps; its passes follow the policy's and need less memory."""
        if not self.demand.critic:
            return 0
        demand = replace(self.demand, model=self.model.critic, reference=False, critic=False)
        footprint = Footprint(demand, self.options)
        gathered = self.b * min(footprint.model.parameters, LIVE) if self.stage == 3 else 0  # for its values
        return gathered + sum(footprint._trainer_state().values())

    def _gradient_bytes(self) -> int:
        p, w, b, stage = self.trained_size, self.w, self.b, self.stage
        if self.offloads and stage > 1:
            return 0
        if stage == 1 and b < 4:  # autograd's gradients in addition to the float32 sums
            return (4 + b) * p
        if stage == 2 and b == 4:  # gradients of the whole parameters that overlap this process's part
            return 4 * max(p // w, self.largest_tensor)
        sums = 4 * p // (w if stage >= 2 else 1)
        if stage == 2:  # autograd's gradients in this process's part remain if larger than a bucket
            large = sum(size for size in self.matrix_sizes if size > BUCKET) * self.model.layers
            large += self.largest_tensor if not self.adapter_size and self.largest_tensor > BUCKET else 0
            sums += b * min(large, p // w)
        return sums

    def _gathered_weights(self, numbers: int) -> int:
        """Return the bytes of weights that ZeRO-3 has gathered: the weights in use and the next ones."""
        return self.b * min(self.model.parameters, numbers + BUCKET) if self.stage == 3 else 0

    def _gathered_reference(self) -> int:
        """Return the bytes of the reference's weights that ZeRO-3 has gathered and not yet released."""
        is_separate = self.demand.reference and not self.adapter_size
        return self.b * min(self.model.parameters, LIVE) if is_separate and self.stage == 3 else 0

    def _training_bytes(self) -> _BytesByPart:
        """Return the bytes at the peak of the passes and the update, in addition to `_trainer_state`."""
        b, stage, model = self.b, self.stage, self.model
        gradients = {"gradients": self._gradient_bytes()}
        exchanged = b * BUCKET if stage > 1 or (stage == 1 and b == 4) else 0
        # The head's gradient is kept until the embedding's gradient exists. With ZeRO-3, the weight is also
        # kept, unless it is too large.
        copies = 2 if stage == 3 and model.embedding_size <= LIVE else 1
        tied = copies * b * model.embedding_size if model.tied and stage and not self.adapter_size else 0
        saved, reference = self._saved_activations(), self._gathered_reference()
        layer = gradients | {
            "buckets": exchanged
            + b * max(self.matrix_sizes)
            + self._gathered_weights(model.layer_size)
            # The backward pass of the first layers comes after the reference's weights are released, so only
            # the larger of the two counts.
            + max(tied, reference),
            "activations": saved + self._recomputed_activations(),
        }
        head = gradients | {
            "buckets": exchanged * (stage != 2) + self._gathered_weights(model.embedding_size) + reference,
            "activations": saved + (3 * b + 4) * self.tokens * model.hidden,
            "logits": self._logit_bytes(backward=True),
        }
        p = self.trained_size // self.w
        # Stages 1 and 2 compute the norm in float64. Stage 3 concatenates the gradients of a sub-group.
        buffers = {0: 0, 3: 4 * min(p, SUB_GROUP) + b * BUCKET}.get(stage, 8 * min(self.largest_tensor, p))
        update = gradients | {"buckets": 0 if self.offloads else buffers}
        return max(layer, head, update, key=lambda moment: sum(moment.values()))

    def _saved_activations(self) -> int:
        """Return the bytes of activations that the forward pass keeps for the backward pass."""
        b, e, model = self.b, self.model.hidden, self.model
        layer_bytes = b * e
        if not self.options.gradient_checkpointing:
            layer_bytes = b * (4 * (model.intermediate + e) + 2 * model.query + 2 * model.key_value)
            layer_bytes += 8 * e if b < 4 else 0
            layer_bytes += b * self.lora_numbers
        return self.tokens * model.layers * layer_bytes

    def _recomputed_activations(self) -> int:
        """Return the bytes of a layer's recomputed activations and their gradients.

        If all activations are kept, return the bytes of the gradients only.
        """
        b, e, model = self.b, self.model.hidden, self.model
        if not self.options.gradient_checkpointing:
            return 2 * self.tokens * b * (model.intermediate + e)
        numbers = 6 * model.intermediate + 5 * e + 2 * (model.query + model.key_value + model.head_size)
        numbers += self.lora_numbers
        return self.tokens * (b * numbers + (8 * e if b < 4 else 0))  # RMSNorm in float32

    def _logit_bytes(self, *, backward: bool) -> int:
        """Return the bytes of a chunk's logits, their softmax, and the head's gradient, all in float32."""
        embedding = self.model.embedding_size
        copies = 8 * min(CHUNK, self.tokens * self.model.vocabulary)
        gradient = 4 * embedding if backward and not self.adapter_size else 0
        return gradient + (max(copies, self.b * embedding) if gradient else copies)

    def _forward_bytes(self) -> _BytesByPart:
        """Return the bytes of a forward pass of the policy or the reference without gradients."""
        b, e, model = self.b, self.model.hidden, self.model
        size = (
            self._gathered_weights(max(model.layer_size, model.embedding_size)) + self._gathered_reference()
        )
        return {
            "buckets": (b * BUCKET if self.stage == 3 else 0) + size,
            "activations": self.tokens * (b * (4 * model.intermediate + 2 * e) + 8 * e),
            "logits": self._logit_bytes(backward=False),
        }

    # -- the sampler --------------------------------------------------------------------------------------

    def _sampler_bytes(self) -> _BytesByPart:
        """Return the bytes of the sampler's weights and of its cache, which gets the rest of its share."""
        weights = self._sampler_weights()
        share = round((self.options.gpu_memory or 0.0) * self.demand.gpu_bytes)
        # The cache of the plain sampler is not counted, because this sampler is not meant for large models.
        cache = max(self.sampler_minimum(), share) - weights if self.uses_vllm else 0
        return {"sampler's weights": weights, "sampler's cache": cache}

    def _sampler_weights(self) -> int:
        head_size = self.model.embedding_size if self.model.tied and self.uses_vllm else 0  # separate
        return self.b * (self.model.parameters + head_size)

    def _sync_bytes(self) -> int:
        """Return the bytes for transferring weights one by one, each gathered or merged."""
        merging = (8 + self.b) * max(self.model.matrix_sizes) if self.adapter_size else 0
        return merging + (self.b * (BUCKET + self.model.embedding_size) if self.stage == 3 else 0)
