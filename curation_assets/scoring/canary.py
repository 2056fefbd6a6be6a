"""The canary: a few samples kept with their hashes, scored by every build of every model, and what drifted.

A build is everything that decides a method's value of a sample: its version, settings and models. The scores of all
builds stay in one table (`signals/canary`); `signals/drift` compares the build in force with the reference build, which
is the first that was seen, or the one that `curate drift accept` named.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.core.table_names import CANARY, SAMPLES
from curation_assets.methods import Method
from curation_assets.numeric.drift import drift_statistics
from curation_assets.numeric.identity import seed_of, unit_interval_of
from curation_assets.numeric.standardise import caption_length
from curation_assets.scoring.samples import score_samples
from curation_assets.stores.atomic import check_new
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.documents import read_document, save_document, save_frame
from curation_assets.stores.images import ImageLimits, ImageRejected, decode_image, read_member
from curation_assets.stores.manifest import model_records, utc_now
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import ShardStore

#: Grain: one row per sample. Hashes guard against a file that changed under us.
CANARY_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String,
        "caption": pl.String,
        "width": pl.Int32,
        "height": pl.Int32,
        "original_width": pl.Int32,
        "original_height": pl.Int32,
        "image": pl.Binary,  # null: a pool of captions only
        "image_sha256": pl.String,
        "caption_sha256": pl.String,
    }
)

#: Grain of signals/canary: one row per method, build and canary sample.
CANARY_SCORES_SCHEMA = pl.Schema(
    {
        "method": pl.String,
        "build": pl.String,
        "first_seen_at": pl.String,
        "is_current": pl.Boolean,
        "canary_sha256": pl.String,
        "canary_sample_id": pl.String,  # not sample_id: a sample comes once per method and build
        "length": pl.Int64,  # of the caption, words
        "value": pl.Float64,
        "reason": pl.String,
        "models": pl.String,  # JSON of address, revision, weights_sha256
        "method_version": pl.String,
    }
)

#: Grain of signals/drift: one row per method and statistic.
DRIFT_SCHEMA = pl.Schema(
    {
        "method": pl.String,
        "statistic": pl.String,
        "value": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "is_within": pl.Boolean,
        "reference_build": pl.String,
        "build": pl.String,
        "samples": pl.Int64,
    }
)

ACCEPTED = "canary/accepted.json"  # in the pool's work folder: method → reference build
MIN_SAMPLES = 20  # fewer do not describe a distribution


#: Columns that a method may read of a canary sample; generated_captions are written anew by the build's captioner.
CANARY_COLUMNS = {*CANARY_SCHEMA, "generated_captions"}


class CanaryError(ValueError):
    """A canary file that is not what was frozen."""


@dataclass(frozen=True)
class Canary:
    """A frozen set of samples."""

    rows: pl.DataFrame  # CANARY_SCHEMA, sorted by sample_id
    sha256: str  # over ids and hashes

    @classmethod
    def read(cls, path: Path) -> "Canary":
        """Read and verify. Raises CanaryError where a hash is not that of its caption or image."""
        try:
            rows = read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise CanaryError(
                f"{path} cannot be read as a canary: {error}; freeze one with `curate drift freeze`"
            ) from error
        if rows.schema != CANARY_SCHEMA:
            raise CanaryError(f"{path} is no canary: expected columns {CANARY_SCHEMA.names()}, got {rows.columns}")
        for row in rows.iter_rows(named=True):
            image = None if row["image"] is None else hashlib.sha256(row["image"]).hexdigest()
            caption = hashlib.sha256(row["caption"].encode()).hexdigest()
            if (image, caption) != (row["image_sha256"], row["caption_sha256"]):
                raise CanaryError(
                    f"{path}: sample {row['sample_id']} does not have the caption or image that was frozen; restore "
                    "the file, or freeze a new canary"
                )
        digest = hashlib.sha256()
        for identity in rows.select("sample_id", "image_sha256", "caption_sha256").iter_rows():
            digest.update(json.dumps(identity).encode())
        return cls(rows, digest.hexdigest())

    def load_image(self, row: Mapping[str, Any]) -> Image.Image:
        """RGB image of a row of `samples`. Raises ImageRejected where the canary has none."""
        if row["image"] is None:
            raise ImageRejected("no_image", f"canary sample {row['sample_id']} has no image")
        return decode_image(row["image"], ImageLimits())

    @property
    def lengths(self) -> np.ndarray:
        """(N,) caption lengths in words."""
        return caption_length(self.rows["caption"].to_list())


def freeze_canary(store: ShardStore, path: Path, size: int) -> Canary:
    """Draw `size` kept samples of a pool by hash of their ids and write them, with their images, to `path`.

    The same pool gives the same canary. Raises ValueError for fewer than MIN_SAMPLES, or a file that exists.
    """
    check_new(path)
    samples = store.scan(SAMPLES).filter(pl.col("status") == "kept").collect()
    samples = samples.sort("shard", "source_row").unique("sample_id", keep="first", maintain_order=True)
    order = [unit_interval_of(sample_id, "canary") for sample_id in samples["sample_id"]]
    drawn = samples.with_columns(pl.Series("order", order)).sort("order").head(size).sort("sample_id")
    if drawn.height < MIN_SAMPLES:
        raise ValueError(f"a canary needs {MIN_SAMPLES} samples at least, got {drawn.height} of {samples.height} kept")
    rows = []
    for row in drawn.iter_rows(named=True):
        image = read_member(store.root / row["tar"], row["member"]) if row["member"] is not None else None
        rows.append(
            {
                **{name: row[name] for name in CANARY_SCHEMA if name in row},
                "image": image,
                "image_sha256": None if image is None else hashlib.sha256(image).hexdigest(),
                "caption_sha256": hashlib.sha256(row["caption"].encode()).hexdigest(),
            }
        )
    save_frame(path, pl.DataFrame(rows, schema=CANARY_SCHEMA, orient="row"), is_new=True)
    return Canary.read(path)


def build_of(method: Method, models: Iterable[Any], config: Mapping[str, Any]) -> str:
    """Identity of a build, 16 hex digits: method version, settings, models with the digests of their weights."""
    content = {
        "method": method.name,
        "version": method.version,
        "models": model_records(list(models)),
        "config": config,
    }
    return config_sha256(content)[:16]


def score_canary(
    canary: Canary,
    method: Method,
    engines: Mapping[str, Any],
    build: str,
    models: Iterable[Any],
    batch_size: int,
) -> pl.DataFrame:
    """Scores of one build (CANARY_SCORES_SCHEMA)."""
    scored = score_samples(method, canary.rows, engines, load_image=canary.load_image, batch_size=batch_size)
    return scored.select(
        pl.lit(method.name).alias("method"),
        pl.lit(build).alias("build"),
        pl.lit(utc_now()).alias("first_seen_at"),
        pl.lit(True).alias("is_current"),
        pl.lit(canary.sha256).alias("canary_sha256"),
        pl.col("sample_id").alias("canary_sample_id"),
        pl.Series("length", canary.lengths, dtype=pl.Int64),
        "value",
        "reason",
        pl.lit(json.dumps(model_records(list(models)), sort_keys=True)).alias("models"),
        pl.lit(method.version).alias("method_version"),
    ).cast(CANARY_SCORES_SCHEMA)  # type: ignore[arg-type]


def reference_builds(scores: pl.DataFrame, accepted: Mapping[str, str]) -> dict[str, str]:
    """Method → build that the others are compared with: the accepted one, else the first that was seen."""
    first = scores.sort("first_seen_at", maintain_order=True).unique("method", keep="first", maintain_order=True)
    seen = dict(first.select("method", "build").iter_rows())
    known = set(scores.select("method", "build").iter_rows())
    return {
        method: accepted[method] if (method, accepted.get(method)) in known else build for method, build in seen.items()
    }


def drift_table(scores: pl.DataFrame, accepted: Mapping[str, str], *, fraction: float) -> pl.DataFrame:
    """Build in force against reference build, per method (DRIFT_SCHEMA). Only builds of one canary are compared."""
    rows: list[dict[str, Any]] = []
    reference = reference_builds(scores, accepted)
    for (method,), part in scores.group_by("method", maintain_order=True):
        current = part.filter("is_current")
        if not current.height:
            continue
        old = part.filter(pl.col("build") == reference[str(method)]).sort("canary_sample_id")
        new = current.sort("canary_sample_id")
        values = [build["value"].fill_null(float("nan")).to_numpy() for build in (old, new)]
        rng = np.random.default_rng(seed_of("0" * 32, f"drift-{method}"))
        common = {"method": method, "reference_build": old["build"][0], "build": new["build"][0], "samples": new.height}
        both = int((~np.isnan(values[0]) & ~np.isnan(values[1])).sum())
        if both < 2:  # nothing to compare: reported, not hidden
            share = [float((~np.isnan(scored)).mean()) for scored in values]
            rows.append({**common, "statistic": "valued", "value": share[1], "low": share[0], "high": 1.0,
                         "is_within": share[1] >= share[0]})  # fmt: skip
            continue
        for drift in drift_statistics(values[0], values[1], new["length"].to_numpy(), rng, fraction=fraction):
            rows.append({**common, "statistic": drift.name, "value": drift.value, "low": drift.low, "high": drift.high,
                         "is_within": drift.is_within})  # fmt: skip
    return pl.DataFrame(rows, schema=DRIFT_SCHEMA, orient="row")


def read_accepted(store: ShardStore) -> dict[str, str]:
    """Reference builds that were accepted by hand: method → build."""
    path = store.root / ACCEPTED
    advice = "remove the file, and accept the builds again (`curate drift accept`)"
    return read_document(path, dict, advice=advice) or {}


def accept(store: ShardStore, methods: Iterable[str]) -> dict[str, str]:
    """Take the builds in force as the references from now on; no name: of all methods. Raises ValueError."""
    scores = store.read(CANARY).filter("is_current")
    current = dict(scores.select("method", "build").unique().iter_rows())
    accepted_methods = list(methods) or sorted(current)
    unknown = sorted(set(accepted_methods) - set(current))
    if unknown:
        raise ValueError(f"no canary scores of {unknown}; there are {sorted(current)}")
    accepted = read_accepted(store) | {method: current[method] for method in accepted_methods}
    save_document(store.root / ACCEPTED, accepted)
    return {method: current[method] for method in accepted_methods}


def keep_builds(store: ShardStore, before: str, canary: Canary) -> None:
    """After samples left a canary, let every build keep its scores of the others. `before`: the sha256 it had.

    What is stored counts as stale then: the next run marks which builds are in force.
    """
    scores = store.read(CANARY).filter(pl.col("canary_sample_id").is_in(canary.rows["sample_id"].implode()))
    is_it = pl.col("canary_sha256") == before
    rekeyed = scores.with_columns(
        pl.when(is_it).then(pl.lit(canary.sha256)).otherwise("canary_sha256").alias("canary_sha256")
    )
    store.write(CANARY, rekeyed, code_version="samples were taken down")
