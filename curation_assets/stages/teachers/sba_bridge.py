"""The bridge of the semantic teacher, trained on the pool's own captions (ICC §4.2; formulas.md §1.2, §1.4).

Part of the stage teachers. Option `train_sba` of a pool: true for the published recipe, or a mapping of its settings.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.table_names import DISTILLATION_SAMPLE, SAMPLES, SBA_BRIDGE
from curation_assets.core.validation import content_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import BridgeTraining, FlowOptions
from curation_assets.flow.table import Folder, Needs, Shown, Table

FILES = ("bridge.safetensors", "bridge.json", "card.json")


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The table of the bridge; none where the pool uses a bridge that is already there."""
    if not ctx.trains_sba:
        return
    own_captions = _option(ctx).captions is None
    yield Table(
        name=SBA_BRIDGE,
        grain="pool",
        inputs=(SAMPLES, DISTILLATION_SAMPLE) if own_captions else (),
        version="1",
        description=(
            "The linear layer from CLIP's text feature into the frozen language model: safetensors and a card. "
            "Trained on the pool's captions outside the distillation sample, which the teacher then scores."
        ),
        compute=Folder(_train),
        needs=Needs(core=True),
        config=_config,
        shown=Shown(kinds=("torch", "safetensors")),
    )


def _option(ctx: PoolContext) -> BridgeTraining:
    return FlowOptions.of(ctx).train_sba or BridgeTraining()


def _recipe(training: BridgeTraining) -> dict[str, Any]:
    """What the pool sets of `training.bridge.BridgeRecipe`."""
    return {name: value for name, value in content_of(training).items() if name not in ("captions", "save_every")}


def _config(ctx: PoolContext) -> dict[str, Any]:
    from curation_assets.engines.addresses import local_folder, resolve_address
    from curation_assets.engines.identities import digest_files, folder_files
    from curation_assets.training.bridge import frozen_models

    training = _option(ctx)
    settings = _recipe(training)  # how often it is saved changes no number
    if training.captions is not None:
        settings["captions"] = Path(training.captions)
    digests = {
        address: digest_files(folder_files(local_folder(resolve_address(address))))
        for address in frozen_models(ctx.profile)
    }
    return {"recipe": settings, "models": digests}


def training_captions(ctx: PoolContext) -> list[str]:
    """Captions of the option's file, else of the pool's kept samples outside the distillation sample, by sample_id.

    A caption that the distillation sample holds under another id is left out as well.
    """
    if (path := _option(ctx).captions) is not None:
        from curation_assets.scoring.files import read_captions

        return read_captions(Path(path))["caption"].drop_nulls().to_list()
    scored = ctx.store.scan(DISTILLATION_SAMPLE).select("sample_id", "caption").collect()
    kept = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept").select("sample_id", "caption").collect()
    rest = kept.join(scored, on="sample_id", how="anti").join(scored, on="caption", how="anti")
    return rest.unique("sample_id").sort("sample_id")["caption"].drop_nulls().to_list()


def _train(ctx: PoolContext, folder: Path) -> None:
    from curation_assets.engines import resolve_device
    from curation_assets.training.bridge import BridgeRecipe, frozen_models, steps_of, train_bridge

    training = _option(ctx)
    captions = training_captions(ctx)
    recipe = BridgeRecipe(**_recipe(training))
    language_model, text_encoder = frozen_models(ctx.profile)
    # the state of a killed training, kept separate from that of other captions and settings
    digest = hashlib.sha256("\0".join([repr(recipe), language_model, text_encoder, *captions]).encode())
    unfinished = ctx.store.unfinished_path(SBA_BRIDGE) / digest.hexdigest()[:32]
    with ctx.progress.task("train SBA's bridge", steps_of(captions, recipe)) as advance:
        train_bridge(
            captions,
            unfinished,
            language_model=language_model,
            text_encoder=text_encoder,
            recipe=recipe,
            device=resolve_device(ctx.profile.device),
            save_every=training.save_every,
            progress=advance,
        )
    for name in FILES:
        shutil.copy2(unfinished / name, folder / name)
