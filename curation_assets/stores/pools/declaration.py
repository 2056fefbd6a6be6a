"""Pools: what is declared about a collection of image–text pairs."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from curation_assets.core.roles import ROLES
from curation_assets.core.settings import POOL_NAME, Settings
from curation_assets.stores import url_tables, webdataset
from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.download import MAX_ROWS, DownloadSettings

KINDS = ("world", "webdataset", "url_table")
PoolKind = Literal["world", "webdataset", "url_table"]
WORLD_SOURCE = "world/urls.parquet"  # both relative to the pool's work folder
WORLD_TRUTH = "truth/planted.parquet"
_HOST_ENTRY = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?$")


@dataclass(frozen=True)
class Pool:
    """One pool, as declared in `<home>/pools/<name>.yaml`.

    `kind`: 'world' (planted scenes, served from this process), 'webdataset' (a folder of tars), 'url_table'
    (captions with or without URLs). `columns`: what the source calls caption, url and uid; url None means captions
    only. `header`, `encoding`: how csv and tsv files are read. `roles`: addresses that replace the profile's.
    `options`: everything the stages may ask about.
    """

    name: str
    kind: PoolKind
    source: str  # path of the tars or tables; empty for a world, whose source is planted in the work folder
    shard_size: int = 500
    columns: Mapping[str, str | None] = field(default_factory=dict)
    header: bool = True
    encoding: str = "utf-8"
    allow_hosts: tuple[str, ...] = ()  # host or host:port that may be private
    download: DownloadSettings = field(default_factory=DownloadSettings)
    roles: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not POOL_NAME.match(self.name):
            raise ValueError(f"pool name must match {POOL_NAME.pattern}, got {self.name!r}")
        if self.kind not in KINDS:
            raise ValueError(f"pool {self.name!r}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 1 <= self.shard_size <= MAX_ROWS:
            raise ValueError(f"pool {self.name!r}: shard_size must be in [1, {MAX_ROWS}], got {self.shard_size}")
        unknown = set(self.roles) - set(ROLES)
        if unknown:
            raise ValueError(f"pool {self.name!r} names unknown roles {sorted(unknown)}; known: {sorted(ROLES)}")
        _ = self.text_format  # an encoding that does not exist is refused here
        if isinstance(self.allow_hosts, str):
            raise ValueError(f"pool {self.name!r}: allow_hosts must be a list, got {self.allow_hosts!r}")
        object.__setattr__(self, "allow_hosts", tuple(self.allow_hosts))
        for entry in self.allow_hosts:
            if not _HOST_ENTRY.match(entry):
                raise ValueError(
                    f"pool {self.name!r}: allow_hosts entries read host or host:port "
                    f"(127.0.0.1:8000, images.example), got {entry!r}"
                )

    @property
    def has_images(self) -> bool:
        """False for captions only: image methods then say no_image."""
        return self.kind != "url_table" or self.columns.get("url") is not None

    @property
    def must_download(self) -> bool:
        """Whether images are still to be fetched."""
        return self.has_images and self.kind != "webdataset"

    @property
    def text_format(self) -> url_tables.TextFormat:
        """How csv and tsv files of the source are read."""
        return url_tables.TextFormat(has_header=self.header, encoding=self.encoding)

    def source_path(self, settings: Settings) -> Path:
        """Where the source lies."""
        return settings.work(self.name) / WORLD_SOURCE if self.kind == "world" else Path(self.source)

    def download_config(self) -> dict[str, Any]:
        """The settings that may change what a download yields; empty where nothing is downloaded."""
        if not self.must_download:
            return {}
        return {"settings": self.download.config(), "allow_hosts": sorted(self.allow_hosts)}

    def expected_rows(self, settings: Settings) -> int:
        """Input rows of the whole pool: exact for tables; for tars without img2dataset's table an estimate."""
        if self.kind == "webdataset":
            return webdataset.expected_row_count(webdataset.find_tars(self.source_path(settings)))
        return sum(source_split(self, settings).rows.values())


# -- declarations -----------------------------------------------------------------------------------------------------


def save_pool(settings: Settings, pool: Pool) -> Path:
    """Write the declaration of a pool; only what differs from the defaults is spelled out. Returns its path."""
    content: dict[str, Any] = {"name": pool.name, "kind": pool.kind, "source": pool.source}
    defaults = Pool(pool.name, pool.kind, pool.source)
    for name in ("shard_size", "header", "encoding", "columns", "allow_hosts", "roles", "options"):
        value = getattr(pool, name)
        if value != getattr(defaults, name):
            content[name] = (
                list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            )
    standard = asdict(DownloadSettings())
    download = {key: value for key, value in asdict(pool.download).items() if value != standard[key]}
    if download:
        content["download"] = {k: list(v) if isinstance(v, tuple) else v for k, v in download.items()}
    path = settings.pools_root / f"{pool.name}.yaml"
    write_text_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def list_pools(settings: Settings) -> list[str]:
    """Names of the declared pools, sorted."""
    return sorted(path.stem for path in settings.pools_root.glob("*.yaml"))


def load_pool(settings: Settings, name: str) -> Pool:
    """The declared pool `name`. Raises ValueError that lists the pools there are, or names what the file has wrong."""
    path = settings.pools_root / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(list_pools(settings)) or "none yet; add one"
        raise ValueError(f"no pool {name!r} in {settings.pools_root}; declared: {known}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping with name, kind and source, got {type(content).__name__}")
    _check_keys(path, content, Pool)
    if content.get("name") != name:
        raise ValueError(f"{path}: expected name: {name}, got {content.get('name')!r}; file and pool are named alike")
    download = content.pop("download", None) or {}
    _check_keys(path, download, DownloadSettings)
    try:
        return Pool(**content, download=DownloadSettings(**download))
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_keys(path: Path, content: Mapping[str, Any], kind: type) -> None:
    known = [one.name for one in fields(kind)]
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{path}: unknown keys {unknown}; known: {known}")


def add_pool(
    settings: Settings,
    name: str,
    path: Path | str,
    *,
    columns: Mapping[str, str | None] | None = None,
    **declared: Any,
) -> Pool:
    """Declare a pool from a folder of tars, or a parquet, csv or tsv file (or a folder of them).

    `columns`: {'caption': …, 'url': …, 'uid': …} where names differ from the usual; {'url': None} for captions only.
    `declared`: further fields of Pool. Adding the same declaration again is fine.
    Raises ValueError for a source that is neither, or a name that stands for another pool.
    """
    source = Path(path).expanduser().absolute()
    if not source.exists():
        raise ValueError(f"no such file or folder: {source}")
    if webdataset.find_tars(source):
        if columns:
            raise ValueError(f"{source} holds tars: columns, header and encoding do not apply, got {dict(columns)}")
        webdataset.tars_by_shard(name, source)
        pool = Pool(name, "webdataset", str(source), **declared)
    else:
        try:
            text = url_tables.TextFormat(declared.get("header", True), declared.get("encoding", "utf-8"))
            found = url_tables.detect_columns(source, columns, text)
        except NotADirectoryError as error:
            raise ValueError(f"{source}: expected a folder of tars or a parquet, csv or tsv file") from error
        pool = Pool(name, "url_table", str(source), columns=asdict(found), **declared)
    return _declare(settings, pool)


def add_world_pool(
    settings: Settings, name: str = "scenes", *, size: int = 2000, seed: int = 0, **declared: Any
) -> Pool:
    """Declare a planted pool of `size` scenes and write its source and (out of the methods' reach) its truth.

    Raises ValueError for a size below 1, or a name that stands for another pool.
    """
    if size < 1:
        raise ValueError(f"a world needs at least 1 sample, got size {size}")
    # One planted answer never comes: a short timeout keeps its price low.
    declared.setdefault("download", DownloadSettings(timeout_seconds=2.0, threads=16))
    options = {"size": size, "seed": seed, **declared.pop("options", {})}
    columns = {"caption": "caption", "url": "url", "uid": "uid"}
    pool = _declare(settings, Pool(name, "world", "", columns=columns, options=options, **declared))
    _plant(pool, settings)
    return pool


def _declare(settings: Settings, pool: Pool) -> Pool:
    if pool.name in list_pools(settings):
        existing = load_pool(settings, pool.name)
        if existing != pool:
            raise ValueError(
                f"pool {pool.name!r} is declared already, differently ({settings.pools_root / pool.name}.yaml); "
                "choose another name, edit that file, or remove it"
            )
    else:
        save_pool(settings, pool)
    return pool


def _plant(pool: Pool, settings: Settings) -> None:
    """Write a world's source and truth where they are missing: both follow from size and seed."""
    from curation_assets.world import server

    work = settings.work(pool.name)
    if not (work / WORLD_SOURCE).is_file() or not (work / WORLD_TRUTH).is_file():
        size, seed = int(pool.options["size"]), int(pool.options["seed"])
        samples = server.planted(size, seed)
        server.write_planted_truth(work / WORLD_TRUTH, samples, seed)
        server.write_world_urls(work / WORLD_SOURCE, samples, seed)


# -- shards -----------------------------------------------------------------------------------------------------------


def source_split(pool: Pool, settings: Settings) -> url_tables.Split:
    if pool.kind == "world":
        _plant(pool, settings)
    columns = url_tables.ColumnMapping(
        caption=str(pool.columns["caption"]), url=pool.columns.get("url"), uid=pool.columns.get("uid")
    )
    return url_tables.split_source(
        pool.name,
        pool.source_path(settings),
        settings.work(pool.name),
        columns,
        pool.shard_size,
        Denylist.load(settings.home),
        pool.text_format,
    )
