"""Doctests of modules that need torch are left out where it is not installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["isolaw/backends/real/*"]
