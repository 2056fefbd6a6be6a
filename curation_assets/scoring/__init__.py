"""Scoring: run a method over a table of samples, or over a file."""
