-- Grain: one row per row of raw/samples whose sample raw kept in several rows, the first as registered among them.
with kept as (
    select sample_id, shard, source_row
    from raw.samples
    where status = 'kept'
),

repeated as (
    select sample_id
    from kept
    group by sample_id
    having count(*) > 1
)

select kept.*
from kept
semi join repeated using (sample_id)
order by shard, source_row
