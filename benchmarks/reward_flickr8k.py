"""Reward models against people: preference accuracy on Flickr8k's expert judgements (Hodosh et al. 2013).

    python benchmarks/reward_flickr8k.py --data ../shared/data

Three experts rated captions of images from 1 to 4; two captions of an image with different means are a pair. Judged:
chance, CLIPScore, BLIP's ITC cosine, the shipped reward models (of planted scenes; of photographs, beside the cosine of
its encoder), caption length, and reward
models trained on the frozen features of the other images (cross-validated, split by image). Models whose weights are
not here have a row without figures that says so. Writes a CSV to benchmarks/results/; nothing of the data is copied.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.reward_model import RewardEngine
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.numeric.rankings import preference_accuracy
from curation_assets.stores.rankings import RankedImage, load_ranked_image, read_rankings
from curation_assets.training.reward import RankedFeatures, RewardRecipe, ranked_features, train_reward_model

RESULTS = Path(__file__).parent / "results"
RESAMPLES = 200
BLIP = "hub:Salesforce/blip-itm-large-coco"  # the paper's baseline is ITC of ViT-B/16 and ViT-L (formulas.md §9.4)


def expert_rankings(data: Path, folder: Path) -> tuple[Path, set[tuple[str, str]]]:
    """(A ranking file of the images of photos/000000.tar, its pairs of an image with a caption of its own)."""
    experts = pl.read_parquet(data / "judgements" / "flickr8k_expert.parquet")
    tar = (data / "photos" / "000000.tar").absolute()
    rated = experts.select(
        (pl.lit(f"{tar}:") + pl.col("key") + ".jpg").alias("image"),
        "caption",
        pl.col("mean").alias("rating"),
        "is_own_caption",
    ).drop_nulls()
    rated = rated.unique(["image", "caption"], keep="first", maintain_order=True)
    path = folder / "experts.parquet"
    rated.drop("is_own_caption").write_parquet(path)
    own = rated.filter("is_own_caption").select("image", "caption")
    return path, {(str(image), str(caption)) for image, caption in own.iter_rows()}


def of_others(
    ranked: Sequence[RankedImage], own: set[tuple[str, str]]
) -> tuple[list[RankedImage], list[tuple[int, np.ndarray]]]:
    """The same images without their own captions, and of each its place in `ranked` and which captions are left."""
    left, places = [], []
    for place, one in enumerate(ranked):
        keep = np.flatnonzero([(one.image, caption) not in own for caption in one.captions])
        if len(keep) > 1:  # ranks need not be 1, 2, …: only their order counts
            left.append(RankedImage(one.image, *(tuple(of[i] for i in keep) for of in (one.captions, one.ranks))))
            places.append((place, keep))
    return left, places


def cosines(path: Path, ranked: Sequence[RankedImage], encoder: Any) -> list[np.ndarray]:
    """Cosines of each image with its captions: CLIPScore of a CLIP, ITC of a BLIP."""
    seen = encoder.embed_images([load_ranked_image(path, one.image) for one in ranked])
    read = encoder.embed_texts([caption for one in ranked for caption in one.captions])
    counts = [len(one.captions) for one in ranked]
    return np.split(clip_cosine(np.repeat(seen, counts, axis=0), read), np.cumsum(counts)[:-1])


def rewards_across_folds(
    features: RankedFeatures, ranked: Sequence[RankedImage], folds: int, recipe: RewardRecipe, encoder: Any
) -> list[np.ndarray]:
    """Rewards of every image by a model that never saw it."""
    keys = [one.image.rpartition(":")[2] for one in ranked]  # where the tar lies decides nothing
    fold_of = np.array([int(unit_interval_of(sample_id_of(key, ""), "folds") * folds) for key in keys])
    rewards: list[np.ndarray] = [np.zeros(0)] * len(ranked)
    rows = [np.arange(features.starts[i], features.starts[i + 1]) for i in range(len(ranked))]
    for fold in range(folds):
        seen = np.flatnonzero(fold_of != fold)
        chosen = np.concatenate([rows[i] for i in seen])
        starts = np.cumsum([0, *(len(rows[i]) for i in seen)])
        training = RankedFeatures(features.features[chosen], starts, [ranked[i].ranks for i in seen])
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary)
            train_reward_model(training, out, recipe, pair_encoder=encoder.identity.address, facts={})
            # the features are at hand: the engine's own head, without loading the frozen encoder again
            model = RewardEngine(encoder.identity, encoder, out, batch_size=64, device="cpu")
            for i in np.flatnonzero(fold_of == fold):
                rewards[i] = model.reward_features(features.features[rows[i]])
    return rewards


def judged(name: str, scores: Sequence[np.ndarray], ranked: Sequence[RankedImage]) -> dict[str, Any]:
    """Preference accuracy, and standard errors by drawing images with replacement."""
    with_pair = [(mine, one.ranks) for mine, one in zip(scores, ranked, strict=True) if len(set(one.ranks)) > 1]
    by_image = [preference_accuracy([mine], [ranks]) for mine, ranks in with_pair]
    pairs = np.array([one.pairs for one in by_image])
    alike = np.array([one.pair_accuracy for one in by_image]) * pairs
    top1 = np.array([one.top1 for one in by_image])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(pairs), size=(RESAMPLES, len(pairs)))
    return {
        "scorer": name,
        **asdict(preference_accuracy(scores, [one.ranks for one in ranked])),
        "pair_accuracy_se": float(np.std(alike[drawn].sum(axis=1) / pairs[drawn].sum(axis=1), ddof=1)),
        "top1_se": float(np.std(top1[drawn].mean(axis=1), ddof=1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--blip", action="append", help=f"address of a BLIP retrieval model (repeat); default {BLIP}")
    parser.add_argument("--role", action="append", default=[], help="another model for a role: ROLE=ADDRESS (repeat)")
    given = parser.parse_args()
    began = time.time()
    profile = load_profile("embedded").with_roles(**dict(text.split("=", 1) for text in given.role))
    pairs: Any = load_engine("pair_encoder", profile)
    with tempfile.TemporaryDirectory() as temporary:
        path, own = expert_rankings(given.data, Path(temporary))
        ranked = read_rankings(path)
        features = ranked_features(path, ranked, pairs)  # once: the captions of other images are a part of all
        shipped: Any = load_engine("reward_model", profile)
        scores: dict[str, Sequence[np.ndarray]] = {
            f"reward, shipped ({profile.address('reward_model')})": np.split(
                shipped.reward_features(features.features), features.starts[1:-1]
            ),
            "caption length in words": [np.array([len(t.split()) for t in one.captions]) for one in ranked],
        }
        of_photos = profile.with_roles(pair_encoder="embedded:photo_pair", reward_model="embedded:reward_photos")
        vectors = ranked_features(path, ranked, load_engine("pair_encoder", of_photos)).features  # type: ignore[arg-type]
        photos: Any = load_engine("reward_model", of_photos)
        product = vectors[:, -vectors.shape[1] // 3 :]  # √D · u ∘ v
        scores["reward, of photographs (embedded:reward_photos)"] = np.split(
            photos.reward_features(vectors), features.starts[1:-1]
        )
        scores["CLIPScore (embedded:photo_pair)"] = np.split(product.sum(axis=1), features.starts[1:-1])
        absent: dict[str, str] = {}
        clip = profile.address("image_text_encoder")
        for name, address in [("CLIPScore", clip), *(("BLIP-ITC", one) for one in given.blip or [BLIP])]:
            try:
                encoder: Any = load_engine("image_text_encoder", profile.with_roles(image_text_encoder=address))
            except ModelUnavailableError as error:
                print(f"not run: {error}", flush=True)
                absent[f"{name} ({address})"] = "not run: its weights are not on this machine"
            else:
                scores[f"{name} ({address})"] = cosines(path, ranked, encoder)
        print(f"embedded and scored by the models at hand in {time.time() - began:.0f} s", flush=True)
    others, places = of_others(ranked, own)
    chosen = [np.arange(features.starts[place], features.starts[place + 1])[keep] for place, keep in places]
    starts = np.cumsum([0, *(len(one) for one in chosen)])
    part = RankedFeatures(features.features[np.concatenate(chosen)], starts, [one.ranks for one in others])
    rows = []
    for which, images, frozen in (
        ("all judged captions", ranked, features),
        ("captions of other images", others, part),
    ):
        print(f"{which}: {len(images)} images, {sum(len(one.captions) for one in images)} captions", flush=True)
        mine: dict[str, Sequence[np.ndarray]] = {"chance": [np.zeros(len(one.captions)) for one in images]}
        for name, of_all in scores.items():
            mine[name] = [of_all[place][keep] for place, keep in places] if frozen is part else of_all
        for activation in ("none", "relu"):
            recipe = RewardRecipe(given.updates, given.learning_rate, 0.01, activation)
            name = f"reward, trained on the other images ({activation})"
            mine[name] = rewards_across_folds(frozen, images, given.folds, recipe, pairs)
        for name, one in mine.items():
            updates = given.updates if "trained" in name else None
            rows.append({"captions": which, "updates": updates, **judged(name, one, images), "note": None})
            print(rows[-1], flush=True)
        rows += [{"captions": which, "scorer": name, "note": note} for name, note in absent.items()]
    table = pl.DataFrame(rows)
    RESULTS.mkdir(exist_ok=True)
    table.with_columns(pl.col(pl.Float64).round(4)).write_csv(RESULTS / "reward_flickr8k.csv")
    with pl.Config(tbl_rows=50, tbl_cols=20, fmt_str_lengths=60, tbl_width_chars=200):
        print(table)
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
