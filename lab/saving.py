"""Writes each embedded model in the layout its loader expects: fp16 safetensors beside float32 configs."""

import json
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file
from transformers import CLIPImageProcessor, CLIPModel, LlamaForCausalLM, VisionEncoderDecoderModel

from curation_assets.engines.patch_codec import PatchCodec
from lab.architectures import (
    BOS,
    CONTEXT,
    EOS,
    LM_WIDTH,
    OPEN_CLIP,
    PREFIX_LENGTH,
    WIDTH,
    build_sampler,
)
from lab.common import replaced_folder, to_half


def image_processor() -> CLIPImageProcessor:
    """Shortest side to 64 px (bicubic, antialiased), centre crop, [-1, 1]: what all training images went through."""
    return CLIPImageProcessor(
        size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}, resample=3,
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def save_clip(model: CLIPModel, target: Path) -> None:
    """transformers layout, and `open_clip_config.json` for the same weights in open_clip."""
    with replaced_folder(target) as folder:
        model.save_pretrained(folder)
        image_processor().save_pretrained(folder)
        _write_json(folder / "open_clip_config.json", OPEN_CLIP)
        to_half(folder)


def save_captioner(model: VisionEncoderDecoderModel, target: Path) -> None:
    """transformers layout with its generation config and image processor."""
    with replaced_folder(target) as folder:
        model.save_pretrained(folder)
        image_processor().save_pretrained(folder)
        to_half(folder)


def save_text_to_image(unet: UNet2DConditionModel, codec: PatchCodec, target: Path) -> None:
    """diffusers layout; the text encoder and the tokenizer are those of `../clip`."""
    with replaced_folder(target) as folder:
        unet.save_pretrained(folder / "unet")
        codec.save_pretrained(folder / "vae")
        build_sampler().save_pretrained(folder / "scheduler")
        index = {
            "_class_name": "StableDiffusionPipeline",
            "unet": ["diffusers", "UNet2DConditionModel"],
            "scheduler": ["diffusers", "UniPCMultistepScheduler"],
            "vae": ["curation_assets.engines.patch_codec", "PatchCodec"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
            "text_encoder_folder": "../clip",
            "tokenizer_folder": "../clip",
            "safety_checker": [None, None],
            "feature_extractor": [None, None],
            "requires_safety_checker": False,
            "height_px": 64,
            "width_px": 64,
            "num_inference_steps": 5,
            "guidance_scale": 4.0,
            "max_tokens": CONTEXT,
        }
        _write_json(folder / "model_index.json", index)
        to_half(folder)


def save_language_model(model: LlamaForCausalLM, target: Path) -> None:
    """transformers layout; the bridge is saved by `save_bridge`."""
    with replaced_folder(target) as folder:
        model.save_pretrained(folder)
        to_half(folder)


def save_bridge(bridge: torch.nn.Linear, target: Path) -> None:
    """`bridge.safetensors` (weight, bias) and what a decoder must know to use it."""
    with replaced_folder(target) as folder:
        save_file({k: v.detach().clone() for k, v in bridge.state_dict().items()}, folder / "bridge.safetensors")
        to_half(folder)
        content = {
            "prefix_length": PREFIX_LENGTH,
            "input_dim": WIDTH,
            "hidden_size": LM_WIDTH,
            "input": "projected, unnormalised CLIP text feature of ../clip",
            "layout": ["bos", "prefix"],  # inputs_embeds = embedding of BOS, then the 8 prefix vectors
            "bos_token_id": BOS,
            "stop_token_id": EOS,
            "max_new_tokens": CONTEXT,
        }
        _write_json(folder / "bridge.json", content)
