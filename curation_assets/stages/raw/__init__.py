"""The stage raw."""
