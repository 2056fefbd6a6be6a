"""The stage filtered."""
