"""What users train: students, networks, reward models, bridges, downstream models."""
