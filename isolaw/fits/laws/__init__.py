"""The laws of n*(C): their equations, their fit to a frontier or to points, and their comparison."""
