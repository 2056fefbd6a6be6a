"""Evaluation: the stage downstream, models trained on subsets, and the sets and metrics that judge them."""
