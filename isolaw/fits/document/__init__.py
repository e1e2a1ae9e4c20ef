"""The content of `law.json`: its dataclasses, and how isolaw builds, writes and reads them."""
