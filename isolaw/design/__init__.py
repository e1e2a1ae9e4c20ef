"""Choosing which runs of a grid are worth their cost, and forecasting what each choice would find."""
