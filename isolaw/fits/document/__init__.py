"""Define the content of `law.json` as dataclasses, and write, read and convert it."""
