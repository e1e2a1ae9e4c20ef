"""What `law.json` holds: its parts as dataclasses, how they are made, and how they are written."""
