"""Reward over (log n, log B_p, log C), and the draws of it."""
