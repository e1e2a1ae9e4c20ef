"""Laws, runs and recommendations as text."""
