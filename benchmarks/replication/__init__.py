"""Do the findings of the paper (arXiv 2603.12151) emerge on a simulator, and how certainly? See README.md."""
