"""Run studies beyond the law: recipe comparisons, re-tuned lr, backtests, targets and model size."""
