"""Models, one file per role; `load_engine(role, profile)` is the one way in.

Model libraries are imported when an engine is loaded, never when this package is.
"""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import ROLES, Engine, ModelIdentity
from curation_assets.core.settings import Profile
from curation_assets.core.validation import check_known
from curation_assets.engines.addresses import ModelAddress, resolve_address
from curation_assets.engines.identities import companion_addresses, identity_of
from curation_assets.engines.needs import needs_of, why_not_installed

__all__ = [
    "EngineRequest",
    "ModelAddress",
    "ModelUnavailableError",
    "clear_engines",
    "identify_engine",
    "load_engine",
    "resolve_address",
]

DEFAULT_BATCH_SIZE = 64


@dataclass(frozen=True)
class EngineRequest:
    """What a role's module needs to build its engine."""

    role: str
    address: ModelAddress
    companions: Mapping[str, ModelAddress]  # part name → address, see `companion_addresses`
    settings: Mapping[str, Any]  # generation settings of the role
    batch_size: int
    device: str  # 'cpu' or 'cuda'
    identity: ModelIdentity

    def for_companion(
        self, role: str, sha256: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> "EngineRequest":
        """What loads the companion of that name, which fills the role of that name.

        `sha256`: of the weights that it must have. Raises ValueError where it has others.
        """
        address = self.companions[role]
        identity = identity_of(role, address, {})
        if sha256 not in (None, identity.weights_sha256):
            raise ValueError(
                f"{self.address.text}: fitted on {address.text} with weights {str(sha256)[:12]}, "
                f"got {identity.weights_sha256[:12]}; bring those weights back, or train or install "
                "this model again"
            )
        return replace(self, role=role, address=address, companions={}, settings=settings or {}, identity=identity)


_loaded: dict[tuple[Any, ...], Engine] = {}


def load_engine(role: str, profile: Profile, *, pool_models: Path | None = None) -> Engine:
    """The engine that fills `role` in `profile`, ready to answer; loaded once per process.

    `pool_models`: folder in which `pool:NAME` addresses are looked up. An engine is loaded anew when its
    files, settings, batch size or device change. Raises ValueError for a bad role, address or profile,
    ModelUnavailableError when weights are missing.
    """
    address, settings = _parse(role, profile, pool_models)
    device = resolve_device(profile.device)
    identity = identity_of(role, address, settings, pool_models)
    batch_size = profile.batch_size.get(role, DEFAULT_BATCH_SIZE)
    key = (role, identity, json.dumps(settings, sort_keys=True, default=str), batch_size, device)
    if key not in _loaded:
        companions = companion_addresses(role, address, settings, pool_models)
        module = importlib.import_module(f"curation_assets.engines.{role}")
        _loaded[key] = module.load(EngineRequest(role, address, companions, settings, batch_size, device, identity))
    return _loaded[key]


def identify_engine(role: str, profile: Profile, pool_models: Path | None = None) -> ModelIdentity:
    """Identity of the engine that would fill `role`, without loading it (hashes are remembered per file).

    Equal to `load_engine(...).identity`. Raises as `load_engine` does.
    """
    address, settings = _parse(role, profile, pool_models)
    return identity_of(role, address, settings, pool_models)


def clear_engines() -> None:
    """Forget the loaded engines, so that their memory can be freed."""
    _loaded.clear()


def resolve_device(device: str) -> str:
    """'auto' → 'cuda' where available, else 'cpu'. Raises ValueError for 'cuda' on a machine without one."""
    if device == "cpu":
        return device
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("the profile sets device 'cuda' and torch sees none; use device: auto or cpu")
    return "cuda" if torch.cuda.is_available() else "cpu"


def _parse(role: str, profile: Profile, pool_models: Path | None) -> tuple[ModelAddress, Mapping[str, Any]]:
    if role not in ROLES:
        raise ValueError(f"no role {role!r}; roles: {', '.join(ROLES)}")
    if (why := why_not_installed(role)) is not None:
        raise ModelUnavailableError(why)
    address, schemes = resolve_address(profile.address(role), pool_models), needs_of(role).schemes
    settings = dict(profile.generation.get(role, {}))
    check_known(f"profile {profile.name}: generation.{role}", "setting", settings, needs_of(role).settings)
    if address.scheme not in schemes:
        others = [other for other in ROLES if address.scheme in needs_of(other).schemes]
        raise ValueError(
            f"role {role!r} takes {', '.join(f'{scheme}:' for scheme in schemes)} addresses, got {address.text!r}; "
            f"{address.scheme}: fills {', '.join(others)} only"
        )
    return address, settings
