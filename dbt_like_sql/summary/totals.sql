-- Grain: one row, of the whole ledger. Columns that begin with kept are of the kept rows alone.
-- test: not_null rows
with recorded as (
    select
        ledger.verdict = 'kept' as is_kept,
        ledger.verdict,
        provenance.source,
        provenance.licence,
        provenance.creator,
        provenance.domain,
        provenance.language,
        provenance.image_bytes,
        provenance.caption_words,
        epoch_us(provenance.fetched_at) as fetched_us
    from 'ledger/*.parquet' as ledger
    left join 'provenance.parquet' as provenance using (shard, source_row)
),

final as (
    select
        count(*) as "rows",
        count(*) filter (where is_kept) as kept,
        count(*) filter (where verdict = 'dropped') as dropped,
        count(*) filter (where verdict = 'failed') as failed,
        count(image_bytes) filter (where is_kept) as kept_images,
        coalesce(sum(image_bytes) filter (where is_kept), 0)::bigint as kept_image_bytes,
        count(caption_words) filter (where is_kept) as kept_captions,
        coalesce(sum(caption_words) filter (where is_kept), 0)::bigint as kept_words,
        count(distinct source) filter (where is_kept) as kept_sources,
        count(distinct domain) filter (where is_kept) as kept_domains,
        count(distinct creator) filter (where is_kept) as kept_creators,
        count(distinct language) filter (where is_kept) as kept_languages,
        count(*) filter (where is_kept and licence is null) as kept_without_licence,
        count(*) filter (where is_kept and creator is null) as kept_without_creator,
        count(*) filter (where is_kept and domain is null) as kept_without_domain,
        count(*) filter (where is_kept and language is null) as kept_without_language,
        count(*) filter (where is_kept and fetched_us is null) as kept_without_fetched_at,
        strftime(make_timestamp(min(fetched_us) filter (where is_kept)), '%Y-%m-%dT%H:%M:%SZ') as earliest_fetched_at,
        strftime(make_timestamp(max(fetched_us) filter (where is_kept)), '%Y-%m-%dT%H:%M:%SZ') as latest_fetched_at
    from recorded
)

select * from final
