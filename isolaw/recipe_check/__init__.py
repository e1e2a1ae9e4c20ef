"""The learning rate first: base lr, its rule for other batch sizes, KL and entropy (arXiv 2603.12151, §3)."""
