"""The version of this release: the one place that states it."""

__version__ = "0.3.0"
