"""The eight stages of the flow, one folder each."""
