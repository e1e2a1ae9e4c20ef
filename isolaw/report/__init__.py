"""Results for people: figures, pages, and the same findings as text."""
