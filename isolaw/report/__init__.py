"""Results for readers: figures, HTML pages, and the same findings as text."""
