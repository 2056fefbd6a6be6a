"""What `dg scaffold defs` writes in a checkout; it is loaded beside the pools."""
