"""Opens samplers: vLLM's, the plain one, or either in a process of its own; each brings its own library."""

from __future__ import annotations

from isolaw.backends.real.rollout.samplers import (
    Sampler,
    SamplerSettings,
    TransformersSampler,
    close_samplers,
    opened,
)


def open_sampler(settings: SamplerSettings) -> Sampler:
    """Return a sampler, the previous one if it was opened alike."""
    if settings not in opened:
        close_samplers()  # first: vLLM's parts find each other through globals of the process
        if settings.remote:
            from isolaw.backends.real.rollout.remote_sampler import RemoteSampler

            opened[settings] = RemoteSampler(settings)
        elif settings.kind == "transformers":
            head = settings.float32_head
            opened[settings] = TransformersSampler(settings.model, dtype=settings.dtype, float32_head=head)
        else:
            from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler

            opened[settings] = VLLMSampler(settings)
    return opened[settings]
