"""Simulated RL training: problem sets, and three models with the interface of `isolaw.simulators.model`.

::

    interference   many problems that share parameters; a success logit for each, and styles as noise
    (default) arms           many problems with K explicit answers and shared features, to cross-check
    interference tabular        one problem with K answers, for which theory is exact
"""
