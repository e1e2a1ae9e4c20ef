"""Fit and resample learning curves, and select record points."""
