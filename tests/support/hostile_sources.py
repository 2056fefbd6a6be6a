"""Sources that are sound but for one part, and the tables that a run makes of them first."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from curation_assets.core.settings import Settings, load_settings
from curation_assets.sources.declaration import Pool, add_pool
from curation_assets.sources.shards import build_samples, discover_shards, download, register_shard
from curation_assets.stores.tar_samples import TAR_REASONS
from tests.support import tars
from tests.support.lineage_pools import jpeg

Members = dict[str, bytes]  # name → content, in the order of the tar


def sound_members(count: int = 5, first: int = 0) -> Members:
    """KEY.jpg, KEY.txt and KEY.json of samples whose images, captions and URLs all differ."""
    members: Members = {}
    for number in range(first, first + count):
        key = f"{number:04d}"
        members[f"{key}.jpg"] = jpeg(number)
        members[f"{key}.txt"] = f"a photo of thing {number}".encode()
        members[f"{key}.json"] = json.dumps({"url": f"http://host.example/{number}.jpg"}).encode()
    return members


def tar_bytes(members: Mapping[str, bytes]) -> bytes:
    """A tar in GNU's format, which takes names of any bytes (as `tarfile` escapes them)."""
    return tars.tar_bytes(members, tarfile.GNU_FORMAT)


def header_offsets(data: bytes) -> dict[str, int]:
    """Member → byte of its header."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: info.offset for info in tar}


def pool_of(home: Path, source: Path) -> tuple[Pool, Settings]:
    """The source declared under `home`."""
    settings = load_settings(home, "embedded")
    return add_pool(settings, "photos", source), settings


def samples_by_shard(pool: Pool, settings: Settings) -> dict[str, pl.DataFrame]:
    """raw/samples of every shard, by the functions that the flow's tables call."""
    tables = {}
    for shard in discover_shards(pool, settings):
        registered = register_shard(pool, shard, settings)
        tables[shard] = build_samples(pool, shard, registered, download(pool, shard, registered, settings), settings)
    return tables


def unaccounted(samples: pl.DataFrame) -> int:
    """Rows that are not kept, and not dropped or failed with a reason either."""
    is_accounted = ((pl.col("status") == "kept") & pl.col("reason").is_null()) | (
        pl.col("status").is_in(["dropped", "failed"]) & pl.col("reason").is_not_null()
    )
    return samples.filter(~is_accounted.fill_null(False)).height


def stand_ins(samples: pl.DataFrame) -> int:
    """Rows that stand for a tar, or for what is lost of it."""
    return samples.filter(pl.col("reason").fill_null("").str.contains(rf"^({'|'.join(TAR_REASONS)})(:|$)")).height


def kept_rows(samples: pl.DataFrame) -> dict[str, tuple[object, ...]]:
    """URL → everything of a kept row but its shard, tar and position."""
    kept = samples.filter(pl.col("status") == "kept").drop("shard", "source_row", "tar")
    return {str(row["url"]): tuple(row.values()) for row in kept.iter_rows(named=True)}


def harmed(before: pl.DataFrame, after: pl.DataFrame, changed: set[str] = frozenset()) -> int:  # type: ignore[assignment]
    """Kept rows of `before` that are not the same afterwards, those of the URLs `changed` aside."""
    afterwards = kept_rows(after.select(before.columns))  # an id of the owner in one row is a column more in all
    return sum(afterwards.get(url) != row for url, row in kept_rows(before).items() if url not in changed)


def url_of(member: str) -> str:
    """The URL of the sample that a member of `sound_members` belongs to."""
    return f"http://host.example/{int(member[:4])}.jpg"
