"""Reward models against people: preference accuracy on Flickr8k's expert judgements (Hodosh et al. 2013).

    python benchmarks/reward_flickr8k.py --data ../shared/data

Three experts rated captions of images from 1 to 4; two captions of an image with different means are a pair. Judged,
beside chance: CLIPScore, the shipped reward model (trained on planted scenes), caption length, and reward models
trained on the frozen features of the other images (cross-validated, split by image). Writes a CSV of figures to
benchmarks/results/; nothing of the data is copied.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.engines import load_engine
from curation_assets.engines.reward_model import RewardEngine
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.numeric.rankings import preference_accuracy
from curation_assets.rankings import RankedImage, load_ranked_image, read_rankings
from curation_assets.reward import RankedFeatures, RewardRecipe, ranked_features, train_reward_model
from curation_assets.settings import load_profile

RESULTS = Path(__file__).parent / "results"
RESAMPLES = 200


def expert_rankings(data: Path, folder: Path, own: bool) -> Path:
    """A ranking file of the images of photos/000000.tar; `own` False leaves out the images' own captions."""
    experts = pl.read_parquet(data / "judgements" / "flickr8k_expert.parquet")
    if not own:
        experts = experts.filter(~pl.col("is_own_caption"))
    tar = (data / "photos" / "000000.tar").absolute()
    rated = experts.select(
        (pl.lit(f"{tar}:") + pl.col("key") + ".jpg").alias("image"), "caption", pl.col("mean").alias("rating")
    ).drop_nulls()
    path = folder / "experts.parquet"
    rated.unique(["image", "caption"], keep="first", maintain_order=True).write_parquet(path)
    return path


def clip_scores(path: Path, ranked: Sequence[RankedImage], encoder: Any) -> list[np.ndarray]:
    """Cosines of each image with its captions."""
    found = []
    for one in ranked:
        seen = encoder.embed_images([load_ranked_image(path, one.image)])
        found.append(clip_cosine(np.repeat(seen, len(one.captions), axis=0), encoder.embed_texts(one.captions)))
    return found


def rewards_across_folds(
    features: RankedFeatures, ranked: Sequence[RankedImage], folds: int, recipe: RewardRecipe, encoder: Any
) -> list[np.ndarray]:
    """Rewards of every image by a model that never saw it."""
    fold_of = np.array([int(unit_interval_of(sample_id_of(one.image, ""), "folds") * folds) for one in ranked])
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
    ranks = [one.ranks for one in ranked]
    rng = np.random.default_rng(0)
    drawn = [rng.integers(len(ranked), size=len(ranked)) for _ in range(RESAMPLES)]
    again = [preference_accuracy([scores[i] for i in one], [ranks[i] for i in one]) for one in drawn]
    return {
        "scorer": name,
        **asdict(preference_accuracy(scores, ranks)),
        "pair_accuracy_se": float(np.std([one.pair_accuracy for one in again], ddof=1)),
        "top1_se": float(np.std([one.top1 for one in again], ddof=1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--role", action="append", default=[], help="another model for a role: ROLE=ADDRESS (repeat)")
    given = parser.parse_args()
    profile = load_profile("embedded").with_roles(**dict(text.split("=", 1) for text in given.role))
    rows = []
    for own in (True, False):
        with tempfile.TemporaryDirectory() as temporary:
            path = expert_rankings(given.data, Path(temporary), own)
            ranked = read_rankings(path)
            which = "all judged captions" if own else "captions of other images"
            print(f"{which}: {len(ranked)} images, {sum(len(one.captions) for one in ranked)} captions", flush=True)
            pairs: Any = load_engine("pair_encoder", profile)
            features = ranked_features(path, ranked, pairs)
            clip: Any = load_engine("image_text_encoder", profile)
            shipped: Any = load_engine("reward_model", profile)
            by_scene = shipped.reward_features(features.features)
            scores = {
                f"CLIPScore ({profile.address('image_text_encoder')})": clip_scores(path, ranked, clip),
                f"reward, shipped ({profile.address('reward_model')})": np.split(by_scene, features.starts[1:-1]),
                "caption length in words": [np.array([len(t.split()) for t in one.captions]) for one in ranked],
            }
            for activation in ("none", "relu"):
                recipe = RewardRecipe(given.updates, given.learning_rate, 0.01, activation)
                scores[f"reward, trained on the other images ({activation})"] = rewards_across_folds(
                    features, ranked, given.folds, recipe, pairs
                )
            for name, one in scores.items():
                rows.append({"captions": which, "updates": given.updates, **judged(name, one, ranked)})
                print(rows[-1], flush=True)
    table = pl.DataFrame(rows)
    RESULTS.mkdir(exist_ok=True)
    table.with_columns(pl.col(pl.Float64).round(4)).write_csv(RESULTS / "reward_flickr8k.csv")
    with pl.Config(tbl_rows=50, tbl_cols=20, fmt_str_lengths=60, tbl_width_chars=200):
        print(table)


if __name__ == "__main__":
    main()
