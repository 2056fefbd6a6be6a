"""Stage `scene_bank`: the embeddings of the embedded bank by the shipped encoder, computed once for all users."""

import json

from rich.console import Console
from safetensors.numpy import save_file

from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.scene_bank import EMBEDDINGS_FILE, SceneBankEngine, embed_scenes
from curation_assets.stores.file_hash import file_sha256
from lab.common import Clock, Setup, record, replaced_folder


def run(setup: Setup) -> None:
    """Embeds every scene and ships int8: what the engine reads, wherever it comes from."""
    clock = Clock()
    bank = load_engine("scene_bank", load_profile("embedded"))
    assert isinstance(bank, SceneBankEngine), type(bank)
    embeddings = embed_scenes(bank.scenes, bank.encoder, reporter_for(Console(stderr=True)))  # (M, D)
    captions, encoder = bank.made_of
    with replaced_folder(setup.out / "scene_bank") as folder:
        save_file({"embeddings": embeddings}, folder / EMBEDDINGS_FILE)
        card = {
            "captions_sha256": captions,
            "scenes": len(bank.scenes),
            "sentence_encoder": bank.encoder.identity.address,
            "sentence_encoder_sha256": encoder,
            "embeddings_sha256": file_sha256(folder / EMBEDDINGS_FILE),
        }
        (folder / "card.json").write_text(json.dumps(card, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    recipe = {"scenes": len(bank.scenes), "sentence_encoder": card["sentence_encoder"], "cpu_seconds": clock.seconds()}
    record(setup, "scene_bank", recipe, {})
