"""Fit a simulator to runs: the result is an ensemble of simulated models that reproduce the rewards."""
