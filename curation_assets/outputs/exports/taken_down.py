"""An export that somebody holds, wherever it lies, loses the samples of the denylist.

Exports are flagged by a takedown and stay as they are (outputs/holders.py). Where a person names a folder, its files
are rewritten, and its manifest and lists state what a new export would: fewer samples, those missing as taken down.
The flag is written first and names them, so that a call that was killed is finished by the next.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curation_assets.core.json_files import read_json
from curation_assets.numeric.identity import as_pairs, pack_uids
from curation_assets.outputs.exports.card import CARD, card_text
from curation_assets.outputs.exports.credits import CREDITS
from curation_assets.outputs.exports.manifest import MANIFEST, MISSING
from curation_assets.outputs.exports.subset import MISSING_SCHEMA, NOTHING_MISSING, facts_of_rows, missing_counts
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.outputs.registry import SAMPLE_IDS, record_export, recorded_exports
from curation_assets.selection.cut import NO_ID
from curation_assets.stores.atomic import remove_all_stale, replacing
from curation_assets.stores.damaged_tables import sound_parts
from curation_assets.stores.denylist import COLUMNS, TAKEDOWN, Denylist
from curation_assets.stores.documents import read_document, save_document, save_json, save_text
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.lease import filling_folder
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.subsets import listed_samples, packed_ids
from curation_assets.stores.tar_writing import rewrite_tar
from curation_assets.stores.text_tables import read_parts, unescaped, write_text_parts, write_text_table

_ADVICE = "name the folder of an export (webdataset, hf or npy), whole and as it was written"
#: Formats that hold no image: writing them again takes seconds.
_NOT_REWRITTEN = {"keys": "has no ids to take them out by", "index": "is not rewritten in part"}
_TAKEN_DOWN = pl.lit(f"dropped:{TAKEDOWN}")  # why a sample is missing


def take_out(home: Path, folder: Path) -> list[str]:
    """Remove what the home's denylist knows from an export's folder; returns the sample_ids, none where it holds none.

    Raises ValueError for a folder that is no export, whose files are not those of its manifest, or that lists keys of
    other tars or ranges in them (formats keys and index); then nothing is changed. PoolHeldError where another
    command writes there.
    """
    folder = Path(folder).expanduser().resolve()
    with filling_folder(folder, "curate takedown apply --export", on_notice=lambda sentence: None):
        manifest = read_json(_file(folder, MANIFEST), _checked_manifest, advice=_ADVICE)
        begun = _begun(folder)
        found = _found(folder, manifest, Denylist.load(home))
        if not found and begun is None:
            return []
        ids = sorted({*found, *(begun or {}).get("sample_ids", ())})
        if (why := _NOT_REWRITTEN.get(manifest["format"])) is not None:
            raise ValueError(
                f"{folder}: {len(ids)} of its samples are taken down, and format {manifest['format']!r} {why}; export "
                "it again"
            )
        if begun is None:
            _check_files(folder, manifest)
        remove_all_stale(folder)
        before = _flag(folder)
        flag = {
            **before,
            "sample_ids": sorted({*before.get("sample_ids", ()), *ids}),
            "flagged_at": (begun or {}).get("flagged_at", utc_now()),
            "is_certain": True,
            "is_taken_out": False,
        }
        save_document(folder / EXPORT_FLAG, flag)
        _rewrite(folder, manifest, ids, flag)
        save_document(folder / EXPORT_FLAG, {**flag, "is_taken_out": True})
        for record in recorded_exports(home):
            if Path(record.folder).resolve() == folder:
                digest = sha256_now(folder / MANIFEST)
                record_export(home, replace(record, samples=manifest["counts"]["written"], manifest_sha256=digest))
        return ids


def check_whole(folder: Path) -> dict[str, Any]:
    """The manifest of an export's folder whose files are those that it lists. Raises ValueError as `take_out`."""
    manifest = read_json(_file(folder, MANIFEST), _checked_manifest, advice=_ADVICE)
    _check_files(folder, manifest)
    return manifest


def denied_samples(home: Path, folder: Path) -> set[str]:
    """sample_ids of an export's folder that the home's denylist knows. Raises ValueError for a folder that is none."""
    return _found(folder, read_json(_file(folder, MANIFEST), _checked_manifest, advice=_ADVICE), Denylist.load(home))


# -- what is there ----------------------------------------------------------------------------------------------------


def _checked_manifest(content: dict[str, Any]) -> dict[str, Any]:
    """What is read of a manifest, where it is there and of its type."""
    for file in content["files"]:
        if not (isinstance(file["path"], str) and isinstance(file["sha256"], str)):
            raise TypeError(f"got {file!r}, expected a file with path and sha256")
    numbers = [content["counts"][name] for name in ("asked", "written", "missing", "entries")]
    if not all(type(number) is int for number in numbers) or not isinstance(content["subset"], dict):
        raise TypeError("expected whole numbers as counts, and facts of the subset")
    return {**content, "format": str(content["format"])}


def _file(folder: Path, name: str) -> Path:
    """A file of the folder. Raises ValueError for one outside, a link, or none."""
    path = folder / name
    if not path.is_file() or path.is_symlink() or not path.resolve().is_relative_to(folder):
        raise ValueError(f"{path} is no file of an export; {_ADVICE}")
    return path


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise ValueError unless every file is what the manifest lists: what is known of it is of those bytes."""
    listed = {file["path"] for file in manifest["files"]}
    tables = {name.removesuffix(".tar") + ".parquet" for name in listed if name.endswith(".tar")}
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if not path.is_dir()}
    if unknown := sorted(present - listed - {MANIFEST, EXPORT_FLAG} | ({SAMPLE_IDS, *tables} - listed)):
        raise ValueError(
            f"{folder}: {MANIFEST} does not list {', '.join(unknown[:5])}; nothing was taken out. {_ADVICE}"
        )
    for file in manifest["files"]:
        got = sha256_now(_file(folder, file["path"]))
        if got != file["sha256"]:
            raise ValueError(
                f"{folder / file['path']} is not what {MANIFEST} lists (sha256 {file['sha256']}, got {got}); nothing "
                "was taken out"
            )


def _flag(folder: Path) -> dict[str, Any]:
    path = folder / EXPORT_FLAG
    advice = "remove it: what it names is found again"
    return read_document(path, dict, advice=advice) or {}


def _begun(folder: Path) -> dict[str, Any] | None:
    """The flag of a call that was killed."""
    flag = _flag(folder)
    return flag if flag.get("is_taken_out") is False else None


def _tables(folder: Path, manifest: Mapping[str, Any]) -> dict[str, tuple[Path, str]]:
    """Name → path, column of the ids, of the tables that list samples."""
    found = {}
    for name in (file["path"] for file in manifest["files"] if file["path"].endswith(".parquet")):
        columns = pq.read_schema(_file(folder, name)).names
        column = next((one for one in ("sample_id", "uid") if one in columns), None)
        if column is not None:
            found[name] = (folder / name, column)
    return found


def _found(folder: Path, manifest: Mapping[str, Any], denylist: Denylist) -> set[str]:
    """sample_ids of the export that the denylist knows, by whatever the tables say of them."""
    found = set[str]()
    for rows in _rows_that_tell(folder, manifest):
        found.update(rows.filter(denylist.denied(rows))["sample_id"])
    return found


def _rows_that_tell(folder: Path, manifest: Mapping[str, Any]) -> Iterator[pl.DataFrame]:
    """All that the export knows of samples and a denylist may know, part by part: sample_id and such columns."""
    yield from listed_samples(_file(folder, SAMPLE_IDS))
    for path, column in _tables(folder, manifest).values():
        compared = [name for name in pq.read_schema(path).names if name in (*COLUMNS[1:], "sha256")]
        if compared:
            yield from (part.rename({column: "sample_id"}) for part in sound_parts(path, [column, *compared]))
    if (folder / CREDITS).is_file():
        yield from map(unescaped, read_parts(_file(folder, CREDITS), ".csv", empty_is_null=True))


# -- taking out -------------------------------------------------------------------------------------------------------


def _rewrite(folder: Path, manifest: dict[str, Any], ids: Collection[str], flag: Mapping[str, Any]) -> None:
    taken, counts = set(ids), dict[str, int]()
    listed = _add_missing(folder, taken)
    for name, (path, column) in _tables(folder, manifest).items():
        counts[name] = _filter_table(path, column, taken)
        counts[name.removesuffix(".parquet") + ".tar"] = counts[name]
    for name in (file["path"] for file in manifest["files"] if file["path"].endswith(".tar")):
        rewrite_tar(_file(folder, name), drop=lambda member, read: member.rpartition("/")[2].partition("-")[0] in taken)
        _edit(folder / name.replace(".tar", "_stats.json"), lambda stats: _stats(stats, counts[name]))  # noqa: B023
    samples, entries = _filter_ids(folder, ids)
    _edit(folder / "sizes.json", lambda sizes: {name: counts[name] for name in sizes})
    if (folder / CREDITS).is_file():
        manifest["credited"] = _filter_credits(folder / CREDITS, taken)
    left = {**manifest["subset"], **_facts(folder, manifest), "entries": entries, "missing": missing_counts(listed)}
    for cut in left.get("chosen_by", {}).get("cuts", ()):
        cut["boundary_id"] = NO_ID if cut["boundary_id"] in taken else cut["boundary_id"]
    names = [file["path"] for file in manifest["files"]]
    _edit(folder / "croissant.json", lambda content: _described(content, folder, manifest["subset"], left))
    manifest["counts"] |= {"written": samples, "missing": listed.height, "entries": entries}
    manifest["subset"] = left
    if (folder / CARD).is_file():
        _write_card(folder / CARD, manifest, flag)
    manifest["taken_down"] = {"samples": len(flag["sample_ids"]), "at": flag["flagged_at"]}
    manifest["files"] = [
        {
            "path": name,
            "sha256": sha256_now(folder / name),
            "bytes": (folder / name).stat().st_size,
            **({"samples": counts[name]} if "samples" in before else {}),
        }
        for name, before in sorted({MISSING: {}, **dict(zip(names, manifest["files"], strict=True))}.items())
    ]
    save_json(folder / MANIFEST, manifest)


def _facts(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of the subset as its tables have them now; what no table tells is no longer stated."""
    known = pl.Schema({"sample_id": pl.String, "url": pl.String, "caption": pl.String, "shard": pl.String})
    parts = [pl.DataFrame(schema=known)]
    for path, column in _tables(folder, manifest).values():
        table = scan_parquet(path)
        there = [name for name in (*known, "caption_source") if name in table.collect_schema() and name != "sample_id"]
        if not there:
            continue  # names the samples of other tables again
        named = table.select(pl.col(column).alias("sample_id"), *there)
        parts.append(named.unique("sample_id", maintain_order=True).collect())
    rows = pl.concat(parts, how="diagonal")
    counted = dict(rows["shard"].drop_nulls().value_counts().iter_rows())
    shards = [
        {**one, "samples": counted.get(one["shard"]) if counted else None} for one in manifest["subset"]["shards"]
    ]
    return {
        **facts_of_rows(rows),
        "samples": sum(part.height for part in listed_samples(folder / SAMPLE_IDS)),
        "shards": shards,
    }


def _write_card(path: Path, manifest: Mapping[str, Any], flag: Mapping[str, Any]) -> None:
    """The card of what is left; of an export that an earlier version made its header alone, without what it counted."""
    header, ruler, _ = path.read_text(encoding="utf-8").partition("\n---\n")
    note = (
        f"\n## Taken down\n\n{len(flag['sample_ids']):,} samples were taken out of this copy, last at "
        f"{flag['flagged_at']}: {EXPORT_FLAG} lists their ids. Signals, cuts and verdicts above are of before.\n"
    )
    save_text(path, (card_text(manifest) if "card" in manifest else header + ruler) + note)


def _add_missing(folder: Path, taken: Collection[str]) -> pl.DataFrame:
    """missing.tsv with the samples taken out, before the ids that say how often they counted. Returns its rows."""
    path, schema, is_taken = folder / MISSING, pl.Schema(MISSING_SCHEMA), pl.col("sample_id").is_in(list(taken))
    before = NOTHING_MISSING
    if path.is_file():
        before = pl.read_csv(path, separator="\t", schema=schema, quote_char=None, glob=False)
    known = before.filter(is_taken)["sample_id"].implode()
    new = (
        part.filter(is_taken, ~pl.col("sample_id").is_in(known)).with_columns(reason=_TAKEN_DOWN)
        for part in listed_samples(folder / SAMPLE_IDS)
    )
    after = pl.concat([before, *new])
    with replacing(path) as temporary:
        write_text_table(after, temporary, suffix=".tsv")
    return after


def _filter_ids(folder: Path, ids: Collection[str]) -> tuple[int, int]:
    """Take ids out of the list. Returns how many are left, and how many entries."""
    path = folder / SAMPLE_IDS
    packed, taken = packed_ids(path), pack_uids(list(ids))
    listed, removed = (as_pairs(one["f0"], one["f1"]) for one in (packed, taken))
    is_taken = np.isin(listed, removed)
    with replacing(path) as temporary:
        np.save(temporary, packed[~is_taken])
    return sum(part.height for part in listed_samples(path)), int((~is_taken).sum())


def _filter_table(path: Path, column: str, taken: Collection[str]) -> int:
    """Drop rows; schema, its metadata and row groups stay. Returns the number of rows left."""
    values, count = pa.array(sorted(taken), pa.string()), 0
    with (
        pq.ParquetFile(path) as file,
        replacing(path) as temporary,
        pq.ParquetWriter(temporary, file.schema_arrow, compression="zstd", use_content_defined_chunking=True) as writer,
    ):
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            kept = rows.filter(pc.invert(pc.is_in(rows[column].cast(pa.string()), values)))
            count += kept.num_rows
            if kept.num_rows:
                writer.write_table(kept)
    return count


def _filter_credits(path: Path, taken: Collection[str]) -> int:
    is_taken = pl.col("sample_id").is_in(list(taken))
    kept = (rows.filter(~is_taken) for rows in read_parts(path, ".csv", empty_is_null=True))
    with replacing(path) as temporary:
        return write_text_parts(kept, temporary, ".csv", raw=True)


def _edit(path: Path, change: Any) -> None:
    """Rewrite a JSON file where the export has one."""
    if path.is_file():
        content = change(read_json(path, dict, advice=_ADVICE))
        save_json(path, content)


def _stats(stats: dict[str, Any], count: int) -> dict[str, Any]:
    return {**stats, "count": count, "successes": count, "status_dict": {"success": count}}


def _described(
    content: dict[str, Any], folder: Path, before: Mapping[str, Any], left: Mapping[str, Any]
) -> dict[str, Any]:
    """Croissant: hash and size of the files as they are now, and how many samples."""
    counted = rf"\b{before['samples']}(?= samples of )"
    for name, value in content.items():
        if isinstance(value, str):
            content[name] = re.sub(counted, str(left["samples"]), value)
    for one in content["distribution"]:
        if "contentUrl" in one:
            path = _file(folder, one["contentUrl"])
            one |= {"sha256": sha256_now(path), "contentSize": f"{path.stat().st_size} B"}
    return content
