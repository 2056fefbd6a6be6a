"""Sources: where a pool's rows and images come from, one file per kind; downloads."""
