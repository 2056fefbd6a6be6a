"""The role beam_captioner: an image, then the beams of a beam search; or a bank of captions, as of captioner."""

from curation_assets.core.roles import BeamCaptioner
from curation_assets.engines import EngineRequest
from curation_assets.engines.captioner import WRITING, bank_encoder
from curation_assets.engines.needs import RoleNeeds, card_of

NEEDS = RoleNeeds(settings=(*WRITING, "beams"), companions=bank_encoder)


def load(request: EngineRequest) -> BeamCaptioner:
    """The captioner in a folder (embedded:, path:, hub:): a model that writes captions, or a bank of captions.

    Settings: beams (what VBA asks for where its own setting is null), min_new_tokens, max_new_tokens, and those of
    `load_caption_model`. Raises as that function does.
    """
    if card_of(request.address).get("kind") == "nearest_captions":
        from curation_assets.engines import nearest_captions

        return nearest_captions.load(request)
    from curation_assets.engines.caption_models import BeamSearchCaptioner, load_caption_model

    return BeamSearchCaptioner(request.identity, load_caption_model(request), request.settings, request.batch_size)
