"""Fit allocation laws to runs: learning curves, the surface, its frontier, laws, prediction, studies."""

# Raise it when results of a law or its surface change; measured tables name their version.
ESTIMATOR = 6
SURFACE = 3
