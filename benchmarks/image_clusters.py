"""Memory of signals/image_clusters by the size of the pool: a pool of random unit vectors, its tables written directly.

python benchmarks/image_clusters.py [ROWS=100000] [WIDTH=64] [--home FOLDER]

Prints the rows, the width, the seconds of CPU, and the peak of what NumPy and Python allocated (tracemalloc) and of the
process (resident, over what it had before).
"""

import argparse
import resource
import shutil
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.core.settings import load_settings, shard_key
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.clusters import fit_centroids
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.signals import image_clusters

ROWS_PER_SHARD = 10_000
REFERENCES = 1_000


def write_pool(home: Path, rows: int, width: int) -> PoolContext:
    """A pool whose raw.samples and signals.image_embedding hold `rows` rows of made-up captions and vectors."""
    rng = np.random.default_rng(0)
    (home / "captions.csv").write_text("url,caption\nhttp://a.example/1.jpg,a boat\n")
    np.save(home / "reference.npy", unit_vectors(rng, REFERENCES, width))
    settings = load_settings(home, "embedded")
    options = {"methods": ["image_based"], "reference_images": str(home / "reference.npy"), "image_clusters": 100}
    add_pool(settings, "made_up", home / "captions.csv", options=options)
    ctx = PoolContext.open(settings, "made_up")
    for number, start in enumerate(range(0, rows, ROWS_PER_SHARD)):
        count = min(ROWS_PER_SHARD, rows - start)
        ids = [f"{rng.integers(2**63):016x}{start + i:016x}" for i in range(count)]
        keys = pl.DataFrame({"sample_id": ids, "source_row": np.arange(count)})
        captions = [f"a photograph of boat {start + i} on the water" for i in range(count)]
        samples = keys.with_columns(pl.Series("caption", captions), pl.lit("kept").alias("status"))
        vectors = pl.Series("image_embedding", unit_vectors(rng, count, width)).arr.to_list()
        for name, frame in (
            ("raw/samples", samples),
            ("signals/image_embedding", keys.with_columns(vectors, pl.lit(None, pl.String).alias("reason"))),
        ):
            ctx.store.write(name, frame, shard_key("made_up", number), code_version="1")
    return ctx


def unit_vectors(rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    """(count, width) float32."""
    vectors = rng.normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="?", type=int, default=100_000)
    parser.add_argument("width", nargs="?", type=int, default=64)
    parser.add_argument("--home", type=Path, help="folder of the pool that is made; default: a temporary one")
    arguments = parser.parse_args()
    home = arguments.home or Path(tempfile.mkdtemp())
    home.mkdir(parents=True, exist_ok=True)
    try:
        ctx = write_pool(home, arguments.rows, arguments.width)
        ctx.engines(["image_text_encoder", "language_identifier"])
        fit_centroids(unit_vectors(np.random.default_rng(1), 200, arguments.width), 2)  # loads scikit-learn
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tracemalloc.start()
        start = time.process_time()
        table = image_clusters._clusters(ctx)
        seconds, (_, allocated) = time.process_time() - start, tracemalloc.get_traced_memory()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"{arguments.rows:,} rows of {arguments.width}: {seconds:.1f} s CPU, {allocated / arguments.rows:,.0f} B a "
            f"row allocated, {resident * 1024 / arguments.rows:,.0f} B a row resident; "
            f"{table.height} clusters of {table['image_count'].sum():,} images"
        )
    finally:
        if arguments.home is None:
            shutil.rmtree(home)


if __name__ == "__main__":
    main()
