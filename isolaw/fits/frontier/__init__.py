"""The compute-optimal frontier: n*, B_p*, crossovers between configurations, and where each is supported."""
