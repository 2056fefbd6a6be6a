"""What values are worth on web pairs, per kind of image and language: flow/worth_on_web_pairs.csv.

    python benchmarks/worth_on_web_pairs.py --data ../shared/data [--only-texts]

With the models of profile photos, on the pairs of owners without any row of an open licence: nothing that ships was
trained on these. The kind of an image is what the method `image_kind` tells, the language what `english` tells, as in a
pool. AUC of an image with its own text against images of its kind with 40 texts each of other owners, in the same
language; 95 % intervals by drawing owners with replacement. Groups of fewer than 30 pairs or 10 owners are left out.

What reads the text alone is measured on the pairs labelled by hand (388), English as `english` tells: AUC of texts that
are descriptive against those that are partly or not. `descriptive` learned from labels of open rows, so its rows are of
the owners without any. `english` is left out: its value is the same for all of these. --only-texts keeps other rows.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image
from web_mix import auc, caption_values, interval_over_sites
from web_pairs import interval

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.flow import worth
from curation_assets.methods.english import english
from curation_assets.numeric.medium_phrases import mask_medium_phrases
from curation_assets.selection.fitted import load_recipes
from curation_assets.stores.images import decode_image, tar_index

CAPTIONS = 8  # of profile photos
MISMATCHES = 40
FEWEST_PAIRS, FEWEST_OWNERS = 30, 10
TEXT_SIGNALS = (
    "icc", "descriptive", "word_count", "complexity_action", "conceptual_captions", "datacomp_caption",
    "sentence_bottleneck", "scene_bank", "clip_stroop",
)  # fmt: skip
LEARNED_FROM_LABELS = ("descriptive",)
SIGNALS = ("fused.sieve_clip", "fused.web", "signals.clip_score", "signals.sieve")


class Scores:
    """Values of any image with any text."""

    def __init__(self, images: list[Image.Image], texts: list[str], engines: dict[str, Any]) -> None:
        encoder, sentences = engines["image_text_encoder"], engines["sentence_encoder"]
        self.images, self.texts = encoder.embed_images(images), encoder.embed_texts(texts)
        generated = engines["captioner"].beam_captions(images, CAPTIONS)
        own = [mask_medium_phrases(text) for text in texts]
        self.is_empty = np.array([not text for text in own])
        self.own = sentences.embed_sentences(own)
        vectors = [sentences.embed_sentences([mask_medium_phrases(text) for text in group]) for group in generated]
        self.generated = np.stack(vectors)  # (N, CAPTIONS, D)
        self.of_text = {"descriptive": caption_values(texts, "descriptive")}
        every = np.arange(len(texts))
        clip, sieve = self._clip(every, every), self._sieve(every, every)
        self.ranges = {"clip": (clip.min(), clip.max()), "sieve": (sieve.min(), sieve.max())}
        pool = {"clip_score": clip, **self.of_text}
        self.means_and_sds = {name: (values.mean(), values.std()) for name, values in pool.items()}

    def _clip(self, image: np.ndarray, text: np.ndarray) -> np.ndarray:
        return np.einsum("nd,nd->n", self.images[image], self.texts[text])

    def _sieve(self, image: np.ndarray, text: np.ndarray) -> np.ndarray:
        cosines = np.concatenate(
            [
                np.einsum("nkd,nd->nk", self.generated[image[part]], self.own[text[part]])
                for part in np.array_split(np.arange(len(image)), max(1, len(image) // 2000))
            ]
        )
        return np.where(self.is_empty[text], 0.0, cosines.max(axis=1))

    def of(self, image: np.ndarray, text: np.ndarray) -> dict[str, np.ndarray]:
        """(M,), (M,) rows → signal → (M,) values."""
        clip, sieve = self._clip(image, text), self._sieve(image, text)
        (low, high), (lowest, highest) = self.ranges["clip"], self.ranges["sieve"]
        mixed = {"clip_score": clip, **{name: values[text] for name, values in self.of_text.items()}}
        z = {name: (mixed[name] - mean) / sd for name, (mean, sd) in self.means_and_sds.items()}
        weights = load_recipes()["web"].settings.weights
        return {
            "signals.clip_score": clip,
            "signals.sieve": sieve,
            "fused.sieve_clip": (clip - low) / (high - low) + (sieve - lowest) / (highest - lowest),
            "fused.web": sum(weights[f"signals.{name}"] * values for name, values in z.items()),
        }


def held_out(web: Path) -> pl.DataFrame:
    """Pairs of owners of whom nothing may have been trained on."""
    pairs = pl.read_parquet(web / "pairs.parquet")
    trained = pairs.filter(pl.col("licence_class") == "open")["owner"].unique().to_list()
    return pairs.filter(~pl.col("owner").is_in(trained)).sort("shard", "key")


def others_of(owners: np.ndarray, languages: np.ndarray) -> np.ndarray:
    """(N, MISMATCHES) rows of other owners whose text is in the row's language."""
    rng = np.random.default_rng(0)
    chosen = [
        np.flatnonzero((languages == one) & (owners != owner)) for owner, one in zip(owners, languages, strict=True)
    ]
    return np.stack([rng.choice(rows, MISMATCHES) for rows in chosen])


def text_rows(web: Path, profile: Profile) -> list[dict[str, Any]]:
    """A row per signal of the text alone, of labelled English pairs."""
    pairs = pl.read_parquet(web / "pairs.parquet").join(
        pl.read_parquet(web / "labels_400.parquet").select("key", "descriptive"), on="key"
    ).sort("key")  # fmt: skip
    pairs = pairs.filter(pl.Series(caption_values(pairs["alt"].to_list(), "english") == 1))
    unseen = set(held_out(web)["owner"])
    rows = []
    for name in TEXT_SIGNALS:
        seen = pairs.filter(pl.col("owner").is_in(unseen)) if name in LEARNED_FROM_LABELS else pairs
        values = caption_values(seen["alt"].to_list(), name)
        is_valued = np.isfinite(values)
        seen, values = seen.filter(pl.Series(is_valued)), values[is_valued]
        good, owners = (seen["descriptive"] == "yes").to_numpy(), seen["owner"].to_numpy()
        every = np.ones(len(good))
        low, high = interval_over_sites(auc, values, good, every, owners)
        reference = f"signals.{name}"
        rows.append(
            {"reference": reference, "engines": worth.engines_of(reference, profile), "kind": worth.ANY_KIND,
             "language": worth.ENGLISH, "of": worth.DESCRIPTIVE, "auc": auc(values, good, every),
             "low": low, "high": high, "n": len(good)}
        )  # fmt: skip
    return rows


def pair_rows(web: Path, profile: Profile) -> list[dict[str, Any]]:
    """A row per signal, kind of image and language."""
    rows = held_out(web)
    names = ("image_text_encoder", "captioner", "sentence_encoder", "kind_classifier", "language_identifier")
    engines: dict[str, Any] = {name: load_engine(name, profile) for name in names}
    images = [
        decode_image(tar_index(web / shard).read(f"{key}.jpg"))
        for shard, key in rows.select("shard", "key").iter_rows()
    ]
    texts, owners = rows["alt"].to_list(), rows["owner"].to_numpy()
    classifier = engines["kind_classifier"]
    probabilities, scores = [], None
    for start in range(0, len(images), 256):  # while photo_pair's features of these are remembered
        part = images[start : start + 256]
        engines["image_text_encoder"].embed_images(part)
        probabilities.append(classifier.kind_probabilities(part))
    kinds = np.array(classifier.kinds)[np.concatenate(probabilities).argmax(axis=1)]
    is_english = english(texts, engines["language_identifier"]).value == 1
    languages = np.where(is_english, worth.ENGLISH, worth.OTHER_LANGUAGE)
    scores = Scores(images, texts, engines)
    every, others = np.arange(len(texts)), others_of(owners, languages)
    own = scores.of(every, every)
    mismatched = scores.of(np.repeat(every, MISMATCHES), others.ravel())
    found = []
    for signal in SIGNALS:
        matrix = mismatched[signal].reshape(others.shape)
        for language in (worth.ENGLISH, worth.OTHER_LANGUAGE):
            for kind in (*classifier.kinds, worth.ANY_KIND):
                at = (languages == language) & ((kinds == kind) | (kind == worth.ANY_KIND))
                if at.sum() < FEWEST_PAIRS or len(np.unique(owners[at])) < FEWEST_OWNERS:
                    continue
                below = np.sort(matrix[at].ravel())
                ranks = np.searchsorted(below, own[signal][at], "left") + np.searchsorted(
                    below, own[signal][at], "right"
                )
                shares = ranks / 2 / len(below)  # (n,), their mean is the AUC
                low, high = interval(shares, owners[at])
                found.append(
                    {"reference": signal, "engines": worth.engines_of(signal, profile), "kind": kind,
                     "language": language, "of": worth.OWN_TEXT, "auc": shares.mean(), "low": low, "high": high,
                     "n": int(at.sum())}
                )  # fmt: skip
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only-texts", action="store_true")
    given = parser.parse_args()
    web, profile = given.data / "web", load_profile("photos").with_roles(student="embedded:icc_student")
    if given.only_texts:
        found = pl.read_csv(worth.MEASURED_ON_WEB).filter(pl.col("of") == worth.OWN_TEXT).to_dicts()
    else:
        found = pair_rows(web, profile)
    found += text_rows(web, profile)
    table = pl.DataFrame(found, infer_schema_length=None).with_columns(pl.col("auc", "low", "high").round(4))
    table.write_csv(worth.MEASURED_ON_WEB)
    with pl.Config(tbl_rows=-1):
        print(table.drop("engines"))


if __name__ == "__main__":
    main()
