"""What everything may use: stages, settings, profiles, contracts of roles, progress, errors."""
