"""The role text_to_image: a caption, then a picture of it.

The stock Stable Diffusion pipeline for every address.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from curation_assets.core.allocator import keep_freed_memory
from curation_assets.core.roles import ModelIdentity, Texts, TextToImage
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import (
    batches_side_by_side,
    chunks,
    quiet_loading,
    weights_dtype,
    without_gradients,
)
from curation_assets.engines.captioner import bank_encoder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of, clip_text_encoder

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding

#: Of folders that this project trained: the class names in their scheduler_config.json.
SCHEDULERS = ("DDIMScheduler", "UniPCMultistepScheduler")


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """A CLIP text encoder, where the folder has none of its own; of a bank of photographs its encoder and its parts."""
    return bank_encoder(address, settings, resolve) or clip_text_encoder("text_to_image", address, settings, resolve)


NEEDS = RoleNeeds(
    settings=("steps", "guidance_scale", "height", "width", "precision", "text_encoder"), companions=companions
)

#: On a CPU: 121 ms an image with 16 of them, 134 with 8 (64 × 64 px, ten steps); more leave threads without work.
IMAGES_AT_ONCE = 16


@dataclass(eq=False, repr=False)
class DiffusionEngine:
    """Image i is a function of (captions[i], seeds[i]) alone: every sample draws from its own generator."""

    identity: ModelIdentity
    pipeline: Any  # a StableDiffusionPipeline
    settings: Mapping[str, Any]
    batch_size: int

    def generate_images(self, captions: Texts, seeds: Sequence[int]) -> list[Image.Image]:
        """One RGB image per caption (ICC §4.1; settings: steps, guidance_scale, height, width, precision).

        Captions are padded to the text encoder's context, so a neighbour's length has no effect; longer ones
        are cut. Raises ValueError when there is not one seed per caption.
        """
        if len(captions) != len(seeds):
            raise ValueError(f"expected one seed per caption, got {len(captions)} captions and {len(seeds)} seeds")
        size = min(self.batch_size, IMAGES_AT_ONCE) if self.pipeline.device.type == "cpu" else self.batch_size
        tokens = [self._tokenize(batch) for batch in chunks(captions, size)]  # a tokenizer serves one thread
        empty = self._tokenize([""]) if guidance_scale(self.settings) > 1 else None
        with batches_side_by_side(self.pipeline.device.type) as map_batches:
            guide = None if empty is None else self._encode(empty)  # the same for every picture
            drawn = map_batches(self._draw, tokens, chunks(seeds, size), itertools.repeat(guide))
            return [image for batch in drawn for image in batch]

    def _tokenize(self, captions: Texts) -> BatchEncoding:
        """(B, T) ids and mask, padded or cut to the text encoder's context, as the pipeline does."""
        tokenizer = self.pipeline.tokenizer
        return tokenizer(
            list(captions),
            padding="max_length",
            max_length=tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        )

    @without_gradients
    def _encode(self, tokens: BatchEncoding) -> torch.Tensor:
        """What the network reads of captions: (B, T, D)."""
        encoder = self.pipeline.text_encoder
        uses_mask = getattr(encoder.config, "use_attention_mask", False)
        mask = tokens.attention_mask.to(encoder.device) if uses_mask else None
        return encoder(tokens.input_ids.to(encoder.device), attention_mask=mask)[0]

    @without_gradients
    def _draw(self, tokens: BatchEncoding, seeds: Sequence[int], guide: torch.Tensor | None) -> list[Image.Image]:
        """`guide`: (1, T, D), the encoded empty caption, if it guides."""
        import torch

        # A pipeline and its scheduler remember the step of the call that runs; their models do not.
        pipeline = copy.copy(self.pipeline)
        pipeline.scheduler = copy.deepcopy(self.pipeline.scheduler)
        images = pipeline(
            prompt_embeds=self._encode(tokens),
            negative_prompt_embeds=None if guide is None else guide.expand(len(seeds), -1, -1),
            num_inference_steps=int(self.settings.get("steps", 20)),
            guidance_scale=guidance_scale(self.settings),
            height=int(self.settings.get("height", 768)),
            width=int(self.settings.get("width", 768)),
            # CPU generators on every device: the same seed gives the same noise with and without a GPU
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
            output_type="pil",
        ).images
        return [image.convert("RGB") for image in images]


def load(request: EngineRequest) -> TextToImage:
    """The pipeline in a folder (embedded:, path:, hub:) in the diffusers layout, or a bank of photographs' vectors.

    With a PatchCodec in vae/ the folder's own scheduler is kept (v-prediction; one of SCHEDULERS); with a real VAE the
    scheduler is DPM-Solver multistep built from the checkpoint's own config, as in ICC §4.1. No safety
    checker: images are read by the captioner and never shown. Raises ValueError for a folder without
    model_index.json, or a PatchCodec with another scheduler.
    """
    if card_of(request.address).get("kind") == "nearest_photo":
        from curation_assets.engines import nearest_photo

        return nearest_photo.load(request)
    import diffusers
    import torch
    from diffusers.models.attention_processor import AttnProcessor
    from transformers import AutoTokenizer, CLIPTextModel

    quiet_loading()
    diffusers.utils.logging.set_verbosity_error()
    folder = local_folder(request.address)
    if not (folder / "model_index.json").is_file():
        raise ValueError(f"{request.address.text}: {folder} holds no model_index.json; expected a diffusers folder")
    dtype = weights_dtype(request.device, request.settings)
    text_folder, tokenizer_folder = folder / "text_encoder", folder / "tokenizer"
    if "text_encoder" in request.companions:
        text_folder = tokenizer_folder = local_folder(request.companions["text_encoder"])
    unet = diffusers.UNet2DConditionModel.from_pretrained(
        folder / "unet", local_files_only=True, use_safetensors=True, torch_dtype=dtype
    )
    vae, is_codec = _load_vae(folder / "vae", dtype)
    # the pipeline deprecates an offset other than 1; with the shipped "trailing" spacing the offset has no
    # effect
    config = diffusers.DDIMScheduler.load_config(folder / "scheduler", local_files_only=True)
    if is_codec and config["_class_name"] not in SCHEDULERS:
        raise ValueError(f"{folder}/scheduler: expected one of {', '.join(SCHEDULERS)}, got {config['_class_name']}")
    own = getattr(diffusers, config["_class_name"] if is_codec else "DPMSolverMultistepScheduler")
    scheduler = own.from_config(config, steps_offset=1)
    pipeline: Any = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel.from_pretrained(
            text_folder, local_files_only=True, use_safetensors=True, dtype=dtype, attn_implementation="eager"
        ).eval(),
        tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True),
        unet=unet.eval(),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    if request.device == "cpu":
        keep_freed_memory()  # 3,300 page faults a picture otherwise, a tenth of its time (docs/decisions/0048)
        # one fused attention call per layer costs more than it saves at 16 × 16 (formulas.md §12)
        pipeline.unet.set_attn_processor(AttnProcessor())
        # convolutions take this layout as it is: an eighth faster; a pixel in 12,000 changes by one grey level
        pipeline.unet.to(memory_format=torch.channels_last)
    if guidance_scale(request.settings) > 1:
        compute_once_for_guidance(pipeline.unet)
    pipeline.to(request.device)
    pipeline.set_progress_bar_config(disable=True)
    return DiffusionEngine(request.identity, pipeline, request.settings, request.batch_size)


def guidance_scale(settings: Mapping[str, Any]) -> float:
    """The scale of classifier-free guidance; 1 or less is no guidance (Ho & Salimans 2022)."""
    return float(settings.get("guidance_scale", 9.0))


def compute_once_for_guidance(unet: Any) -> None:
    """Makes `unet` compute its layers before the first cross-attention on the first half of a batch, in place.

    With classifier-free guidance the pipeline doubles the latents: (2B, C, H, W), both halves equal until the network
    sees a caption. A network changed like this is for such batches only.
    """
    layers: list[Any] = [unet.conv_in]
    for block in unet.down_blocks:
        if getattr(block, "has_cross_attention", False):
            layers.append(block.resnets[0])
            break
        layers += [*block.resnets, *(block.downsamplers or [])]
    for layer in layers:
        layer.register_forward_pre_hook(_first_half)
        layer.register_forward_hook(_twice)


def _first_half(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(each[: len(each) // 2] for each in inputs)


def _twice(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([output, output])


def _load_vae(folder: Path, dtype: torch.dtype) -> tuple[Any, bool]:
    """The image decoder and whether it is our PatchCodec."""
    class_name = json.loads((folder / "config.json").read_text()).get("_class_name")
    if class_name == "PatchCodec":
        from curation_assets.engines.patch_codec import PatchCodec

        return PatchCodec.from_pretrained(folder).to(dtype), True
    from diffusers import AutoencoderKL

    vae = AutoencoderKL.from_pretrained(folder, local_files_only=True, use_safetensors=True, torch_dtype=dtype)
    return vae.eval(), False
