"""Run studies beyond the law.

They compare recipes, two configurations and costs, re-tune lr, count groups without signal, backtest, and fit
compute to a target and laws of model size.
"""
