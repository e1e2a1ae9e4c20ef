"""Laws of n*: their equations, their fit to a frontier or to points, and their comparison."""
