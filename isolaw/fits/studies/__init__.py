"""Run studies beyond the law.

They compare two configurations and costs, re-tune lr, backtest, and fit the compute that reaches a
reward and laws of model size.
"""
