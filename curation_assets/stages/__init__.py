"""The eight stages, a folder each: which tables there are, what they read, how they are computed."""
