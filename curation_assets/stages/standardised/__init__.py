"""The stage standardised."""
