"""Choose which runs of a grid are worth making, and forecast what each choice finds."""
