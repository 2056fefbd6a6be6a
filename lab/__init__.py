"""Scripts that make the shipped weights, with fixed seeds: in a checkout, not in the wheel."""
