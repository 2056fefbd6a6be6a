"""Pools: declarations and shards."""
