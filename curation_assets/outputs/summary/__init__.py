"""What a release can answer: counts in SQL, and the forms that ask for them (`curate summary`)."""
