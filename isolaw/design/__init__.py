"""Choose the runs of a grid that are worth their cost, and forecast what each choice would find."""
