"""Plan memory: a model's sizes, a run's bytes on each GPU, and settings that fit."""
