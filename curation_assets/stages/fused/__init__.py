"""The stage fused."""
