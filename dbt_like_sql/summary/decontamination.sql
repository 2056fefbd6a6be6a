-- Grain: one row per set of ways in which rows could be compared with benchmarks, and nearest benchmark. compared_by:
-- pdq, copy, caption, between blanks; empty where nothing could be, null where it is not on record. benchmark: in which
-- the row is, or to which it is near; null for others.
-- test: unique compared_by benchmark
with final as (
    select
        provenance.compared_by,
        provenance.benchmark,
        count(*) as "rows",
        count(*) filter (where ledger.verdict = 'kept') as kept
    from 'ledger/*.parquet' as ledger
    left join 'provenance.parquet' as provenance using (shard, source_row)
    group by all
)

select * from final order by kept desc, "rows" desc, compared_by nulls last, benchmark nulls last
