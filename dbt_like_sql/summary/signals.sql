-- Grain: one row per kind of opt-out signal that was found. A row with several kinds counts in each; refused: it ended
-- as opt_out, by whichever of them.
-- test: unique kind
with recorded as (
    select
        ledger.verdict = 'kept' as is_kept,
        starts_with(coalesce(ledger.reason, ''), 'opt_out') as is_refused,
        ledger.shard,
        ledger.source_row,
        unnest(provenance.rights_signals) as signal
    from 'ledger/*.parquet' as ledger
    join 'provenance.parquet' as provenance using (shard, source_row)
),

per_row as (
    select
        signal.kind as kind,
        shard,
        source_row,
        is_kept,
        is_refused,
        min(epoch_us(signal.checked_at)) as earliest_us,
        max(epoch_us(signal.checked_at)) as latest_us
    from recorded
    group by all
),

final as (
    select
        kind,
        count(*) as "rows",
        count(*) filter (where is_refused) as refused,
        count(*) filter (where is_kept) as kept,
        strftime(make_timestamp(min(earliest_us)), '%Y-%m-%dT%H:%M:%SZ') as earliest_checked_at,
        strftime(make_timestamp(max(latest_us)), '%Y-%m-%dT%H:%M:%SZ') as latest_checked_at
    from per_row
    group by kind
)

select * from final order by kind
