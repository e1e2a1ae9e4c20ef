"""The surface: reward over (log n, log B_p, log C), and its draws."""
