"""scene_bank: captions, and the sentence encoder that compares them."""

import hashlib
from collections.abc import Mapping
from typing import Any

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.identities import identity_of
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`: the setting's address, else embedded:minilm."""
    return {"sentence_encoder": resolve(settings.get("sentence_encoder") or "embedded:minilm")}


def identity(address: ModelAddress, companions: Companions) -> ModelIdentity:
    """A bank is its captions and the encoder that compares them."""
    from curation_assets.world.bank.captions import bank_captions, captions_sha256

    encoder_sha256 = identity_of("sentence_encoder", companions["sentence_encoder"], {}).weights_sha256
    lines = f"captions\t{captions_sha256(bank_captions(address.folder))}\nsentence_encoder\t{encoder_sha256}"
    return ModelIdentity(address.text, address.revision, hashlib.sha256(lines.encode()).hexdigest())


NEEDS = RoleNeeds(schemes=("bank",), settings=("sentence_encoder",), companions=companions, identity=identity)
