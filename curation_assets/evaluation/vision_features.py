"""downstream/vision_features, evaluation_features: what the profile's encoder sees of each image, patch by patch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.core.table_names import EVALUATION_SET, SAMPLES
from curation_assets.evaluation.evaluation_set import evaluation_image, evaluation_rows
from curation_assets.flow.context import PoolContext
from curation_assets.flow.parallel import call_in_parts, progress_of_call
from curation_assets.flow.table import Needs, Shown, Table
from curation_assets.stores.images import ImageRejected

VISION_FEATURES = "downstream/vision_features"
EVALUATION_FEATURES = "downstream/evaluation_features"
ROLES = ("image_text_encoder",)
BATCH = 64

#: Column `features`: (T, D) float16, row by row; null with a reason.
_SCHEMA = {"features": pl.Binary, "patches": pl.Int64, "reason": pl.String}


def feature_tables() -> Iterator[Table]:
    """Tables of features: of the pool's samples, shard by shard, and of the evaluation set."""
    text = "frozen patch features of its image by the profile's image_text_encoder (T × D float16), or a reason."
    yield Table(
        name=VISION_FEATURES,
        grain="shard",
        inputs=(SAMPLES,),
        version="1",
        description=f"One row per sample that raw kept: {text}",
        compute=_of_shard,
        needs=Needs(roles=ROLES, core=True),
        shown=Shown(kinds=("torch", "polars")),
    )
    yield Table(
        name=EVALUATION_FEATURES,
        grain="pool",
        inputs=(EVALUATION_SET,),
        version="1",
        description=f"One row per image of the evaluation set: {text}",
        compute=_of_evaluation_set,
        needs=Needs(roles=ROLES, core=True),
        shown=Shown(kinds=("torch", "polars")),
    )


def _of_shard(ctx: PoolContext, shard: str) -> pl.DataFrame:
    rows = ctx.store.read(SAMPLES, shard).filter(pl.col("status") == "kept")
    return _features(ctx, rows.select("sample_id", "source_row"), rows.to_dicts(), ctx.image_loader())


def _of_evaluation_set(ctx: PoolContext) -> pl.DataFrame:
    rows, found = evaluation_rows(ctx), list[pl.DataFrame]()
    with ctx.progress.task("patch features, images of the evaluation set", rows.height) as advance:
        found += call_in_parts(ctx.settings, features_of_evaluation, ctx.pool.name, rows, advance=advance)
    return pl.concat(found)


def features_of_evaluation(settings: Settings, pool_name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Features of some rows of the evaluation set: image_id and the columns of `_SCHEMA`."""
    ctx = PoolContext.open(settings, pool_name, progress=progress_of_call())
    return _features(ctx, rows.select("image_id"), rows.to_dicts(), lambda row: evaluation_image(ctx, dict(row)))


def _features(
    ctx: PoolContext, keys: pl.DataFrame, rows: Sequence[Mapping[str, Any]], load: Callable[[Mapping[str, Any]], Any]
) -> pl.DataFrame:
    from curation_assets.engines.patch_features import patch_features

    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA}
    with ctx.progress.task("patch features, images", len(rows)) as advance:
        encoder = ctx.engines(ROLES)["image_text_encoder"] if rows else None
        for start in range(0, len(rows), BATCH):
            images: list[Any] = []
            reasons: list[str | None] = []
            for row in rows[start : start + BATCH]:
                try:
                    images.append(load(row))
                    reasons.append(None)
                except ImageRejected as rejected:
                    reasons.append(rejected.reason)
            states = iter(patch_features(encoder, images) if images else ())
            for reason in reasons:
                state = next(states) if reason is None else None
                columns["features"].append(None if state is None else np.ascontiguousarray(state).tobytes())
                columns["patches"].append(None if state is None else len(state))
                columns["reason"].append(reason)
            advance(len(reasons))
    return keys.hstack(pl.DataFrame(columns, schema=_SCHEMA))


def stacked(features: pl.DataFrame) -> np.ndarray:
    """(N,) rows with features → (N, T, D) float16. Raises ValueError for none."""
    if not features.height:
        raise ValueError("no image has features")
    patches = int(features["patches"][0])
    flat = np.frombuffer(b"".join(features["features"].to_list()), dtype=np.float16)
    return flat.reshape(features.height, patches, -1)
