"""Standard evaluation sets, recognised by the files that lie there."""
