"""Trackers that a sweep can be mirrored to. The sweep's own files stay the truth."""
