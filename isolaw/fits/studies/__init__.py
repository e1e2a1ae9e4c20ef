"""Studies beside the law: recipes compared, a learning rate re-tuned, a backtest, model size."""
