-- Grain: one row per row of raw.samples; quality is null, with a reason, where a signal has no value.
-- Our recipe after SIEVE §3.3: min–max over the whole pool, then the mean of ICC, SIEVE and CLIPScore.
-- applied: per shard
-- made for: mismatched abstract boilerplate
-- test: unique shard source_row
-- test: not_null sample_id
with final as (
    select
        * exclude (reason),
        (icc_score + sieve_score + clip_score) / 3 as quality,
        reason
    from fused.scaled
)

select * from final
