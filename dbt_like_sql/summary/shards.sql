-- Grain: one row per shard: which share of it the policy keeps.
-- test: unique shard
with final as (
    select
        shard,
        count(*) as "rows",
        count(*) filter (where verdict = 'kept') as kept,
        round(count(*) filter (where verdict = 'kept') / count(*), 6) as kept_share
    from 'ledger/*.parquet'
    group by shard
)

select * from final order by shard
