"""The role captioner: an image, then sentences. VisionEncoderDecoder, BLIP and BLIP-2 with one interface."""

import json
from collections.abc import Mapping, Sequence
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
    LogitsProcessorList,
    PreTrainedModel,
    VisionEncoderDecoderModel,
)
from transformers.modeling_outputs import BaseModelOutput

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines import EngineRequest, nearest_captions
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import chunks, quiet_loading, weights_dtype
from curation_assets.engines.nearest_captions import NearestCaptions
from curation_assets.engines.nucleus import SeededNucleus, row_uniforms

#: Rows decoded together, as a multiple of the images encoded together (4 captions per image is SIEVE's demo
#: setting).
ROWS_PER_IMAGE = 4


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
    """BLIP: the prompt opens the decoder's sequence and is cut off again."""

    def __init__(self, model: Any, prompt_ids: list[int]) -> None:
        """`prompt_ids`: tokens of the prompt without special tokens."""
        self.model = model
        self.prompt_ids = [model.config.text_config.bos_token_id, *prompt_ids]

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.vision_model(pixel_values=pixels).last_hidden_state

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
    (docs/formulas.md §1.3). A repetition penalty then concerns new tokens only.
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


class CaptionEngine:
    """Captions by nucleus sampling or by beams."""

    def __init__(
        self,
        identity: ModelIdentity,
        model: CaptionModel,
        image_processor: Any,
        tokenizer: Any,
        settings: Mapping[str, Any],
        batch_size: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        self.identity = identity
        self.model = model
        self.image_processor = image_processor
        self.tokenizer = tokenizer
        self.settings = settings
        self.batch_size = batch_size
        self.device = device
        self.dtype = dtype

    @torch.inference_mode()
    def sample_captions(self, images: Sequence[Image.Image], seeds: Sequence[int], count: int) -> list[list[str]]:
        """Nucleus sampling (SIEVE §3; docs/formulas.md §2.2): N lists of `count` captions.

        Caption j of image i depends on images[i], seeds[i] and j only (on CUDA up to rounding of fp16).
        Raises ValueError when there is not one seed per image, or for count below 1.
        """
        if len(images) != len(seeds):
            raise ValueError(f"expected one seed per image, got {len(images)} images and {len(seeds)} seeds")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        steps = int(self.settings.get("max_new_tokens", 20))
        rows: list[str] = []
        for start in range(0, len(images), self.batch_size):
            states = self._encode(images[start : start + self.batch_size]).repeat_interleave(count, dim=0)
            uniforms = row_uniforms(seeds[start : start + self.batch_size], count, steps)  # (B * count, steps)
            at_once = self.batch_size * ROWS_PER_IMAGE
            for first in range(0, len(states), at_once):
                chosen = slice(first, first + at_once)
                rows += self._sample(states[chosen], uniforms[chosen], steps)
        return [rows[i * count : (i + 1) * count] for i in range(len(images))]

    def _sample(self, states: torch.Tensor, uniforms: np.ndarray, steps: int) -> list[str]:
        settings = self.settings
        sampler = SeededNucleus(
            uniforms,
            temperature=float(settings.get("temperature", 1.0)),
            top_k=int(settings.get("top_k", 50)),
            top_p=float(settings.get("top_p", 0.9)),
        )
        return self._text(
            self.model.decode(
                states,
                do_sample=False,  # the processor samples
                num_beams=1,
                max_new_tokens=steps,
                min_new_tokens=int(settings.get("min_new_tokens", 1)),
                repetition_penalty=float(settings.get("repetition_penalty", 1.0)),
                logits_processor=LogitsProcessorList([sampler]),
            )
        )

    @torch.inference_mode()
    def beam_captions(self, images: Sequence[Image.Image], beams: int) -> list[list[str]]:
        """Beam search, all beams, best first (ICC §4.1; docs/formulas.md §1.3): N lists of `beams` captions.

        The repetition penalty of the profile belongs to SIEVE's sampling and is not applied here.
        Raises ValueError for beams below 1.
        """
        if beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams}")
        rows: list[str] = []
        for batch in chunks(images, self.batch_size):
            rows += self._text(
                self.model.decode(
                    self._encode(batch),
                    do_sample=False,
                    num_beams=beams,
                    num_return_sequences=beams,
                    max_new_tokens=int(self.settings.get("max_new_tokens", 20)),
                    min_new_tokens=int(self.settings.get("min_new_tokens", 1)),
                )
            )
        return [rows[i * beams : (i + 1) * beams] for i in range(len(images))]

    def _encode(self, images: Sequence[Image.Image]) -> torch.Tensor:
        pixels = self.image_processor([image.convert("RGB") for image in images], return_tensors="pt").pixel_values
        return self.model.encode(pixels.to(self.device, self.dtype))  # (B, T, D)

    def _text(self, sequences: torch.Tensor) -> list[str]:
        decoded = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        # OPT ends a caption with a newline, which is no special token
        return [text.strip().split("\n")[0].strip() for text in decoded]


FAMILIES: dict[str, type[PreTrainedModel]] = {
    "vision-encoder-decoder": VisionEncoderDecoderModel,
    "blip": BlipForConditionalGeneration,
    "blip-2": Blip2ForConditionalGeneration,
}


def load(request: EngineRequest) -> CaptionEngine | NearestCaptions:
    """The captioner in a folder (embedded:, path:, hub:), by the model_type of its config.json; or a bank of captions.

    Settings: prompt, top_p, top_k, temperature, repetition_penalty, min_new_tokens, max_new_tokens,
    precision. Raises ValueError for another model_type, or a prompt for a family that takes none.
    """
    if nearest_captions.is_nearest_captions(request.address):
        return nearest_captions.load(request)
    quiet_loading()
    folder = local_folder(request.address)
    model_type = _model_type(folder)
    if model_type not in FAMILIES:
        raise ValueError(
            f"{request.address.text}: role captioner takes model_type {', '.join(FAMILIES)}; "
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
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    return CaptionEngine(
        request.identity,
        family,
        processor,
        tokenizer,
        request.settings,
        request.batch_size,
        request.device,
        dtype,
    )


def _model_type(folder: Path) -> str | None:
    path = folder / "config.json"
    return json.loads(path.read_text()).get("model_type") if path.is_file() else None
