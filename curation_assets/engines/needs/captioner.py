"""captioner: a bank of captions names its image–text encoder, which has needs of its own."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of, image_text_encoder


def bank_encoder(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """Of a bank of captions or photographs `image_text_encoder`, which its card names, and what that needs; else
    none."""
    card = card_of(address)
    if card.get("kind") not in ("nearest_captions", "nearest_photo"):
        return {}
    encoder = resolve(card["image_text_encoder"])
    return {"image_text_encoder": encoder, **image_text_encoder.companions(encoder, {}, resolve)}


#: Of a model that writes captions, however it does (`caption_models.load_caption_model`).
WRITING = ("prompt", "precision", "image_transform", "image_size", "min_new_tokens", "max_new_tokens")

NEEDS = RoleNeeds(
    settings=(*WRITING, "temperature", "top_k", "top_p", "repetition_penalty"),
    companions=bank_encoder,
)
