"""Scoring: a method run over a table of samples, or over a file; derived columns, parameters."""
