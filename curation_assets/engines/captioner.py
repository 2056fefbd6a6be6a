"""The role captioner: an image, then captions by nucleus sampling."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import LogitsProcessorList

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines import EngineRequest, nearest_captions
from curation_assets.engines.caption_models import LoadedCaptionModel, load_caption_model
from curation_assets.engines.nearest_captions import NearestCaptions
from curation_assets.engines.nucleus import SeededNucleus, row_uniforms

#: Rows decoded together, as a multiple of the images encoded together (4 captions per image is SIEVE's demo
#: setting).
ROWS_PER_IMAGE = 4


class SamplingCaptioner:
    """Several captions per image, sampled."""

    def __init__(
        self, identity: ModelIdentity, loaded: LoadedCaptionModel, settings: Mapping[str, Any], batch_size: int
    ) -> None:
        self.identity = identity
        self.loaded = loaded
        self.settings = settings
        self.batch_size = batch_size

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
            encoded = self.loaded.encode(images[start : start + self.batch_size])  # (B, T, D)
            states = encoded.repeat_interleave(count, dim=0)
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
        return self.loaded.text(
            self.loaded.model.decode(
                states,
                do_sample=False,  # the processor samples
                num_beams=1,
                max_new_tokens=steps,
                min_new_tokens=int(settings.get("min_new_tokens", 1)),
                repetition_penalty=float(settings.get("repetition_penalty", 1.0)),
                logits_processor=LogitsProcessorList([sampler]),
            )
        )


def load(request: EngineRequest) -> SamplingCaptioner | NearestCaptions:
    """The captioner in a folder (embedded:, path:, hub:): a model that writes captions, or a bank of captions.

    Settings: top_p, top_k, temperature, repetition_penalty, min_new_tokens, max_new_tokens, and those of
    `load_caption_model`. Raises as that function does.
    """
    if nearest_captions.is_nearest_captions(request.address):
        return nearest_captions.load(request)
    return SamplingCaptioner(request.identity, load_caption_model(request), request.settings, request.batch_size)
