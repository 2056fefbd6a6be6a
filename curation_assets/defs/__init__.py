"""Dagster wiring: the only package that imports dagster. It declares and reports; it never computes."""
