"""Commands of the evaluation: those of `curate evaluate`."""
