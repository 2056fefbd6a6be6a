"""Models that are trained on subsets, and the loops that train them."""
