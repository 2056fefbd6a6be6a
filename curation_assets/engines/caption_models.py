"""Models that write captions of images: VisionEncoderDecoder, BLIP and BLIP-2 with one interface.

The roles captioner (nucleus sampling) and beam_captioner (beam search) are what decodes with them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    Blip2ForConditionalGeneration,
    BlipForConditionalGeneration,
    PreTrainedModel,
    VisionEncoderDecoderModel,
)
from transformers.modeling_outputs import BaseModelOutput

from curation_assets.core.roles import Images, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import batches_side_by_side, chunks, quiet_loading, weights_dtype
from curation_assets.engines.generation import BeamSearch, NucleusSampling, prompts_at_once
from curation_assets.engines.nucleus import row_uniforms

#: (B,) RGB images → (B, 3, H, W) as the model wants them.
ImageTransform = Callable[[list[Image.Image]], torch.Tensor]


class CaptionModel(Protocol):
    """The three families differ in how an image reaches the decoder and in what comes back."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) → (B, T, D), what the decoder reads of an image."""
        ...

    def decode(self, states: torch.Tensor, **options: Any) -> torch.Tensor:
        """(M, T, D) → (M * num_return_sequences, L) token ids without prompt; options as for `generate`."""
        ...


class VisionEncoderDecoderFamily:
    """Any vision tower with any decoder by cross-attention; the shipped captioner."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.get_encoder()(pixel_values=pixels).last_hidden_state

    def decode(self, states: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.model.generate(encoder_outputs=BaseModelOutput(last_hidden_state=states), **options)


class BlipFamily:
    """BLIP: the prompt opens the decoder's sequence and is cut off again.

    Images of another size than the checkpoint's are read too: its position embeddings are interpolated, as BLIP's own
    loader does.
    """

    def __init__(self, model: Any, prompt_ids: list[int]) -> None:
        """`prompt_ids`: tokens of the prompt without special tokens."""
        self.model = model
        self.prompt_ids = [model.config.text_config.bos_token_id, *prompt_ids]

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        is_other_size = pixels.shape[-1] != self.model.config.vision_config.image_size
        return self.model.vision_model(pixel_values=pixels, interpolate_pos_encoding=is_other_size).last_hidden_state

    def decode(self, states: torch.Tensor, **options: Any) -> torch.Tensor:
        text_config = self.model.config.text_config
        prompt = torch.tensor([self.prompt_ids], device=states.device).repeat(len(states), 1)  # (M, P)
        sequences = self.model.text_decoder.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            encoder_hidden_states=states,
            encoder_attention_mask=torch.ones(states.shape[:2], dtype=torch.long, device=states.device),
            eos_token_id=text_config.sep_token_id,
            pad_token_id=text_config.pad_token_id,
            **options,
        )
        return sequences[:, len(self.prompt_ids) :]


class Blip2Family:
    """BLIP-2: query vectors and prompt are handed over as embeddings, so only new tokens come back.

    With token ids instead, transformers 5 counts the 32 image positions against the length and returns them
    (formulas.md §1.3). A repetition penalty then concerns new tokens only.
    """

    def __init__(self, model: Any, prompt_ids: list[int]) -> None:
        """`prompt_ids`: tokens of the prompt with the language model's special tokens."""
        self.model = model
        self.prompt_ids = prompt_ids

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        states = self.model.vision_model(pixel_values=pixels).last_hidden_state  # (B, P, Dv)
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        queries = self.model.query_tokens.expand(len(states), -1, -1)
        query_states = self.model.qformer(
            query_embeds=queries,
            # a checkpoint held in fp16 keeps its query transformer in fp32
            encoder_hidden_states=states.to(self.model.qformer.layernorm.weight.dtype),
            encoder_attention_mask=mask,
        ).last_hidden_state  # (B, Q, Dq)
        return self.model.language_projection(query_states.to(states.dtype))

    def decode(self, states: torch.Tensor, **options: Any) -> torch.Tensor:
        prompt = torch.tensor([self.prompt_ids], dtype=torch.long, device=states.device)
        embedded = self.model.get_input_embeddings()(prompt).to(states.dtype)  # (1, P, D)
        inputs = torch.cat([states, embedded.expand(len(states), -1, -1)], dim=1)  # (M, Q + P, D)
        mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=states.device)
        return self.model.language_model.generate(inputs_embeds=inputs, attention_mask=mask, **options)


@dataclass(frozen=True)
class LoadedCaptionModel:
    """A caption model with its image transform and tokenizer, on its device."""

    model: CaptionModel
    image_transform: ImageTransform
    tokenizer: Any
    device: str
    dtype: torch.dtype

    def encode(self, images: Images) -> torch.Tensor:
        """(B,) images → (B, T, D), what the decoder reads of them."""
        pixels = self.image_transform([image.convert("RGB") for image in images])  # (B, 3, H, W)
        return self.model.encode(pixels.to(self.device, self.dtype))

    def text(self, sequences: torch.Tensor) -> list[str]:
        """(M, L) token ids → M captions."""
        decoded = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        # OPT ends a caption with a newline, which is no special token
        return [text.strip().split("\n")[0].strip() for text in decoded]


@dataclass(eq=False, repr=False)
class _Captioner:
    """A caption model with the settings of its role, such as min_new_tokens."""

    identity: ModelIdentity
    loaded: LoadedCaptionModel
    settings: Mapping[str, Any]
    batch_size: int  # images


class SamplingCaptioner(_Captioner):
    """Several captions per image, sampled."""

    def sample_captions(self, images: Images, seeds: Sequence[int], count: int) -> list[list[str]]:
        """Nucleus sampling (SIEVE §3; formulas.md §2.2): N lists of `count` captions.

        Caption j of image i depends on images[i], seeds[i] and j only (on CUDA up to rounding of fp16).
        Raises ValueError when there is not one seed per image, or for count below 1.
        """
        if len(images) != len(seeds):
            raise ValueError(f"expected one seed per image, got {len(images)} images and {len(seeds)} seeds")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if not images:
            return []
        uniforms = row_uniforms(seeds, count, int(self.settings.get("max_new_tokens", 20)))  # (N * count, steps)
        size = min(self.batch_size, prompts_at_once(len(images), count, self.loaded.device))
        with batches_side_by_side(self.loaded.device) as map_batches:
            of_batches = (uniforms[start * count : (start + size) * count] for start in range(0, len(images), size))
            sequences = list(map_batches(self._sample, chunks(images, size), of_batches))
        rows = [text for batch in sequences for text in self.loaded.text(batch)]
        return [rows[i * count : (i + 1) * count] for i in range(len(images))]

    @torch.inference_mode()  # a mode of each thread
    def _sample(self, images: Images, uniforms: np.ndarray) -> torch.Tensor:
        """(B,) images, (B * count, steps) random numbers → (B * count, L) token ids."""
        settings = self.settings
        sampling = NucleusSampling(
            uniforms,
            count=len(uniforms) // len(images),
            temperature=float(settings.get("temperature", 1.0)),
            top_k=int(settings.get("top_k", 50)),
            top_p=float(settings.get("top_p", 0.9)),
        )
        return self.loaded.model.decode(
            self.loaded.encode(images),
            custom_generate=sampling,
            do_sample=False,  # NucleusSampling samples
            num_beams=1,
            use_cache=True,
            max_new_tokens=uniforms.shape[1],
            min_new_tokens=int(settings.get("min_new_tokens", 1)),
            repetition_penalty=float(settings.get("repetition_penalty", 1.0)),
        )


class BeamSearchCaptioner(_Captioner):
    """All beams of each image."""

    def beam_captions(self, images: Images, beams: int) -> list[list[str]]:
        """Beam search, all beams, best first (ICC §4.1; formulas.md §1.3): N lists of `beams` captions.

        Raises ValueError for beams below 1.
        """
        if beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams}")
        size = min(self.batch_size, prompts_at_once(len(images), beams, self.loaded.device))
        with batches_side_by_side(self.loaded.device) as map_batches:
            sequences = list(map_batches(lambda batch: self._search(batch, beams), chunks(images, size)))
        rows = [text for batch in sequences for text in self.loaded.text(batch)]
        return [rows[i * beams : (i + 1) * beams] for i in range(len(images))]

    @torch.inference_mode()  # a mode of each thread
    def _search(self, images: Images, beams: int) -> torch.Tensor:
        """(B,) images → (B * beams, L) token ids."""
        return self.loaded.model.decode(
            self.loaded.encode(images),
            custom_generate=BeamSearch(beams),
            do_sample=False,
            num_beams=1,
            use_cache=True,
            max_new_tokens=int(self.settings.get("max_new_tokens", 20)),
            min_new_tokens=int(self.settings.get("min_new_tokens", 1)),
        )


IMAGE_TRANSFORMS = ("own", "clip")
FAMILIES: dict[str, type[PreTrainedModel]] = {
    "vision-encoder-decoder": VisionEncoderDecoderModel,
    "blip": BlipForConditionalGeneration,
    "blip-2": Blip2ForConditionalGeneration,
}


def load_caption_model(request: EngineRequest) -> LoadedCaptionModel:
    """The caption model in a folder (embedded:, path:, hub:), by the model_type of its config.json.

    Settings: prompt, precision, image_transform, image_size (see `_image_transform`). Raises ValueError for another
    model_type, a prompt for a family that takes none, an unknown transform, or a size that the family does not read.
    """
    quiet_loading()
    folder = local_folder(request.address)
    model_type = _model_type(folder)
    if model_type not in FAMILIES:
        raise ValueError(
            f"{request.address.text}: role {request.role} takes model_type {', '.join(FAMILIES)}; "
            f"{folder} has {model_type!r}"
        )
    dtype = weights_dtype(request.device, request.settings)
    model: Any = FAMILIES[model_type].from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=dtype, attn_implementation="eager"
    )
    model.to(request.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    prompt = str(request.settings.get("prompt", "")).strip()
    family: CaptionModel
    if model_type == "vision-encoder-decoder":
        if prompt:
            raise ValueError(
                f"{request.address.text}: a vision-encoder-decoder takes no prompt, got {prompt!r}; drop it"
            )
        family = VisionEncoderDecoderFamily(model)
    elif model_type == "blip":
        family = BlipFamily(model, tokenizer(prompt, add_special_tokens=False).input_ids if prompt else [])
    else:
        family = Blip2Family(model, tokenizer(prompt).input_ids if prompt else [model.config.text_config.bos_token_id])
    return LoadedCaptionModel(family, _image_transform(request, folder, model), tokenizer, request.device, dtype)


def _image_transform(request: EngineRequest, folder: Path, model: Any) -> ImageTransform:
    """image_transform 'own': what lies in the folder. 'clip': CLIP's, as SIEVE (formulas.md §2.2): bicubic to a
    shortest side of `image_size` (null: the model's own), centre crop, CLIP's mean and standard deviation.
    """
    kind, given = request.settings.get("image_transform", "own"), request.settings.get("image_size")
    if kind not in IMAGE_TRANSFORMS:
        raise ValueError(
            f"{request.address.text}: image_transform must be one of {', '.join(IMAGE_TRANSFORMS)}, got {kind!r}"
        )
    if kind == "own":
        if given is not None:
            raise ValueError(f"{request.address.text}: image_size {given} needs image_transform: clip; add it")
        processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        return lambda images: processor(images, return_tensors="pt").pixel_values
    vision = model.config.encoder if isinstance(model, VisionEncoderDecoderModel) else model.config.vision_config
    size = vision.image_size if given is None else int(given)
    if size != vision.image_size and not isinstance(model, BlipForConditionalGeneration):
        raise ValueError(
            f"{request.address.text}: reads images of {vision.image_size} px, got image_size {size}; "
            "only BLIP reads other sizes, leave it out"
        )
    from open_clip import image_transform  # seconds, which the other transform does not need

    transform = image_transform(size, is_train=False)
    return lambda images: torch.stack([transform(image) for image in images])


def _model_type(folder: Path) -> str | None:
    path = folder / "config.json"
    return json.loads(path.read_text()).get("model_type") if path.is_file() else None
