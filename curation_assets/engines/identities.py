"""Identities: which weights would answer, found by hashing files and without loading a model."""

import hashlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines.addresses import ModelAddress, local_folder, resolve_address
from curation_assets.engines.needs import needs_of
from curation_assets.engines.open_clip_weights import open_clip_weights
from curation_assets.engines.pins import UNHASHED_SUFFIXES
from curation_assets.stores.file_hash import PACKED, unpacked_sha256


def folder_files(folder: Path, only_weights: bool = False) -> dict[str, Path]:
    """Relative name → path of the files that define the model in `folder`, sorted by name."""
    if folder.is_file():
        return {folder.name: folder}
    files = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if not path.is_file() or is_hidden or path.name.endswith(UNHASHED_SUFFIXES):
            continue
        if only_weights and path.suffix != ".safetensors":
            continue
        files[relative.as_posix()] = path
    return files


def companion_addresses(
    role: str, address: ModelAddress, settings: Mapping[str, Any], pool_models: Path | None = None
) -> dict[str, ModelAddress]:
    """Further models that a role needs beside its own folder, by part name (see `needs.py`).

    Raises ValueError that names the missing setting.
    """
    return needs_of(role).companions(address, settings, partial(resolve_address, pool_models=pool_models))


def identity_of(
    role: str, address: ModelAddress, settings: Mapping[str, Any], pool_models: Path | None = None
) -> ModelIdentity:
    """Identity of what fills `role`: the sha256 covers the companions' files as well.

    A hub repository is pinned by its commit, so only its .safetensors enter the hash; everywhere else every
    file counts, because editing a tokenizer changes answers too.
    """
    needs, companions = needs_of(role), companion_addresses(role, address, settings, pool_models)
    if needs.identity is not None:
        return needs.identity(address, companions)
    files: dict[str, Path | str] = {}
    for part, part_address in {"": address, **companions}.items():
        if part_address.scheme == "open_clip":
            files[part or "open_clip"] = open_clip_weights(part_address)
            continue
        is_hub = part_address.scheme == "hub"
        for name, path in folder_files(local_folder(part_address), only_weights=is_hub).items():
            if part_address.files is not None and name not in part_address.files:
                continue  # a package may hold other models beside this one
            files[f"{part}/{name}" if part else name] = path
    if not files:
        raise ValueError(f"{address.text}: folder {local_folder(address)} holds no model files")
    # the hub cache keeps each snapshot in a folder named by its commit
    revision = local_folder(address).name if address.scheme == "hub" else address.revision
    return ModelIdentity(address.text, revision, digest_files(files))


def digest_files(files: Mapping[str, Path | str]) -> str:
    """sha256 over the sorted lines 'name<TAB>file sha256'; NAME.xz counts as the NAME that it holds."""
    named = {name.removesuffix(PACKED): Path(os.fspath(path)) for name, path in files.items()}
    lines = [f"{name}\t{unpacked_sha256(path)}" for name, path in sorted(named.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
