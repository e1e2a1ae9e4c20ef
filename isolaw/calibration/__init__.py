"""Fit a simulator to runs. The result is an ensemble of simulated models that reproduce the rewards."""
