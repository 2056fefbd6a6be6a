"""What leaves the project: export formats and the report."""
