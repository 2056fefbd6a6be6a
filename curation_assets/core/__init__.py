"""What everything may use: stages, settings, roles, progress, errors."""
