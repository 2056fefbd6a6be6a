"""What lies on this machine of the models that a profile names, found without a network and without loading a model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import Profile
from curation_assets.engines.addresses import SCHEMES, ModelAddress, resolve_address
from curation_assets.engines.identities import companion_addresses, folder_files
from curation_assets.engines.needs import needs_of, why_not_installed
from curation_assets.engines.open_clip_weights import cached_open_clip_weights

#: here: on this disk; fetch: from a hub, at first use; gated: the same, for accounts that accepted a licence;
#: made: trained by this pool itself; missing: somebody has to bring it.
State = Literal["here", "fetch", "gated", "made", "missing"]
#: Owners on the hub whose repositories ask for an accepted licence, as far as this project names any.
GATED_OWNERS = ("meta-llama",)


@dataclass(frozen=True)
class Part:
    """One model, or one part beside it, that filling a role takes."""

    name: str  # '' for the model itself, else the companion: bridge, text_encoder, …
    address: str
    state: State
    size: int | None = None  # bytes on this disk; None: not here
    advice: str = ""  # what to do about what is gated or missing


def parts_of(role: str, profile: Profile, pool_models: Path | None = None) -> list[Part]:
    """The model that fills `role` and its companions. Raises ValueError for an unknown role."""
    needs, text = needs_of(role), profile.roles.get(role)
    if text is None:
        advice = f"profile {profile.name!r} fills no role {role}; add roles: {{{role}: ADDRESS}}"
        return [Part("", "", "missing", advice=advice)]
    if (why := why_not_installed(role)) is not None:
        return [Part("", text, "missing", advice=why)]
    settings = dict(profile.generation.get(role, {}))
    model = part_at("", text, pool_models)
    if model.state == "missing" and needs.how_to_get:
        model = replace(model, advice=f"{model.advice}. {needs.how_to_get}")
    if model.state != "here":
        named = {name: value for name, value in settings.items() if _is_address(value)}
        lacking = {} if model.state == "missing" else {n: a for n, a in needs.inside.items() if n not in named}
        return [
            model,
            *(part_at(name, value, pool_models) for name, value in named.items()),
            *(Part(name, "", "missing", advice=advice) for name, advice in lacking.items()),
        ]
    address = resolve_address(text, pool_models)
    if address.scheme == "hub":
        address = replace(address, folder=cached_snapshot(address))
    return [model, *_companions(role, address, settings, pool_models)]


def _companions(role: str, address: ModelAddress, settings: Mapping[str, Any], pool_models: Path | None) -> list[Part]:
    made = {name: value for name, value in settings.items() if str(value).startswith("pool:")}
    parts = [part_at(name, value, pool_models) for name, value in made.items()]
    if any(part.state == "made" for part in parts):  # the others cannot be resolved before it is there
        rest = {name: value for name, value in settings.items() if name not in made and _is_address(value)}
        return [*parts, *(part_at(name, value, pool_models) for name, value in rest.items())]
    try:
        companions = companion_addresses(role, address, settings, pool_models)
    except (ModelUnavailableError, ValueError) as error:
        return [Part("companion", "", "missing", advice=str(error))]
    return [part_at(name, companion.text, pool_models) for name, companion in companions.items()]


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and value.partition(":")[0] in SCHEMES


def part_at(name: str, text: str, pool_models: Path | None = None) -> Part:
    """What an address stands for on this machine."""
    try:
        address = resolve_address(text, pool_models)
        if address.scheme == "open_clip":
            file = cached_open_clip_weights(address)
            return Part(name, text, "fetch") if file is None else Part(name, text, "here", file.stat().st_size)
    except (ModelUnavailableError, ValueError) as error:
        return Part(name, text, "made") if text.startswith("pool:") else Part(name, text, "missing", advice=str(error))
    if address.scheme == "hub":
        folder = cached_snapshot(address)
        if folder is None and address.name.partition("/")[0] in GATED_OWNERS:
            advice = f"accept the licence of {address.name} on its page of the hub, then log in (hf auth login)"
            return Part(name, text, "gated", advice=advice)
        return Part(name, text, "fetch") if folder is None else Part(name, text, "here", _size(folder))
    return Part(name, text, "here", None if address.folder is None else _size(address.folder))


def cached_snapshot(address: ModelAddress) -> Path | None:
    """Folder of a hub address in the hub's cache; None where it is not there, or not all of its weights are."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(address.name, revision=address.revision, local_files_only=True))
    except (OSError, ValueError):  # not in the cache, or no name of a repository
        return None
    wanted = {
        index.parent / file
        for index in folder.rglob("*.safetensors.index.json")
        for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    }
    is_whole = any(folder.rglob("*.safetensors")) and all(file.is_file() for file in wanted)
    return folder if is_whole else None


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder_files(folder).values())
