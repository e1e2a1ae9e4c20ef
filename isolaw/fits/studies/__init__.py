"""Studies next to the law: comparison of recipes, re-tuned learning rate, backtest, model size."""
