"""curate icc train-bridge: train the bridge of the semantic teacher on one's own captions."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import notice, settings_from, show
from curation_assets.core.progress import reporter_for
from curation_assets.scoring.files import read_captions


@command("icc train-bridge", "Scores")
def train_bridge_of_captions(
    captions: Annotated[Path, typer.Argument(help="Captions: txt, tsv, csv or parquet (the paper: 476 K of CC3M).")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the bridge; the same command goes on after a stop.")],
    profile: Annotated[str, typer.Option("--profile", help="Whose language model and text encoder.")] = "hub",
    epochs: Annotated[int, typer.Option(help="Passes over the captions.")] = 2,
    batch_size: Annotated[int, typer.Option(help="Captions at once on the device.")] = 32,
    accumulation: Annotated[int, typer.Option(help="Batches per step; batch × accumulation = 128 as published.")] = 4,
) -> None:
    """Fit the linear layer from CLIP's text feature into the frozen language model (ICC §4.2)."""
    from curation_assets.engines import resolve_device
    from curation_assets.training.bridge import BridgeRecipe, frozen_models, steps_of, train_bridge

    recipe = BridgeRecipe(epochs=epochs, batch_size=batch_size, accumulation=accumulation)
    chosen = settings_from(None, profile).profile
    language_model, text_encoder = frozen_models(chosen)
    texts = read_captions(captions)["caption"].drop_nulls().to_list()
    with reporter_for().task("bridge", steps_of(texts, recipe)) as advance:
        card = train_bridge(
            texts,
            out,
            language_model=language_model,
            text_encoder=text_encoder,
            recipe=recipe,
            device=resolve_device(chosen.device),
            progress=advance,
        )
    show(f"{card.steps} steps, {card.captions:,} captions: {card.first_loss:.3f} → {card.last_loss:.3f} nats per token")
    notice(f"Use it: generation: {{semantic_decoder: {{bridge: 'path:{out.absolute()}'}}}}")
