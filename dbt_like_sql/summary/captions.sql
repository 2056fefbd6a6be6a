-- Grain: one row per source of the chosen captions: raw, or which generated one; null where no choice was made.
-- test: unique caption_source
with recorded as (
    select ledger.verdict = 'kept' as is_kept, provenance.caption_source
    from 'ledger/*.parquet' as ledger
    left join 'provenance.parquet' as provenance using (shard, source_row)
),

final as (
    select caption_source, count(*) as "rows", count(*) filter (where is_kept) as kept
    from recorded
    group by caption_source
)

select * from final order by caption_source nulls last
