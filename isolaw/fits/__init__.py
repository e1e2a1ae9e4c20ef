"""From curves to a law: record points, learning curves, frontier, n*(C), bootstrap, prediction."""
