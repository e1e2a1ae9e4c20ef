"""The reward surface: reward as a function of log n, log B_p and log C, with posterior draws."""
