"""WebDataset resharding: the subset alone in new tars, keys that follow from the ids, img2dataset's tables beside."""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from curation_assets.flow.context import PoolContext
from curation_assets.outputs.exports.batches import (
    BATCH_SIZE,
    KEPT_OF_SUPER_BATCH,
    rows_in_batches,
    rows_with_copies,
)
from curation_assets.outputs.exports.croissant import rai_fields, webdataset_croissant, write_croissant
from curation_assets.outputs.exports.formats import export_format
from curation_assets.outputs.exports.huggingface import hub_type
from curation_assets.outputs.exports.manifest import Export, exporting
from curation_assets.outputs.exports.subset import CHOICE_COLUMNS, Subset, subset_of_ids, with_chosen_captions
from curation_assets.stores.documents import save_json
from curation_assets.stores.images import for_training
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.tar_samples import SIDECAR_SCHEMA
from curation_assets.stores.tar_writing import add_member

MAX_SAMPLES_PER_SHARD = 10_000  # as DataComp's resharder
MAX_BYTES_PER_SHARD = 3_000_000_000
TAR_BLOCK = 512  # bytes: every member costs a header and padding up to a multiple of it


@export_format("webdataset", "new tars")
def export_webdataset(
    subset: Subset,
    out: Path,
    *,
    max_samples: int = MAX_SAMPLES_PER_SHARD,
    max_bytes: int = MAX_BYTES_PER_SHARD,
    batches: str | None = None,
    batch_size: int = BATCH_SIZE,
    keep: float = KEPT_OF_SUPER_BATCH,
    seed: int = 0,
) -> Path:
    """Write the subset as tars `00000000.tar` … of at most `max_samples` entries and about `max_bytes` bytes.

    Keys are `<sample_id>-0` … `<sample_id>-(m-1)` for a sample of multiplicity m, as DataComp's resharder names them:
    the same sample has the same key in every export. The same subset gives the same bytes. Beside each tar lie
    img2dataset's table and `_stats.json`; `sizes.json` counts entries per tar (open_clip reads it). Every json has the
    same keys, those that some sample has a value of: an unknown text is empty, an unknown number null; README.md states
    their types and the tars to `datasets.load_dataset`, which takes them from the first samples else.
    GIF, BMP, AVIF and 16-bit grey, which trainings leave out or misread, become PNG (`reencoded` in the manifest).
    Samples whose image is missing or no longer the one that was scored are listed in missing.tsv.

    `batches="concept"`: every `batch_size` consecutive entries are one batch, chosen by its concepts from
    `batch_size / keep` (`numeric/concept_batches.py`), and tars end with batches. So many passes of other orders
    (`seed`) are made that there are about as many entries as without. Samples in no batch: missing.tsv (`in_no_batch`).
    Raises ValueError as `exporting`, and where the subset has fewer entries than a batch.
    """
    for name, value in (("max_samples", max_samples), ("max_bytes", max_bytes), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if batches not in (None, "concept"):
        raise ValueError(f"batches must be concept, got {batches!r}")
    unit = 1 if batches is None else batch_size  # entries that lie in one tar
    with exporting(subset, out, "webdataset") as export:
        shard: _Shard | None = None
        types, extensions = _types(subset), set[str]()
        rows = rows_with_copies(export) if batches is None else rows_in_batches(export, batch_size, keep, seed)
        for number, (row, copies) in enumerate(rows):
            image = export.image_of(row)
            if image is None:
                if batches is None:
                    continue
                raise ValueError(f"the image of {row['sample_id']} changed while its batch was written; export again")
            image, extension, was = for_training(image, subset.ctx.pool.download.limits)
            if was is not None:
                export.reencoded[f"{was} to PNG"] = export.reencoded.get(f"{was} to PNG", 0) + 1
            sha256 = hashlib.sha256(image).hexdigest()
            extensions.add(extension)
            for members in _entries(export, types, row, image, extension, sha256, copies):
                size = sum(_tar_bytes(data) for name, data in members.items() if name != "__key__")
                is_full = shard is not None and (
                    shard.count + unit > max(max_samples, unit) or shard.bytes + size > max_bytes
                )
                if shard is not None and is_full and number % unit == 0:
                    shard.close()
                    shard = None
                if shard is None:
                    shard = _Shard.open(export)
                shard.add(members, row, sha256, size)
        if shard is not None:
            shard.close()
        sizes = {name: count for name, count in sorted(export.samples_of.items()) if name.endswith(".tar")}
        save_json(export.folder / "sizes.json", sizes)
        if sizes:
            write_croissant(export, webdataset_croissant(export))
            export.card = _card(export, {**dict.fromkeys(sorted(extensions), "image"), "txt": "string"}, types)
    return Path(out)


def write_training_tars(
    ctx: PoolContext,
    sample_ids: Sequence[str],
    out: Path,
    *,
    name: str,
    max_samples: int = MAX_SAMPLES_PER_SHARD,
    chosen_captions: bool = False,
) -> list[Path]:
    """The tars of `export_webdataset` for ids of a pool, an id given m times written m times; returns them, sorted.

    `name`: the training set, for the manifest. `chosen_captions`: those of the pool's table in place of raw ones.
    Raises ValueError as `subset_of_ids`, `with_chosen_captions` and `export_webdataset`.
    """
    subset = subset_of_ids(ctx, sample_ids, name)
    subset = with_chosen_captions(subset) if chosen_captions else subset
    return sorted(export_webdataset(subset, out, max_samples=max_samples).glob("*.tar"))


#: Type of a json's key, by its name in the hub's features; of `signals` those of its own keys.
_Types = Mapping[str, Any]


def _types(subset: Subset) -> _Types:
    """Keys of every sample's json with their types: of the subset's columns those that some row has a value of."""
    schema = subset.rows.schema
    sizes = ("width", "height", "original_width", "original_height")
    named = ["url", *sizes, OWN_ID, *CHOICE_COLUMNS, *subset.provenance]
    columns = [name for name in (*named, *subset.signals) if name in schema]
    known = [name for name in columns if subset.rows[name].null_count() < subset.rows.height]
    kinds = {name: hub_type(pl.Series(dtype=schema[name]).to_arrow().type) for name in known}
    ours = dict.fromkeys(("key", "uid", "caption", "sha256", "original_sha256", "pool", "shard"), "string")
    of_signals = {name: kinds[name] for name in subset.signals if name in known}
    return {
        **ours,
        **{name: kind for name, kind in kinds.items() if name not in of_signals},
        **({"signals": of_signals} if of_signals else {}),
    }


def _card(export: Export, files: Mapping[str, str], types: _Types) -> dict[str, Any]:
    """`files`: extension → type of the members of a sample besides its json."""
    features = [*_features({**files, "json": types}), *_features(dict.fromkeys(("__key__", "__url__"), "string"))]
    text = yaml.safe_dump({"dataset_info": {"features": features}}, sort_keys=False)
    of_json = [(f"json: {name}", kind if isinstance(kind, str) else "struct") for name, kind in types.items()]
    columns = [*files.items(), *of_json]
    rai = rai_fields(export)
    return {"license_name": "unknown", "columns": columns, "data_files": "*.tar", "features": text, "rai": rai}


def _features(types: _Types) -> list[dict[str, Any]]:
    """As a dataset card lists them."""
    return [
        {"name": name, "dtype": kind} if isinstance(kind, str) else {"name": name, "struct": _features(kind)}
        for name, kind in types.items()
    ]


def _entries(
    export: Export,
    types: _Types,
    row: Mapping[str, Any],
    image: bytes,
    extension: str,
    sha256: str,
    copies: Sequence[int],
) -> Iterator[dict[str, Any]]:
    caption = row["caption"] or ""
    values = {
        **row,
        "uid": row["sample_id"],
        "caption": caption,
        "sha256": sha256,
        "original_sha256": row["original_sha256"] or row["image_sha256"],
        "pool": export.subset.ctx.pool.name,
    }
    fields = {
        name: (values[name] or "") if kind == "string" else values[name]
        for name, kind in types.items()
        if name not in ("key", "signals")
    }
    fields |= {name: {one: row[one] for one in kinds} for name, kinds in types.items() if name == "signals"}
    for copy in copies:
        key = f"{row['sample_id']}-{copy}"
        yield {
            "__key__": key,
            extension: image,
            "txt": caption.encode(),
            "json": json.dumps({"key": key, **fields}, ensure_ascii=False).encode(),
        }


def _tar_bytes(data: bytes) -> int:
    return TAR_BLOCK + -(-len(data) // TAR_BLOCK) * TAR_BLOCK


@dataclass
class _Shard:
    """A tar being written, and the rows of its table."""

    export: Export
    name: str
    tar: tarfile.TarFile
    rows: list[dict[str, Any]]
    bytes: int = 0

    @classmethod
    def open(cls, export: Export) -> "_Shard":
        number = sum(name.endswith(".tar") for name in export.samples_of)
        name = f"{number:08d}"
        tar = tarfile.open(export.folder / f"{name}.tar", "w")  # noqa: SIM115 closed by `close`
        export.samples_of[f"{name}.tar"] = 0
        return cls(export, name, tar, [])

    @property
    def count(self) -> int:
        return len(self.rows)

    def add(self, members: dict[str, Any], row: Mapping[str, Any], sha256: str, size: int) -> None:
        for suffix in sorted(members.keys() - {"__key__"}):
            add_member(self.tar, f"{members['__key__']}.{suffix}", members[suffix], mode=0o444)
        self.bytes += size
        self.rows.append(
            {
                **{name: row.get(name) for name in SIDECAR_SCHEMA},
                "key": members["__key__"],
                "uid": row["sample_id"],
                "status": "success",
                "sha256": sha256,
            }
        )

    def close(self) -> None:
        self.tar.close()
        folder = self.export.folder
        pl.DataFrame(self.rows, schema=SIDECAR_SCHEMA).write_parquet(folder / f"{self.name}.parquet")
        stats = {
            "count": self.count,
            "successes": self.count,
            "failed_to_download": 0,
            "failed_to_resize": 0,
            "status_dict": {"success": self.count},
        }
        save_json(folder / f"{self.name}_stats.json", stats)
        self.export.samples_of[f"{self.name}.tar"] = self.count
