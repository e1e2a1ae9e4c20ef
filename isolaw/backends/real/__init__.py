"""GRPO on language models: vLLM samples, DeepSpeed optimises."""
