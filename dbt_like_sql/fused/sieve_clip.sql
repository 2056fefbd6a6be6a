-- Grain: one row per row of raw.samples; quality is null, with a reason, where a signal has no value.
-- SIEVE §3.3: min–max of each signal over the whole pool, then (1 − α) · SIEVE + α · CLIPScore; the paper's α is .5.
-- A pool's option sets another: recipes: {sieve_clip: {alpha: 0.3}}.
-- The ranges are frozen: a late sample may lie outside [0, 1], and moves no other sample's score.
-- A constant signal tells nothing and becomes .5 throughout, as in numeric/fusion.py.
-- applied: per shard
-- parameter: alpha 0.5
-- test: unique shard source_row
-- test: not_null sample_id
with samples as (
    select shard, source_row, sample_id, status, reason from raw.samples
),

sieve as (
    select shard, source_row, value, reason from signals.sieve
),

clip as (
    select shard, source_row, value, reason from signals.clip_score
),

joined as (
    select
        samples.sample_id,
        samples.shard,
        samples.source_row,
        sieve.value as sieve_value,
        clip.value as clip_value,
        case
            when samples.status <> 'kept'
                then 'upstream_' || samples.status || ':' || coalesce(samples.reason, 'no_reason')
            when sieve.value is null then 'sieve:' || coalesce(sieve.reason, 'no_row')
            when clip.value is null then 'clip_score:' || coalesce(clip.reason, 'no_row')
        end as reason
    from samples
    left join sieve on samples.shard = sieve.shard and samples.source_row = sieve.source_row
    left join clip on samples.shard = clip.shard and samples.source_row = clip.source_row
),

ranges as (
    select
        sieve_range.low as sieve_low,
        sieve_range.high as sieve_high,
        clip_range.low as clip_low,
        clip_range.high as clip_high
    from fused.sieve_range as sieve_range
    cross join fused.clip_score_range as clip_range
),

scaled as (
    select
        joined.sample_id,
        joined.shard,
        joined.source_row,
        joined.reason,
        case
            when ranges.sieve_high > ranges.sieve_low
                then (joined.sieve_value - ranges.sieve_low) / (ranges.sieve_high - ranges.sieve_low)
            when joined.sieve_value is not null then 0.5
        end as sieve_score,
        case
            when ranges.clip_high > ranges.clip_low
                then (joined.clip_value - ranges.clip_low) / (ranges.clip_high - ranges.clip_low)
            when joined.clip_value is not null then 0.5
        end as clip_score
    from joined
    cross join ranges
),

final as (
    select
        sample_id,
        shard,
        source_row,
        sieve_score,
        clip_score,
        (1 - $alpha) * sieve_score + $alpha * clip_score as quality,
        reason
    from scaled
)

select * from final
