"""Test whether the paper's findings (arXiv 2603.12151) emerge on a simulator, and how certainly."""
