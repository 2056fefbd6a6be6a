"""What filling a role takes besides its engine's own folder: the `NEEDS` of `engines/<role>.py`.

Identities are hashed by processes that never load a model, so neither this file nor the file of a role imports a model
library but inside a function.
"""

import importlib
import importlib.util
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from curation_assets.core.errors import install_extra
from curation_assets.core.roles import ModelIdentity
from curation_assets.engines.addresses import ModelAddress, local_folder

#: Schemes of addresses that are a folder (or one file) of weights.
FOLDER_SCHEMES = ("embedded", "path", "hub", "pool", "spacy", "debian")

#: The text of an address → the address, in the pool that runs.
Resolve = Callable[[str], ModelAddress]
Companions = dict[str, ModelAddress]


@dataclass(frozen=True)
class RoleNeeds:
    """What a role takes. The defaults fit a model that is one folder."""

    schemes: tuple[str, ...] = FOLDER_SCHEMES  # of the addresses that may fill it
    #: Names of the generation settings that engines of the role read; any other is refused.
    settings: Collection[str] = ()
    #: (address, generation settings of the role, resolve) → further models by part name. Raises ValueError that names
    #: the missing setting.
    companions: Callable[[ModelAddress, Mapping[str, Any], Resolve], Companions] = lambda address, settings, resolve: {}
    #: What a folder of our own layout holds inside and other checkpoints lack, part name → what to do where no setting
    #: names it. A repository of that layout on a hub can be named twice, as the role's address and in the setting.
    inside: Mapping[str, str] = field(default_factory=dict)
    how_to_get: str = ""  # a sentence for those who lack the model
    package: str = ""  # that the engine imports and an extra brings, by its import name
    extra: str = ""
    #: (address, companions) → identity, for what is no files of weights; None: a digest over the files of all parts.
    identity: Callable[[ModelAddress, Companions], ModelIdentity] | None = None


@cache
def needs_of(role: str) -> RoleNeeds:
    """The needs of a role; the defaults where its engine states none."""
    engine = importlib.import_module(f"curation_assets.engines.{role}")
    return getattr(engine, "NEEDS", RoleNeeds())


def why_not_installed(role: str) -> str | None:
    """A sentence where the package that every engine of a role imports is not installed; it is not imported."""
    needs = needs_of(role)
    if not needs.package or importlib.util.find_spec(needs.package) is not None:
        return None
    return f"role {role} needs the package {needs.package}, which is not installed; {install_extra(needs.extra)}"


def card_of(address: ModelAddress, name: str = "card.json") -> dict[str, Any]:
    """card.json, or another such file, of a model folder; {} where there is none."""
    path = local_folder(address) / name
    card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return card


def clip_text_encoder(role: str, address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`text_encoder`, unless the folder has its own: the setting's address, else the folder ../clip beside it."""
    folder = local_folder(address)
    if "text_encoder" in settings:
        return {"text_encoder": resolve(settings["text_encoder"])}
    if (folder / "text_encoder").is_dir():
        return {}
    if (folder.parent / "clip").is_dir():
        return {"text_encoder": resolve(f"path:{folder.parent / 'clip'}")}
    raise ValueError(
        f"{address.text} needs a CLIP text encoder and has neither text_encoder/ inside nor ../clip beside it; "
        f"name it in the profile: generation: {{{role}: {{text_encoder: 'hub:org/name@revision'}}}}"
    )
