"""Which exports were made where: one line each, so that a takedown can flag them."""

import json
from pathlib import Path
from typing import Any

from curation_assets.stores.manifest import utc_now

EXPORTS_FILE = "exports.jsonl"  # under home: one line per export


# -- exports ----------------------------------------------------------------------------------------------------------


def record_export(home: Path, pool: str, folder: Path, subset: Path) -> None:
    """Remember an export, so that a takedown can flag it. `subset`: a `.npy` of its sample_ids (u8,u8)."""
    line = json.dumps({"pool": pool, "folder": str(folder), "subset": str(subset), "written_at": utc_now()})
    home.mkdir(parents=True, exist_ok=True)
    with (home / EXPORTS_FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def recorded_exports(home: Path) -> list[dict[str, Any]]:
    """Every export of `record_export`, oldest first."""
    path = home / EXPORTS_FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
