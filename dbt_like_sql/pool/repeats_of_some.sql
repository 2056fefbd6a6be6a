-- Grain: as repeats.sql, of the samples that rows of some shards bring: the table came.
with kept as (
    select sample_id, shard, source_row
    from raw.samples
    where status = 'kept'
),

near as (
    select kept.*
    from kept
    semi join came using (sample_id)
)

select *
from near
qualify count(*) over (partition by sample_id) > 1
order by shard, source_row
