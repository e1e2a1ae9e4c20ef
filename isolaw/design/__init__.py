"""Which runs of a grid are worth making: designs that choose them, and what a design is expected to find."""
