"""Pools that may be removed: no release holds one, and no other pool compares with its images."""

from curation_assets.core.settings import Settings
from curation_assets.flow.graph import sound_and_broken
from curation_assets.sources.declaration import load_pool
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.releases import list_releases


def check_unused(settings: Settings, pool: str) -> None:
    """Raises ValueError that names the releases of a pool, and the pools whose option reference_images names it."""
    releases = [release.name for release in list_releases(settings.home, pool)]
    if releases:
        raise ValueError(
            f"pool {pool!r} cannot be removed: its releases {', '.join(releases)} hold it. Keep the pool, or move its "
            f"folder of {settings.home / 'releases'} away first"
        )
    sound, _ = sound_and_broken(settings)
    others = (load_pool(settings, name) for name in sound if name != pool)
    users = [other.name for other in others if SignalsOptions.of(other).reference_images == pool]
    if users:
        raise ValueError(
            f"pool {pool!r} cannot be removed: {', '.join(users)} compare with its images (option reference_images); "
            f"set another there first, such as `curate pool set {users[0]} reference_images=FOLDER`"
        )
