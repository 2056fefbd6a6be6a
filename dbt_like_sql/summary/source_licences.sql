-- Grain: one row per source and licence of the kept rows; null where they have none.
-- test: unique source licence
with final as (
    select provenance.source, provenance.licence, count(*) as kept
    from 'ledger/*.parquet' as ledger
    left join 'provenance.parquet' as provenance using (shard, source_row)
    where ledger.verdict = 'kept'
    group by all
)

select * from final order by source nulls last, kept desc, licence nulls last
