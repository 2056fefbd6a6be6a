"""The role captioner: an image, then captions by nucleus sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines import EngineRequest, nearest_captions
from curation_assets.engines.batches import batches_side_by_side, chunks
from curation_assets.engines.caption_models import LoadedCaptionModel, load_caption_model
from curation_assets.engines.generation import NucleusSampling, prompts_at_once
from curation_assets.engines.nearest_captions import NearestCaptions
from curation_assets.engines.nucleus import row_uniforms


@dataclass(eq=False, repr=False)
class SamplingCaptioner:
    """Several captions per image, sampled."""

    identity: ModelIdentity
    loaded: LoadedCaptionModel
    settings: Mapping[str, Any]
    batch_size: int

    def sample_captions(self, images: Sequence[Image.Image], seeds: Sequence[int], count: int) -> list[list[str]]:
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
    def _sample(self, images: Sequence[Image.Image], uniforms: np.ndarray) -> torch.Tensor:
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


def load(request: EngineRequest) -> SamplingCaptioner | NearestCaptions:
    """The captioner in a folder (embedded:, path:, hub:): a model that writes captions, or a bank of captions.

    Settings: top_p, top_k, temperature, repetition_penalty, min_new_tokens, max_new_tokens, and those of
    `load_caption_model`. Raises as that function does.
    """
    if nearest_captions.is_nearest_captions(request.address):
        return nearest_captions.load(request)
    return SamplingCaptioner(request.identity, load_caption_model(request), request.settings, request.batch_size)
