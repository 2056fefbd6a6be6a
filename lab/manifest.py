"""Stage `manifest`: hashes of all shipped files, with how each model was made and what it measured.

The engines compare every file with them before it is used (engines/pins.py).
"""

import json
import os
from pathlib import Path
from typing import Any

from curation_assets.core.seal import FIELD, UNSEALED, sealed_text
from curation_assets.stores.file_hash import file_sha256
from lab.common import Setup

REBUILD = (
    "python -m lab --out DIR follows these recipes and seeds; the bytes differ from machine "
    "to machine, and the first rounds of captioner and text_to_image shipped here ran under other random streams."
)
# shipped folder -> the stages that made it
MADE_BY = {
    "clip": ("tokenizer", "vision", "clip"),
    "captioner": ("tokenizer", "vision", "captioner"),
    "text_to_image": ("text_to_image",),
    "semantic_decoder": ("tokenizer", "language_model", "semantic_decoder"),
    "icc_student": ("real_student",),
    "icc_student_static": ("static_student",),
    "icc_student_multilingual": ("multilingual_student",),
    "sentence_bottleneck": ("real_student",),
    "parser": ("parser",),
    "object_detector": ("object_detector",),
    "reward_model": ("reward_model",),
    "reward_photos": ("reward_photos",),
    "scene_bank": ("scene_bank",),
    "image_kind": ("image_kind",),
    "photo_pair": ("photo_pair",),
    "nearest_captions": ("photo_pair",),
    "nearest_photo": ("photo_pair",),
}


def files_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative path -> sha256 and size, sorted; hidden files left out."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {str(p.relative_to(folder)): {"sha256": file_sha256(p), "bytes": p.stat().st_size} for p in paths}


def run(setup: Setup) -> None:
    """Writes OUT/manifest.json. Notes of stages not run in this work folder are kept from the manifest before."""
    path = setup.out / "manifest.json"
    before = json.loads(path.read_text()) if path.exists() else {"models": {}}
    models: dict[str, Any] = {}
    for name, stages in MADE_BY.items():
        made = dict(before["models"].get(name, {}).get("stages", {}))
        for stage in stages:
            note = setup.work / f"note_{stage}.json"
            if note.exists():
                script = f"lab/{stage}.py"
                made[stage] = {"script": script, **json.loads(note.read_text())}
        seconds = sum(s["recipe"].get("cpu_seconds", 0) for s in made.values())
        models[name] = {"files": files_of(setup.out / name), "stages": made, "training_cpu_seconds": round(seconds, 1)}
    size = sum(f["bytes"] for m in models.values() for f in m["files"].values())
    content = {
        "format": 1,
        "rebuild": REBUILD,
        "dtype_stored": "float16",
        "dtype_loaded": "float32",
        "bytes": size,
        "models": models,
        FIELD: UNSEALED,
    }
    temporary = path.with_name(f".manifest.{os.getpid()}")
    temporary.write_text(sealed_text(json.dumps(content, indent=2, sort_keys=True) + "\n"))
    os.replace(temporary, path)
    print(f"{size / 1e6:.1f} MB in {sum(len(m['files']) for m in models.values())} files")
