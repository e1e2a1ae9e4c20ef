"""Fit allocation laws to runs, predict the best allocation for a budget, and run further studies."""

# Increase ESTIMATOR or SURFACE when results of a law or its surface change; measured tables record them.
ESTIMATOR = 10
SURFACE = 5
