"""The embedded world: scenes that we draw ourselves, so that the truth about every sample is known."""
