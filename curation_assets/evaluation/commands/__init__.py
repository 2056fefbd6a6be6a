"""Commands of the evaluation: `curate evaluate …`, `curate tables`."""
