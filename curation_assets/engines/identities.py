"""Identities: which weights would answer, found by hashing files and without loading a model."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines.addresses import ModelAddress, local_folder, resolve_address

#: Files that do not change what a model answers.
UNHASHED_SUFFIXES = (".md", ".gitattributes", ".py", ".pyc", ".lock")
SHA256 = re.compile(r"^[0-9a-f]{64}$")


def file_sha256(path: Path) -> str:
    """sha256 of a file, remembered by (path, size, modification time)."""
    real = path.resolve()
    # In the hub cache large files are links to blobs that are named by their own sha256 (checked at
    # download).
    if path.is_symlink() and real.parent.name == "blobs" and SHA256.match(real.name):
        return real.name
    stat = real.stat()
    return _hash_file(str(real), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _hash_file(path: str, size: int, modified_ns: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    """Further models that a role needs beside its own folder, by part name.

    text_to_image: `text_encoder`, unless the folder has its own. semantic_decoder: `text_encoder` and
    `bridge`. student on frozen embeddings and sentence_bottleneck: `sentence_encoder`, as the card says;
    scene_bank: `sentence_encoder`, embedded:minilm by default. An address in the role's
    generation settings (`text_encoder:`, `bridge:`) wins; else the sibling folder `../clip`, else the
    folder itself (bridge). Raises ValueError that names the missing setting.
    """
    if role == "student":
        card = _card_of(address)
        if card.get("sentence_encoder"):
            return {"sentence_encoder": resolve_address(card["sentence_encoder"], pool_models)}
        return {}
    if role in ("scene_bank", "sentence_bottleneck"):
        card = _card_of(address) if role == "sentence_bottleneck" else {}
        named = settings.get("sentence_encoder") or card.get("sentence_encoder") or "embedded:minilm"
        return {"sentence_encoder": resolve_address(named, pool_models)}
    if role == "lexicon":
        lists = {"polarity": "embedded:vader", "profanity": "embedded:better-profanity"}
        named = {part: settings.get(part, own) for part, own in lists.items()}
        return {part: resolve_address(text, pool_models) for part, text in named.items() if text is not None}
    if role == "reward_model":
        config = json.loads((local_folder(address) / "config.json").read_text())
        text = str(config["pair_encoder"])
        if text.startswith("../"):  # shipped beside it
            text = f"path:{local_folder(address) / text}"
        return {"pair_encoder": resolve_address(text, pool_models)}
    if role == "object_detector":
        return _detector_companions(address, settings, pool_models)
    if role not in ("text_to_image", "semantic_decoder"):
        return {}
    folder = local_folder(address)
    found: dict[str, ModelAddress] = {}
    if role == "semantic_decoder" and "bridge" in settings:
        found["bridge"] = resolve_address(settings["bridge"], pool_models)
    elif role == "semantic_decoder" and not (folder / "bridge.safetensors").is_file():
        raise ValueError(
            f"{address.text} holds no bridge.safetensors (the linear layer from CLIP to the language model); "
            "train one (curate icc train-bridge, or a pool's option train_sba: true), or name its folder: "
            "generation: {semantic_decoder: {bridge: 'path:/folder'}}"
        )
    if "text_encoder" in settings:
        found["text_encoder"] = resolve_address(settings["text_encoder"], pool_models)
    elif (folder.parent / "clip").is_dir() and not (folder / "text_encoder").is_dir():
        found["text_encoder"] = resolve_address(f"path:{folder.parent / 'clip'}")
    elif not (folder / "text_encoder").is_dir():
        raise ValueError(
            f"{address.text} needs a CLIP text encoder and has neither text_encoder/ inside nor ../clip beside it; "
            f"name it in the profile: generation: {{{role}: {{text_encoder: 'hub:org/name@revision'}}}}"
        )
    return found


def _detector_companions(
    address: ModelAddress, settings: Mapping[str, Any], pool_models: Path | None
) -> dict[str, ModelAddress]:
    """The image tower beside a folder of patch labels; for a list of labels, the encoder that its settings name."""
    place = local_folder(address)
    if place.is_file():
        if "image_text_encoder" not in settings:
            raise ValueError(
                f"{address.text} is a list of labels: name the model that finds them in the profile, "
                "generation: {object_detector: {image_text_encoder: 'embedded:clip'}}"
            )
        return {"image_text_encoder": resolve_address(settings["image_text_encoder"], pool_models)}
    config_path = place / "config.json"
    tower = json.loads(config_path.read_text()).get("tower") if config_path.is_file() else None
    return {} if tower is None else {"tower": resolve_address(f"path:{place / tower}", pool_models)}


def _card_of(address: ModelAddress) -> dict[str, Any]:
    """card.json of a model folder, {} where there is none."""
    path = local_folder(address) / "card.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def identity_of(
    role: str, address: ModelAddress, settings: Mapping[str, Any], pool_models: Path | None = None
) -> ModelIdentity:
    """Identity of what fills `role`: the sha256 covers the companions' files as well.

    A hub repository is pinned by its commit, so only its .safetensors enter the hash; everywhere else every
    file counts, because editing a tokenizer changes answers too.
    """
    if address.scheme == "open_clip":
        return ModelIdentity(address.text, address.revision, digest_files(_open_clip_files("open_clip", address)))
    if address.scheme == "bank":
        return _bank_identity(address, companion_addresses(role, address, settings, pool_models)["sentence_encoder"])
    files: dict[str, Path | str] = {}
    folder = local_folder(address)
    parts = {"": address, **companion_addresses(role, address, settings, pool_models)}
    for part, part_address in parts.items():
        if part_address.scheme == "open_clip":
            files |= _open_clip_files(part, part_address)
            continue
        is_hub = part_address.scheme == "hub"
        for name, path in folder_files(local_folder(part_address), only_weights=is_hub).items():
            files[f"{part}/{name}" if part else name] = path
    if not files:
        raise ValueError(f"{address.text}: folder {folder} holds no model files")
    # the hub cache keeps each snapshot in a folder named by its commit
    revision = folder.name if address.scheme == "hub" else address.revision
    return ModelIdentity(address.text, revision, digest_files(files))


def _open_clip_files(part: str, address: ModelAddress) -> dict[str, Path | str]:
    from curation_assets.engines.open_clip_weights import open_clip_weights

    return {part: open_clip_weights(address)}


def _bank_identity(address: ModelAddress, encoder: ModelAddress) -> ModelIdentity:
    """A bank is its captions and the encoder that compares them."""
    from curation_assets.world.bank.captions import bank_captions, captions_sha256

    encoder_sha256 = identity_of("sentence_encoder", encoder, {}).weights_sha256
    lines = f"captions\t{captions_sha256(bank_captions(address.folder))}\nsentence_encoder\t{encoder_sha256}"
    return ModelIdentity(address.text, address.revision, hashlib.sha256(lines.encode()).hexdigest())


def digest_files(files: Mapping[str, Path | str]) -> str:
    """sha256 over the sorted lines 'name<TAB>file sha256'."""
    lines = [f"{name}\t{file_sha256(Path(os.fspath(path)))}" for name, path in sorted(files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
