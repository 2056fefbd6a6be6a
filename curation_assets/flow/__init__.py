"""The machinery of the flow: tables, their graph, freshness, workers."""
