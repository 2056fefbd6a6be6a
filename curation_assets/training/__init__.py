"""What users train to score: students, networks, reward models, bridges."""
