-- Grain: one row per licence; of rows without one, null.
-- test: unique licence
with recorded as (
    select
        ledger.verdict = 'kept' as is_kept,
        provenance.licence,
        provenance.image_bytes,
        provenance.caption_words,
        epoch_us(provenance.fetched_at) as fetched_us
    from 'ledger/*.parquet' as ledger
    left join 'provenance.parquet' as provenance using (shard, source_row)
),

final as (
    select
        licence,
        count(*) as "rows",
        count(*) filter (where is_kept) as kept,
        coalesce(sum(image_bytes) filter (where is_kept), 0)::bigint as kept_image_bytes,
        coalesce(sum(caption_words) filter (where is_kept), 0)::bigint as kept_words,
        strftime(make_timestamp(min(fetched_us) filter (where is_kept)), '%Y-%m-%dT%H:%M:%SZ') as earliest_fetched_at,
        strftime(make_timestamp(max(fetched_us) filter (where is_kept)), '%Y-%m-%dT%H:%M:%SZ') as latest_fetched_at
    from recorded
    group by licence
)

select * from final order by kept desc, "rows" desc, licence nulls last
