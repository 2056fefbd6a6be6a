-- Grain: one row per row of raw.samples; quality is null, with a reason, where a signal has no value.
-- SIEVE §3.3: min–max of each signal over the whole pool, then (1 − α) · SIEVE + α · CLIPScore; the paper's α is .5.
-- A pool's option sets another: recipes: {sieve_clip: {alpha: 0.3}}.
-- applied: per shard
-- made for: mismatched abstract boilerplate
-- parameter: alpha 0.5
-- test: unique shard source_row
-- test: not_null sample_id
with final as (
    select
        * exclude (reason),
        (1 - $alpha) * sieve_score + $alpha * clip_score as quality,
        reason
    from fused.scaled
)

select * from final
