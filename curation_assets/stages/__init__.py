"""The stages but `downstream`, a folder each: which tables there are, what they read, how they are computed."""
