"""A simulator fitted to runs: an ensemble of populations that would measure what the runs did."""
