"""The memory planner: a model's sizes, the bytes that a run takes on each GPU, and settings that fit."""
