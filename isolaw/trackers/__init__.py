"""Mirror a sweep to experiment trackers. The sweep's own files remain authoritative."""
