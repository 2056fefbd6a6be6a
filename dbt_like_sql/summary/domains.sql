-- Grain: one row per registered domain of the kept rows whose source is declared as crawled, or not declared, the
-- largest first by the size of their content: bytes of images, then words of captions, then rows, then the name. Rows
-- without a domain are in none. undeclared: rows of sources that nobody has declared, which may turn out to be others.
-- test: unique domain
with declared as (
    select one.name as source, one.obtained
    from (select unnest(about.sources) as one from 'release.json')
),

recorded as (
    select provenance.domain, provenance.image_bytes, provenance.caption_words, declared.obtained
    from 'ledger/*.parquet' as ledger
    join 'provenance.parquet' as provenance using (shard, source_row)
    left join declared on provenance.source = declared.source
    where
        ledger.verdict = 'kept'
        and provenance.domain is not null
        and (declared.obtained is null or declared.obtained = 'crawled')
),

summed as (
    select
        domain,
        count(*) as "rows",
        coalesce(sum(image_bytes), 0)::bigint as image_bytes,
        coalesce(sum(caption_words), 0)::bigint as words,
        count(*) filter (where obtained is null) as undeclared
    from recorded
    group by domain
),

ranked as (
    select
        row_number() over (order by image_bytes desc, words desc, "rows" desc, domain) as rank,
        count(*) over () as domains,
        *
    from summed
),

final as (
    select
        rank,
        domain,
        "rows",
        image_bytes,
        words,
        undeclared,
        rank <= (domains + 9) // 10 as is_top_tenth,
        rank <= least((domains + 19) // 20, 1000) as is_top_twentieth_or_1000
    from ranked
)

select * from final order by rank
