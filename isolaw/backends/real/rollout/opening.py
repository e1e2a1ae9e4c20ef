"""Open a sampler: vLLM or transformers, in this process or in separate processes.

Only the library of the opened sampler is imported.
"""

from __future__ import annotations

from isolaw.backends.real.rollout.samplers import (
    Sampler,
    SamplerSettings,
    TransformersSampler,
    close_samplers,
    opened,
)


def open_sampler(settings: SamplerSettings) -> Sampler:
    """Return a sampler, reusing the previous one if it has the same settings."""
    if settings not in opened:
        close_samplers()  # before opening a new one, because vLLM keeps state in global variables
        if settings.processes is not None:
            from isolaw.backends.real.rollout.sampler_group import SamplerGroup

            opened[settings] = SamplerGroup(settings)
        elif settings.kind == "transformers":
            head = settings.float32_head
            opened[settings] = TransformersSampler(settings.model, dtype=settings.dtype, float32_head=head)
        else:
            from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler

            opened[settings] = VLLMSampler(settings)
    return opened[settings]
