"""What a run takes of each GPU's memory, and the settings that make it fit."""

from __future__ import annotations

from isolaw.backends.real import environment, settings
from isolaw.spec import RunSpec

# Where nothing is known of a GPU.
_MICRO_BATCH_TOKENS, _GPU_MEMORY = 16_384, 0.4


def chosen(spec: RunSpec) -> settings.Options:
    """Return the section of a resolved spec with every open key of placement filled in."""
    options = settings.of(spec)
    return options.model_copy(
        update={
            "micro_batch_tokens": options.micro_batch_tokens or _MICRO_BATCH_TOKENS,
            "offload_optimizer": bool(options.offload_optimizer),
            "gradient_checkpointing": (
                environment.gpus() > 0
                if options.gradient_checkpointing is None
                else options.gradient_checkpointing
            ),
            "tensor_parallel": options.tensor_parallel or 1,
            "gpu_memory": options.gpu_memory or _GPU_MEMORY,
        }
    )
