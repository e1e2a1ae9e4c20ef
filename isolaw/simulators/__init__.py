"""Simulated RL: problem sets, and three models that share the interface of `isolaw.simulators.model`.

::

    interference   many problems that share parameters: a success logit each, styles as noise (the default)
    arms           many problems of K answers with shared features: the cross-check, without reduction
    tabular        one problem of K answers, where theory is exact
"""
