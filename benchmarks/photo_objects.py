"""Objects in photographs: does the detector name them, and do the two object-word methods tell captions apart?

    python benchmarks/photo_objects.py --data ../shared/data

Recall: of the pairs of a photograph and an annotated COCO class, the share that the detector names; precision beside
it, at several thresholds. AUC: each photograph with its first caption against the same photograph with captions of
others of its set, by `conceptual_captions_overlap` and, with each set of word vectors, `object_word_quality`.
Intervals: 95 %, photographs drawn with replacement. The threshold was chosen on shards 000000 and 000002 to 000004
(AUC), so shard 000005 is held out from that choice; COCO photographs of it may have been in the detector's own
training. Writes benchmarks/results/photo_objects.csv; nothing of the data is copied.
"""

import argparse
import io
import json
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image
from scipy.stats import rankdata

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.ssd_detector import DEFAULTS, LABELS
from curation_assets.methods import get_method
from curation_assets.numeric.object_word_quality import words_of

RESULTS = Path(__file__).parent / "results"
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MISMATCHES, RESAMPLES, SEED = 4, 500, 0
HELD_OUT = "000005"


Scored = list[tuple[str, float]]  # labels with their scores, best first


def detect(photos: pl.DataFrame, folder: Path, detector: Any) -> dict[str, Scored]:
    """Key of each photograph → what is found in it."""
    found: dict[str, Scored] = {}
    began = time.time()
    for shard in photos["shard"].unique().sort():
        wanted = set(photos.filter(pl.col("shard") == shard)["key"])
        with tarfile.open(folder / f"{shard}.tar") as tar:
            for member in tar:
                key = member.name.removesuffix(".jpg")
                stream = tar.extractfile(member) if key in wanted and member.name.endswith(".jpg") else None
                if stream is not None:
                    objects = detector.detect_objects([Image.open(io.BytesIO(stream.read()))])[0]
                    found[key] = [(one.label, round(one.score, 5)) for one in objects]
        print(f"{shard}: {len(found)} photographs", flush=True)
    print(f"{1000 * (time.time() - began) / len(found):.0f} ms a photograph, one thread, reading included")
    return found


def labels_from(scored: Scored, threshold: float) -> list[str]:
    """Distinct labels from a threshold on, best first."""
    return list(dict.fromkeys(label for label, score in scored if score >= threshold))


def interval(statistic: Any, count: int) -> tuple[float, float]:
    """95 % of the values of statistic(drawn positions)."""
    rng = np.random.default_rng(SEED)
    values = [statistic(rng.integers(count, size=count)) for _ in range(RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def share_row(
    what: str, where: str, parts: np.ndarray, wholes: np.ndarray, threshold: float | None = None
) -> dict[str, Any]:
    """A row of Σ parts / Σ wholes over photographs."""
    low, high = interval(lambda drawn: parts[drawn].sum() / max(1, wholes[drawn].sum()), len(parts))
    value = float(parts.sum() / wholes.sum())
    return {
        "measure": what, "photographs": where, "threshold": threshold, "value": value, "low": low, "high": high,
        "n": len(parts), "n_pairs": int(wholes.sum()),
    }  # fmt: skip


def named_objects(photos: pl.DataFrame, detections: list[Scored]) -> list[dict[str, Any]]:
    """Recall and precision of the labels of each annotated photograph, by threshold and by COCO's split."""
    rows = []
    splits = photos["split"].to_list()
    there = [
        {one["category"] for one in objects or []} & set(LABELS.values()) for objects in photos["objects"].to_list()
    ]
    for where in ("annotated", "annotated, val2017", "annotated, train2017"):
        split = where.removeprefix("annotated").removeprefix(", ")
        chosen = [i for i, truth in enumerate(there) if truth and split in ("", splits[i])]
        for threshold in THRESHOLDS if where == "annotated" else (DEFAULTS["threshold"],):
            named = [set(labels_from(detections[i], threshold)) for i in chosen]
            hits = np.array([len(there[i] & mine) for i, mine in zip(chosen, named, strict=True)])
            rows.append(share_row("recall", where, hits, np.array([len(there[i]) for i in chosen]), threshold))
            rows.append(share_row("precision", where, hits, np.array([len(mine) for mine in named]), threshold))
    return rows


def auc(own: np.ndarray, other: np.ndarray) -> float:
    """P(own > other) + P(equal) / 2. (N,), (M,)."""
    ranks = rankdata(np.concatenate([own, other]))
    return float((ranks[: len(own)].sum() - len(own) * (len(own) + 1) / 2) / (len(own) * len(other)))


def told_apart(
    where: str, captions: list[str], labels: list[list[str]], vectors: dict[str, Any]
) -> list[dict[str, Any]]:
    """AUC of own captions against those of other photographs of the same set."""
    count = len(captions)
    shifts = np.random.default_rng(SEED).choice(np.arange(1, count), MISMATCHES, replace=False)
    texts = captions + [captions[(i + int(shift)) % count] for shift in shifts for i in range(count)]
    objects = labels * (MISMATCHES + 1)
    scores = {"conceptual_captions_overlap": get_method("conceptual_captions_overlap").function(texts, objects).value}
    for address, engine in vectors.items():
        scores[f"object_word_quality ({address})"] = (
            get_method("object_word_quality").function(texts, objects, engine).value
        )
    rows = []
    for name, value in scores.items():
        own, other = value[:count], value[count:].reshape(MISMATCHES, count)

        def drawn_auc(drawn: np.ndarray, own: np.ndarray = own, other: np.ndarray = other) -> float:
            return auc(own[drawn], other[:, drawn].ravel())

        low, high = interval(drawn_auc, count)
        rows.append(
            {
                "measure": f"AUC of {name}",
                "photographs": where,
                "threshold": DEFAULTS["threshold"],
                "value": auc(own, other.ravel()),
                "low": low,
                "high": high,
                "n": count,
                "n_pairs": len(texts),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data")
    parser.add_argument("--detections", type=Path, help="a JSON file that keeps what was found, for another run")
    parser.add_argument("--vectors", nargs="*", default=["embedded:minilm", "glove:6b-50d"], help="addresses")
    given = parser.parse_args()
    profile = load_profile("embedded").with_roles(object_detector="ssd:mobilenet_v2_coco")
    profile = replace(profile, generation={"object_detector": {"threshold": min(THRESHOLDS)}})
    photos = pl.read_parquet(given.data / "photos" / "captions.parquet").sort("shard", "key")
    if given.detections is not None and given.detections.is_file():
        found: dict[str, Scored] = json.loads(given.detections.read_text())
    else:
        found = detect(photos, given.data / "photos", load_engine("object_detector", profile))
        if given.detections is not None:
            given.detections.write_text(json.dumps(found))
    detections = [found[key] for key in photos["key"]]
    rows = named_objects(photos, detections)
    vectors: dict[str, Any] = {}
    for address in given.vectors:
        try:
            vectors[address] = load_engine("word_vectors", profile.with_roles(word_vectors=address))
        except ModelUnavailableError as error:
            print(f"left out: {error}")
            continue
        # once for all captions: the stand-in embeds words in batches
        vectors[address].word_vectors(sorted({word for caption in photos["caption"] for word in words_of(caption)}))
    captions = photos["caption"].to_list()
    labels = [labels_from(one, DEFAULTS["threshold"]) for one in detections]
    is_held_out, is_coco = (photos["shard"] == HELD_OUT).to_numpy(), (photos["source"] == "coco2017").to_numpy()
    for where, mask in {
        f"shard {HELD_OUT}": is_held_out,
        f"shard {HELD_OUT}, COCO": is_held_out & is_coco,
        f"shard {HELD_OUT}, Flickr8k": is_held_out & ~is_coco,
        "all": np.ones(len(photos), dtype=bool),
    }.items():
        chosen = np.flatnonzero(mask)
        rows += told_apart(where, [captions[i] for i in chosen], [labels[i] for i in chosen], vectors)
    table = pl.DataFrame(rows)
    RESULTS.mkdir(exist_ok=True)
    table.with_columns(pl.col(pl.Float64).round(4)).write_csv(RESULTS / "photo_objects.csv")
    with pl.Config(tbl_rows=50, tbl_cols=20, fmt_str_lengths=60, tbl_width_chars=200):
        print(table)


if __name__ == "__main__":
    main()
