"""Define the ``[real]`` section of a sweep file: model, reward, sampler, and placement on the machine."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from isolaw.backends.real import environment
from isolaw.backends.real.rollout.prompts import Chat
from isolaw.config import Count, Positive, RunSpec, Share
from isolaw.documents.validation import parse_section
from isolaw.errors import Issue, SpecError

# Defaults of logprob_tolerance by dtype, chosen above rounding errors.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
# Processes for rewards, per process of a run, unless the section sets their number.
FEWEST_REWARD_WORKERS, _MOST_REWARD_WORKERS = 2, 8
# The keys that affect results; the other keys decide where and how results are computed.
IDENTITY = ("reward", "sampler", "dtype")
# Identity keys that are omitted at their default.
OPTIONAL_IDENTITY = ("system", "chat_template")


def _unless_empty(value: Any) -> Any:
    return None if value == {} else value


def samplers_of(rank: int, ranks: int, samplers: int) -> range:
    """Return the indices of the sampler processes that belong to a rank; ranks divide them in order.

    >>> [list(samplers_of(rank, 2, 3)) for rank in range(2)]
    [[0, 1], [2]]
    """
    start, end = (-(-index * samplers // ranks) for index in (rank, rank + 1))
    return range(start, end)


class RealOptions(BaseModel):
    """The keys of the ``[real]`` section.

    `read` or the memory planner fills in keys that are None. No result depends on the ZeRO stage, optimiser
    offloading, the micro-batch size, or activation recomputation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    # The folder of a causal language model in Hugging Face format (config, safetensors, tokenizer). A dry
    # run needs its config.json, or a known name.
    model: Annotated[str, Field(min_length=1)]
    reward: str = "exact"  # exact, math, or package.module:function
    reward_workers: Count | None = None  # processes for rewards, per process; None: see `reward_processes`
    reward_timeout: Positive | None = None  # seconds per call; None: the default of the reward
    # Folder of the reward functions' modules, if they are not installed. `SweepSpec` sets it to the folder of
    # the sweep file.
    modules: Annotated[str, Field(min_length=1), AfterValidator(os.path.abspath)] | None = None
    system: Annotated[str, Field(min_length=1)] | None = None  # a system message before each prompt
    # Arguments for the tokenizer's chat template, e.g. enable_thinking.
    chat_template: Annotated[dict[str, bool | int | float | str] | None, BeforeValidator(_unless_empty)] = (
        None
    )
    sampler: Literal["vllm", "transformers"] | None = None
    dtype: Literal["float32", "bfloat16"] | None = None  # dtype of weights and activations
    zero_stage: Annotated[int, Field(ge=0, le=3, strict=True)] = 0  # DeepSpeed ZeRO stage
    offload_optimizer: bool | None = None  # whether to move the optimiser to host memory
    micro_batch_tokens: Count | None = None  # tokens per forward and backward pass
    gradient_checkpointing: bool | None = None  # whether the backward pass recomputes activations
    processes: Count = 1  # data-parallel trainers of one run; `planner.with_processes` chooses it on GPUs
    # "colocated": each process alternates between sampling and training. "async": samplers stream rollouts
    # from their own processes (`train.pipeline`).
    generation: Literal["colocated", "async"] = "colocated"
    samplers: Count | None = None  # sampler processes of one run; None: one for each trainer process
    gpu_memory: Annotated[Share, Field(gt=0)] | None = None  # share of a GPU's memory for the sampler
    timeout_hours: Positive = 4.0  # maximum time that processes of a run wait for each other
    # A run stops if the mean |Δ log p| per token between sampler and trainer exceeds this value.
    logprob_tolerance: Positive | None = None
    checkpoint_minutes: Positive = 10.0  # maximum time between two states from which a run can resume

    @property
    def cores(self) -> int:
        """Number of cores (or GPUs) of one run: one for each trainer process and each sampler process."""
        return self.processes + self.streaming

    @property
    def streaming(self) -> int:
        """Number of sampler processes of one run; by default one for each trainer process."""
        return (self.samplers or self.processes) if self.generation == "async" else 0

    @property
    def reward_processes(self) -> int:
        """Number of processes for rewards on this machine: with GPUs, one for each core of a process, 2 to 8.

        Without GPUs, each process of a run has one core, since other runs use the others.
        """
        cores = len(os.sched_getaffinity(0)) // self.cores if environment.gpus() else 1
        return self.reward_workers or min(max(cores, FEWEST_REWARD_WORKERS), _MOST_REWARD_WORKERS)

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # the field chat_template is a dictionary, which has no hash

    def changed(self, **values: Any) -> RealOptions:
        """Return a copy with other values of some keys."""
        return self.model_copy(update=values)

    @property
    def chat(self) -> Chat:
        """Rules that turn prompts into conversations."""
        return Chat.of(self.system, self.chat_template)

    @classmethod
    def read(cls, spec: RunSpec) -> RealOptions:
        """Return the section of an unresolved spec, with the machine-dependent keys filled in.

        Raise `SpecError` with all issues of the section.
        """
        if "model" not in spec.options:
            raise SpecError([Issue("real.model", "missing", accepted="the folder of the model to train")])
        section = parse_section(cls, spec.options, prefix="real")
        dtype = section.dtype or ("bfloat16" if environment.gpus() else "float32")
        is_remote = environment.gpus() > 0 and not environment.host_memory()  # has what this machine may lack
        uses_vllm = is_remote or environment.installed("vllm")
        sampler = section.sampler or ("vllm" if uses_vllm else "transformers")
        tolerance = section.logprob_tolerance or TOLERANCE[dtype]
        return section.changed(dtype=dtype, sampler=sampler, logprob_tolerance=tolerance)

    @classmethod
    def of(cls, spec: RunSpec) -> RealOptions:
        """Return the section of a resolved spec."""
        placement = {key: value for key, value in spec.sources.items() if key in cls.model_fields}
        return cls.model_validate({**placement, **spec.options})
