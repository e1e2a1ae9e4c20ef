"""Fit learning curves by variable projection, extrapolate them, and select record points."""
