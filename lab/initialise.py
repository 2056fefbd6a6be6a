"""Stage `initialise`: untrained models in the shipped layouts, for models that are not there yet."""

from curation_assets.engines.patch_codec import PatchCodec
from lab import architectures, saving
from lab.common import Setup


def run(setup: Setup) -> None:
    """Writes what is missing; never overwrites a trained model."""
    setup.start("initialise")
    if not (setup.out / "clip/model.safetensors").exists():
        saving.save_clip(architectures.build_clip(), setup.out / "clip")
    if not (setup.out / "captioner/model.safetensors").exists():
        saving.save_captioner(architectures.build_captioner(), setup.out / "captioner")
    if not (setup.out / "text_to_image/model_index.json").exists():
        saving.save_text_to_image(architectures.build_unet(), PatchCodec(), setup.out / "text_to_image")
    if not (setup.out / "semantic_decoder/model.safetensors").exists():
        saving.save_language_model(architectures.build_language_model(), setup.out / "semantic_decoder")
    if not (setup.out / "semantic_decoder/bridge.safetensors").exists():
        saving.save_bridge(architectures.build_bridge(), setup.out / "semantic_decoder")
