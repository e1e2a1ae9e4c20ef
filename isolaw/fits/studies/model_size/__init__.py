"""The model-size law: learning curves of several sizes, the law through them, its draws."""
