"""The images of a shard's rows, fetched side by side into img2dataset's layout: a tar and a table beside it."""

import hashlib
import json
import queue
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.sources.download.image_fetch import Found
from curation_assets.stores.images import ImageLimits
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.provenance import FETCHED
from curation_assets.stores.rights_signals import signal_rows
from curation_assets.stores.tar_writing import add_member
from curation_assets.stores.web_addresses import domain_of

MAX_MESSAGE = 1000  # letters; a status line may have 65,536
MAX_ROWS = 10_000  # rows per tar; member keys have 4 digits after the shard's
ROW_DIGITS = 4
STOP_SECONDS = 0.2  # until a stopped download notices it
#: Columns of the table beside the tar, after those of the rows.
RESULT_SCHEMA = pl.Schema(
    {
        "key": pl.String,
        "status": pl.String,
        "error_message": pl.String,
        "width": pl.Int32,
        "height": pl.Int32,
        "original_width": pl.Int32,
        "original_height": pl.Int32,
        "sha256": pl.String,  # of the bytes as downloaded
    }
)


class DownloadStoppedError(RuntimeError):
    """A download that another thread has stopped; nothing of its shard is kept."""


def fetch_shard(
    rows: pl.DataFrame,
    base: Path,
    fetch: Callable[[str, Found], bytes],
    on_rows: Callable[[int], None],
    is_stopped: threading.Event,
    *,
    threads: int,
    image_size_px: int,
    encode_quality: int,
    limits: ImageLimits,
    before: Path | None = None,
    again: Collection[str] = (),
    is_denied: Callable[[bytes], bool] | None = None,
) -> list[str]:
    """Write `base`.tar and `base`.parquet of rows with url, caption and sample_id.

    `base`: the shard's number as the name. `fetch` gives the bytes of a URL and what else it learns, or raises an
    exception, whose words are the row's error. `before`: base of an earlier download of these rows, of which all stays
    as it is but the rows `again`. Images that `is_denied` names, as they came or as they would be stored, are left out
    with their rows: returns their sample_ids. Raises DownloadStoppedError soon after `is_stopped` is set.
    """
    from curation_assets.sources.download.resizing import guarded_resizer  # loads OpenCV

    resized = guarded_resizer(image_size_px, encode_quality, limits)
    old = None if before is None else read_parquet(before.with_name(f"{before.name}.parquet"))
    denied: list[str] = []
    done: list[dict[str, Any]] = []
    found: list[Found] = []  # of each row
    with tarfile.open(base.with_name(f"{base.name}.tar"), "w") as tar:
        known: dict[str, str] = {}  # uid → key
        if before is not None and old is not None:
            known, old = dict(old.select("uid", "key").iter_rows()), old.filter(~pl.col("uid").is_in(list(again)))
            _copy_members(before.with_name(f"{before.name}.tar"), tar, set(old["key"]))
            rows = rows.filter(pl.col("sample_id").is_in(list(again)))
        given = _in_turns(rows).select("url", pl.col("caption").fill_null(""), pl.col("sample_id").alias("uid"))
        content, taken = given.rows(named=True), set(known.values())
        free = (key for number in range(MAX_ROWS) if (key := f"{base.name}{number:0{ROW_DIGITS}d}") not in taken)
        keys = [known.get(uid) or next(free) for uid in given["uid"]]
        answers = _answers(given["url"].to_list(), fetch, min(threads, given.height), is_stopped)
        for place, data, message, learnt in answers:
            row: dict[str, Any] = {**content[place], **dict.fromkeys(RESULT_SCHEMA), "key": keys[place]}
            image, status = None, "failed_to_download"
            if data is not None:
                image, *sizes, message = resized(data)
                message = message and message[:MAX_MESSAGE]
                status = "success" if message is None else "failed_to_resize"
                if message is None:
                    row |= dict(zip(("width", "height", "original_width", "original_height"), sizes, strict=True))
                    row["sha256"] = hashlib.sha256(data).hexdigest()
            on_rows(1)
            if is_denied is not None and any(map(is_denied, filter(None, (data, image)))):
                denied.append(row["uid"])
                continue
            row |= {"status": status, "error_message": message}
            if image is not None:
                members = {"jpg": image, "json": json.dumps(row, indent=4).encode(), "txt": row["caption"].encode()}
                for suffix, member in members.items():
                    add_member(tar, f"{row['key']}.{suffix}", member, mtime=int(time.time()), mode=0o444)
            done.append(row)
            found.append(learnt)
    table = pl.DataFrame(done, schema={**given.schema, **RESULT_SCHEMA})
    cells: dict[str, list[Any]] = {
        "fetched_at": [one.fetched_at for one in found],
        "content_type": [one.content_type for one in found],
        "rights_signals": [signal_rows(one.signals, one.checked_at) for one in found],
    }
    table = table.with_columns(pl.Series(name, cells[name], kind) for name, kind in FETCHED.items())
    table = table if old is None else pl.concat([old, table], how="diagonal_relaxed").sort("key")
    table.write_parquet(base.with_name(f"{base.name}.parquet"))
    return denied


def _copy_members(source: Path, target: tarfile.TarFile, keys: Collection[str]) -> None:
    """Members of these keys, byte for byte."""
    with tarfile.open(source) as tar:
        for member in tar:
            if member.name.partition(".")[0] in keys:
                target.addfile(member, tar.extractfile(member))


def _in_turns(rows: pl.DataFrame) -> pl.DataFrame:
    """The first row of every domain, then the second: threads that wait for a slow domain do not hold up the others."""
    domains = pl.Series("domain", [domain_of(url) for url in rows["url"]], dtype=pl.String)
    return rows.with_columns(pl.int_range(pl.len()).over(domains).alias("turn")).sort("turn", maintain_order=True)


_Answer = tuple[int, bytes | None, str | None, Found]


def _answers(
    urls: list[str], fetch: Callable[[str, Found], bytes], threads: int, is_stopped: threading.Event
) -> Iterator[_Answer]:
    """(place, bytes or None, message or None, what was found) of each URL as it comes; two per thread in memory."""
    arrived: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    def fetched(place: int, url: str) -> None:
        found = Found()
        try:
            answer: _Answer = place, fetch(url, found), None, found
        except Exception as error:  # whatever a server does to it is the row's reason
            answer = place, None, str(error)[:MAX_MESSAGE], found
        arrived.put(answer)

    waiting = iter(enumerate(urls))
    with ThreadPool(threads) as pool:  # its end waits for no thread: those of a stopped download end with their answer
        for request in islice(waiting, 2 * threads):
            pool.apply_async(fetched, request)
        for _ in urls:
            yield _next_of(arrived, is_stopped)
            for request in islice(waiting, 1):
                pool.apply_async(fetched, request)


def _next_of(arrived: queue.SimpleQueue[Any], is_stopped: threading.Event) -> Any:
    while not is_stopped.is_set():
        try:
            return arrived.get(timeout=STOP_SECONDS)
        except queue.Empty:
            continue
    raise DownloadStoppedError("the run was stopped")
