"""Fit a simulator to runs: an ensemble of populations that reproduce their rewards. See README.md."""
