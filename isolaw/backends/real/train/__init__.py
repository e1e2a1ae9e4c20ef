"""Train models: the loop of a run, its trainer, batches, memory plan and evaluation."""
