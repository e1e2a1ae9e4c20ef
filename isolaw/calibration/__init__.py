"""Fit a simulator to runs: an ensemble of populations that would measure what the runs measured."""
