"""The images of a shard's rows, fetched side by side into img2dataset's layout: a tar, a table and counts beside it."""

import hashlib
import io
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.foreign.img2dataset_parts import new_resizer, new_writer
from curation_assets.sources.download.image_fetch import Found
from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.images import ImageLimits, ImageRejected, check_image, decode_image
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.provenance import FETCHED
from curation_assets.stores.rights_signals import signal_rows
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
) -> None:
    """Write `base`.tar, `base`.parquet and `base`_stats.json of rows with url, caption and sample_id.

    `base`: the shard's number as the name. `fetch` gives the bytes of a URL and what else it learns, or raises an
    exception, whose words are the row's error. Raises DownloadStoppedError soon after `is_stopped` is set.
    """
    began, statuses, messages = time.time(), Counter[str](), Counter[str]()
    given = _in_turns(rows).select("url", pl.col("caption").fill_null(""), pl.col("sample_id").alias("uid"))
    schema = (
        pl.DataFrame(schema={**given.schema, **RESULT_SCHEMA}).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    )
    writer = new_writer(base, schema)
    resized = guarded_resizer(image_size_px, encode_quality, limits)
    content = given.rows(named=True)
    found: dict[str, Found] = {}  # by key
    for place, data, message, learnt in _answers(given["url"].to_list(), fetch, min(threads, given.height), is_stopped):
        row: dict[str, Any] = {**content[place], **dict.fromkeys(RESULT_SCHEMA)}
        row["key"] = f"{base.name}{place:0{ROW_DIGITS}d}"
        found[row["key"]] = learnt
        image, status = None, "failed_to_download"
        if data is not None:
            image, *sizes, message = resized(io.BytesIO(data))
            message = message and message[:MAX_MESSAGE]
            status = "success" if message is None else "failed_to_resize"
            if message is None:
                row |= dict(zip(("width", "height", "original_width", "original_height"), sizes, strict=True))
                row["sha256"] = hashlib.sha256(data).hexdigest()
        row |= {"status": status, "error_message": message}
        statuses[status] += 1
        messages[message or status] += 1
        writer.write(image, row["key"], row["caption"], row)
        on_rows(1)
    writer.close()
    _add_found(base.with_name(f"{base.name}.parquet"), found)
    _write_counts(base, statuses, messages, began)


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


def _add_found(table: Path, found: Mapping[str, Found]) -> None:
    """Add FETCHED to the table beside a tar; members of the tar do not have it."""
    rows = read_parquet(table)
    learnt = [found[key] for key in rows["key"]]
    cells: dict[str, list[Any]] = {
        "fetched_at": [one.fetched_at for one in learnt],
        "content_type": [one.content_type for one in learnt],
        "rights_signals": [signal_rows(one.signals, one.checked_at) for one in learnt],
    }
    rows.with_columns(pl.Series(name, cells[name], kind) for name, kind in FETCHED.items()).write_parquet(table)


def guarded_resizer(
    image_size_px: int, encode_quality: int, limits: ImageLimits
) -> Callable[[io.BytesIO], tuple[Any, ...]]:
    """img2dataset's, after a check; what OpenCV decodes otherwise than we do is given to it as upright PNG of 8 bits.

    It returns bytes, width, height, original width and height, and an error or None.
    """
    resize = new_resizer(image_size_px, encode_quality)

    def checked(stream: io.BytesIO) -> tuple[Any, ...]:
        data = stream.getvalue()
        try:
            if not check_image(data, limits).is_plain:
                stream = io.BytesIO()
                decode_image(data, limits).save(stream, "PNG", compress_level=1)
        except ImageRejected as rejection:
            return None, None, None, None, None, str(rejection)
        return resize(stream)

    return checked


def _write_counts(base: Path, statuses: Counter[str], messages: Counter[str], began: float) -> None:
    """As img2dataset writes them; a claim that nothing here reads."""
    ended = time.time()
    stats = {
        "count": statuses.total(),
        "successes": statuses["success"],
        "failed_to_download": statuses["failed_to_download"],
        "failed_to_resize": statuses["failed_to_resize"],
        "duration": ended - began,
        "start_time": began,
        "end_time": ended,
        "status_dict": dict(messages),
    }
    write_text_atomically(base.with_name(f"{base.name}_stats.json"), json.dumps(stats, indent=4))
