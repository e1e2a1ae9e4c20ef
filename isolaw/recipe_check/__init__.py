"""Choose the base lr, its rule for other batch sizes, and KL and entropy terms (arXiv 2603.12151, §3)."""
