"""What changes a pool from outside the flow: plans, refits, takedowns, removed shards."""
