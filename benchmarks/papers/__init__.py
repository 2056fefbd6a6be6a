"""The papers' tables and figures, from a checkout: `python -m benchmarks.papers` (docs/user/papers.md)."""
