"""Kinds of sources, one file each."""
