"""A pool as one Parquet file for a viewer: per sample a thumbnail, caption, values, verdicts and a place on a plane."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.table_names import IMAGE_EMBEDDING, SAMPLES, stage_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.numeric.projection import project
from curation_assets.outputs.thumbnails import thumbnail_of
from curation_assets.selection.rows import ROW_KEY, looked_up
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.denied import denied_rows
from curation_assets.stores.documents import save_frame
from curation_assets.stores.parquet import parquet_footer
from curation_assets.stores.web_addresses import hosts_of

FOLDER = "explore"  # in the pool's work folder; a takedown deletes it
FILE = "samples.parquet"
VERSION = 2  # bump when the same pool would give another file
MADE_OF = "made_of"  # key of the footer: what the file was made of
DEFAULT_LIMIT = 20_000  # samples; about 4 kB each
FEW = 0.25  # below this share of a pool, images are read one by one out of tars that are not here
THUMBNAIL_PX = 128


@dataclass(frozen=True)
class Exploration:
    """What was written. `placed_by`: the embeddings that were projected; `without_picture`: reason → samples."""

    path: Path
    rows: int
    judged: int  # samples of the pool that the policies judge
    placed_by: str
    without_picture: dict[str, int]
    is_reused: bool


def prepare(ctx: PoolContext, *, limit: int = DEFAULT_LIMIT) -> Exploration:
    """Write the file of a pool, or reuse it where nothing that it is made of has changed.

    Of the samples that raw kept and nobody takes down, the `limit` with the lowest hash of their id: the same ones
    whenever the pool is the same. Columns: sample_id, caption, image (a struct as Hugging Face has it), shard, domain,
    width, height; every value of a signal as NAME and of a recipe as fused_NAME, null where there is none; per policy
    NAME_verdict and NAME_reason; x and y, null for a sample without the embedding that places it.

    Raises ValueError for a limit below 1, or a pool that has not run.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1 sample, got {limit}")
    policies = _policies(ctx)
    assets = _values(ctx)
    path = ctx.store.root / FOLDER / FILE
    made_of = _made_of(ctx, [*assets, *(f"filtered/{name}" for name in policies)], limit)
    if path.is_file():
        footer = parquet_footer(path).get(MADE_OF)
        known = {} if footer is None else json.loads(footer)
        if known.get("made_of") == made_of:
            return Exploration(path, **known["facts"], is_reused=True)
    samples, judged = _drawn(ctx, limit)
    frame, reasons = _with_pictures(ctx, samples, few=samples.height < judged * FEW)
    for asset in assets:
        numbers = (pl.col(name).cast(pl.Float64).alias(new) for name, new in _value_columns(asset).items())
        frame = looked_up(ctx.store, frame, asset, *numbers)
    for name in policies:
        texts = (pl.col(one).cast(pl.String).alias(f"{name}_{one}") for one in ("verdict", "reason"))
        frame = looked_up(ctx.store, frame, f"filtered/{name}", *texts)
    frame, placed_by = _placed(ctx, frame)
    facts: dict[str, Any] = {"rows": frame.height, "judged": judged, "placed_by": placed_by, "without_picture": reasons}
    footer = json.dumps({"made_of": made_of, "facts": facts})
    save_frame(path, frame.drop("source_row"), metadata={MADE_OF: footer})
    return Exploration(path, **facts, is_reused=False)


def _policies(ctx: PoolContext) -> list[str]:
    """Policies whose verdicts are stored. Raises ValueError where there is none."""
    run = f"`curate run {ctx.pool.name}` first"
    if not ctx.store.partitions(SAMPLES):
        raise ValueError(f"pool {ctx.pool.name!r} has not run yet; {run}")
    stored = set(stored_tables(ctx.store))
    judged = [policy.name for policy in policies_of(ctx) if f"filtered/{policy.name}" in stored]
    if not judged:
        raise ValueError(f"no policy of pool {ctx.pool.name!r} has verdicts yet; {run}")
    return judged


def _values(ctx: PoolContext) -> list[str]:
    """Stored tables that give samples a number: signals and recipes."""
    tables = []
    for asset in stored_tables(ctx.store):
        names = set(ctx.store.scan(asset).collect_schema().names())
        if stage_of(asset) in ("signals", "fused") and names >= {*ROW_KEY, *_value_columns(asset)}:
            tables.append(asset)
    return tables


def _value_columns(asset: str) -> dict[str, str]:
    """Column of the table → column of the file."""
    stage, name = asset.split("/")
    return {"quality": f"fused_{name}"} if stage == "fused" else {"value": name}


def _made_of(ctx: PoolContext, assets: Sequence[str], limit: int) -> str:
    """64 hex digits that change with what the file would hold."""
    versions: list[Any] = [VERSION, limit, ctx.denylist.version]
    embeddings = [IMAGE_EMBEDDING] if _has_embeddings(ctx) else []
    if not embeddings:
        versions += [vars(identity) for identity in ctx.identities(["sentence_encoder"])]
    for asset in (SAMPLES, *embeddings, *assets):
        shards: Sequence[str | None] = ctx.store.partitions(asset) or [None]
        for shard in shards:
            versions.append([asset, shard, ctx.store.content(asset, shard)])
    return hashlib.sha256(json.dumps(versions, default=str).encode()).hexdigest()


def _drawn(ctx: PoolContext, limit: int) -> tuple[pl.DataFrame, int]:
    """The samples that are shown, sorted by sample_id, and how many there are in the pool."""
    kept = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept")
    rows = kept.select("sample_id", *ROW_KEY).collect()
    order = np.argsort([unit_interval_of(one, "explore") for one in rows["sample_id"]], kind="stable")[:limit]
    facts = ("caption", "url", "tar", "member", "width", "height", "image_sha256")
    drawn = rows[order].lazy().join(kept.select(*ROW_KEY, *facts), on=ROW_KEY, how="left").collect()
    denied = denied_rows(ctx.store, ctx.denylist).select(ROW_KEY)  # on the list, not applied yet
    drawn = drawn.join(denied, on=ROW_KEY, how="anti").sort("sample_id", *ROW_KEY)
    return drawn.with_columns(hosts_of(pl.col("url")).alias("domain")), rows.height


def _with_pictures(ctx: PoolContext, samples: pl.DataFrame, *, few: bool) -> tuple[pl.DataFrame, dict[str, int]]:
    """The first columns of the file, and how many samples have no picture, by reason."""
    load_image = ctx.image_loader(few=few)
    pictures: list[dict[str, Any] | None] = [None] * samples.height
    reasons: Counter[str] = Counter()
    order = samples.with_row_index("position").sort("tar", "member", nulls_last=True)
    with ctx.progress.task("thumbnails", samples.height) as advance:
        for row in order.iter_rows(named=True):
            data, why = thumbnail_of(load_image, row, THUMBNAIL_PX)
            if data is None:
                reasons[why] += 1
            else:
                pictures[row["position"]] = {"bytes": data, "path": f"{row['sample_id']}.jpg"}
            advance(1)
    image = pl.Series("image", pictures, dtype=pl.Struct({"bytes": pl.Binary, "path": pl.String}))
    frame = samples.select("sample_id", "caption", image, *ROW_KEY, "domain", "width", "height")
    return frame, dict(sorted(reasons.items()))


def _has_embeddings(ctx: PoolContext) -> bool:
    return IMAGE_EMBEDDING in stored_tables(ctx.store)


def _placed(ctx: PoolContext, frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """The frame with x and y: of its image embeddings where the pool has them, else of its captions'."""
    if _has_embeddings(ctx):
        vectors = looked_up(ctx.store, frame.select(ROW_KEY), IMAGE_EMBEDDING, "image_embedding")["image_embedding"]
        placed_by = "image embeddings"
    else:
        with ctx.progress.task("sentence embeddings of captions", frame.height) as advance:
            encoder = ctx.engines(["sentence_encoder"])["sentence_encoder"]
            vectors = pl.Series(encoder.embed_sentences(frame["caption"].fill_null("").to_list()))
            advance(frame.height)
        placed_by = "sentence embeddings of captions"
    has_vector = vectors.is_not_null().to_numpy()
    with ctx.progress.task(f"places on a plane by {placed_by}", frame.height) as advance:
        matrix = np.array(vectors.drop_nulls().to_list(), dtype=np.float32).reshape(int(has_vector.sum()), -1)  # (M, D)
        places = np.full((frame.height, 2), np.nan, dtype=np.float32)  # (N, 2)
        places[has_vector] = project(matrix, seed=0)
        advance(frame.height)
    x, y = (pl.Series(name, places[:, axis]).fill_nan(None) for axis, name in enumerate("xy"))
    return frame.with_columns(x, y), placed_by
