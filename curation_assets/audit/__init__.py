"""Lineage: why every sample was kept or dropped, what a change would do, and how a sample is taken back."""
