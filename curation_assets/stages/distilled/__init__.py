"""The stage distilled."""
