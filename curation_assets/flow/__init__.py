"""Machinery: tables, their context and graph, freshness, SQL models, workers, `run_table`."""
