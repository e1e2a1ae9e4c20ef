"""Learning curves: their families, fitted by variable projection, and the points that set a record."""
