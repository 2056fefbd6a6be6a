"""The role captioner: an image, then captions by nucleus sampling."""

from collections.abc import Mapping
from typing import Any

from curation_assets.core.roles import Captioner
from curation_assets.engines import EngineRequest, image_text_encoder
from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of


def bank_encoder(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """Companions of a bank of captions or photographs: `image_text_encoder`, which its card names,
    and what that needs. Other models have none."""
    card = card_of(address)
    if card.get("kind") not in ("nearest_captions", "nearest_photo"):
        return {}
    encoder = resolve(card["image_text_encoder"])
    return {"image_text_encoder": encoder, **image_text_encoder.companions(encoder, {}, resolve)}


#: Settings of any model that writes captions (`caption_models.load_caption_model`).
WRITING = ("prompt", "precision", "image_transform", "image_size", "min_new_tokens", "max_new_tokens")

NEEDS = RoleNeeds(
    settings=(*WRITING, "temperature", "top_k", "top_p", "repetition_penalty"),
    companions=bank_encoder,
)


def load(request: EngineRequest) -> Captioner:
    """The captioner in a folder (embedded:, path:, hub:): a model that writes captions, or a bank of captions.

    Settings: top_p, top_k, temperature, repetition_penalty, min_new_tokens, max_new_tokens, and those of
    `load_caption_model`. Raises as that function does.
    """
    if card_of(request.address).get("kind") == "nearest_captions":
        from curation_assets.engines import nearest_captions

        return nearest_captions.load(request)
    from curation_assets.engines.caption_models import SamplingCaptioner, load_caption_model

    return SamplingCaptioner(request.identity, load_caption_model(request), request.settings, request.batch_size)
