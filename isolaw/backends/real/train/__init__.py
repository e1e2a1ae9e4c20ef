"""Training: the loop of a run, its trainer, batches, memory and evaluation."""
