"""Fit allocation laws to runs: learning curves, the surface, its frontier, laws, prediction, studies."""

# Raised when what a law says changes, or its surface; measured tables are of one version.
ESTIMATOR = 5
SURFACE = 3
