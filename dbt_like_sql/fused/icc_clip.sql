-- Grain: one row per row of raw.samples; quality is null, with a reason, where a signal has no value.
-- Our recipe after SIEVE §3.3: min–max over the whole pool, then (1 − α) · ICC (is it concrete?)
-- + α · CLIPScore (is it true?).
-- applied: per shard
-- made for: mismatched abstract boilerplate
-- parameter: alpha 0.5
-- test: unique shard source_row
-- test: not_null sample_id
with final as (
    select
        * exclude (reason),
        (1 - $alpha) * icc_score + $alpha * clip_score as quality,
        reason
    from fused.scaled
)

select * from final
