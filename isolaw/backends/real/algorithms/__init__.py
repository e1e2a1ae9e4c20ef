"""RL algorithms: presets, advantages, the terms of the loss, and the loss itself."""
