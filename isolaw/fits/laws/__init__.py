"""Laws of n*: each once, fitted, compared, and put to the points or along the frontier."""
