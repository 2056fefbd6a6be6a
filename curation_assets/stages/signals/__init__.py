"""The stage signals."""
