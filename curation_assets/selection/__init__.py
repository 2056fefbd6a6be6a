"""Selection: policies, cuts, and the one judge of rows."""
