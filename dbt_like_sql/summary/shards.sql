-- Grain: one row per policy and shard: which share of it the policy keeps.
-- test: unique policy_version shard
with final as (
    select
        policy_version,
        shard,
        count(*) as "rows",
        count(*) filter (where verdict = 'kept') as kept,
        round(count(*) filter (where verdict = 'kept') / count(*), 6) as kept_share
    from 'ledger.parquet'
    group by policy_version, shard
)

select * from final order by policy_version, shard
