-- Grain: one row per row of raw.samples; quality is 1 where all stages of Conceptual Captions let it through, else 0.
-- Sharma et al. 2018 §3: image, text, image and text, transformation, then the corpus-level count: a candidate goes
-- when any of its concepts has 100 mentions or fewer among the candidates that came so far. formulas.md §7.
-- made for: mismatched abstract boilerplate caps repetition foreign odd_size
-- parameter: rare_mentions 100
-- test: unique shard source_row
-- test: not_null sample_id
-- test: accepted_values stage image text overlap transform rare_concept
-- test: range quality 0 1
with samples as (
    select shard, source_row, sample_id, status, reason from raw.samples
),

image as (
    select shard, source_row, value, reason from signals.conceptual_captions_image
),

text_stage as (
    select shard, source_row, value, reason from signals.conceptual_captions
),

overlap as (
    select shard, source_row, value, reason from signals.conceptual_captions_overlap
),

transformed as (
    select shard, source_row, value, reason, text as transformed_text, concepts
    from signals.conceptual_captions_transform
),

judged as (
    select
        samples.sample_id,
        samples.shard,
        samples.source_row,
        transformed.transformed_text as caption,
        transformed.concepts,
        case
            when samples.status <> 'kept'
                then 'upstream_' || samples.status || ':' || coalesce(samples.reason, 'no_reason')
            when image.value is null then 'conceptual_captions_image:' || coalesce(image.reason, 'no_row')
            when text_stage.value is null then 'conceptual_captions:' || coalesce(text_stage.reason, 'no_row')
            when overlap.value is null then 'conceptual_captions_overlap:' || coalesce(overlap.reason, 'no_row')
            when transformed.value is null then 'conceptual_captions_transform:' || coalesce(transformed.reason, 'no_row')
        end as reason,
        case
            when image.value < 1 then 'image'
            when text_stage.value < 1 then 'text'
            when overlap.value < 1 then 'overlap'
            when transformed.value < 1 then 'transform'
        end as failed_stage
    from samples
    left join image on samples.shard = image.shard and samples.source_row = image.source_row
    left join text_stage on samples.shard = text_stage.shard and samples.source_row = text_stage.source_row
    left join overlap on samples.shard = overlap.shard and samples.source_row = overlap.source_row
    left join transformed on samples.shard = transformed.shard and samples.source_row = transformed.source_row
),

mentions as (
    select shard, source_row, unnest(concepts) as concept
    from judged
    where reason is null and failed_stage is null
),

mention_counts as (
    select concept, count(*) as mention_count
    from mentions
    group by concept
),

rarest as (
    select
        mentions.shard,
        mentions.source_row,
        min(mention_counts.mention_count) as rarest_count,
        arg_min(mentions.concept, row(mention_counts.mention_count, mentions.concept)) as rarest_concept
    from mentions
    inner join mention_counts on mentions.concept = mention_counts.concept
    group by mentions.shard, mentions.source_row
),

final as (
    select
        judged.sample_id,
        judged.shard,
        judged.source_row,
        judged.caption,
        rarest.rarest_concept,
        rarest.rarest_count,
        case
            when judged.reason is not null then null
            when judged.failed_stage is not null then judged.failed_stage
            when coalesce(rarest.rarest_count, 0) <= $rare_mentions then 'rare_concept'
        end as stage,
        case
            when judged.reason is not null then null
            when judged.failed_stage is null and rarest.rarest_count > $rare_mentions then 1.0::double
            else 0.0::double
        end as quality,
        judged.reason
    from judged
    left join rarest on judged.shard = rarest.shard and judged.source_row = rarest.source_row
)

select * from final
