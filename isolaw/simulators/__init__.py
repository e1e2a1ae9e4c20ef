"""Simulate RL training on problem sets, with two models that implement `isolaw.simulators.model`.

::

    interference   many problems that share parameters, with a success logit each (the default)
    tabular        one problem with K answers, for which theory is exact
"""
