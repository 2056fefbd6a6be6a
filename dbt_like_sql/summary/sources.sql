-- Grain: one row per source; of rows without one, null. obtained: as the pool declares it, null where it does not.
-- test: unique source
with declared as (
    select one.name as source, one.obtained
    from (select unnest(about.sources) as one from 'release.json')
),

recorded as (
    select
        ledger.verdict = 'kept' as is_kept,
        provenance.source,
        provenance.domain,
        provenance.image_bytes,
        provenance.caption_words,
        epoch_us(provenance.fetched_at) as fetched_us
    from 'ledger/*.parquet' as ledger
    left join 'provenance.parquet' as provenance using (shard, source_row)
),

summed as (
    select
        source,
        count(*) as "rows",
        count(*) filter (where is_kept) as kept,
        count(image_bytes) filter (where is_kept) as kept_images,
        coalesce(sum(image_bytes) filter (where is_kept), 0)::bigint as kept_image_bytes,
        count(caption_words) filter (where is_kept) as kept_captions,
        coalesce(sum(caption_words) filter (where is_kept), 0)::bigint as kept_words,
        count(*) filter (where is_kept and domain is null) as kept_without_domain,
        count(fetched_us) filter (where is_kept) as kept_fetched,
        count(*) filter (where is_kept and fetched_us is null) as kept_without_fetched_at,
        strftime(make_timestamp(min(fetched_us) filter (where is_kept)), '%Y-%m-%dT%H:%M:%SZ') as earliest_fetched_at,
        strftime(make_timestamp(max(fetched_us) filter (where is_kept)), '%Y-%m-%dT%H:%M:%SZ') as latest_fetched_at
    from recorded
    group by source
),

final as (
    select summed.source, declared.obtained, summed.* exclude (source)
    from summed
    left join declared on summed.source = declared.source
)

select * from final order by kept desc, "rows" desc, source nulls last
