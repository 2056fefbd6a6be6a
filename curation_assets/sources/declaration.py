"""Pools: what is declared about a collection of image–text pairs."""

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_origin

import yaml

from curation_assets.core.json_files import read_json
from curation_assets.core.own_modules import FOLDERS, own_files, use_home
from curation_assets.core.roles import ROLES
from curation_assets.core.seal import sealed_json
from curation_assets.core.settings import (
    PHOTO_PROFILE,
    POOL_NAME,
    Settings,
    home_name,
    home_of,
    is_bucket_url,
    named_profile,
    working_copy,
)
from curation_assets.core.validation import (
    Day,
    Switch,
    Whole,
    build,
    check_known,
    checked,
    content_of,
    fields_of,
    setting,
)
from curation_assets.core.yaml_files import parse_yaml, read_yaml
from curation_assets.sources.all_options import PoolOptions
from curation_assets.sources.base import Offered, Source, source_of, sources_in_order
from curation_assets.sources.download.download import DownloadSettings
from curation_assets.sources.download.fetch_shard import MAX_ROWS
from curation_assets.sources.download.opt_outs import DEFAULTS
from curation_assets.sources.edits import with_value
from curation_assets.sources.options import ImageDomain, SourceOptions
from curation_assets.sources.pool_facts import ColumnNames
from curation_assets.sources.table_files import no_tables, what_lies_in
from curation_assets.sources.text_columns import COLUMN_OPTIONS
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.documents import save_text
from curation_assets.stores.home_format import check_home, write_format
from curation_assets.stores.objects import ObjectChangedError
from curation_assets.stores.text_format import SUFFIXES, Quoting, Separator, TextFormat

#: Schemas and databases that a catalogue has already, its own name among them: no query could name the pool's views.
DUCKDB_NAMES = frozenset({"temp", "system", "catalog", "information_schema", "pg_catalog"})
_OTHER_NAMES = ("_follows", "_releases")  # Dagster's sensor `x_follows_new_shards`, its partitions `x_releases`
DECLARED = "declared.json"  # in the pool\'s work folder
_HOST_ENTRY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")


Obtained = Literal["public", "licensed", "private", "user_data", "synthetic", "crawled", "other"]


@checked("source")
class DeclaredSource:
    """What its owner declares of a source of a pool; a release quotes it."""

    name: str = setting(description="As the rows name it; of a pool's only source, all rows are of it.")
    url: str | None = setting(default=None, description="Page that describes it.")
    licence: str | None = setting(default=None, description="Of rows that bring none: an SPDX id.")
    licence_url: str | None = setting(default=None, description="Page of that licence.")
    obtained: Obtained | None = setting(default=None, description="How its owner came by it.")
    collected_from: Day | None = setting(default=None, description="First day or month of its collection: 2025-01.")
    collected_to: Day | None = setting(default=None, description="Last day or month of its collection.")
    description: str = setting(default="", description="For people.")

    def __post_init__(self) -> None:
        for name in ("collected_from", "collected_to"):
            given = getattr(self, name)
            if given is not None and not _DAY.fullmatch(str(given)):
                raise ValueError(f"{name} must be a day or month such as 2025-01-31 or '2025-01', got {given!r}")


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?")


@checked("pool")
class Pool:
    """One pool, as declared in `<home>/pools/<name>.yaml`; `options` may be given as a mapping."""

    name: str = setting(description="Lower-case letters, digits and underscores.")
    kind: str = setting(description="world (planted), webdataset (tars), url_table, image_table, or one of your own.")
    source: str = setting(description="Path of tars, tables or images, from the home if relative; empty for a world.")
    shard_size: Whole = setting(default=500, ge=1, le=MAX_ROWS, unit="samples", description="Rows of a shard.")
    columns: ColumnNames = setting(
        default_factory=dict,
        description="What the source calls caption, url (null: captions only), uid, image, own_id.",
    )
    header: Switch = setting(default=True, description="csv and tsv: the first line names the columns.")
    encoding: str = setting(default="utf-8", description="csv and tsv: such as latin-1, cp1252, utf-16.")
    separator: Separator | None = setting(default=None, description="csv and tsv; default: what the header shows.")
    quoting: Quoting | None = setting(
        default=None, description='csv and tsv: "" in quotes, or no quotes; default: none in a .tsv, else doubled.'
    )
    allow_hosts: tuple[str, ...] = setting(
        default=(), description="host or host:port that may be private, such as 127.0.0.1:8000."
    )
    roles: Mapping[str, str] = setting(
        default_factory=dict, description="Addresses of models that replace the profile's: role → address."
    )
    profile: str | None = setting(
        default=None, description="Profile by name or path; --profile and CURATION_PROFILE go before it."
    )
    sources: tuple[DeclaredSource, ...] = setting(
        default=(), description="Where its rows come from; see the table of a source."
    )
    options: PoolOptions = setting(default_factory=PoolOptions, description="What the stages do.")
    download: DownloadSettings = setting(default_factory=DownloadSettings, description="How images are fetched.")

    def __post_init__(self) -> None:
        if not POOL_NAME.fullmatch(self.name):
            raise ValueError(f"pool name must match {POOL_NAME.pattern}, got {self.name!r}")
        source_of(self.kind)  # one that there is not is refused here
        check_known("roles", "role", self.roles, ROLES)
        repeated = sorted(name for name, count in Counter(one.name for one in self.sources).items() if count > 1)
        if repeated:
            raise ValueError(f"sources names {', '.join(repeated)} more than once; each source has a name of its own")
        _ = self.text_format  # an encoding that does not exist is refused here
        for entry in self.allow_hosts:
            if not _HOST_ENTRY.fullmatch(entry):
                raise ValueError(
                    f"allow_hosts entries read host or host:port (127.0.0.1:8000, images.example), got {entry!r}"
                )

    @property
    def implied_source(self) -> str:
        """The source of rows that name none: the only declared one, else the pool itself."""
        return self.sources[0].name if len(self.sources) == 1 else self.name

    @property
    def source_kind(self) -> Source:
        """What is known of its kind of source."""
        return source_of(self.kind)

    @property
    def kind_in_words(self) -> str:
        """The kind for people: a table of which nothing but captions is read holds no URLs, whatever its reader."""
        return self.kind if self.has_images else "captions"

    @property
    def has_images(self) -> bool:
        """False for captions only: methods that read images are then left out."""
        return self.source_kind.has_images(self)

    @property
    def is_planted(self) -> bool:
        """Whether the program drew it: its truth is known."""
        return self.source_kind.is_planted

    @property
    def image_domain(self) -> ImageDomain | None:
        """Where the pairs come from; None for captions only."""
        if not self.has_images:
            return None
        return SourceOptions.of(self).image_domain or ("scenes" if self.is_planted else "web")

    @property
    def planted(self) -> tuple[int, int]:
        """Size and seed of a world pool."""
        options = SourceOptions.of(self)
        size, seed = options.size, options.seed
        if size is None or seed is None:
            raise ValueError(f"pool {self.name!r}: a world pool needs the options size and seed, got {size} and {seed}")
        return size, seed

    @property
    def must_download(self) -> bool:
        """Whether images are still to be fetched, or copied into tars."""
        return self.has_images and not self.source_kind.has_own_tars

    @property
    def opens_urls(self) -> bool:
        """Whether images are fetched from servers."""
        return self.must_download and self.source_kind.opens_urls

    @property
    def numbers(self) -> dict[str, str]:
        """Columns of numbers that the parts of the source carry: our name → the source's."""
        return self.source_kind.numbers(self)

    @property
    def text_format(self) -> TextFormat:
        """How csv and tsv files of the source are read."""
        return TextFormat(self.header, self.encoding, self.separator, self.quoting)

    def source_path(self, settings: Settings) -> Path:
        """Where the source lies."""
        return self.source_kind.path(self, settings)

    def download_config(self) -> dict[str, Any]:
        """The settings that may change what a download yields; of images that are not downloaded what is done about
        declarations inside, where that is not what is usual.
        """
        config = self.source_kind.download_config(self) if self.must_download else {}
        image = self.download.treatments["image"]
        if self.has_images and not self.opens_urls and image != DEFAULTS["image"]:
            config = {**config, "image_opt_outs": image}
        return config

    def expected_rows(self, settings: Settings) -> int:
        """Input rows of the whole pool, exact or an estimate."""
        return self.source_kind.expected_rows(self, settings)


def declared_sources(pool: Pool) -> list[dict[str, Any]]:
    """The sources of a pool as its owner declares them; of a pool that declares none, itself. Scenes are synthetic."""
    itself = DeclaredSource(pool.name, obtained="synthetic" if pool.is_planted else None)
    return [asdict(source) for source in pool.sources or (itself,)]


# -- declarations -----------------------------------------------------------------------------------------------------


def save_pool(settings: Settings, pool: Pool, first_line: str = "") -> Path:
    """Write the declaration of a pool; only what differs from the defaults is spelled out. Returns its path.

    A source inside the home is written relative to it: a copied home has its own.
    """
    path = settings.pools_root / f"{pool.name}.yaml"
    content = content_of(pool)
    if pool.source and Path(pool.source).is_relative_to(settings.home):
        content["source"] = Path(pool.source).relative_to(settings.home).as_posix()
    write_format(settings.home)
    save_text(path, first_line + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def list_pools(settings: Settings) -> list[str]:
    """Names of the declared pools, sorted. Raises HomeFormatError for a home of a newer version."""
    check_home(settings.home)
    return sorted(path.stem for path in settings.pools_root.glob("*.yaml"))


def declaration_sha256(settings: Settings, name: str) -> str:
    """A hash of all `declared_files`."""
    return config_sha256(declared_files(settings, name))


def declared_files(settings: Settings, name: str) -> dict[str, str]:
    """Path below the folder of declarations → sha256, of all that people wrote about a pool: its declaration,
    files such as recipes in the folder beside it, and what they added to all pools of the home."""
    root = settings.pools_root
    hashes = {}
    for path in [root / f"{name}.yaml", *sorted((root / name).rglob("*.*")), *own_files(root)]:
        with contextlib.suppress(OSError):  # removed meanwhile, or a folder
            hashes[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def remember_declared(settings: Settings, name: str) -> None:
    """Note `declared_files` as a run reads them."""
    path, text = settings.work(name) / DECLARED, sealed_json(declared_files(settings, name))
    if not path.is_file() or path.read_bytes() != text.encode():
        with contextlib.suppress(ObjectChangedError):  # of a bucket: another machine runs the pool, too
            save_text(path, text)


def changed_since_run(settings: Settings, name: str) -> list[Path]:
    """Files that people wrote about a pool and that are not what the last run read. People edit them, so that is no
    damage; nor is it seen where no run has noted them. Raises DamagedFileError.
    """
    path = settings.work(name) / DECLARED
    if not path.is_file():
        return []
    advice = "remove it: the next run writes it again"
    before, now = read_json(path, dict, advice=advice), declared_files(settings, name)
    names = sorted(one for one in before.keys() | now.keys() if before.get(one) != now.get(one))
    return [settings.pools_root / one for one in names]


def load_pool(settings: Settings, name: str) -> Pool:
    """The declared pool `name`. Raises ValueError that lists the known pools, or names what is wrong in the file;
    HomeFormatError for a home of a newer version."""
    check_home(settings.home)
    path = settings.pools_root / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(list_pools(settings)) or "none"
        raise ValueError(
            f"no pool {name!r} in {settings.pools_root}; declared: {known}. `curate pool add` declares one; those of "
            "another home: --home or CURATION_HOME, by default data/ of the folder where the command runs"
        )
    use_home(settings.pools_root)
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping with name, kind and source, got {type(content).__name__}")
    pool = build(Pool, {key: value for key, value in content.items() if value is not None}, str(path))
    if pool.name != name:
        raise ValueError(f"{path}: expected name: {name}, got {pool.name!r}; file and pool are named alike")
    return replace(pool, source=str(settings.home / pool.source)) if pool.source else pool


def set_values(settings: Settings, name: str, given: Mapping[str, str]) -> Pool:
    """Change a declaration. `given`: field, such as `allow_hosts` or `options.fraction` (of an option its name does) →
    value, as YAML writes it; one value of a list does. Comments stay.

    Raises ValueError for a field that there is not or that may not change, and for a value that does not fit; then
    nothing is written.
    """
    path, before = settings.pools_root / f"{name}.yaml", load_pool(settings, name)
    text = path.read_text(encoding="utf-8")
    for written, value in given.items():
        keys = written.split(".")
        if keys[0] not in fields_of(Pool):
            keys = ["options", *keys]
        fields = fields_of(PoolOptions if keys[0] == "options" else Pool)
        field = keys[1] if keys[0] == "options" and len(keys) > 1 else keys[0]
        check_known("a pool", "field or option", [field], {*fields, *fields_of(Pool)})
        is_planted = before.is_planted and field in ("size", "seed", "source")
        if field in ("name", "kind", "options") or is_planted:
            raise ValueError(f"{written} cannot be changed: it would be another pool; declare one (`curate pool add`)")
        text = with_value(text, keys, _as_declared(settings, keys, fields[field].annotation, value))
    content = parse_yaml(text, str(path))
    pool = build(Pool, {key: value for key, value in content.items() if value is not None}, str(path))
    save_text(path, text)
    return pool


def _as_declared(settings: Settings, keys: list[str], annotation: Any, text: str) -> Any:
    """A value of the command line as the file has it."""
    if keys == ["source"]:
        source = Path(text).expanduser().absolute()
        if not source.exists():
            raise ValueError(f"no such file or folder: {source}")
        return source.relative_to(settings.home).as_posix() if source.is_relative_to(settings.home) else str(source)
    if keys == ["profile"] and text != "null":
        return named_profile(text)
    try:
        value = parse_yaml(text, ".".join(keys))
    except ValueError:
        value = text
    is_list = get_origin(annotation) is tuple and len(keys) == 1 + (keys[0] == "options")
    return [value] if is_list and value is not None and not isinstance(value, list) else value


def declared_options(settings: Settings, pool: Pool) -> dict[str, Any]:
    """Options that the pool's file sets, also where that is the default; of a pool without a file, the others."""
    path = settings.pools_root / f"{pool.name}.yaml"
    content = read_yaml(path) if path.is_file() else {}
    written = {name: getattr(pool.options, name) for name in content.get("options") or {}}
    return {**written, **content_of(pool.options)}


def add_pool(
    settings: Settings,
    name: str,
    path: Path | str,
    *,
    columns: ColumnNames | None = None,
    **declared: Any,
) -> Pool:
    """Declare a pool from a folder of tars; a parquet, csv or tsv file (or a folder of them) with URLs or captions
    alone; Parquet files with images; or a folder of images with a table of their captions, or with KEY.txt beside.

    `columns`: {'caption': …, 'url': …, 'uid': …, 'image': …} where names differ from the usual; {'url': None} for
    captions only, {'image': None} for a table whose images are not to be read. `declared`: further fields of Pool.
    A pool with images gets the profile of photographs where none is named. Adding the same declaration again is fine.
    Raises what `pool_at` raises, and ValueError for a name that stands for another pool.
    """
    return _declare(settings, pool_at(settings, name, path, columns=columns, **declared))


def pool_at(
    settings: Settings,
    name: str,
    path: Path | str,
    *,
    columns: ColumnNames | None = None,
    **declared: Any,
) -> Pool:
    """What `add_pool` declares, without declaring it. Raises ValueError for a source that is none of these, or one
    without a row of images.
    """
    source = _in_home(settings, path) or Path(path).expanduser().absolute()
    if not source.exists():
        raise ValueError(f"no such file or folder: {source}")
    check_columns(columns or {})
    use_home(settings.pools_root)
    text = TextFormat(
        declared.get("header", True),
        declared.get("encoding", "utf-8"),
        declared.get("separator"),
        declared.get("quoting"),
    )
    offered = Offered(source, columns or {}, text)
    for kind, one in sources_in_order():
        found = one.detect(offered)
        if found is not None:
            pool = Pool(name, kind, str(found.path), columns=found.columns, **declared)
            one.check(pool, settings)
            if (pool.has_images or SourceOptions.of(pool).distil) and pool.profile is None:
                return replace(pool, profile=PHOTO_PROFILE)  # of images, and of captions that a student is to read
            return pool
    if source.is_dir():
        raise no_tables(source)
    raise ValueError(
        f"{source}: expected a folder of tars or of images with captions, or a file that ends in one of "
        f"{', '.join(SUFFIXES)}; {what_lies_in(source)}"
    )


def _in_home(settings: Settings, source: Path | str) -> Path | None:
    """Where a source in a bucket lies in the working copy of the home; None for one that is a path.

    Raises ValueError for a bucket that is not the home's, or a folder outside it.
    """
    found = working_copy(home_of(source)) if is_bucket_url(source) else None
    if found is None:
        return None
    url, home = found[0], home_name(settings.home)
    if not url.startswith(f"{home}/"):
        raise ValueError(
            f"a source in a bucket has to lie under the home, so that every machine finds it: expected {home}/…, "
            f"got {url}; put the tars there, or give a folder of this machine"
        )
    return settings.home / url.removeprefix(f"{home}/")


def check_columns(columns: ColumnNames) -> None:
    """Raise ValueError for a column that no source has."""
    unknown = sorted(set(columns) - set(COLUMN_OPTIONS))
    if unknown:
        raise ValueError(f"columns may name {sorted(COLUMN_OPTIONS)}, got {unknown}")


def add_world_pool(
    settings: Settings, name: str = "scenes", *, size: int = 2000, seed: int = 0, **declared: Any
) -> Pool:
    """Declare a planted pool of `size` scenes and write its source and (out of the methods' reach) its truth.

    Raises ValueError for a size below 1, a name of DuckDB's, or one that stands for another pool.
    """
    from curation_assets.sources.kinds.world import plant

    pool = _declare(settings, world_pool(name, size=size, seed=seed, **declared))
    plant(pool, settings)
    return pool


def world_pool(name: str, *, size: int, seed: int = 0, **declared: Any) -> Pool:
    """What `add_world_pool` declares, without declaring it."""
    # One planted answer never comes: a short timeout keeps its price low.
    declared.setdefault("download", DownloadSettings(timeout_seconds=2.0, threads=16))
    options: Any = {"size": size, "seed": seed, **declared.pop("options", {})}
    columns = {"caption": "caption", "url": "url", "uid": "uid"}
    return Pool(name, "world", "", columns=columns, options=options, **declared)


#: First line of a declaration that follows another file, and is written again where it differs.
_FOLLOWS = "# Follows the defs.yaml of a Dagster project, in which the pool is a component: change it there.\n"


def keep_declared(settings: Settings, pool: Pool) -> Pool:
    """Bring the home's declaration in line with one that lies elsewhere; where they are the same, write nothing.

    Raises ValueError for a name that stands for a pool of another kind, or one that a person declared otherwise.
    """
    check_home(settings.home)
    path = settings.pools_root / f"{pool.name}.yaml"
    pool = replace(pool, source=str(settings.home / pool.source)) if pool.source else pool
    follows = path.is_file() and path.read_text(encoding="utf-8").startswith(_FOLLOWS)
    if not follows or load_pool(settings, pool.name).kind != pool.kind:
        return _declare(settings, pool, _FOLLOWS)
    if load_pool(settings, pool.name) != pool:
        save_pool(settings, pool, _FOLLOWS)
    return pool


def _declare(settings: Settings, pool: Pool, first_line: str = "") -> Pool:
    """Save the declaration; where the name stands for the same pool, return that one."""
    if pool.name in list_pools(settings):
        existing = load_pool(settings, pool.name)
        if existing == pool:
            return existing
        raise ValueError(
            f"pool {pool.name!r} is declared already, differently ({settings.pools_root / pool.name}.yaml); "
            f"choose another name, change that one (`curate pool set {pool.name} KEY=VALUE`), or remove it "
            f"(`curate pool remove {pool.name}`)"
        )
    if pool.name in DUCKDB_NAMES or pool.name.endswith(_OTHER_NAMES):
        of = "DuckDB" if pool.name in DUCKDB_NAMES else "the sensor or the releases of another pool"
        raise ValueError(f"a pool cannot be called {pool.name!r}, which is a name of {of}; choose another name")
    if pool.name in FOLDERS:
        raise ValueError(f"a pool cannot be called {pool.name!r}: pools/{pool.name} holds what all pools share")
    save_pool(settings, pool, first_line)
    return pool
