"""Rollouts: problems, prompts, samplers and rewards."""
