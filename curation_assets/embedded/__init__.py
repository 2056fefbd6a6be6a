"""Scripts that rebuild the shipped weights of the embedded models, with fixed seeds."""
