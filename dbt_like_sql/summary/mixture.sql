-- Grain: one row per group of the mixture that the policy ranks by; none where it ranks by none. entries: how often its
-- kept rows are in the set, repeats counted.
-- test: unique mixture_group
with final as (
    select
        provenance.mixture_group,
        count(*) as "rows",
        count(*) filter (where ledger.verdict = 'kept') as kept,
        coalesce(sum(provenance.entries) filter (where ledger.verdict = 'kept'), 0)::bigint as entries
    from 'ledger/*.parquet' as ledger
    join 'provenance.parquet' as provenance using (shard, source_row)
    where provenance.mixture_group is not null
    group by provenance.mixture_group
)

select * from final order by entries desc, mixture_group
