"""The role beam_captioner: an image, then the beams of a beam search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines import EngineRequest, nearest_captions
from curation_assets.engines.batches import batches_side_by_side, chunks
from curation_assets.engines.caption_models import LoadedCaptionModel, load_caption_model
from curation_assets.engines.generation import BeamSearch, prompts_at_once
from curation_assets.engines.nearest_captions import NearestCaptions


@dataclass(eq=False, repr=False)
class BeamSearchCaptioner:
    """All beams of each image."""

    identity: ModelIdentity
    loaded: LoadedCaptionModel
    settings: Mapping[str, Any]
    batch_size: int

    def beam_captions(self, images: Sequence[Image.Image], beams: int) -> list[list[str]]:
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
    def _search(self, images: Sequence[Image.Image], beams: int) -> torch.Tensor:
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


def load(request: EngineRequest) -> BeamSearchCaptioner | NearestCaptions:
    """The captioner in a folder (embedded:, path:, hub:): a model that writes captions, or a bank of captions.

    Settings: beams (what VBA asks for where its own setting is null), min_new_tokens, max_new_tokens, and those of
    `load_caption_model`. Raises as that function does.
    """
    if nearest_captions.is_nearest_captions(request.address):
        return nearest_captions.load(request)
    return BeamSearchCaptioner(request.identity, load_caption_model(request), request.settings, request.batch_size)
