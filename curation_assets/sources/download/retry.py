"""Some rows of a downloaded shard fetched again; every other image stays in its tar, byte for byte.

Which rows is written beside the shard's folder first, so that a run that is killed leaves it to the next one.
"""

import json
import shutil
import tarfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.json_files import read_json
from curation_assets.core.settings import shard_number
from curation_assets.sources.download.download import RECEIPT_FILE, REPAIR, read_refused, write_receipt
from curation_assets.sources.download.fetch_shard import MAX_ROWS
from curation_assets.stores.atomic import finish_swap, remove_path, swap_folder
from curation_assets.stores.documents import save_document, save_json
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.tar_writing import rewrite_tar
from curation_assets.stores.temporary import temporary_path

#: (requested rows, folder for shards, advance=…) → one row per input row: `download_shard` of a pool and a shard.
Fetch = Callable[..., pl.DataFrame]


def request_retry(out_dir: Path, shard_key: str, sample_ids: Collection[str]) -> None:
    """Ask the next `download_with_retries` of a shard to fetch these rows again, those of them that failed."""
    save_document(_request(out_dir, shard_key), sorted(sample_ids))


def download_with_retries(
    rows: pl.DataFrame, out_dir: Path, shard_key: str, fetch: Fetch, advance: Callable[[int], None] | None = None
) -> pl.DataFrame:
    """What `fetch` gives of the rows of a shard; where a retry was requested, after fetching its rows again."""
    final, request = out_dir / shard_key, _request(out_dir, shard_key)
    finish_swap(final)
    outcome = fetch(rows, out_dir, advance=advance)
    if not request.is_file():
        return outcome
    listed = read_json(request, list, advice="remove the file, and run `curate retry` again")
    failed = outcome.filter(pl.col("sample_id").is_in(listed) & (pl.col("status") == "failed"))["sample_id"]
    again = rows.filter(pl.col("sample_id").is_in(failed.implode()))
    if again.height:
        fetched, merged = temporary_path(final), temporary_path(final)
        try:
            fetch(again, fetched, advance=None)
            shutil.copytree(final, merged)
            _merge(merged, fetched / shard_key, f"{shard_number(shard_key):06d}", again["sample_id"].to_list())
            swap_folder(merged, final)
        finally:
            remove_path(fetched)
            remove_path(merged)
        outcome = fetch(rows, out_dir, advance=None)
    remove_path(request)
    return outcome


def _request(out_dir: Path, shard_key: str) -> Path:
    return out_dir / f".{shard_key}.retry.json"


def _merge(folder: Path, fetched: Path, name: str, sample_ids: list[str]) -> None:
    """Put rows of `fetched`, by their ids, in place of those in `folder`; members take the keys that the rows had."""
    table, tar = folder / f"{name}.parquet", folder / f"{name}.tar"
    refused = {path: read_refused(path) for path in (folder, fetched)}
    kept = {key: message for key, message in refused[folder].items() if key not in sample_ids}
    save_json(folder / "refused.json", kept | refused[fetched])
    if (fetched / f"{name}.parquet").is_file():
        new = read_parquet(fetched / f"{name}.parquet")
        old = read_parquet(table) if table.is_file() else new.clear()
        keys = _keys(old, new["uid"].to_list(), name)
        renamed = dict(zip(new["key"], new["uid"].replace_strict(keys, return_dtype=pl.String), strict=True))
        new = new.with_columns(pl.col("key").replace_strict(renamed, return_dtype=pl.String))
        rest = old.filter(~pl.col("uid").is_in(new["uid"].implode()))
        pl.concat([rest, new], how="diagonal_relaxed").sort("key").write_parquet(table)
        if not tar.is_file():
            tarfile.open(tar, "w").close()
        replaced = set(renamed.values())
        rewrite_tar(
            tar,
            drop=lambda member, _: member.partition(".")[0] in replaced,
            add=_members(fetched / f"{name}.tar", renamed),
        )
        (folder / f"{name}_stats.json").unlink(missing_ok=True)  # its counts are no longer those of the tar
    receipt = read_json(folder / RECEIPT_FILE, dict, advice=REPAIR)
    write_receipt(folder, receipt["request_sha256"])


def _keys(old: pl.DataFrame, sample_ids: list[str], name: str) -> dict[str, str]:
    """sample_id → its key in `old`, or the first that is free."""
    known = dict(zip(old["uid"], old["key"], strict=True))
    taken = set(known.values())
    free = (key for number in range(MAX_ROWS) if (key := f"{name}{number:04d}") not in taken)
    return {sample_id: known.get(sample_id) or next(free) for sample_id in sample_ids}


def _members(path: Path, renamed: dict[str, str]) -> dict[str, bytes]:
    """New name → bytes of every member of a fetched tar."""
    members = {}
    with tarfile.open(path) as tar:
        for info in tar:
            file = tar.extractfile(info)
            key, _, extension = info.name.partition(".")
            if file is None or key not in renamed:
                continue
            data = file.read()
            if extension == "json":
                facts: dict[str, Any] = json.loads(data)
                data = json.dumps(facts | {"key": renamed[key]}, indent=4).encode()
            members[f"{renamed[key]}.{extension}"] = data
    return members
