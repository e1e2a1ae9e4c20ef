"""Studies beyond the law: comparison of recipes, re-tuning of the lr, backtest, model size."""
