"""The model-size law: learning curves of several sizes, the law fitted to them, and its draws."""
