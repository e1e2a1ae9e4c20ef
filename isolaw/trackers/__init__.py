"""Trackers that mirror a sweep. The sweep's own files remain authoritative."""
