-- Grain: one row per verdict and reason; of a cut without the detail after its name.
-- test: unique verdict reason
with judged as (
    select
        verdict,
        coalesce(nullif(regexp_extract(reason, '^((?:below_cut|prefilter):[^:]+)', 1), ''), reason) as reason
    from 'ledger/*.parquet'
),

final as (
    select verdict, reason, count(*) as "rows"
    from judged
    group by verdict, reason
)

select * from final order by "rows" desc, verdict, reason
