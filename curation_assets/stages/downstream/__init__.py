"""The stage downstream."""
