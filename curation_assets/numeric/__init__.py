"""Maths, pure: arrays, texts in, arrays out; `numeric/metrics/` judges models and subsets. No files, clock, models."""
