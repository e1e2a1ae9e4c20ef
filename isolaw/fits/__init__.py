"""From runs to a law: learning curves, the surface, its frontier, laws, prediction, studies."""

ESTIMATOR = 3  # raised when what a fit says changes; measured tables are of one version
