"""Stage `reward_model`: an MLP on the embedded CLIP learns rankings of scene captions, made from what was planted."""

import polars as pl

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.stores.rankings import read_rankings, split_by_image
from curation_assets.training.reward import RewardRecipe, preference_of, ranked_features, train_reward_model
from curation_assets.world.scene import draw_spec, render_scene
from lab.common import TRAINING_SEED, Clock, Setup, record, replaced_folder
from lab.rankings import draw_candidates, rank_by_criteria

SCENES, HELD_OUT = 3000, 0.1
RECIPE = RewardRecipe(updates=6000, learning_rate=3e-4, weight_decay=0.01, activation="relu")


def run(setup: Setup) -> None:
    """Renders and ranks, trains, measures on held-out scenes, ships."""
    rng, clock = setup.start("reward_model"), Clock()
    folder = setup.work / "rankings"
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(max(40, round(SCENES * min(1.0, setup.scale)))):
        scene = draw_spec(rng)
        render_scene(scene).save(folder / f"{number:05d}.png")
        judged = draw_candidates(scene, rng)
        for candidate, rank in zip(judged, rank_by_criteria(judged), strict=True):
            rows.append({"image": f"{number:05d}.png", "caption": candidate.caption, "rank": rank})
    path = folder / "rankings.parquet"
    pl.DataFrame(rows).unique(["image", "caption"], keep="first", maintain_order=True).write_parquet(path)
    training, held_out = split_by_image(read_rankings(path), HELD_OUT, TRAINING_SEED)
    profile = Profile("training", dict.fromkeys(("pair_encoder", "image_text_encoder"), f"path:{setup.out / 'clip'}"))
    features = ranked_features(path, training, load_engine("pair_encoder", profile))  # type: ignore[arg-type]
    recipe = RewardRecipe(**{**RECIPE.__dict__, "updates": setup.steps(RECIPE.updates), "seed": setup.seed})
    with replaced_folder(setup.out / "reward_model") as shipped:
        card = train_reward_model(
            features, shipped, recipe, pair_encoder="../clip", facts={"data": "scenes, ranked by what was planted"}
        )
    scored = Profile("training", {"reward_model": f"path:{setup.out / 'reward_model'}"}, device="cpu")
    preference = preference_of(path, held_out, load_engine("reward_model", scored))  # type: ignore[arg-type]
    baseline = preference_of(path, held_out, load_engine("image_text_encoder", profile))  # type: ignore[arg-type]
    quality = {
        "pair_accuracy": preference.pair_accuracy,
        "pair_accuracy_of_clip_score": baseline.pair_accuracy,
        "top1": preference.top1,
        "top1_of_clip_score": baseline.top1,
        "top1_by_chance": preference.chance_top1,
        "images_measured": preference.images,
        "pairs_measured": preference.pairs,
    }
    record(setup, "reward_model", {**card["recipe"], "images": len(training), "cpu_seconds": clock.seconds()}, quality)
    print(quality)
