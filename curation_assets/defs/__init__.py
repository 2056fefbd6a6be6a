"""Dagster wiring: assets, checks, sensors, jobs, runs. It declares and reports; it never computes."""
