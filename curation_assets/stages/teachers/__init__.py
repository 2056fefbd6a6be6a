"""The stage teachers."""
