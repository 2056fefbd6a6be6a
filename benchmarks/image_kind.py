"""Kinds of images of web pairs: the table that embedded:image_kind is trained on, and how right it is elsewhere.

    python benchmarks/image_kind.py --data ../shared/data --table kinds.csv
    python -m lab image_kind --pairs kinds.csv --out curation_assets/embedded/weights
    python benchmarks/image_kind.py --data ../shared/data

Labels by hand: those of web/labels_400.parquet, and 881 more in image_kind_labels.csv (a key, a kind; one labeller,
thumbnails of 146 px, drawn by the key alone, at most eight of an owner; 138 that were not clear are left out). Rows
with an open licence train. Measured on the labelled rows of owners without any such row, and on photos/000005.tar,
photographs of other sources. Intervals by drawing owners with replacement. Writes benchmarks/results/image_kind.csv.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.numeric.separation import roc_auc
from curation_assets.stores.images import decode_image, tar_index
from lab.photo_pairs_read import read_photos

HERE = Path(__file__).parent
RESULTS, LABELS = HERE / "results" / "image_kind.csv", HERE / "image_kind_labels.csv"
RESAMPLES = 1000


def labelled(web: Path) -> pl.DataFrame:
    """key, kind, labels (whose), owner, shard, licence_class, is_training of every labelled pair."""
    given = pl.read_parquet(web / "labels_400.parquet").select("key", "kind", labels=pl.lit("of the data"))
    labels = pl.concat([given, pl.read_csv(LABELS).with_columns(labels=pl.lit("ours"))])
    pairs = pl.read_parquet(web / "pairs.parquet", columns=["key", "owner", "shard", "licence_class"])
    is_open = pl.col("licence_class") == "open"
    open_owners = pairs.filter(is_open)["owner"].unique().to_list()
    joined = labels.join(pairs, on="key", how="left", maintain_order="left")
    return joined.with_columns(is_training=is_open, is_held_out=~pl.col("owner").is_in(open_owners))


def write_table(rows: pl.DataFrame, web: Path, path: Path) -> None:
    """What the training command reads."""
    image = pl.concat_str(pl.lit(f"{web.resolve()}/"), "shard", pl.lit(":"), "key", pl.lit(".jpg"))
    rows.filter("is_training").select(image.alias("image"), "kind", pl.col("owner").alias("group")).write_csv(path)


def with_interval(truth: np.ndarray, probabilities: np.ndarray, owners: np.ndarray) -> list[dict[str, Any]]:
    """AUC of photographs and shares that are right, with intervals over owners. (N,) positions, (N, K), (N,)."""
    rows_of = [np.flatnonzero(owners == owner) for owner in np.unique(owners)]
    rng = np.random.default_rng(0)

    def figures(rows: np.ndarray) -> dict[str, float]:
        found, kind = probabilities[rows].argmax(axis=1), truth[rows]
        return {
            "photo or not, AUC": roc_auc(probabilities[rows, 0], kind == 0),
            "photo or not, right": float(((found == 0) == (kind == 0)).mean()),
            "kind, right": float((found == kind).mean()),
        }

    drawn = [
        figures(np.concatenate([rows_of[one] for one in rng.integers(len(rows_of), size=len(rows_of))]))
        for _ in range(RESAMPLES)
    ]
    return [
        {
            "figure": name,
            "value": value,
            "low": float(np.quantile([one[name] for one in drawn], 0.025)),
            "high": float(np.quantile([one[name] for one in drawn], 0.975)),
            "n": len(truth),
            "owners": len(rows_of),
        }
        for name, value in figures(np.arange(len(truth))).items()
    ]


def measure(rows: pl.DataFrame, data: Path) -> pl.DataFrame:
    """Every figure, a row each."""
    engine: Any = load_engine("kind_classifier", load_profile("photos"))
    held_out = rows.filter("is_held_out")
    images = [
        decode_image(tar_index(data / "web" / shard).read(f"{key}.jpg"))
        for shard, key in held_out.select("shard", "key").iter_rows()
    ]
    probabilities = engine.kind_probabilities(images)
    truth = np.array([engine.kinds.index(kind) for kind in held_out["kind"]])
    owners, whose = held_out["owner"].to_numpy(), held_out["labels"].to_numpy()
    found = []
    for name in ("of the data", "ours", "all"):
        chosen = (whose == name) | (name == "all")
        found += [
            {"labels": name, **row} for row in with_interval(truth[chosen], probabilities[chosen], owners[chosen])
        ]
    found_kinds = probabilities.argmax(axis=1)
    for kind, name in enumerate(engine.kinds):
        for answer, other in enumerate(engine.kinds):
            count = int(((truth == kind) & (found_kinds == answer)).sum())
            row = {"figure": f"{name} classified as {other}", "value": count, "n": int((truth == kind).sum())}
            found.append({"labels": "all", **row})
    photos = [photo.load() for photo in read_photos(data / "photos" / "000005.tar")]
    share = float((engine.kind_probabilities(photos).argmax(axis=1) == 0).mean())
    found.append({"labels": "photographs", "figure": "classified as photo", "value": share, "n": len(photos)})
    return pl.DataFrame(found).select("labels", "figure", pl.col("value", "low", "high").round(4), "n", "owners")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", type=Path, help="write what the training command reads, and stop")
    given = parser.parse_args()
    rows = labelled(given.data / "web")
    if given.table:
        write_table(rows, given.data / "web", given.table)
        return
    found = measure(rows, given.data)
    found.write_csv(RESULTS)
    print(found)


if __name__ == "__main__":
    main()
