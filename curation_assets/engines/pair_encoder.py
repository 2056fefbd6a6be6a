"""The role pair_encoder: BLIP's multimodal encoder, or CLIP's two vectors side by side with their product."""

import numpy as np

from curation_assets.core.roles import Images, ImageTextEncoder, ModelIdentity, PairEncoder, Texts
from curation_assets.engines import EngineRequest, image_text_encoder

NEEDS = image_text_encoder.NEEDS


class TwoTowerPairs:
    """Vectors u, v of a two-tower model as (u, v, √D · u ∘ v): the product lets a linear layer weigh the cosine."""

    def __init__(self, identity: ModelIdentity, encoder: ImageTextEncoder) -> None:
        self.identity = identity
        self.encoder = encoder

    def embed_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,), (N,) → (N, 3 D) float32; an image that comes again is encoded once."""
        distinct: dict[int, int] = {}
        indices = [distinct.setdefault(id(image), len(distinct)) for image in images]
        first = {index: image for image, index in zip(images, indices, strict=True)}
        seen = self.encoder.embed_images([first[index] for index in range(len(first))])[indices]  # (N, D)
        read = self.encoder.embed_texts(captions)
        return np.concatenate([seen, read, seen * read * np.sqrt(seen.shape[1])], axis=1).astype(np.float32)


def load(request: EngineRequest) -> PairEncoder:
    """Any address that image_text_encoder takes. A BlipForImageTextRetrieval answers with its multimodal state."""
    encoder = image_text_encoder.load(request)
    return encoder if isinstance(encoder, PairEncoder) else TwoTowerPairs(request.identity, encoder)
