"""Draw and score rollouts: problems, prompts, samplers and rewards."""
