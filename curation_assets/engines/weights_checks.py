"""Weights that lie on this disk against their pinned hashes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import Profile
from curation_assets.engines.addresses import SCHEMES, ModelAddress, embedded_names, pins_of, resolve_address
from curation_assets.engines.packages import PINNED_MODELS
from curation_assets.engines.pins import damaged_weights
from curation_assets.engines.presence import cached_snapshot
from curation_assets.stores.damage import Check, Damage


def shipped_weights() -> Iterator[Check]:
    """All weights that ship with this package, and those of installed packages that are pinned."""
    texts = [f"embedded:{name}" for name in embedded_names()]
    texts += [f"{scheme}:{name}" for scheme, models in PINNED_MODELS.items() for name in models]
    return (check for text in texts for check in _weights_at(text))


def weights_of_profile(profile: Profile) -> Iterator[Check]:
    """The models of a profile that lie on this disk; what the pool trains itself is among its folders."""
    settings = [value for of_role in profile.generation.values() for value in of_role.values()]
    texts = [*profile.roles.values(), *(value for value in settings if isinstance(value, str))]
    for text in sorted({text for text in texts if text.partition(":")[0] in SCHEMES and not text.startswith("pool:")}):
        yield from _weights_at(text)


def _weights_at(text: str) -> Iterator[Check]:
    try:
        address = resolve_address(text)
        folder = cached_snapshot(address) if address.scheme == "hub" else address.folder
    except (ModelUnavailableError, ValueError):
        return  # not on this disk
    if folder is not None:
        yield partial(_weight_damages, address, folder)


def _weight_damages(address: ModelAddress, folder: Path) -> Iterator[Damage]:
    try:
        for file in damaged_weights(folder, *pins_of(address), fresh=True):
            yield Damage(file.path, "weights", file.expected, file.got, f"{address.text}: {file.advice}")
    except ModelUnavailableError as error:
        yield Damage(folder, "weights", "files with a pinned sha256", "no list of them", str(error))
