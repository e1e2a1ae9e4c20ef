"""Choose which runs of a grid are worth their cost, and forecast what each choice would find."""
