"""The clusters of a pool's images, read shard by shard, are those of all its embeddings at once."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from curation_assets.core.settings import load_settings, shard_key
from curation_assets.flow.context import PoolContext
from curation_assets.methods.datacomp_caption import datacomp_caption
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.scoring.batches import series_of
from curation_assets.scoring.derived import vectors_of
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.signals import image_clusters

CLUSTERS, WIDTH = 7, 16


@pytest.fixture
def pool(tmp_path: Path) -> PoolContext:
    """Three shards: some rows not kept, some without a vector, one sample in two shards, captions that fail."""
    rng = np.random.default_rng(3)
    (tmp_path / "captions.csv").write_text("url,caption\nhttp://a.example/1.jpg,a boat\n")
    np.save(tmp_path / "reference.npy", rng.normal(size=(20, WIDTH)).astype(np.float32))
    settings = load_settings(tmp_path, "embedded")
    options = {
        "methods": ["image_based"],
        "reference_images": str(tmp_path / "reference.npy"),
        "image_clusters": CLUSTERS,
    }
    add_pool(settings, "mine", tmp_path / "captions.csv", options=options)
    ctx = PoolContext.open(settings, "mine")
    for shard in range(3):
        ids = [f"{(i * 37 + shard * 1000) % 5003:032x}" for i in range(80)]
        ids[0] = f"{77:032x}"
        keys = pl.DataFrame({"sample_id": ids, "source_row": range(80)})
        captions = ["boat" if i % 5 == 0 else f"a photograph of the old boat number {i} on a lake" for i in range(80)]
        status = ["failed" if i % 11 == 0 and i else "kept" for i in range(80)]
        vectors = rng.normal(size=(80, WIDTH)).astype(np.float32)
        vectors[0] = 1.0
        cells = series_of(
            "image_embedding", [None if i % 13 == 4 else v for i, v in enumerate(vectors)], pl.List(pl.Float32())
        )
        frames = {
            "raw/samples": keys.with_columns(pl.Series("caption", captions), pl.Series("status", status)),
            "signals/image_embedding": keys.with_columns(cells),
        }
        for name, frame in frames.items():
            ctx.store.write(name, frame, shard_key("mine", shard), code_version="1")
    return ctx


def slow_clusters(ctx: PoolContext, max_fitted: int) -> pl.DataFrame:
    """Everything in memory, as lists."""
    samples = ctx.store.scan("raw/samples").collect()
    made = ctx.store.scan("signals/image_embedding").select("shard", "source_row", "image_embedding").collect()
    kept = samples.filter(pl.col("status") == "kept").join(made, on=["shard", "source_row"]).drop_nulls()
    kept = kept.unique("sample_id", keep="first", maintain_order=True).sort("sample_id")
    vectors = np.array(kept["image_embedding"].to_list(), dtype=np.float32)
    identifier = ctx.engines(["language_identifier"])["language_identifier"]
    passing = datacomp_caption(kept["caption"].to_list(), identifier, "image_based").value == 1
    assert 0 < passing.sum() < len(passing)
    draws = np.array([unit_interval_of(each, "image_clusters") for each in kept["sample_id"]])
    limit = np.sort(draws[passing])[max_fitted - 1] if passing.sum() > max_fitted else 1.0
    centroids = fit_centroids(vectors[passing & (draws <= limit)], CLUSTERS)
    counts = np.bincount(nearest_centroid(vectors, centroids), minlength=len(centroids))
    return pl.DataFrame({"image_count": counts, "centroid": pl.Series(centroids.tolist(), dtype=pl.List(pl.Float32))})


@pytest.mark.parametrize("max_fitted", [1_000_000, 60])
def test_shard_by_shard_is_all_at_once(pool: PoolContext, max_fitted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_clusters, "MAX_FITTED", max_fitted)
    table = image_clusters._clusters(pool)
    assert table.schema["centroid"] == pl.List(pl.Float32)
    expected = slow_clusters(pool, max_fitted)
    assert table.select("image_count", "centroid").equals(expected)
    assert table["reference_count"].sum() == 20


def test_vectors_go_in_and_out_of_lists() -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    column = series_of("v", [vectors[0], None, *vectors[1:]], pl.List(pl.Float32()))
    assert column.equals(pl.Series("v", [vectors[0].tolist(), None, *vectors[1:].tolist()], dtype=pl.List(pl.Float32)))
    assert np.array_equal(vectors_of(column.drop_nulls()), vectors)
    with pytest.raises(ValueError, match=r"vectors of \[1, 2\] numbers"):
        vectors_of(pl.Series("v", [[1.0], [1.0, 2.0]]))


def test_equal_rows_make_no_further_clusters() -> None:
    vectors = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    vectors[0, 1] = -0.0
    assert len(fit_centroids(vectors, 10)) == 3
