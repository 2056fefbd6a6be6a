"""Exports: a subset in the formats that trainers and catalogues read, each with a manifest of what is in it."""
