"""Simulators of RL post-training, cheap enough to run a paper-scale grid in seconds."""
