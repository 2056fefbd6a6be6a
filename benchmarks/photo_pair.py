"""The encoder and the captioner for photographs, judged on photos that training never saw, beside the scene model's.

    python benchmarks/photo_pair.py --data ../shared/data [--judged path:HEADS] [--name NAME=path:HEADS]

Photos of photos/000005.tar with their first caption; all other pairs of them are mismatches. AUC of own pairs above
mismatches and recall of the own caption among all, for clip_score; AUC for sieve with 4, 8 and 16 captions of the
embedded bank; both on all photos, on those of COCO alone (training saw none), on those of Flickr8k alone. Then people:
Flickr8k Expert (Hodosh et al. 2013), pairs of captions of an image ordered alike and Kendall's τ_c over all judgements
(as Hessel et al. 2021). The judged photos are in 000000.tar, on which the shipped heads were trained: --judged names
heads that were trained without it; of the shipped ones the rows say so. Last, images per second.

95 % intervals by drawing photos with replacement. Writes benchmarks/results/photo_pair.csv; nothing of the data.
"""

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.stats
import torch
from PIL import Image

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.methods.sieve import sieve
from curation_assets.numeric.medium_phrases import mask_medium_phrases
from lab.photo_pairs_read import Photo, read_photos

RESULTS = Path(__file__).parent / "results" / "photo_pair.csv"
HELD_OUT, JUDGED = "000005", "000000"
RESAMPLES, AUC_RESAMPLES = 1000, 200  # one resample of an AUC sums a quarter of a million pairs
COUNTS = (4, 8, 16)  # captions per image: the default of pools, SIEVE's, twice as many
Row = dict[str, Any]


def auc_and_interval(scores: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """(N, N), own pairs on the diagonal → AUC against all other pairs, and its interval over photos."""
    n = len(scores)
    own = np.diag(scores)
    rows, columns = np.nonzero(~np.eye(n, dtype=bool))
    order = np.argsort(scores[rows, columns], kind="stable")
    rows, columns = rows[order], columns[order]
    ordered = scores[rows, columns]
    low, high = np.searchsorted(ordered, own, "left"), np.searchsorted(ordered, own, "right")

    def auc(weights: np.ndarray) -> float:
        below = np.concatenate([[0.0], np.cumsum(weights[rows] * weights[columns])])
        return float((weights * (below[low] + below[high])).sum() / 2 / weights.sum() / below[-1])

    drawn = [auc(rng.multinomial(n, np.full(n, 1 / n)).astype(np.float64)) for _ in range(AUC_RESAMPLES)]
    return auc(np.ones(n)), *np.quantile(drawn, [0.025, 0.975]).tolist()


def mean_and_interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    drawn = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    return float(values.mean()), *np.quantile(drawn, [0.025, 0.975]).tolist()


def retrieval_rows(scores: np.ndarray, parts: dict[str, np.ndarray], scorer: str) -> list[Row]:
    """AUC and recall on each part of the photos."""
    rows = []
    for part, chosen in parts.items():
        here = scores[np.ix_(chosen, chosen)]
        rank = (here >= np.diag(here)[:, None]).sum(axis=1)  # ties count against
        measured = {"auc": auc_and_interval(here, np.random.default_rng(0))}
        for k in (1, 5, 10):
            measured[f"recall@{k}"] = mean_and_interval((rank <= k).astype(float), np.random.default_rng(0))
        rows += [_row(scorer, part, name, len(chosen), *values) for name, values in measured.items()]
    return rows


def _row(scorer: str, photos: str, measure: str, n: int, value: float, low: float, high: float) -> Row:
    row = {"scorer": scorer, "photos": photos, "measure": measure, "n": n, "value": value, "low": low, "high": high}
    print({name: round(cell, 4) if isinstance(cell, float) else cell for name, cell in row.items()}, flush=True)
    return row


class Remembered:
    """A sentence encoder that embeds a text once."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.vectors: dict[str, np.ndarray] = {}

    def embed_sentences(self, sentences: Sequence[str]) -> np.ndarray:
        missing = sorted(set(sentences) - set(self.vectors))
        self.vectors.update(zip(missing, self.encoder.embed_sentences(missing), strict=True))
        return np.stack([self.vectors[text] for text in sentences])


def sieve_scores(captions: Sequence[str], generated: Sequence[Sequence[str]], encoder: Any) -> np.ndarray:
    """(N, N): sieve of every image's generated captions (rows) with every caption (columns).

    The method itself gives the diagonal, and has to agree.
    """
    own = [mask_medium_phrases(text, "clean") for text in captions]
    masked = [[mask_medium_phrases(text, "clean") for text in group] for group in generated]
    encoder.embed_sentences([text for group in masked for text in group])  # in large batches
    read = encoder.embed_sentences(own)
    scores = np.stack([(read @ encoder.embed_sentences([t for t in group if t]).T).max(axis=1) for group in masked])
    scores[:, [not text for text in own]] = 0.0
    np.testing.assert_allclose(np.diag(scores), sieve(captions, generated, encoder).value, atol=1e-5)
    return scores


def judged_rows(
    scorer: str, table: pl.DataFrame, score: Callable[[list[str], list[str]], np.ndarray], note: str
) -> list[Row]:
    """Agreement with the experts of `score` over (image keys, captions)."""
    values = score(table["key"].to_list(), table["caption"].to_list())
    table = table.with_columns(pl.Series("score", values))
    alike, pairs = [], []
    groups = [group for _, group in table.group_by("key", maintain_order=True)]
    for group in groups:
        mine, mean = group["score"].to_numpy(), group["mean"].to_numpy()
        i, j = np.triu_indices(len(mine), 1)
        ordered = mean[i] != mean[j]
        product = (mine[i] - mine[j])[ordered] * (mean[i] - mean[j])[ordered]
        alike.append((product > 0).sum() + 0.5 * (product == 0).sum())
        pairs.append(ordered.sum())
    alike, pairs = np.array(alike), np.array(pairs)
    drawn = np.random.default_rng(0).integers(len(groups), size=(RESAMPLES, len(groups)))
    shares = alike[drawn].sum(axis=1) / pairs[drawn].sum(axis=1)

    def tau(chosen: pl.DataFrame) -> float:
        judgements = np.concatenate([chosen[f"expert{number}"].to_numpy() for number in (1, 2, 3)])
        return float(scipy.stats.kendalltau(np.tile(chosen["score"].to_numpy(), 3), judgements, variant="c").statistic)

    taus = [tau(pl.concat([groups[i] for i in draw])) for draw in drawn[:AUC_RESAMPLES]]
    part = f"Flickr8k Expert, {len(groups)} photos, {note}"
    return [
        _row(scorer, part, "pairs ordered alike", int(pairs.sum()), float(alike.sum() / pairs.sum()),
             *np.quantile(shares, [0.025, 0.975]).tolist()),
        _row(scorer, part, "kendall tau_c", table.height, tau(table), *np.quantile(taus, [0.025, 0.975]).tolist()),
    ]  # fmt: skip


def of_experts(data: Path) -> tuple[pl.DataFrame, dict[str, Photo]]:
    """Judged pairs of photos in 000000.tar, and the photos by key."""
    table = pl.read_parquet(data / "judgements" / "flickr8k_expert.parquet").drop_nulls("mean")
    photos = {
        Path(photo.name.rpartition(":")[2]).stem: photo for photo in read_photos(data / "photos" / f"{JUDGED}.tar")
    }
    table = table.filter(pl.col("key").is_in(list(photos))).unique(
        ["key", "caption"], keep="first", maintain_order=True
    )
    return table, photos


def speed(encoder: Any, photos: Sequence[Photo]) -> float:
    """Images per second of embed_images, decoding excluded; the best of three rounds of 64 photos.

    Each round shows them in another way: a process remembers the images that it has embedded.
    """
    images = [photo.load() for photo in photos[:64]]
    encoder.embed_images(images[:8])
    seconds = []
    for turned in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.ROTATE_180):
        shown = [image.transpose(turned) for image in images]
        began = time.perf_counter()
        encoder.embed_images(shown)
        seconds.append(time.perf_counter() - began)
    return len(images) / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data")
    parser.add_argument("--judged", help="address of heads trained without the judged photos")
    parser.add_argument("--name", action="append", default=[], help="further encoders: NAME=ADDRESS (repeat)")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    scene = load_profile("embedded")
    photo = scene.with_roles(image_text_encoder="embedded:photo_pair", captioner="embedded:nearest_captions")
    sentences: Any = Remembered(load_engine("sentence_encoder", scene))
    photos = read_photos(given.data / "photos" / f"{HELD_OUT}.tar")
    sources = pl.read_parquet(given.data / "photos" / "captions.parquet").filter(pl.col("shard") == HELD_OUT)
    source_of = dict(sources.select("key", "source").iter_rows())
    is_coco = np.array([source_of[Path(one.name.rpartition(":")[2]).stem] == "coco2017" for one in photos])
    parts = {"all": np.arange(len(photos)), "coco": np.flatnonzero(is_coco), "flickr8k": np.flatnonzero(~is_coco)}
    captions = [one.captions[0] for one in photos]
    images = [one.load() for one in photos]
    rows: list[Row] = []

    encoders = {"photo_pair": photo, "scene clip": scene}
    for text in given.name:
        name, address = text.split("=", 1)
        encoders[name] = scene.with_roles(image_text_encoder=address)
    for name, profile in encoders.items():
        encoder: Any = load_engine("image_text_encoder", profile)
        scores = encoder.embed_images(images) @ encoder.embed_texts(captions).T
        rows += retrieval_rows(scores, parts, f"clip_score, {name}")
    captioners: dict[str, Profile] = {"nearest_captions": photo, "scene captioner": scene}
    for name, profile in captioners.items():
        captioner: Any = load_engine("captioner", profile)
        # nearest captions of fewer are the first of more; what is sampled depends on place and seed alone
        generated = captioner.sample_captions(images, list(range(len(images))), max(COUNTS))
        for count in COUNTS:
            scores = sieve_scores(captions, [group[:count] for group in generated], sentences)
            rows += retrieval_rows(scores, parts, f"sieve of {count}, {name}")

    table, by_key = of_experts(given.data)
    keys = sorted(set(table["key"]))
    judged_images = [by_key[key].load() for key in keys]
    place = {key: i for i, key in enumerate(keys)}
    judges: list[tuple[str, Profile, str]] = [
        ("clip_score, photo_pair", photo, "which the heads were trained on"),
        ("clip_score, scene clip", scene, "never seen"),
    ]
    if given.judged:
        unseen = scene.with_roles(image_text_encoder=given.judged)
        judges.insert(0, ("clip_score, photo_pair trained without them", unseen, "never seen"))
    for name, profile, note in judges:
        encoder = load_engine("image_text_encoder", profile)
        seen = encoder.embed_images(judged_images)

        def by_cosine(keys: list[str], texts: list[str], seen: Any = seen, encoder: Any = encoder) -> np.ndarray:
            return clip_cosine(seen[[place[key] for key in keys]], encoder.embed_texts(texts))

        rows += judged_rows(name, table, by_cosine, note)
    for name, profile, note in (
        ("sieve of 8, nearest_captions", photo, "which the heads were trained on"),
        ("sieve of 8, scene captioner", scene, "never seen"),
    ):
        captioner = load_engine("captioner", profile)
        generated = captioner.sample_captions(judged_images, list(range(len(keys))), 8)

        def by_sieve(keys: list[str], texts: list[str], generated: Any = generated) -> np.ndarray:
            return sieve(texts, [generated[place[key]] for key in keys], sentences).value

        rows += judged_rows(name, table, by_sieve, note)

    rate = speed(load_engine("image_text_encoder", photo), photos)
    where = f"{platform.processor() or platform.machine()}, {given.threads} threads"
    rows.append(_row("embed_images, photo_pair", where, "images/s", 64, rate, rate, rate))
    RESULTS.parent.mkdir(exist_ok=True)
    pl.DataFrame(rows).with_columns(pl.col(pl.Float64).round(4)).write_csv(RESULTS)


if __name__ == "__main__":
    main()
