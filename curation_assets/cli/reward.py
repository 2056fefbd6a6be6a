"""curate reward: train a reward model on ranked captions, judge it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    FEW,
    JsonOption,
    ProfileOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
)
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.stores.atomic import check_new
from curation_assets.stores.rankings import RankedImage, read_rankings, split_by_image

FEATURES = "features.safetensors"  # of the ranked pairs, in the folder of their model
HeldOut = Annotated[float, typer.Option(help="Share of the images kept out of training, by a hash of their names.")]
Seed = Annotated[int, typer.Option(help="Seed of the split (and of training).")]


@command("reward train", "People")
def train(
    rankings: Annotated[Path, typer.Argument(help="Ranking file: image, caption, rank (or rating).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the model and the cached features.")],
    updates: Annotated[int, typer.Option(help="Steps of 64 pairs.")] = 20_000,
    held_out: HeldOut = 0.1,
    seed: Seed = 0,
    profile: ProfileOption = None,
) -> None:
    """Train a reward model on ranked captions and judge it on unseen images."""
    from curation_assets.engines import load_engine
    from curation_assets.training.reward import RewardRecipe, preference_of, ranked_features, train_reward_model

    chosen = settings_from(None, profile).profile
    if not (out / FEATURES).is_file():
        check_new(out, folder=True)  # a folder of this command is trained again from its features
    recipe = RewardRecipe(updates=updates, seed=seed)
    training, unseen = split_by_image(read_rankings(rankings), held_out, seed)
    encoder: Any = load_engine("pair_encoder", chosen)
    features = ranked_features(rankings, training, encoder, cache=out / FEATURES)
    facts = {"held_out": held_out, "split_seed": seed, "rankings": rankings.name}
    card = train_reward_model(features, out, recipe, pair_encoder=chosen.address("pair_encoder"), facts=facts)
    model: Any = load_engine("reward_model", chosen.with_roles(reward_model=f"path:{out}"))
    show(f"{card['images']} images, {card['pairs']:,} pairs, loss {card['training_loss']:.3f} (chance .693)")
    _show({"reward model": asdict(preference_of(rankings, unseen, model))})
    notice(f"Use it: `curate score reward FILE --role reward_model=path:{out}`")


@command("reward evaluate", "People")
def evaluate(
    rankings: Annotated[Path, typer.Argument(help="Ranking file: image, caption, rank (or rating).")],
    model: Annotated[str | None, typer.Option(help="Address of a reward model; default: the profile's.")] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option("--baseline", help="Address of a CLIP, or of a BLIP retrieval model (ITC); repeat."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All images, not just the held-out ones.")] = False,
    held_out: Annotated[
        float | None, typer.Option(help="Share of the images to judge on; default: as the model was trained, else .1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split; default: as the model was trained.")] = None,
    as_json: JsonOption = False,
    profile: ProfileOption = None,
) -> None:
    """Show how often a model orders two captions as people do.

    A reward model, cosines of encoders, and chance.
    """
    from curation_assets.engines import load_engine
    from curation_assets.training.reward import preference_of

    chosen = settings_from(None, profile).profile
    if model is not None:
        chosen = chosen.with_roles(reward_model=model)
    ranked = read_rankings(rankings)
    trained = _split_of(chosen.address("reward_model"))
    held_out, seed = (trained[0] if held_out is None else held_out), (trained[1] if seed is None else seed)
    judged: list[RankedImage] = ranked if everything else split_by_image(ranked, held_out, seed)[1]
    scorers: dict[str, Any] = {f"reward ({chosen.address('reward_model')})": load_engine("reward_model", chosen)}
    for address in baseline or [chosen.address("image_text_encoder")]:
        with_encoder = chosen.with_roles(image_text_encoder=address)
        scorers[f"cosine ({address})"] = load_engine("image_text_encoder", with_encoder)
    preferences = {name: asdict(preference_of(rankings, judged, scorer)) for name, scorer in scorers.items()}
    if as_json:
        show_json(preferences)
        return
    _show(preferences)


def _split_of(model: str) -> tuple[float, int]:
    """Share held out and seed by which `curate reward train` split its rankings, by the model's card; else .1 and 0."""
    from curation_assets.engines import resolve_address

    folder = resolve_address(model).folder
    card = folder / "card.json" if folder is not None else None
    facts = json.loads(card.read_text(encoding="utf-8")) if card is not None and card.is_file() else {}
    return float(facts.get("held_out", 0.1)), int(facts.get("split_seed", 0))


def _show(preferences: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            name,
            _share(preference["pair_accuracy"], preference["images"]),
            _share(preference["top1"], preference["images"]),
            str(preference["images"]),
            f"{preference['pairs']:,}",
        )
        for name, preference in preferences.items()
    ]
    first = next(iter(preferences.values()))
    rows.append(("chance", "0.500", f"{first['chance_top1']:.3f}", str(first["images"]), f"{first['pairs']:,}"))
    if first["images"] < FEW:
        notice(f"Intervals are of {first['images']} images (Wilson, 95 %): too few to tell models apart")
    show_table(("", "pairs ordered alike", "best caption on top", "images", "pairs"), rows)


def _share(share: float, images: int) -> str:
    """A share, with the interval that so few images allow (pairs of one image are not independent)."""
    if images >= FEW:
        return f"{share:.3f}"
    low, high = wilson_interval(share, images)
    return f"{share:.3f} ({low:.2f} to {high:.2f})"
