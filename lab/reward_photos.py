"""A reward model of photographs: `python -m lab reward_photos --photos TABLE --out DIR`.

TABLE has the columns image (a path relative to the table, or TAR:MEMBER) and caption, several captions of each image.
Nobody ranks anything: candidates of an image are one of its own captions, the captions of other images that are nearest
to its own and some drawn ones; a candidate is the better, the nearer it is to what people wrote of the image (mean
cosine of sentence vectors, in steps of .1, so that small differences decide nothing). One linear layer learns from
frozen vectors of image and caption to order them so. Prints how often images held out are ordered alike, trains on all
of TABLE, and writes DIR/reward_photos, which a profile names as `path:DIR/reward_photos`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.stores.rankings import read_rankings, split_by_image
from curation_assets.training.reward import RewardRecipe, preference_of, ranked_features, train_reward_model
from lab import manifest
from lab.common import Clock, Setup, record, replaced_folder, run_or_refuse
from lab.photo_pairs_read import Photo, read_photos

NAME = "reward_photos"
#: Chosen by photographs that nothing learned from, by the same order (weight decay .1 to 10, 1,500 or 4,000 updates).
RECIPE = RewardRecipe(updates=4000, learning_rate=1e-3, weight_decay=3.0, hidden=())
NEAREST, DRAWN = 12, 4  # candidates of an image, beside one of its own captions
STEP = 0.1  # of the mean cosine
OWN = 2.0  # above every cosine
HELD_OUT = 0.1


def candidates_of(photos: Sequence[Photo], sentences: np.ndarray, rng: np.random.Generator) -> pl.DataFrame:
    """image, caption, rating: the candidates of each photo. `sentences`: (T, D) unit vectors of all captions."""
    texts = np.array([caption for photo in photos for caption in photo.captions], dtype=object)
    owner = np.repeat(np.arange(len(photos)), [len(photo.captions) for photo in photos])
    rows: list[dict[str, Any]] = []
    for number, photo in enumerate(photos):
        mine, others = np.flatnonzero(owner == number), np.flatnonzero(owner != number)
        cosines = sentences[others] @ sentences[mine].T
        nearest = np.argsort(-cosines.max(axis=1), kind="stable")[:NEAREST]
        chosen = np.concatenate([nearest, rng.choice(len(others), DRAWN, replace=False)])
        ratings = np.floor(cosines[chosen].mean(axis=1) / STEP) * STEP
        own = texts[rng.choice(mine)]
        found = {own: OWN} | {
            text: float(rating)
            for text, rating in zip(texts[others[chosen]], ratings, strict=True)
            if text not in photo.captions
        }
        rows += [{"image": photo.name, "caption": text, "rating": rating} for text, rating in found.items()]
    return pl.DataFrame(rows)


def run(given: argparse.Namespace) -> None:
    """What the module says."""
    clock, rng = Clock(), np.random.default_rng(given.seed)
    photos = read_photos(given.photos)
    profile = Profile("training", {"sentence_encoder": "embedded:minilm", "pair_encoder": given.pair_encoder})
    encoder: Any = load_engine("sentence_encoder", profile)
    sentences = encoder.embed_sentences([caption for photo in photos for caption in photo.captions])
    # beside the table, since names of images count from there
    path = given.photos.with_suffix(".candidates.parquet") if given.work is None else given.work / "candidates.parquet"
    candidates_of(photos, sentences, rng).write_parquet(path)
    pairs: Any = load_engine("pair_encoder", profile)
    ranked = read_rankings(path)
    learned, unseen = split_by_image(ranked, HELD_OUT, given.seed)
    facts = {"data": "captions of photographs, ordered by how near they are to those that people wrote of each"}
    recipe = RewardRecipe(**{**vars(RECIPE), "updates": given.updates, "seed": given.seed})
    folder = given.out / NAME
    with replaced_folder(folder) as temporary:
        features = ranked_features(path, learned, pairs)
        train_reward_model(features, temporary, recipe, pair_encoder=given.pair_encoder, facts=facts)
    scored = Profile("training", {"reward_model": f"path:{folder}"}, device="cpu")
    model: Any = load_engine("reward_model", scored)
    held_out = preference_of(path, unseen, model)
    cosines = preference_of(path, unseen, pairs.encoder)
    with replaced_folder(folder) as temporary:
        features = ranked_features(path, ranked, pairs)
        card = train_reward_model(features, temporary, recipe, pair_encoder=given.pair_encoder, facts=facts)
    quality = {
        "pair_accuracy": round(held_out.pair_accuracy, 4),
        "pair_accuracy_of_cosine": round(cosines.pair_accuracy, 4),
        "images_measured": held_out.images,
        "pairs_measured": held_out.pairs,
    }
    print(f"{folder}: {card['images']} photos, {card['pairs']:,} pairs; held out: {quality}")
    if (given.out / "manifest.json").is_file():
        setup = Setup(given.out, given.work or given.out / ".work", seed=given.seed)
        record(setup, NAME, {**card["recipe"], "images": card["images"], "cpu_seconds": clock.seconds()}, quality)
        manifest.run(setup)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab reward_photos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=Path, required=True, help="table of image and caption")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets reward_photos/")
    parser.add_argument("--work", type=Path, help="folder for the candidates (default: beside the table)")
    parser.add_argument("--pair-encoder", default="embedded:photo_pair", help="default embedded:photo_pair")
    parser.add_argument("--updates", type=int, default=RECIPE.updates)
    parser.add_argument("--seed", type=int, default=0)
    run_or_refuse(parser, run, arguments)


if __name__ == "__main__":
    main()
