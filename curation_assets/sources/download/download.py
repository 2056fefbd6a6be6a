"""Downloads of one shard by img2dataset, guarded: vetted URLs in, a verified tar and one row per input row out."""

import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import polars as pl

from curation_assets.core.json_files import DamagedFileError, read_json
from curation_assets.core.plain_json import plain
from curation_assets.core.settings import check_shard_key, shard_number
from curation_assets.core.validation import Number, Switch, Whole, checked, setting
from curation_assets.core.version import __version__
from curation_assets.sources.download.domain_limits import DomainLimits
from curation_assets.sources.download.fetch_shard import fetch_shard
from curation_assets.sources.download.guarded_http import GuardedHttp
from curation_assets.sources.download.image_fetch import Found, ImageFetcher
from curation_assets.sources.download.opt_outs import DEFAULTS, IN_ROBOTS_TXT, OptOutName, Treatment
from curation_assets.sources.download.reasons import reason_of
from curation_assets.sources.download.robots import MAX_BYTES as MAX_ROBOTS_BYTES
from curation_assets.sources.download.robots import PATH as ROBOTS_PATH
from curation_assets.sources.download.robots import Rules
from curation_assets.sources.download.site_files import MAX_AGE_SECONDS, SiteFiles
from curation_assets.sources.download.tdmrep import MAX_BYTES as MAX_TDM_BYTES
from curation_assets.sources.download.tdmrep import PATH as TDM_PATH
from curation_assets.sources.download.tdmrep import TdmRules
from curation_assets.sources.local_images import LocalImages, images_digest
from curation_assets.stores.atomic import (
    finish_swap,
    remove_path,
    replacing,
    swap_folder,
)
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.denylist import TAKEDOWN, Denylist
from curation_assets.stores.documents import read_document, save_document, save_frame, save_json
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.images import MIB, ImageLimits, tar_index
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.provenance import FETCHED
from curation_assets.stores.tar_writing import rewrite_tar
from curation_assets.stores.url_safety import UrlRefused, vet_url

REPAIR = "`curate verify --repair` fetches the shard again"
RECEIPT_FILE = "receipt.json"
SHARD_DIGITS = 6  # img2dataset's oom_shard_count: 000042.tar
NO_URL = "no_url"
PROGRAM = "curation_assets"
_PRINTABLE = re.compile(r"[\x21-\x27\x2a-\x7e][\x20-\x27\x2a-\x7e]*")

#: Grain of raw/downloads: one row per input row.
DOWNLOADS_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String(),
        "source_row": pl.Int64(),
        "status": pl.String(),  # kept, dropped (not requested) or failed
        "reason": pl.String(),  # null iff kept
        "message": pl.String(),  # img2dataset's error message, for people
        "tar": pl.String(),  # file name inside the shard's download folder
        "member": pl.String(),
        "width": pl.Int32(),
        "height": pl.Int32(),
        "original_width": pl.Int32(),
        "original_height": pl.Int32(),
        "original_sha256": pl.String(),  # of the bytes as downloaded
        **FETCHED,  # of tables that earlier versions downloaded: null
    }
)


@checked("download")
class DownloadSettings:
    """How images are fetched and stored. The defaults follow DataComp's recipe (formulas.md §3.4)."""

    timeout_seconds: Number = setting(default=10.0, gt=0, unit="seconds", description="Without a sign of life.")
    max_seconds: Number = setting(
        default=60.0, gt=0, unit="seconds", description="For a whole image: look-up, redirects, body and all attempts."
    )
    retries: Whole = setting(default=1, ge=0, description="Further attempts after a failure that may pass.")
    threads: Whole = setting(default=32, ge=1, description="Downloads side by side.")
    image_size_px: Whole = setting(
        default=512, ge=1, unit="px", description="Longer side; larger images are scaled down, none is scaled up."
    )
    encode_quality: Whole = setting(default=95, ge=1, le=100, description="JPEG quality of what is stored.")
    max_bytes: Whole = setting(default=20 * MIB, ge=1, unit="bytes", description="Larger files are refused.")
    max_pixels: Whole = setting(default=50_000_000, ge=1, unit="px²", description="Larger images are refused.")
    disallowed_header_directives: tuple[str, ...] = setting(
        default=("noai", "noimageai", "noindex", "noimageindex", "none", "noml"),
        description="X-Robots-Tag words obeyed: for all, our name, or img2dataset.",
    )
    opt_outs: Mapping[OptOutName, Treatment] = setting(
        default_factory=dict,
        description="Declarations about training: name → ignore, record or refuse (docs/operator/opt_outs.md).",
    )
    obey_tdm_reservation: Switch = setting(default=True, description="false: `opt_outs: {tdmrep: ignore}`.")
    obey_robots_txt: Switch = setting(
        default=True, description="false: robots.txt is not even read, whatever opt_outs says of it."
    )
    user_agent_token: str | None = setting(
        default=None, description="Name in the User-Agent, which robots.txt and headers may address."
    )
    user_agent_contact: str | None = setting(
        default=None, description="URL or mail address in the User-Agent, for owners of servers."
    )
    domain_requests_per_second: Number | None = setting(
        default=20.0, gt=0, description="To one registered domain, at most; null: no limit."
    )
    domain_connections: Whole = setting(default=8, ge=1, description="Downloads side by side from one domain.")
    max_wait_seconds: Number = setting(
        default=60.0, ge=0, unit="seconds", description="For a domain that answers 429 or 503; then its rows fail."
    )
    connect_to: Mapping[str, str] = setting(
        default_factory=dict,
        description="Host of a URL → address:port to connect to instead: your own server, without limits.",
    )

    def __post_init__(self) -> None:
        for name in ("user_agent_token", "user_agent_contact"):
            text = getattr(self, name)
            if text is not None and not _PRINTABLE.fullmatch(text):
                raise ValueError(f"{name} goes into a header: one line of ASCII without brackets, got {text!r}")

    @property
    def agents(self) -> tuple[str, ...]:
        """Names that robots.txt and headers may address, the most telling first, in lower case."""
        own = () if self.user_agent_token is None else (self.user_agent_token.lower(),)
        return tuple(dict.fromkeys((*own, PROGRAM, "img2dataset")))

    @property
    def user_agent(self) -> str:
        """'curation_assets/0.3.0 (mybot; +https://example.org)'."""
        contact = f"+{self.user_agent_contact}" if self.user_agent_contact else None
        about = "; ".join(text for text in (self.user_agent_token, contact) if text)
        return f"{PROGRAM}/{__version__}" + (f" ({about})" if about else "")

    @property
    def treatments(self) -> dict[OptOutName, Treatment]:
        """What is done about a signal of each name: `opt_outs` over the defaults; a switch that is off goes first."""
        off: dict[OptOutName, Treatment] = {}
        if not self.obey_robots_txt:
            off["robots"] = "ignore"
        if not self.obey_tdm_reservation:
            off["tdmrep"] = "ignore"
        return {**DEFAULTS, **self.opt_outs, **off}

    @property
    def limits(self) -> ImageLimits:
        """What an image may cost."""
        return ImageLimits(max_bytes=self.max_bytes, max_pixels=self.max_pixels)

    def behaviour(self) -> dict[str, Any]:
        """How the crawler behaves, for whoever has to describe it."""
        paced = ("domain_requests_per_second", "domain_connections", "timeout_seconds", "retries")
        obeyed = ("obey_robots_txt", "obey_tdm_reservation", "disallowed_header_directives")
        limits = {name: getattr(self, name) for name in (*paced, "max_bytes", "max_pixels")}
        robots = {name: plain(getattr(self, name)) for name in obeyed}
        named = {"user_agent": self.user_agent, "agents": list(self.agents)}
        return {**named, "limits": limits, **robots, "opt_outs": self.treatments}

    def config(self) -> dict[str, Any]:
        """The settings that may change what ends in the tar (not: the pace, nor which port a local server has)."""
        content = asdict(self)
        for name in ("threads", "connect_to", "domain_requests_per_second", "domain_connections"):
            del content[name]
        content["opt_outs"] = {name: done for name, done in self.opt_outs.items() if DEFAULTS[name] != done}
        if not content["opt_outs"]:  # as before there was such a setting: nothing is fetched again
            del content["opt_outs"]
        return {**content, "disallowed_header_directives": list(self.disallowed_header_directives)}


def download_shard(
    urls: pl.DataFrame,
    out_dir: Path,
    shard_key: str,
    *,
    settings: DownloadSettings,
    allow_hosts: tuple[str, ...] = (),
    denylist: Denylist | None = None,
    advance: Callable[[int], None] | None = None,
    note: Callable[[str], None] | None = None,
    robots_folder: Path | None = None,
    local: LocalImages | None = None,
    is_stopped: threading.Event | None = None,
) -> pl.DataFrame:
    """Fetch the images of one shard into `out_dir`/<shard_key>/NNNNNN.{tar,parquet} (img2dataset's webdataset layout).

    `urls`: one row per sample with sample_id, source_row, url (null: fails with no_url), caption; each
    sample once, at most MAX_ROWS rows.
    Returns one row per input row, in input order (columns DOWNLOADS_SCHEMA). Refused URLs never reach the network.
    A complete earlier download of the same rows with the same settings is reused; an incomplete one is begun anew. Of a
    complete one, failed rows of `request_retry` are fetched again: every other image stays, byte for byte.
    `advance` is called with the number of rows done since its last call, `note` with lines on what is waited for.
    What the `denylist` knows is not requested, and an image that turns out to be on it is not kept: both are dropped
    (takedown). `robots_folder` keeps the servers' robots.txt for a day. `local`: the images lie in the pool's source;
    they are copied from there, byte for byte, and no URL is opened. Several shards may be downloaded at once, in
    threads: `threads` and the limits of a domain hold for all that have the same settings.
    Raises DownloadStoppedError soon after `is_stopped` is set.
    """
    check_shard_key(shard_key)
    rows = request_rows(urls)
    number = shard_number(shard_key)
    name = f"{number:0{SHARD_DIGITS}d}"
    final, retry = out_dir / shard_key, _retry_file(out_dir, shard_key)
    on_rows = advance or (lambda done: None)
    finish_swap(final)
    request_hash = _request_hash(rows, settings, allow_hosts, None if local is None else local.digest)
    listed = read_document(retry, list, advice="remove the file, and run `curate retry` again") or []
    is_complete, again = _is_complete(final, name, request_hash), set[str]()
    if is_complete and listed:
        failed = _outcome(rows, final, name).filter(pl.col("sample_id").is_in(listed), status="failed")
        again = set(failed["sample_id"])
    if is_complete and not again:
        on_rows(rows.height)
    else:
        with replacing(final, move=swap_folder) as draft:
            draft.mkdir()
            refused = {} if local else _refusals(rows, (*allow_hosts, *settings.connect_to))
            if denylist:
                refused |= dict.fromkeys(rows.filter(denylist.denied(rows))["sample_id"], TAKEDOWN)
            if is_complete:  # of rows that are not fetched again, also those whose image was denied
                refused |= {one: why for one, why in read_refused(final).items() if one not in again}
            on_rows(len(refused))
            requested = rows.filter(~pl.col("sample_id").is_in(list(refused)))
            if requested.height and local is not None:
                local.write(requested, draft, number, on_rows)
            elif requested.height:
                denied = fetch_shard(
                    requested,
                    draft / name,
                    _shared_fetch(settings, allow_hosts, robots_folder, note),
                    on_rows,
                    is_stopped or threading.Event(),
                    threads=settings.threads,
                    image_size_px=settings.image_size_px,
                    encode_quality=settings.encode_quality,
                    limits=settings.limits,
                    before=final / name if is_complete else None,
                    again=again,
                    is_denied=partial(_is_denied, denylist) if denylist and denylist.hashes.get("sha256") else None,
                )
                refused |= dict.fromkeys(denied, TAKEDOWN)
            save_json(draft / "refused.json", refused)
            write_receipt(draft, request_hash)
    remove_path(retry)
    return _outcome(rows, final, name)


def remove_download(folder: Path) -> None:
    """Delete a downloaded shard: the next run fetches it again."""
    remove_path(folder)


def request_retry(out_dir: Path, shard_key: str, sample_ids: Collection[str]) -> None:
    """Ask the next `download_shard` of a shard to fetch these rows again, those of them that failed."""
    save_document(_retry_file(out_dir, shard_key), sorted(sample_ids))


def _retry_file(out_dir: Path, shard_key: str) -> Path:
    return out_dir / f".{shard_key}.retry.json"


def request_rows(urls: pl.DataFrame) -> pl.DataFrame:
    """What of the rows decides a download."""
    return urls.select(
        pl.col("sample_id").cast(pl.String),
        pl.col("source_row").cast(pl.Int64),
        pl.col("url").cast(pl.String),
        pl.col("caption").cast(pl.String),
    )


def _request_hash(
    rows: pl.DataFrame, settings: DownloadSettings, allow_hosts: tuple[str, ...], images: str | None = None
) -> str:
    content = {"rows": frame_sha256(rows), "settings": settings.config(), "allow_hosts": sorted(allow_hosts)}
    return config_sha256(content if images is None else content | {"images": images})


def _file_hashes(folder: Path) -> dict[str, str]:
    """sha256 per file that a receipt is about; not of what a killed writer left beside them."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != RECEIPT_FILE and path.name[0] != "."]
    return {path.name: file_sha256(path) for path in paths}


def write_receipt(folder: Path, request_hash: str) -> None:
    """Note that a folder holds all of a request, and the sha256 of every file; the last step of whatever fills one."""
    receipt = {"request_sha256": request_hash, "files": _file_hashes(folder)}
    save_document(folder / RECEIPT_FILE, receipt)


def read_refused(folder: Path) -> dict[str, str]:
    """sample_id → message of the rows of a downloaded shard that were not requested."""
    return read_json(folder / "refused.json", dict, advice=REPAIR)


def _is_complete(folder: Path, name: str, request_hash: str) -> bool:
    """The receipt is written last; its hashes show whether every file is still what was downloaded."""
    path = folder / RECEIPT_FILE
    if not path.is_file():
        return False
    try:
        receipt = read_json(path, dict, advice=REPAIR)
    except DamagedFileError:  # it is downloaded again
        return False
    return receipt.get("request_sha256") == request_hash and receipt.get("files") == _file_hashes(folder)


def _refusals(rows: pl.DataFrame, allow_hosts: tuple[str, ...]) -> dict[str, str]:
    """sample_id → message of the URLs that are refused by their text; names are resolved when connecting."""
    refused = {}
    for sample_id, url in rows.select("sample_id", "url").iter_rows():
        if url is None:
            refused[sample_id] = NO_URL
            continue
        try:
            vet_url(url, allow_hosts)
        except UrlRefused as refusal:
            refused[sample_id] = str(refusal)
    return refused


# -- takedown ---------------------------------------------------------------------------------------------------------


def _is_denied(denylist: Denylist, data: bytes) -> bool:
    """Whether an image file, as fetched or as stored, is on the denylist."""
    return denylist.has("sha256", hashlib.sha256(data).hexdigest())


def purge_samples(folder: Path, name: str, sample_ids: Collection[str]) -> None:
    """Rewrite the tar and the table of a downloaded shard without some samples; the files of all others stay as they
    are, byte for byte.
    """
    table = folder / f"{name}.parquet"
    if not sample_ids or not table.is_file():
        return
    rows = read_parquet(table)
    is_purged = pl.col("uid").is_in(list(sample_ids))
    purged = set(rows.filter(is_purged)["key"])
    if purged:
        remove_path(folder / f"{name}_stats.json")  # of a version before; its messages may quote a URL
        rewrite_tar(folder / f"{name}.tar", drop=lambda member, _: member.partition(".")[0] in purged)
        save_frame(table, rows.filter(~is_purged))


def take_down_downloads(
    out_dir: Path,
    shard_key: str,
    sample_ids: Collection[str],
    *,
    before: pl.DataFrame,
    after: pl.DataFrame,
    settings: DownloadSettings,
    allow_hosts: tuple[str, ...] = (),
    is_local: bool = False,
) -> None:
    """Purge samples from a downloaded shard. `before`, `after`: the requested rows, with and without them. `is_local`:
    their images lie in the pool's source, and the rows have an image_sha256.

    A download that was complete for `before` is complete for `after`: the other images are not fetched again, and when
    this is killed and called again neither.
    """
    folder = out_dir / shard_key
    name = f"{shard_number(shard_key):0{SHARD_DIGITS}d}"
    finish_swap(folder)  # of a download that was killed
    if not folder.is_dir():
        return
    hashes = [
        _request_hash(request_rows(rows), settings, allow_hosts, images_digest(rows) if is_local else None)
        for rows in (before, after)
    ]
    was_complete = _is_complete(folder, name, hashes[0])
    with replacing(folder, move=swap_folder) as draft:
        shutil.copytree(folder, draft)
        purge_samples(draft, name, sample_ids)
        if (draft / "refused.json").is_file():
            refused = read_refused(draft)
            save_json(draft / "refused.json", {key: why for key, why in refused.items() if key not in sample_ids})
        if was_complete:
            write_receipt(draft, hashes[1])


# -- what opens URLs -------------------------------------------------------------------------------------------------


class _Shared:
    """What downloads with the same settings share while they are under way: limits are those of the process."""

    def __init__(self, fetcher: ImageFetcher, threads: int) -> None:
        self._fetcher = fetcher
        self._turns = threading.Semaphore(threads)

    def fetch(self, url: str, found: Found) -> bytes:
        """As `ImageFetcher.fetch`, when fewer than `threads` others do."""
        with self._turns:
            return self._fetcher.fetch(url, found)


_shared: WeakValueDictionary[str, _Shared] = WeakValueDictionary()  # by their settings, while a download holds them
_SHARED_LOCK = threading.Lock()


def _shared_fetch(
    settings: DownloadSettings,
    allow_hosts: tuple[str, ...],
    robots_folder: Path | None,
    note: Callable[[str], None] | None,
) -> Callable[[str, Found], bytes]:
    name = repr((settings, allow_hosts, robots_folder))
    with _SHARED_LOCK:
        shared = _shared.get(name)
        if shared is None:
            fetcher = image_fetcher(settings, allow_hosts, robots_folder, note)
            shared = _shared[name] = _Shared(fetcher, settings.threads)
    return shared.fetch


def image_fetcher(
    settings: DownloadSettings,
    allow_hosts: tuple[str, ...],
    robots_folder: Path | None,
    note: Callable[[str], None] | None,
    *,
    max_age_seconds: float = MAX_AGE_SECONDS,
) -> ImageFetcher:
    """What opens URLs by these settings. `robots_folder` keeps the servers' robots.txt and tdmrep.json;
    `max_age_seconds`: older ones are fetched again.
    """
    treatments = settings.treatments
    http = GuardedHttp(allow_hosts, settings.connect_to, user_agent=settings.user_agent)
    site_files = partial(SiteFiles, http, max_seconds=settings.max_seconds, max_age_seconds=max_age_seconds)
    robots = tdm = None
    if settings.obey_robots_txt and any(treatments[name] != "ignore" for name in IN_ROBOTS_TXT):
        parse = partial(Rules, agents=settings.agents)
        robots = site_files(ROBOTS_PATH, parse, robots_folder, max_bytes=MAX_ROBOTS_BYTES)
    if treatments["tdmrep"] != "ignore":
        folder = None if robots_folder is None else robots_folder / "tdmrep"
        tdm = site_files(TDM_PATH, TdmRules, folder, max_bytes=MAX_TDM_BYTES)
    limits = DomainLimits(
        per_second=settings.domain_requests_per_second,
        at_once=settings.domain_connections,
        max_wait_seconds=settings.max_wait_seconds,
        note=note,
    )
    return ImageFetcher(
        http,
        robots,
        tdm,
        limits,
        treatments=treatments,
        opt_out_words=settings.disallowed_header_directives,
        agents=settings.agents,
        max_bytes=settings.max_bytes,
        max_seconds=settings.max_seconds,
        idle_seconds=settings.timeout_seconds,
        retries=settings.retries,
    )


# -- what came of it --------------------------------------------------------------------------------------------------


def _outcome(rows: pl.DataFrame, folder: Path, name: str) -> pl.DataFrame:
    """One row per input row. The tar is believed, img2dataset's table explains."""
    refused = read_refused(folder)
    results: dict[str, dict[str, Any]] = {}
    members: dict[str, str] = {}  # key → member
    if (folder / f"{name}.parquet").is_file():
        results = {row["uid"]: row for row in read_parquet(folder / f"{name}.parquet").iter_rows(named=True)}
        images = (one for one in tar_index(folder / f"{name}.tar").members if not one.endswith((".txt", ".json")))
        members = {member.partition(".")[0]: member for member in images}
    outcome = []
    for sample_id, source_row in rows.select("sample_id", "source_row").iter_rows():
        row: dict[str, Any] = dict.fromkeys(DOWNLOADS_SCHEMA)
        row |= {"sample_id": sample_id, "source_row": source_row}
        record = results.get(sample_id)
        if sample_id in refused:
            message = refused[sample_id]
            reason = message if message in (NO_URL, TAKEDOWN) else reason_of("", message)
            row |= {"status": "dropped" if message == TAKEDOWN else "failed", "reason": reason, "message": message}
        elif record is None:
            row |= {"status": "failed", "reason": "download_lost", "message": "img2dataset wrote no row for it"}
        elif record["status"] != "success":
            row |= {
                "status": "failed",
                "reason": reason_of(record["status"], record["error_message"]),
                "message": record["error_message"],
            }
        elif record["key"] not in members:
            row |= {"status": "failed", "reason": "missing_in_tar", "message": "a success, but not in the tar"}
        else:
            row |= {column: record[column] for column in ("width", "height", "original_width", "original_height")}
            row |= {
                "status": "kept",
                "tar": f"{name}.tar",
                "member": members[record["key"]],
                "original_sha256": record["sha256"],
            }
        if record is not None:
            row |= {column: record.get(column) for column in FETCHED}
        outcome.append(row)
    return pl.DataFrame(outcome, schema=DOWNLOADS_SCHEMA, orient="row")
