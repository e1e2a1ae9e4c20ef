"""The ``[real]`` section: which model, which sampler, on how much machine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from isolaw.backends.real import environment
from isolaw.config import Count, Positive, RunSpec, Share
from isolaw.config.parsing import parse_section
from isolaw.errors import Issue, SpecError

# The default of logprob_tolerance: more than rounding.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
# The keys that decide numbers; the others decide where and how they are computed.
IDENTITY = ("reward", "sampler", "dtype")


def _listed(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


class RealOptions(BaseModel):
    """The ``[real]`` section.

    `read` or the memory planner decides what None means. No result depends on ZeRO's stage, the
    optimiser's place, the size of a micro-batch or the recomputing of activations.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    # The folder of a causal language model in Hugging Face format (config, safetensors, tokenizer).
    model: Annotated[str, Field(min_length=1)]
    reward: str = "exact"  # or math, or package.module:function
    sampler: Literal["vllm", "transformers"] | None = None
    dtype: Literal["float32", "bfloat16"] | None = None  # of weights and activations
    zero_stage: Annotated[int, Field(ge=0, le=3, strict=True)] = 0  # DeepSpeed's
    offload_optimizer: bool | None = None  # to host memory
    micro_batch_tokens: Count | None = None  # of one forward and backward pass
    gradient_checkpointing: bool | None = None  # whether the backward pass computes activations again
    processes: Count = 1  # of one run (data parallel)
    # Whether the sampler takes turns with the trainer, or streams in a process of its own (`train.pipeline`).
    generation: Literal["colocated", "async"] = "colocated"
    tensor_parallel: Count | None = None  # how many processes share one sampler's model
    torchrun: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()  # more options of torchrun
    gpu_memory: Annotated[Share, Field(gt=0)] | None = None  # share of a GPU's memory for the sampler
    timeout_hours: Positive = 4.0  # how long the processes of a run wait for each other
    # Mean |Δ log p| per token between sampler and trainer above which a run stops.
    logprob_tolerance: Positive | None = None
    checkpoint_minutes: Positive = 10.0  # the longest time between two points from which a run can continue

    @property
    def cores(self) -> int:
        """Cores of one run: one for each process, and one for a sampler of its own."""
        return self.processes + (self.generation == "async")

    def changed(self, **values: Any) -> RealOptions:
        """Return a copy with other values of some keys."""
        return self.model_copy(update=values)

    @classmethod
    def read(cls, spec: RunSpec) -> RealOptions:
        """Return the section of an unresolved spec with what depends on this machine filled in.

        Raise `SpecError` with everything wrong with it.
        """
        if "model" not in spec.options:
            raise SpecError([Issue("real.model", "missing", accepted="the folder of the model to train")])
        own = parse_section(cls, spec.options, prefix="real")
        dtype = own.dtype or ("bfloat16" if environment.gpus() else "float32")
        sampler = own.sampler or ("vllm" if environment.installed("vllm") else "transformers")
        tolerance = own.logprob_tolerance or TOLERANCE[dtype]
        return own.changed(dtype=dtype, sampler=sampler, logprob_tolerance=tolerance)

    @classmethod
    def of(cls, spec: RunSpec) -> RealOptions:
        """Return the section of a resolved spec."""
        placement = {key: value for key, value in spec.sources.items() if key in cls.model_fields}
        return cls.model_validate({**placement, **spec.options})
