"""The ``[real]`` section: model, sampler, and use of the machine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from isolaw.backends.real import environment
from isolaw.backends.real.rollout.prompts import Chat
from isolaw.config import Count, Positive, RunSpec, Share
from isolaw.documents.validation import parse_section
from isolaw.errors import Issue, SpecError

# Default of logprob_tolerance: above rounding errors.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
# The keys that affect results; the others decide where and how they are computed.
IDENTITY = ("reward", "sampler", "dtype")
# Identity keys that are omitted at their default, so that adding them changed no identity.
OPTIONAL_IDENTITY = ("system", "chat_template", "reward_weights", "rollout", "rollout_turns")


def _unless_empty(value: Any) -> Any:
    return None if value == {} else value


def _unless_ones(value: Any) -> Any:
    return None if isinstance(value, list | tuple) and all(one == 1 for one in value) else value


def _alone(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]


def samplers_of(rank: int, ranks: int, samplers: int) -> range:
    """Return which of a run's samplers in processes of their own belong to a rank: they are divided in order.

    >>> [list(samplers_of(rank, 2, 3)) for rank in range(2)]
    [[0, 1], [2]]
    """
    first, end = (-(-own * samplers // ranks) for own in (rank, rank + 1))
    return range(first, end)


class RealOptions(BaseModel):
    """The ``[real]`` section.

    `read` or the memory planner fills in keys that are None. No result depends on ZeRO's stage, the place of
    the optimiser, the size of a micro-batch, or recomputed activations.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    # The folder of a causal language model in Hugging Face format (config, safetensors, tokenizer).
    model: Annotated[str, Field(min_length=1)]
    # exact, math, package.module:function, rollout (the number that the rollout function returns), or several
    # of them, of which the first decides what is correct.
    reward: Annotated[str | tuple[str, ...], BeforeValidator(_alone)] = "exact"
    reward_weights: Annotated[tuple[Finite, ...] | None, BeforeValidator(_unless_ones)] = None
    reward_workers: Count = 2  # processes that judge responses or roll out, per process of a run
    reward_timeout: Positive | None = None  # seconds of a call; the reward's own by default
    # package.module:function, which leads a conversation of several turns (`rollout.function_rollout`).
    rollout: Annotated[str, Field(min_length=1)] | None = None
    rollout_turns: Count | None = None  # most turns of a rollout; None: as many as its tokens allow
    rollout_timeout: Positive | None = None  # seconds of a rollout, apart from waiting for the model
    system: Annotated[str, Field(min_length=1)] | None = None  # a system message before each prompt
    # Arguments of the tokenizer's chat template, e.g. enable_thinking.
    chat_template: Annotated[dict[str, bool | int | float | str] | None, BeforeValidator(_unless_empty)] = (
        None
    )
    sampler: Literal["vllm", "transformers"] | None = None
    dtype: Literal["float32", "bfloat16"] | None = None  # of weights and activations
    zero_stage: Annotated[int, Field(ge=0, le=3, strict=True)] = 0  # DeepSpeed's
    offload_optimizer: bool | None = None  # to host memory
    micro_batch_tokens: Count | None = None  # tokens per forward and backward pass
    gradient_checkpointing: bool | None = None  # whether the backward pass recomputes activations
    processes: Count = 1  # of one run (data parallel); on GPUs by default `planner.with_processes`
    # Whether each process alternates between sampling and training, or samplers stream in processes of their
    # own (`train.pipeline`).
    generation: Literal["colocated", "async"] = "colocated"
    samplers: Count | None = None  # such processes of one run; by default `planner.with_processes`
    tensor_parallel: Count | None = None  # how many processes share one sampler's model
    gpu_memory: Annotated[Share, Field(gt=0)] | None = None  # share of a GPU's memory for the sampler
    timeout_hours: Positive = 4.0  # time that processes of a run wait for each other
    # Mean |Δ log p| per token between sampler and trainer above which a run stops.
    logprob_tolerance: Positive | None = None
    checkpoint_minutes: Positive = 10.0  # longest time between two points at which a run can continue

    @property
    def cores(self) -> int:
        """Cores of one run, or its GPUs: one for each process that trains, and for each that samples."""
        return self.processes + self.streaming

    @property
    def streaming(self) -> int:
        """Processes of one run that only sample: by default as many as train."""
        return (self.samplers or self.processes) if self.generation == "async" else 0

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # a dictionary has none

    def changed(self, **values: Any) -> RealOptions:
        """Return a copy with other values of some keys."""
        return self.model_copy(update=values)

    @property
    def rewards(self) -> tuple[str, ...]:
        """The names of all rewards."""
        return (self.reward,) if isinstance(self.reward, str) else self.reward

    @property
    def chat(self) -> Chat:
        """How prompts become conversations."""
        return Chat.of(self.system, self.chat_template)

    @classmethod
    def read(cls, spec: RunSpec) -> RealOptions:
        """Return the section of an unresolved spec with what depends on this machine filled in.

        Raise `SpecError` with everything wrong with it.
        """
        if "model" not in spec.options:
            raise SpecError([Issue("real.model", "missing", accepted="the folder of the model to train")])
        # Sweeps of older versions have an empty list of options for torchrun, which isolaw no longer starts.
        options = {key: value for key, value in spec.options.items() if key != "torchrun" or value}
        own = parse_section(cls, options, prefix="real")
        if own.reward_weights and len(own.reward_weights) != len(own.rewards):
            accepted = f"one for each of the {len(own.rewards)} rewards"
            raise SpecError([Issue("real.reward_weights", found=list(own.reward_weights), accepted=accepted)])
        if len(set(own.rewards)) < len(own.rewards) or not own.rewards:
            raise SpecError([Issue("real.reward", found=list(own.rewards), accepted="distinct rewards")])
        dtype = own.dtype or ("bfloat16" if environment.gpus() else "float32")
        sampler = own.sampler or ("vllm" if environment.installed("vllm") else "transformers")
        tolerance = own.logprob_tolerance or TOLERANCE[dtype]
        return own.changed(dtype=dtype, sampler=sampler, logprob_tolerance=tolerance)

    @classmethod
    def of(cls, spec: RunSpec) -> RealOptions:
        """Return the section of a resolved spec."""
        placement = {key: value for key, value in spec.sources.items() if key in cls.model_fields}
        return cls.model_validate({**placement, **spec.options})
