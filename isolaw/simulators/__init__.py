"""Simulate RL training on problem sets, with three models that implement `isolaw.simulators.model`.

::

    interference   many problems that share parameters, with a success logit each (the default)
    arms           many problems with K explicit answers and shared features, to cross-check interference
    tabular        one problem with K answers, for which theory is exact
"""
