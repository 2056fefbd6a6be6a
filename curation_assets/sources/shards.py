"""The first tables made from a pool: its shards, registered rows, downloads and samples."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.declaration import Pool
from curation_assets.sources.download.download import DOWNLOADS_SCHEMA, download_shard
from curation_assets.sources.options import SourceOptions
from curation_assets.sources.text_columns import SIZES
from curation_assets.stores.denylist import TAKEDOWN, Denylist
from curation_assets.stores.hash_lists import HashList, read_hash_lists
from curation_assets.stores.image_rights import image_signals
from curation_assets.stores.images import ImageRejected, tar_index
from curation_assets.stores.rights_signals import signal_rows
from curation_assets.stores.samples import OWN_ID, REGISTERED_SCHEMA, build_sample_rows, end_without_image

DOWNLOADS_FOLDER = "downloads"
ROBOTS_FOLDER = "robots_txt"  # in the home: rules of servers, for all pools


def discover_shards(pool: Pool, settings: Settings) -> list[str]:
    """Keys of the shards that the source holds now, sorted. Raises what reading a broken source raises."""
    return pool.source_kind.shards(pool, settings)


def source_fingerprint(pool: Pool, shard: str, settings: Settings) -> dict[str, str]:
    """What identifies a shard's source: when it changes, the shard is registered again. Cheap while files rest."""
    return pool.source_kind.fingerprint(pool, shard, settings)


def register_shard(pool: Pool, shard: str, settings: Settings) -> pl.DataFrame:
    """Table raw/registered_shards of a shard. Grain: one row per input row, in source order (REGISTERED_SCHEMA).

    Some kinds have further columns (`Source.schema`), pools of tables the numbers that they carry (`Pool.numbers`,
    float64), and rows what they bring along of where they come from (`Source.carried`). Rows on the denylist keep their
    id only.
    """
    schema = pl.Schema(
        {
            **REGISTERED_SCHEMA,
            **pool.source_kind.schema(pool),
            **dict.fromkeys(pool.numbers, pl.Float64()),
            **({OWN_ID: pl.String()} if OWN_ID in pool.columns else {}),
            **dict.fromkeys(pool.source_kind.carried(pool), pl.String()),
        }
    )
    rows = pool.source_kind.rows(pool, shard, settings)
    absent = [pl.lit(None, pl.String).alias(name) for name in ("tar", "member") if name not in rows.columns]
    return rows.with_columns(*absent, shard=pl.lit(shard)).select(schema.names()).cast(schema)


def download(
    pool: Pool,
    shard: str,
    registered: pl.DataFrame,
    settings: Settings,
    advance: Callable[[int], None] | None = None,
    note: Callable[[str], None] | None = None,
    is_stopped: threading.Event | None = None,
) -> pl.DataFrame:
    """Table raw/downloads of a shard. Grain: one row per registered row, in order (DOWNLOADS_SCHEMA).

    Duplicates and empty captions are not requested (dropped). Where nothing is to be fetched all rows are kept, but
    those whose image declares inside that it must not be used (`opt_outs: {image: refuse}`).
    `advance` is called with the number of rows done since its last call, `note` with what the download waits for.
    Raises DownloadStoppedError soon after `is_stopped` is set, which another thread may do.
    """
    keys = registered.select("sample_id", "source_row")
    if not pool.must_download:
        if advance is not None:
            advance(registered.height)
        delivered = _as_downloads(keys.with_columns(status=pl.lit("kept")))
        places = registered.select("tar", "member") if pool.has_images else None
        return delivered if places is None else _with_declarations(pool, delivered, places, settings)
    requested, unrequested = requested_rows(registered)
    if advance is not None:
        advance(unrequested.height)
    fetched = _fetch(pool, shard, requested, settings, advance, note, is_stopped)
    others = _as_downloads(unrequested.select("sample_id", "source_row", "status", "reason"))
    ended = pl.concat([fetched, others])
    return keys.join(ended, on=["sample_id", "source_row"], how="left", maintain_order="left").select(
        DOWNLOADS_SCHEMA.names()
    )


def requested_rows(registered: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows whose images are to be fetched; and the others, which end as dropped or failed, with `reason`."""
    ends = [end_without_image(row) for row in registered.iter_rows(named=True)]
    marked = registered.with_columns(
        pl.Series("status", [status for status, _ in ends], dtype=pl.String),
        pl.Series("reason", [reason for _, reason in ends], dtype=pl.String),
    )
    return marked.filter(pl.col("reason").is_null()), marked.filter(pl.col("reason").is_not_null())


def taken_down_downloads(pool: Pool, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of raw/downloads once their samples are taken down, as `download` gives them."""
    end = {"status": "dropped", "reason": TAKEDOWN} if pool.must_download else {"status": "kept"}
    return _as_downloads(rows.select("sample_id", "source_row", **{name: pl.lit(value) for name, value in end.items()}))


def _as_downloads(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in DOWNLOADS_SCHEMA.items() if name not in rows.columns]
    return rows.with_columns(missing).select(DOWNLOADS_SCHEMA.names()).cast(DOWNLOADS_SCHEMA)


def _fetch(
    pool: Pool,
    shard: str,
    requested: pl.DataFrame,
    settings: Settings,
    advance: Callable[[int], None] | None,
    note: Callable[[str], None] | None,
    is_stopped: threading.Event | None,
) -> pl.DataFrame:
    folder = settings.work(pool.name) / DOWNLOADS_FOLDER
    denylist = Denylist.load(settings.home)  # sources were compared when rows were registered
    with pool.source_kind.serving(pool, requested, settings) as served:
        arguments = {
            "settings": pool.download,
            "allow_hosts": pool.source_kind.allow_hosts(pool),
            "note": note,
            "robots_folder": settings.home / ROBOTS_FOLDER,
            **served,
        }
        fetched = download_shard(
            requested, folder, shard, denylist=denylist, advance=advance, is_stopped=is_stopped, **arguments
        )
    if "local" not in served:
        return fetched
    copies = fetched.select((f"{DOWNLOADS_FOLDER}/{shard}/" + pl.col("tar")).alias("tar"), "member")
    return _with_declarations(pool, fetched, copies, settings)


def _with_declarations(pool: Pool, rows: pl.DataFrame, places: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """`rows` of DOWNLOADS_SCHEMA with what their images declare inside, of images that came with the source.

    `places`: tar, member of each, null without an image. A row that is refused fails as opt_out.
    """
    treatment = pool.download.treatments["image"]
    if treatment == "ignore":
        return rows
    work, changed = settings.work(pool.name), []
    for row, (tar, member) in zip(rows.iter_rows(named=True), places.iter_rows(), strict=True):
        if row["status"] == "kept" and member is not None:
            try:
                signals = image_signals(tar_index(work / tar).read(member))
            except ImageRejected:
                signals = []  # nothing whole to read: raw/samples has the reason
            row["rights_signals"] = signal_rows(signals, datetime.now(UTC))
            refused = next((one for one in signals if one.is_no and treatment == "refuse"), None)
            if refused is not None:
                row |= {"status": "failed", "reason": "opt_out", "message": f"forbidden by {refused}"}
                row |= {"tar": None, "member": None, "original_sha256": None}
        changed.append(row)
    return pl.DataFrame(changed, schema=DOWNLOADS_SCHEMA, orient="row")


def build_samples(
    pool: Pool, shard: str, registered: pl.DataFrame, downloads: pl.DataFrame, settings: Settings
) -> pl.DataFrame:
    """Table raw/samples of a shard. Grain: one row per registered row, in order (SAMPLES_SCHEMA).

    A pool without images takes their sizes from its table, where that has them.
    """
    samples = build_sample_rows(
        registered,
        downloads,
        work=settings.work(pool.name),
        download_folder=f"{DOWNLOADS_FOLDER}/{shard}",
        has_images=pool.has_images,
        limits=pool.download.limits,
        hash_list=hash_list_of(pool),
    )
    sizes = [name for name in SIZES if name in pool.numbers]
    known = registered.select(
        pl.when(pl.col("source_reason").is_null() & pl.col(name).is_between(1, 2**31 - 1))
        .then(pl.col(name))
        .alias(name)
        for name in sizes
    )
    is_kept = samples["status"] == "kept"
    return samples.with_columns(known[name].cast(pl.Int32).set(~is_kept, None).alias(name) for name in sizes)


def hash_list_of(pool: Pool) -> HashList:
    """Hashes of images that must not be used or shown: the files of the pool's option `hash_lists`, as one list."""
    return read_hash_lists(SourceOptions.of(pool).hash_lists)
