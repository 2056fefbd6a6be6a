"""Metrics that judge a subset or a method. Pure: arrays and strings in, floats out."""
