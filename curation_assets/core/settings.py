"""Settings: the only file that reads the environment. Frozen, checked when built."""

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from curation_assets.core.own_modules import use_home
from curation_assets.core.roles import ROLES
from curation_assets.core.validation import Number, Whole, build, check_known, checked, setting
from curation_assets.core.yaml_files import read_yaml

PACKAGE_ROOT = Path(__file__).parents[1]


def resource_path(name: str) -> Path:
    """What a checkout keeps at its top level and is read at run time: 'dbt_like_sql' or a file of 'infra'.

    A wheel holds it inside the package (pyproject.toml, wheel.sources), a checkout beside the package.
    Raises FileNotFoundError when it is in neither folder.
    """
    paths = (PACKAGE_ROOT / name, PACKAGE_ROOT.parent / name)
    for path in paths:
        if path.exists():
            return path
    raise FileNotFoundError(
        f"neither {paths[0]} (where a wheel has it) nor {paths[1]} (a checkout) exists; install curation_assets again"
    )


PROFILES_ROOT = Path(__file__).parent / "profiles"

DEFAULT_PROFILE = "embedded"
PHOTO_PROFILE = "photos"  # of pools with images of one's own
PROFILE_SUFFIXES = (".yaml", ".yml")
MAX_DEFAULT_WORKERS = 4
POOL_NAME = re.compile(r"[a-z0-9_]+")
RAY_ADDRESS = re.compile(r"auto|(ray://)?[A-Za-z0-9._-]+:[0-9]{1,5}")
Device = Literal["auto", "cpu", "cuda"]
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU that a process here may use
KEEP_DAYS = 90
SHARDS_PER_RUN = 32  # 64 partitions took 60 s in runs of many against 209 s in runs of one
SHARD_KEY = re.compile(r"[a-z0-9_]+-([0-9]{6}|x[0-9]{8})")
LAST_SHARD = 99_999_999


def shard_key(pool: str, number: int) -> str:
    """Partition key of a shard: 'scenes', 3 → 'scenes-000003'. Raises ValueError for a bad pool name or number.

    From a million on 'scenes-x01000000': the x sorts after digits, so that keys sort as their numbers everywhere.
    """
    if not POOL_NAME.fullmatch(pool):
        raise ValueError(f"pool name must match {POOL_NAME.pattern}, got {pool!r}")
    if not 0 <= number <= LAST_SHARD:
        raise ValueError(f"shard number must be in [0, {LAST_SHARD}], got {number}")
    return f"{pool}-{number:06d}" if number < 1_000_000 else f"{pool}-x{number:08d}"


def shard_number(key: str) -> int:
    """Number of a shard, by its key: 'scenes-000003' → 3."""
    return int(key.rpartition("-")[2].removeprefix("x"))


def check_shard_key(key: str) -> str:
    """`key` itself if well formed (Dagster accepts anything). Raises ValueError otherwise."""
    if not SHARD_KEY.fullmatch(key):
        raise ValueError(f"shard key must match {SHARD_KEY.pattern} (such as scenes-000003), got {key!r}")
    return key


@checked("profile")
class Profile:
    """One address per role, with the generation settings of that role."""

    name: str = setting(description="What reports and ledgers call it.")
    roles: Mapping[str, str] = setting(
        description="role → embedded:…, bank:…, hub:org/name@revision, path:…, or pool:… (what the pool distilled)."
    )
    generation: Mapping[str, Mapping[str, Any]] = setting(
        default_factory=dict, description="Keyword settings of a role's engine: role → setting → value."
    )
    methods: Mapping[str, Mapping[str, Any]] = setting(
        default_factory=dict, description="Keyword settings of a method's function: method → setting → value."
    )
    options: Mapping[str, Any] = setting(
        default_factory=dict, description="Options of a pool where its declaration sets none: option → value."
    )
    fractions: Mapping[str, Number] = setting(
        default_factory=dict, description="Shares that shipped policies keep, in place of their own: policy → share."
    )
    batch_size: Mapping[str, Whole] = setting(
        default_factory=dict, unit="samples", description="Largest batch of a role: role → samples."
    )
    device: Device = setting(default="auto", description="Where models run; auto: a GPU if there is one.")
    threads_per_worker: Whole = setting(
        default=1, ge=1, unit="threads", description="Of a worker process on a CPU, where CURATION_WORKERS is not set."
    )

    def __post_init__(self) -> None:
        for name in ("roles", "generation", "batch_size"):
            check_known(name, "role", getattr(self, name), ROLES)
        for policy, share in self.fractions.items():
            if not 0 < share <= 1:
                raise ValueError(f"fractions.{policy} must be in (0, 1], got {share}")
        for role, address in self.roles.items():
            if ":" not in address:
                raise ValueError(
                    f"address of role {role!r} must read scheme:rest "
                    f"(embedded:clip, hub:org/name@revision, path:/folder), got {address!r}"
                )

    def address(self, role: str) -> str:
        """Address that fills `role`. Raises ValueError when the profile leaves the role empty."""
        if role not in self.roles:
            raise ValueError(f"profile {self.name!r} fills no role {role!r}; add 'roles: {{{role}: ADDRESS}}' to it")
        return self.roles[role]

    def with_roles(self, **addresses: str) -> "Profile":
        """The same profile with some addresses replaced."""
        return replace(self, roles={**self.roles, **addresses})

    def with_generation(self, role: str, **settings: Any) -> "Profile":
        """The same profile with some generation settings of a role replaced."""
        return replace(self, generation={**self.generation, role: {**self.generation.get(role, {}), **settings}})


def load_profile(name_or_path: str) -> Profile:
    """A profile by name (shipped ones lie in core/profiles/) or by path of a YAML file.

    Raises ValueError with the choices for an unknown name, or for a file that lacks 'roles'.
    """
    path = Path(name_or_path)
    if path.suffix not in PROFILE_SUFFIXES:
        path = PROFILES_ROOT / f"{name_or_path}.yaml"
    if not path.is_file():
        shipped = ", ".join(sorted(p.stem for p in PROFILES_ROOT.glob("*.yaml")))
        raise ValueError(f"no profile {name_or_path!r}; shipped: {shipped}; or give the path of a .yaml file")
    content = read_yaml(path)
    named = {"name": path.stem, **content} if isinstance(content, dict) else content
    return _with_beam_captioner(build(Profile, named, str(path)))


def _with_beam_captioner(profile: Profile) -> Profile:
    """A file that names a captioner and no beam_captioner means the same model for both."""
    old, new = "captioner", "beam_captioner"
    if old not in profile.roles or new in profile.roles:
        return profile
    copied: dict[str, Any] = {
        name: {new: getattr(profile, name)[old], **getattr(profile, name)}
        for name in ("roles", "generation", "batch_size")
        if old in getattr(profile, name)
    }
    return replace(profile, **copied)


def named_profile(name_or_path: str) -> str:
    """What a declaration writes for a profile: the name of a shipped one, the absolute path of a file.

    Raises what `load_profile` raises.
    """
    load_profile(name_or_path)
    path = Path(name_or_path)
    return str(path.expanduser().absolute()) if path.suffix in PROFILE_SUFFIXES else name_or_path


def cache_root() -> Path:
    """Where things lie that can be made again at any time: CURATION_CACHE, else the user's cache folder."""
    own = os.environ.get("CURATION_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "curation-assets"


def homes_root() -> Path:
    """Folder of the working copies of homes in buckets: CURATION_HOMES, else `homes` of the cache; absolute."""
    return _homes_root(
        *(os.environ.get(name) for name in ("CURATION_HOMES", "CURATION_CACHE", "XDG_CACHE_HOME", "HOME"))
    )


@functools.cache  # called with every file that is written or read
def _homes_root(own: str | None, *cache: str | None) -> Path:
    return Path(own or cache_root() / "homes").expanduser().resolve()


def working_copies_bytes() -> int:
    """CURATION_HOMES_GB, as bytes: what the working copy of a home in a bucket may take; 100 GB where it is not set."""
    return int(float(os.environ.get("CURATION_HOMES_GB", 100)) * 1e9)


def flushes_to_disk() -> bool:
    """Whether what is written is flushed to the disk before it counts (fsync), so that it outlives a power cut.

    CURATION_DURABILITY: `full`, as where it is not set, or `fast` for homes that may be made again. Raises ValueError.
    """
    durability = os.environ.get("CURATION_DURABILITY", "full")
    if durability not in ("full", "fast"):
        raise ValueError(f"CURATION_DURABILITY must be full or fast, got {durability!r}")
    return durability == "full"


def bucket_retry_seconds() -> float:
    """CURATION_BUCKET_RETRY_SECONDS: how long a request to a bucket is tried again; 180 where it is not set."""
    return float(os.environ.get("CURATION_BUCKET_RETRY_SECONDS", 180))


def home_of(home: Path | str | None = None) -> Path:
    """Where everything is written: the folder or URL given, else CURATION_HOME, else ./data; absolute.

    Of a bucket (s3://bucket/prefix) it is the working copy: a folder of the cache that is named by the URL. Raises
    ValueError for a URL without a bucket.
    """
    given = str(home or os.environ.get("CURATION_HOME", "data"))
    match = _URL.fullmatch(given)
    if match is None:
        return Path(given).absolute()
    if match["scheme"] == "file":
        return Path(url2pathname(urlsplit(given).path)).absolute()
    if match["scheme"] != "s3" or not match["bucket"]:
        raise ValueError(f"a home is a folder, file:///FOLDER or s3://BUCKET/PREFIX, got {given!r}")
    url = "/".join(["s3:/", *filter(None, (match["bucket"] + match["prefix"]).split("/"))])
    return homes_root() / quote(url, safe="").replace("%", _ESCAPE)


_ESCAPE = ","  # in names of working copies: SQLite's addresses read '%', Parquet readers '='; `quote` leaves no comma
#: Path('s3://b/p') is 's3:/b/p': one slash stands for two.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9]+):/{1,3}(?P<bucket>[^/]*)(?P<prefix>(/.*)?)")


def is_bucket_url(text: Path | str) -> bool:
    """Whether a text is the URL of a folder of a bucket."""
    return re.match("s3:/", str(text)) is not None


def working_copy(path: Path) -> tuple[str, Path] | None:
    """(URL, folder) of the home in a bucket in whose working copy a path lies; None for every other path."""
    root = homes_root()
    if not str(path).startswith(f"{root}{os.sep}"):
        return None
    name = path.relative_to(root).parts[0]
    return unquote(name.replace(_ESCAPE, "%")), root / name


def is_in_bucket(path: Path) -> bool:
    """Whether a path is, or lies in, the working copy of a home in a bucket."""
    return working_copy(path) is not None


def home_name(path: Path) -> str:
    """What people call a home, or a file of one: its URL where that is in a bucket, else its path."""
    found = working_copy(path)
    return str(path) if found is None else "/".join([found[0], *path.relative_to(found[1]).parts])


def own_dagster_home() -> Path | None:
    """CURATION_DAGSTER_HOME, absolute; None where Dagster's instance lies in the home."""
    own = os.environ.get("CURATION_DAGSTER_HOME")
    return Path(own).absolute() if own else None


def foreign_parts_off() -> frozenset[str]:
    """Names in CURATION_FOREIGN_OFF, with commas between; `all` for every one (curation_assets/foreign/guards.py)."""
    return frozenset(filter(None, os.environ.get("CURATION_FOREIGN_OFF", "").replace(" ", "").split(",")))


def environment_read() -> dict[str, str]:
    """Variables of this process that settings, clients of buckets and the hub's client read; sorted."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_READ)}


_IN_NO_HOME = re.compile(r"\\|\?|%[0-9a-fA-F]{2}")  # [, * and ] are escaped where files are read
_READ = ("CURATION_", "AWS_", "HF_", "XDG_")


def hub_is_offline() -> bool:
    """HF_HUB_OFFLINE as it is now; the hub's own client looks at it once, when it is imported."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")


@dataclass(frozen=True)
class Settings:
    """Where things live and how the machine is used."""

    home: Path  # everything the program writes
    profile: Profile
    threads: int  # of the whole machine that we may use
    workers: int = 1  # processes that score shards side by side, threads / workers threads each
    devices: tuple[
        str, ...
    ] = ()  # CUDA_VISIBLE_DEVICES of the workers, in turn; empty: they see what this process sees
    openlineage_url: str | None = None  # where `curate run` sends OpenLineage events; None sends none
    on_failure: str | None = None  # command or URL that hears of failed runs, as operations/failure_hook.py reads it
    on_failure_hosts: tuple[str, ...] = ()  # hosts of such a URL that may be private
    keep_days: int = KEEP_DAYS  # runs, logs and reports older than this are removed at night; 0 keeps them
    shards_per_run: int = SHARDS_PER_RUN  # of a backfill of the UI, at most; 0 makes one run of every range
    is_profile_chosen: bool = True  # by an argument or CURATION_PROFILE; otherwise a pool may name its own
    are_workers_chosen: bool = False  # by CURATION_WORKERS; otherwise they follow a profile that a pool names
    ray: str | None = None  # 'host:port' or 'auto': nodes of that Ray cluster score shards, in place of the workers
    own_dagster_home: Path | None = None  # Dagster's instance folder where it is not in the home

    def __post_init__(self) -> None:
        for name in ("threads", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for place in (self.home, self.dagster_home):
            if _IN_NO_HOME.search(str(place)):
                raise ValueError(
                    "the path of a home may hold no backslash, no ? and no % before two hex digits, which SQLite and "
                    f"DuckDB read as something else, got {place}; rename the folder, or name another with --home"
                )
        if self.keep_days < 0:
            raise ValueError(f"keep_days must be days, or 0 to keep everything, got {self.keep_days}")
        if self.shards_per_run < 0:
            raise ValueError(
                f"CURATION_SHARDS_PER_RUN must be a number of shards, or 0 for one run, got {self.shards_per_run}"
            )
        if self.ray is not None and not RAY_ADDRESS.fullmatch(self.ray):
            raise ValueError(f"CURATION_RAY must read host:port, ray://host:port or auto, got {self.ray!r}")

    @property
    def has_workers(self) -> bool:
        """Whether models run in other processes than this one."""
        return self.workers > 1 or self.ray is not None

    @property
    def threads_of_worker(self) -> int:
        """Threads of each of the workers; CPUs that a task of the Ray cluster takes."""
        return max(1, self.threads // self.workers)

    def for_pool(self, profile_name: str | None) -> "Settings":
        """These settings with the profile that a pool names, unless the caller chose one.

        Raises what `load_profile` raises.
        """
        if profile_name is None or self.is_profile_chosen:
            return self
        profile = load_profile(profile_name)
        devices = _default_devices(profile) if self.devices == _default_devices(self.profile) else self.devices
        follows = not self.are_workers_chosen and self.workers == _default_workers(
            self.profile, self.threads, self.devices
        )
        workers = _default_workers(profile, self.threads, devices) if follows else self.workers
        return replace(self, profile=profile, workers=workers, devices=devices)

    def device_of_worker(self, number: int) -> str | None:
        """CUDA_VISIBLE_DEVICES of a worker, counted from 0; None leaves it as it is."""
        return self.devices[number % len(self.devices)] if self.devices else None

    @property
    def pools_root(self) -> Path:
        """Pool declarations, one YAML file each."""
        return self.home / "pools"

    def work(self, pool: str) -> Path:
        """Folder of one pool's tables, tars and reports."""
        return self.home / "work" / pool

    @property
    def catalog(self) -> Path:
        """The DuckDB file of views over every pool."""
        return self.home / "catalog.duckdb"

    @property
    def dagster_home(self) -> Path:
        """Dagster's instance folder."""
        return self.own_dagster_home or self.home / "dagster"


def load_settings(home: Path | str | None = None, profile: str | None = None) -> Settings:
    """Settings from the arguments, else from CURATION_HOME, CURATION_PROFILE, CURATION_THREADS, CURATION_WORKERS,
    CURATION_DEVICES, CURATION_RAY, CURATION_DAGSTER_HOME, CURATION_ON_FAILURE, CURATION_ON_FAILURE_HOSTS,
    CURATION_KEEP_DAYS and CURATION_SHARDS_PER_RUN; OPENLINEAGE_URL as OpenLineage's own clients read it.

    Without either: ./data, the profile that a pool names (else embedded), all cores. Workers default to one per core
    (or per `threads_per_worker` of the profile) on a CPU, at most MAX_DEFAULT_WORKERS (about 1 GiB each), and to one
    per GPU otherwise: processes would fight over it. CURATION_DEVICES=0,2 names the GPUs, as CUDA_VISIBLE_DEVICES does.
    What a user added to the home is found from here on (`use_home`). Raises ValueError for an empty name among them.
    """
    name = profile or os.environ.get("CURATION_PROFILE")
    chosen = load_profile(name or DEFAULT_PROFILE)
    threads = int(os.environ.get("CURATION_THREADS", os.cpu_count() or 1))
    named = os.environ.get("CURATION_DEVICES")
    devices = _device_names(named, "CURATION_DEVICES") if named else _default_devices(chosen)
    settings = Settings(
        home=home_of(home),
        profile=chosen,
        threads=threads,
        workers=int(os.environ.get("CURATION_WORKERS", _default_workers(chosen, threads, devices))),
        devices=devices,
        openlineage_url=os.environ.get("OPENLINEAGE_URL") or None,
        on_failure=os.environ.get("CURATION_ON_FAILURE") or None,
        on_failure_hosts=tuple(os.environ.get("CURATION_ON_FAILURE_HOSTS", "").replace(",", " ").split()),
        keep_days=int(os.environ.get("CURATION_KEEP_DAYS", KEEP_DAYS)),
        shards_per_run=int(os.environ.get("CURATION_SHARDS_PER_RUN", SHARDS_PER_RUN)),
        is_profile_chosen=name is not None,
        are_workers_chosen="CURATION_WORKERS" in os.environ,
        ray=os.environ.get("CURATION_RAY") or None,
        own_dagster_home=own_dagster_home(),
    )
    use_home(settings.pools_root)
    return settings


def _default_workers(profile: Profile, threads: int, devices: tuple[str, ...]) -> int:
    if devices:
        return len(devices)
    return max(1, min(threads // profile.threads_per_worker, MAX_DEFAULT_WORKERS)) if profile.device == "cpu" else 1


def _default_devices(profile: Profile) -> tuple[str, ...]:
    """The GPUs of this machine, for a profile that uses them, where there are several."""
    if profile.device == "cpu":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = _device_names(visible, "CUDA_VISIBLE_DEVICES") if visible.strip() not in ("", "-1") else ()
    else:  # what the driver lists; torch takes seconds to load
        gpus = tuple(str(number) for number, _ in enumerate(NVIDIA_GPUS.glob("*")))
    return gpus if len(gpus) > 1 else ()


def _device_names(text: str, variable: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{variable} must name devices, such as 0,1, got {text!r}")
    return names
