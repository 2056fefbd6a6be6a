"""Faults, tried over and over: what becomes of the rows, of their neighbours, and of whoever waits.

`make torture` runs every fault of `faults/` and writes the table of docs/operator/reliability.md; `make test-all`
runs a few tries of each, `make test` of those that need no other process.
"""
