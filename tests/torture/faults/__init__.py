"""One module per kind of fault; each lists its faults as FAULTS."""
