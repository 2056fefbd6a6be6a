"""A subset as a dataset of torch: its samples are read by byte range from the tars as they are."""
