"""Lineage: why every sample was kept or dropped, what a change would do, what it cost; ledgers, versions."""
