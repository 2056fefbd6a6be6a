"""Operations on a pool: plan, refit, takedown, removal of shards."""
