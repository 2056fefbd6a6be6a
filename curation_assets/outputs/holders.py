"""What leaves a pool for people: exports, which are flagged and never rewritten, and thumbnails of `curate explore`."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Takedown
from curation_assets.flow.table import Table
from curation_assets.outputs.explore import FOLDER as EXPLORE_FOLDER
from curation_assets.outputs.registry import ExportRecord, recorded_exports
from curation_assets.stores.atomic import remove_path, write_text_atomically
from curation_assets.stores.damage import NO_FILE, Check, Damage
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.shard_store import MANIFEST_FILE
from curation_assets.stores.subsets import read_subset_npy

EXPORT_FLAG = "TAKEDOWN.json"  # in the folder of an export that holds a sample taken down since


class Exploration(Holder):
    """Thumbnails and captions of `curate explore`, which makes them again, without the samples."""

    def purge(self, ctx: PoolContext, tables: Mapping[str, Table], takedown: Takedown) -> None:
        remove_path(ctx.store.root / EXPLORE_FOLDER)


class Exports(Holder):
    """Recorded exports."""

    turn = 2

    def certified(self, ctx: PoolContext, tables: Mapping[str, Table], takedown: Takedown) -> dict[str, Any]:
        return {"exports_flagged": flag_exports(ctx.settings.home, takedown)}

    def checks(self, ctx: PoolContext, tables: Mapping[str, Table]) -> Iterator[Check]:
        for record in recorded_exports(ctx.settings.home, ctx.pool.name):
            if Path(record.folder).is_dir():
                yield partial(_export_damages, record)


def flag_exports(home: Path, takedown: Takedown) -> list[dict[str, Any]]:
    """Write EXPORT_FLAG into every recorded export that holds one of the samples; the export itself stays as it is."""
    ids = set(takedown.samples["sample_id"])
    flagged = []
    for record in recorded_exports(home, takedown.pool):
        folder, subset = Path(record.folder), Path(record.subset)
        if not folder.is_dir():
            continue
        holds = sorted(ids & set(read_subset_npy(subset))) if subset.is_file() else sorted(ids)
        if holds:
            flag = {"sample_ids": holds, "flagged_at": utc_now(), "is_certain": subset.is_file()}
            write_text_atomically(folder / EXPORT_FLAG, json.dumps({**record.to_dict(), **flag}, indent=1))
            flagged.append({"folder": str(folder), "samples": len(holds)})
    return flagged


def _export_damages(record: ExportRecord) -> Iterator[Damage]:
    folder = Path(record.folder)
    path, advice = folder / MANIFEST_FILE, "curate export it again into another folder"
    got = sha256_now(path) if path.is_file() else NO_FILE
    if got != record.manifest_sha256:
        yield Damage(path, "export", record.manifest_sha256, got, advice)
        return
    for file in json.loads(path.read_text(encoding="utf-8"))["files"]:
        name, expected = folder / file["path"], file["sha256"]
        got = sha256_now(name) if name.is_file() else NO_FILE
        if got != expected:
            yield Damage(name, "export", expected, got, advice)
