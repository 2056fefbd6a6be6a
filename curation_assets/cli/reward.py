"""curate reward: gather candidate captions, rank them, train a reward model on the ranks, judge it."""

import itertools
import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from curation_assets.cli.common import ProfileOption, console, errors_as_sentences, settings_from
from curation_assets.stores.rankings import RankedImage, read_rankings, split_by_image

app = typer.Typer(no_args_is_help=True, help="Learn which captions people prefer (Compress & Align).")

HeldOut = Annotated[float, typer.Option(help="Share of the images kept out of training, by a hash of their names.")]
Seed = Annotated[int, typer.Option(help="Seed of the split (and of training).")]
PairEncoderOption = Annotated[
    str | None, typer.Option("--pair-encoder", help="Address; default: the profile's role pair_encoder.")
]


@app.command("candidates")
@errors_as_sentences
def candidates(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Webdataset tars, or a table with image, caption.")],
    out: Annotated[Path, typer.Option("--out", help="Output .tsv: image, caption, source.")],
    captioner: Annotated[
        list[str] | None, typer.Option("--captioner", help="Address of a captioner (repeat); default: the profile's.")
    ] = None,
    count: Annotated[int, typer.Option(help="Captions per image and captioner.")] = 3,
    rewrites: Annotated[
        Path | None, typer.Option(help="Table with image and caption: rewrites by people, or further references.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="The first so many images only.")] = None,
    profile: ProfileOption = None,
) -> None:
    """Gather captions of each image from its references, captioners and rewrites, to be ranked."""
    from curation_assets.annotation.candidates import gather_candidates
    from curation_assets.engines import load_engine

    chosen = settings_from(None, profile).profile
    addresses = captioner or [chosen.address("captioner")]
    captioners: dict[str, Any] = {
        address: load_engine("captioner", chosen.with_roles(captioner=address)) for address in addresses
    }
    table = gather_candidates(source, captioners, beside=out.parent, count=count, rewrites=rewrites, limit=limit)
    table.write_csv(out, separator="\t", quote_style="never")
    per_image = table.height / max(1, table["image"].n_unique())
    said = f"{table.height:,} captions of {table['image'].n_unique():,} images ({per_image:.1f} each) written to {out}"
    console.print(said, highlight=False, soft_wrap=True)
    console.print(f"Next: curate reward rank {out} --rater NAME", highlight=False, soft_wrap=True)


@app.command("rank")
@errors_as_sentences
def rank(
    source: Annotated[Path, typer.Argument(metavar="CANDIDATES", help="Table with image and caption.")],
    rater: Annotated[str, typer.Option(help="Who ranks; several raters may share one file.")] = "rater",
    out: Annotated[Path | None, typer.Option("--out", help="Ranking file; default CANDIDATES.rankings.tsv.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Rank on a local page, with the images, for any rater.")] = False,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1 for --web; 0 takes a free one.")] = 8124,
) -> None:
    """Rank the captions of every image by accuracy, completeness, vividness, context. Stop whenever you like."""
    from curation_assets.annotation.ranking import RankingLog, rank_in_terminal
    from curation_assets.stores.text_tables import read_table

    table = read_table(source)
    if not {"image", "caption"} <= set(table.columns):
        raise ValueError(f"{source}: expected the columns image and caption, got {table.columns}")
    groups = [
        (str(image), group["caption"].unique(maintain_order=True).to_list())
        for (image,), group in table.group_by("image", maintain_order=True)
    ]
    log = RankingLog(out or source.with_suffix(".rankings.tsv"))
    if web:
        from curation_assets.annotation.ranking_web import RankingServer

        with RankingServer(groups, source, log, port=port) as server:
            console.print(f"Ranks are appended to {log.path}", highlight=False, soft_wrap=True)
            console.print(f"Open {server.url} (stop with Ctrl+C)", highlight=False)
            server.serve_forever()
        return
    if any(".tar:" in image for image, _ in groups):
        console.print("The images lie inside tars; --web shows them", highlight=False)
    done = rank_in_terminal(groups, rater, log, console, lambda: input("> "))
    console.print(f"{done} images ranked; they are in {log.path}", highlight=False, soft_wrap=True)


@app.command("agreement")
@errors_as_sentences
def agreement(
    rankings: Annotated[Path, typer.Argument(help="Ranking file with a column rater.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How alike raters order captions: Kendall's W over all, tau-b and pairs ordered alike of every two."""
    from curation_assets.numeric.rankings import concordance, rank_agreement
    from curation_assets.stores.rankings import read_ranks_by_rater

    read = read_ranks_by_rater(rankings)
    shared = [list(ranks.values()) for _, ranks in read.values() if len(ranks) > 1]
    raters = sorted({rater for _, ranks in read.values() for rater in ranks})
    found: dict[str, Any] = {"images": len(read), "raters": raters, "kendall_w": concordance(shared), "pairs": []}
    for first, second in itertools.combinations(raters, 2):
        both = [(ranks[first], ranks[second]) for _, ranks in read.values() if {first, second} <= set(ranks)]
        found["pairs"].append({"raters": [first, second], **asdict(rank_agreement(both))})
    if as_json:
        typer.echo(json_format.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    console.print(f"{found['images']} images, {len(raters)} raters, {len(shared)} images by several", highlight=False)
    w = found["kendall_w"]
    console.print("Kendall's W: " + ("–, no image was ranked by two" if w is None else f"{w:.3f}"), highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("rater", "rater", "tau-b", "pairs ordered alike", "pairs", "images"):
        table.add_column(heading, justify="left" if heading == "rater" else "right")
    for pair in found["pairs"]:
        shown = ["–" if pair[name] is None else f"{pair[name]:.3f}" for name in ("kendall", "pair_agreement")]
        table.add_row(*pair["raters"], *shown, str(pair["pairs"]), str(pair["images"]))
    console.print(table)


@app.command("train")
@errors_as_sentences
def train(
    rankings: Annotated[Path, typer.Argument(help="Ranking file: image, caption, rank (or rating).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the model and the cached features.")],
    pair_encoder: PairEncoderOption = None,
    updates: Annotated[int, typer.Option(help="Steps of 64 pairs.")] = 20_000,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-5,
    activation: Annotated[str, typer.Option(help="none (as the cited architecture) or relu.")] = "none",
    held_out: HeldOut = 0.1,
    seed: Seed = 0,
    profile: ProfileOption = None,
) -> None:
    """Train a reward model on ranked captions and judge it on images that it never saw."""
    from curation_assets.engines import load_engine
    from curation_assets.training.reward import RewardRecipe, preference_of, ranked_features, train_reward_model

    chosen = settings_from(None, profile).profile
    if pair_encoder is not None:
        chosen = chosen.with_roles(pair_encoder=pair_encoder)
    recipe = RewardRecipe(updates=updates, learning_rate=learning_rate, activation=activation, seed=seed)
    training, unseen = split_by_image(read_rankings(rankings), held_out, seed)
    encoder: Any = load_engine("pair_encoder", chosen)
    features = ranked_features(rankings, training, encoder, cache=out / "features.safetensors")
    facts = {"held_out": held_out, "split_seed": seed, "rankings": rankings.name}
    card = train_reward_model(features, out, recipe, pair_encoder=chosen.address("pair_encoder"), facts=facts)
    model: Any = load_engine("reward_model", chosen.with_roles(reward_model=f"path:{out}"))
    console.print(
        f"{card['images']} images, {card['pairs']:,} pairs, loss {card['training_loss']:.3f} (chance .693)",
        highlight=False,
    )
    _show({"reward model": asdict(preference_of(rankings, unseen, model))})
    console.print(f"Use it: curate score reward FILE --role reward_model=path:{out}", highlight=False, soft_wrap=True)


@app.command("evaluate")
@errors_as_sentences
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
) -> None:
    """Show how often a reward model, cosines and chance order two captions of an image as people do."""
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
        asked = chosen.with_roles(image_text_encoder=address)
        scorers[f"cosine ({address})"] = load_engine("image_text_encoder", asked)
    found = {name: asdict(preference_of(rankings, judged, scorer)) for name, scorer in scorers.items()}
    if as_json:
        typer.echo(json_format.dumps(found, indent=1))
        return
    _show(found)


def _split_of(model: str) -> tuple[float, int]:
    """Share held out and seed by which `curate reward train` split its rankings, by the model's card; else .1 and 0."""
    from curation_assets.engines import resolve_address

    folder = resolve_address(model).folder
    card = folder / "card.json" if folder is not None else None
    told = json_format.loads(card.read_text(encoding="utf-8")) if card is not None and card.is_file() else {}
    return float(told.get("held_out", 0.1)), int(told.get("split_seed", 0))


def _show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "pairs ordered alike", "best caption on top", "images", "pairs"):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for name, one in found.items():
        table.add_row(
            name, f"{one['pair_accuracy']:.3f}", f"{one['top1']:.3f}", str(one["images"]), f"{one['pairs']:,}"
        )
    any_one = next(iter(found.values()))
    table.add_row("chance", "0.500", f"{any_one['chance_top1']:.3f}", str(any_one["images"]), f"{any_one['pairs']:,}")
    console.print(table)
