"""What leaves the project: exports and the report."""
