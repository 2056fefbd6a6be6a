"""What leaves a pool for people: exports, which are flagged and never rewritten, and thumbnails of `curate explore`."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.core.json_files import DamagedFileError
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Takedown
from curation_assets.flow.table import Tables
from curation_assets.outputs.explore import FOLDER as EXPLORE_FOLDER
from curation_assets.outputs.registry import ExportRecord, recorded_exports
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.damage import Check, Damage, changed_files, json_damages
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.documents import read_document, save_document
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.shard_store import MANIFEST_FILE
from curation_assets.stores.subsets import listed_samples

_ADVICE = "remove it: what it names is found again by `curate takedown apply`"
EXPORT_FLAG = "TAKEDOWN.json"  # in the folder of an export that holds a sample taken down since


class Exploration(Holder):
    """Thumbnails and captions of `curate explore`, which makes them again, without the samples."""

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        remove_path(ctx.store.root / EXPLORE_FOLDER)


class Exports(Holder):
    """Recorded exports."""

    turn = 2

    def certified(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> dict[str, Any]:
        return {"exports_flagged": flag_exports(ctx.settings.home, takedown)}

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterator[Check]:
        try:
            records = recorded_exports(ctx.settings.home, ctx.pool.name)
        except DamagedFileError:  # named with the other records
            return
        for record in records:
            if Path(record.folder).is_dir():
                yield partial(_export_damages, record)


def flag_exports(home: Path, takedown: Takedown) -> list[dict[str, Any]]:
    """Write EXPORT_FLAG into every recorded export that holds one of the samples; the export itself stays as it is.

    Copies on the hub are named, whether the folder that was pushed is still there or not.
    """
    ids = set(takedown.samples["sample_id"])
    flagged = []
    for record in recorded_exports(home, takedown.pool):
        folder, subset = Path(record.folder), Path(record.subset)
        if not folder.is_dir() and not record.pushed:
            continue
        is_listed = subset.is_file()
        found = (ids.intersection(part["sample_id"]) for part in listed_samples(subset)) if is_listed else [ids]
        holds = sorted(set().union(*found))
        if holds:
            flag = {"sample_ids": holds, "flagged_at": utc_now(), "is_certain": is_listed}
            if folder.is_dir():
                save_document(folder / EXPORT_FLAG, {**record.to_dict(), **flag})
            copies = {"pushed": list(record.pushed)} if record.pushed else {}
            flagged.append({"folder": str(folder), "samples": len(holds), **copies})
    return flagged


def flag_denied(home: Path) -> list[str]:
    """Flag recorded exports that list an id of the denylist, whether the pool has the sample or not; those that are
    flagged for all such ids stay as they are. Returns the folders that were flagged.
    """
    denylist, flagged = Denylist.load(home), []
    for record in recorded_exports(home) if denylist else ():
        path = Path(record.folder) / EXPORT_FLAG
        if path.parent.is_dir() and Path(record.subset).is_file():
            before = read_document(path, dict, advice=_ADVICE) or {}
            known = set(before.get("sample_ids", ()))
            parts = listed_samples(Path(record.subset))
            new = {one for part in parts for one in part.filter(denylist.denied(part))["sample_id"]} - known
            if new:
                flag = {"sample_ids": sorted(known | new), "flagged_at": utc_now(), "is_certain": True}
                save_document(path, {**record.to_dict(), **flag})
                flagged.append(record.folder)
    return flagged


def _export_damages(record: ExportRecord) -> Iterator[Damage]:
    folder = Path(record.folder)
    yield from json_damages(folder / EXPORT_FLAG, "export", _ADVICE)
    path, advice = folder / MANIFEST_FILE, "curate export it again into another folder"
    damage = Damage(path, "export", "", "", advice)
    if damaged := list(changed_files({path: record.manifest_sha256}, damage)):
        yield from damaged
        return
    listed = json.loads(path.read_text(encoding="utf-8"))["files"]
    yield from changed_files({folder / file["path"]: file["sha256"] for file in listed}, damage)
