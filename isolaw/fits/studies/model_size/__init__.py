"""Fit the model-size law to the learning curves of several model sizes."""
