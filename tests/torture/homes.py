"""Homes with one tiny pool, what a command does to them, and everything in them that a kill must not change.

All of it runs in children of tests/support/forking.py.
"""

import functools
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import polars as pl

from curation_assets.cli import export as export_module
from curation_assets.cli import refit as refit_module
from curation_assets.cli import release as release_module
from curation_assets.cli import retry as retry_module
from curation_assets.cli import run as run_module
from curation_assets.cli import takedown as takedown_module
from curation_assets.cli import verify as verify_module
from curation_assets.core.settings import load_settings
from curation_assets.core.stages import STAGES
from curation_assets.defs.launch import prepare_instance
from curation_assets.numeric.identity import sample_id_of
from curation_assets.operations.releases import verify_release
from curation_assets.outputs.registry import recorded_exports
from curation_assets.sources.declaration import add_pool, add_world_pool
from curation_assets.sources.download.download import DownloadSettings
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.releases import read_release, release_folders
from curation_assets.stores.shard_store import MANIFEST_FILE, ShardStore
from tests.support.forking import Ended, ForkServer
from tests.support.lineage_pools import jpeg, write_tar
from tests.torture.points import VERSION, Points, count_events, name_of, save_every_step

#: One thread each: the tries are many and small. Names of files are not broken into lines.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "CURATION_THREADS", "CURATION_WORKERS"), "1"),
    "COLUMNS": "400",
}
SERVER = ForkServer(
    (
        "curation_assets.flow.sql:recipes", "tests.torture.homes", "tests.torture.canary",  # parsing takes a second
        "curation_assets.cli.refit", "curation_assets.defs.publishing", "curation_assets.outputs.report.report",
        "curation_assets.stages.raw.tables", "dagster._core.storage.event_log.sqlite",
        "dagster._core.storage.runs.sqlite", "sqlalchemy.dialects.sqlite", "alembic.command", "pandas",
        "pyarrow.compute", "scipy.sparse", "matplotlib.backends.backend_agg", "jinja2", "upath", "fsspec.core",
        "structlog", "torch", "timm",
    ),
    ENVIRONMENT,
)  # fmt: skip
call = SERVER.call
#: A pool of delivered tars with given signals; downloads, models and trainings; links, some of them dead for a while.
TARS, SCENES, LINKS = "photos", "scenes", "links"
ROWS = {TARS: 16, SCENES: 24, LINKS: 16}
DEAD = (1, 4, 9, 15)  # rows of LINKS whose server answers 503 until `Prepared.revive`
RELEASE, EXPORTED = "v1", "exported"  # the name of a release; the folder of an export, in the home
NEEDED_BYTES = 1 << 29
SECONDS = 900.0  # a command is done in 10, on a machine that does much else in 200

#: Of the delivered tars, the sample that a takedown is about. Its texts hold what encodings write differently.
CANARY = 11
CANARY_URL = "http://canary.example/grün & blau/<11>.jpg?q='one'&r=\"two\""
CANARY_CAPTION = 'a canary\'s "yellow" feather – 50 % off <today> & naïve \\ only 11'


def url_of(number: int) -> str:
    """Address of a sample of TARS."""
    return CANARY_URL if number == CANARY else f"http://host{number % 3}.example/{number}.jpg"


def caption_of(number: int) -> str:
    """Caption of a sample of TARS."""
    return CANARY_CAPTION if number == CANARY else f"a photo of thing {number} in the {'very ' * (number % 5)}small box"


def declare(home: str, pool: str) -> None:
    """Declare one of the pools in an empty home."""
    settings = load_settings(home, "embedded")
    if pool == SCENES:
        budget = {name: {"samples_seen": 8, "batch_size": 4} for name in ("captioning", "retrieval")}
        options: dict[str, Any] = {
            "distil": False, "policies": ["clip"], "fraction": 0.5, "caption_count": 1, "evaluation_images": 4,
            "downstream_controls": [], "downstream_budget": budget,
        }  # fmt: skip
        add_world_pool(settings, SCENES, size=ROWS[SCENES], seed=5, shard_size=ROWS[SCENES] // 2, options=options)
        return
    place, numbers = Path(home), range(ROWS[pool])
    more: dict[str, Any] = {}
    if pool == LINKS:
        urls, captions = [f"http://images.example/{n}.jpg" for n in numbers], [caption_of(n) for n in numbers]
        source = place / "links.csv"
        pl.DataFrame({"url": urls, "caption": captions}).write_csv(source)
        connect_to = {"images.example": f"127.0.0.1:{(place.parent / 'port.txt').read_text()}"}
        more = {
            "download": DownloadSettings(retries=0, threads=2, connect_to=connect_to),
            "shard_size": ROWS[pool] // 2,
        }
    else:
        urls, captions = [url_of(n) for n in numbers], [caption_of(n) for n in numbers]
        source = place / "tars"
        rows = [(f"{n:06d}", urls[n], captions[n], jpeg(n)) for n in numbers]
        for shard in range(2):
            write_tar(source / f"{shard:06d}.tar", rows[shard * ROWS[pool] // 2 : (shard + 1) * ROWS[pool] // 2])
    values = {
        name: [n * step % 17 / 17 for n in numbers] for name, step in (("icc", 3), ("clip_score", 5), ("sieve", 7))
    }
    if pool == TARS:  # the worst of the half that is kept, by whatever is cut: a cut that fell on it
        for of_signal in values.values():
            others = sorted((value for n, value in enumerate(of_signal) if n != CANARY), reverse=True)
            of_signal[CANARY] = sum(others[ROWS[TARS] // 2 - 2 : ROWS[TARS] // 2]) / 2
    given = pl.DataFrame(
        {
            "sample_id": [sample_id_of(url, caption) for url, caption in zip(urls, captions, strict=True)],
            "generated_captions": [[f"thing {n}"] for n in numbers],
            **values,
        }
    )
    given.write_parquet(place / "given.parquet")
    signals = {name: f"{place / 'given.parquet'}:{name}" for name in ("icc", "clip_score", "sieve")}
    options = {
        "distil": False, "downstream": False, "policies": ["clip", "icc"], "fraction": 0.5, "image_domain": "other",
        "given_signals": signals, "given": {"generated_captions": str(place / "given.parquet")},
    }  # fmt: skip
    add_pool(settings, pool, source, options=options, **more)


def deny_canary(home: str, pool: str) -> None:
    """Put the canary on the denylist."""
    add_to_denylist(Path(home), [("url", CANARY_URL)])


# -- commands ---------------------------------------------------------------------------------------------------------


def run(home: str, pool: str) -> None:
    """`curate run POOL`."""
    run_module.run(pool, home=Path(home))


def refit(home: str, pool: str) -> None:
    """`curate refit POOL`."""
    refit_module.refit(pool, home=Path(home))


def take_down(home: str, pool: str) -> None:
    """`curate takedown apply --pool POOL --sources`."""
    takedown_module.apply([pool], True, home=Path(home))


def retry(home: str, pool: str) -> None:
    """`curate retry POOL`: counts as where nobody kills it."""
    retry_module.retry(pool, home=Path(home))


def release(home: str, pool: str) -> None:
    """`curate release create POLICY NAME`, which refuses a second time; the release verifies."""
    folder = Path(home) / "releases" / pool / RELEASE
    try:
        release_module.create("icc", RELEASE, pool, home=Path(home))
    except ValueError:
        if not folder.is_dir():
            raise
    problems = verify_release(folder)
    assert not problems, problems


def export(home: str, pool: str) -> None:
    """`curate export`, which refuses a second time; the folder is whole, and a takedown finds its record."""
    out = Path(home) / EXPORTED
    try:
        export_module.export("webdataset", out, "icc", pool=pool, home=Path(home))
    except ValueError:
        if not out.is_dir():
            raise
    files = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
    changed = [one["path"] for one in files if file_sha256(out / one["path"]) != one["sha256"]]
    assert not changed, changed
    (record,) = recorded_exports(Path(home), pool)
    assert (record.folder, record.manifest_sha256) == (str(out), file_sha256(out / "manifest.json"))


def repair(home: str, pool: str) -> None:
    """`curate verify POOL --repair`."""
    verify_module.verify(pool, True, home=Path(home))


def verify(home: str, pool: str) -> None:
    """`curate verify POOL`, which ends with 1 where a file is damaged."""
    verify_module.verify(pool, home=Path(home))


COMMANDS = {
    "run": run, "refit": refit, "take_down": take_down, "retry": retry, "release": release, "export": export,
    "repair": repair, "verify": verify,
}  # fmt: skip


def damage(home: str, pool: str) -> None:
    """Flip a bit in tables of every stage and in a subset; remove a copy of a manifest."""
    root = load_settings(home, "embedded").work(pool)
    store = ShardStore(root)
    shard = store.partitions("raw/samples")[0]
    paths = [store.table_path(asset, shard) for asset in ("raw/samples", "signals/icc", "filtered/icc")]
    paths.append(store.folder_path("filtered/subsets") / "icc.npy")
    for path in paths:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    store.table_path("raw/registered_shards", shard).with_name(MANIFEST_FILE).unlink()


def command(
    name: str, home: str, pool: str, killed_at: str, kill_at: Sequence[str], event: int | None
) -> dict[str, Any]:
    """Run a command, with checkpoints after every training step; killed at one of the points or at an event (None:
    events are not counted, 0: only counted), if they come. Returns the points that it passed and the number of events.
    """
    if pool == SCENES:
        save_every_step()
    points = Points(Path(home), kill_at, Path(killed_at))
    points.watch()
    events = None if event is None else count_events(event)
    COMMANDS[name](home, pool)
    return {"points": points.passed, "events": events and events()}


# -- what must come out the same --------------------------------------------------------------------------------------


#: Tables that name the moment at which an image was fetched, and its server's rules were read.
TIMED = ("raw/downloads", "raw/provenance")


def facts(home: str, pool: str) -> dict[str, Any]:
    """Everything about a home that must not depend on kills: fact → its value, and `rows_accounted`."""
    settings = load_settings(home, "embedded")
    root = settings.work(pool)
    store = ShardStore(root)
    same: dict[str, Any] = {}
    for stage in STAGES:
        for folder in sorted((root / stage).glob("[a-z]*")):
            asset = f"{stage}/{folder.name}"
            for key in store.partitions(asset) or [None]:
                same |= _table_facts(store, asset, key)
    for path in sorted(path for path in root.rglob("*.npy") if _is_in_force(path)):
        same[f"bytes of {name_of(path, root)}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted((root / "downloads").rglob("*.tar")):
        with tarfile.open(path) as tar:
            members = {member.name: tar.extractfile(member) for member in tar}
            hashes = {name: hashlib.sha256(file.read()).hexdigest() for name, file in members.items() if file}
        same[f"members of {path.name}"] = hashes
    for path in sorted((root / "index").glob("*.parquet")):
        frame = pl.read_parquet(path).drop("modified_ns", "seconds", "content", strict=False)
        same[f"rows of {path.name}"] = frame.write_json()
    for folder in release_folders(Path(home), pool):
        same[f"release {folder.name}"] = _release_facts(folder)
    same["files"] = files_of(Path(home))
    same["views"] = _views(settings.catalog)
    same["unfinished runs, held slots"] = _held(prepare_instance(settings))
    samples = store.scan("raw/samples").select("status", "reason").collect()
    accounted = samples.filter((pl.col("status") == "kept") | pl.col("reason").is_not_null()).height
    same["rows accounted"] = accounted
    return same


def neighbours(home: str, pool: str) -> dict[str, str]:
    """Every table of shards without the rows of the canary, as JSON."""
    store = ShardStore(load_settings(home, "embedded").work(pool))
    canary = sample_id_of(CANARY_URL, CANARY_CAPTION)
    found = {}
    for asset in stored_tables(store):
        for key in store.partitions(asset):
            rows = store.read(asset, key).filter(pl.col("sample_id") != canary)
            found[f"{asset} {key}"] = rows.write_json()
    return found


def _is_in_force(path: Path) -> bool:
    """Whether a file is not of a version that is kept for its readers, and that a link no longer names."""
    version = next((one for one in path.parents if VERSION.match(one.name)), None)
    if version is None:
        return True
    return path.is_relative_to(version.with_name(version.name[1:].partition(".version-")[0]).resolve())


def _table_facts(store: ShardStore, asset: str, key: str | None) -> dict[str, Any]:
    manifest = store.manifest(asset, key)
    if manifest is None:
        return {}
    is_folder = not store.table_path(asset, key).is_file()
    content = None if asset == "downstream/report" else manifest.content_sha256  # the report names times
    if asset in TIMED:
        rows = store.read(asset, key).drop("fetched_at")
        content = hashlib.sha256(re.sub(r'"checked_at":"[^"]*"', "", rows.write_json()).encode()).hexdigest()
    inputs = [(one.asset, one.partition) for one in manifest.inputs]
    made_by = [manifest.code_version, manifest.config_hash, inputs, manifest.facts]
    known: dict[str, Any] = {f"table {asset} {key}": [content, *made_by, manifest.row_count]}
    if not is_folder:
        store.read(asset, key)  # raises where its content is not what its manifest says
        copy = store.table_path(asset, key).with_name(MANIFEST_FILE)
        known[f"copy of the manifest of {asset} {key}"] = copy.is_file() and copy.read_text() == manifest.to_json()
    return known


def _release_facts(folder: Path) -> list[Any]:
    """What its reader verifies, and content that is no time."""
    release = read_release(folder)
    ids = [one["sha256"] for path, one in sorted(release.files.items()) if path.endswith((".npy", ".parquet"))]
    withdrawn = release.withdrawn and (release.withdrawn.rows, release.withdrawn.kept, release.withdrawn.next)
    return [verify_release(folder), release.counts, release.left_out, list(withdrawn or []), ids]


def files_of(home: Path) -> list[str]:
    """Every path, relative; without Dagster's, without the logs of costs (a file per process), without locks that hold
    nothing, and without versions that are kept for readers."""
    paths = []
    for path in sorted(home.rglob("*")):
        name = name_of(path, home)
        if path.is_dir() and not path.is_symlink():
            continue
        if not re.search(r"^dagster/|/costs/|\.version-\*/|/\.shard_keys$", name):
            paths.append(name)
    versions = [name_of(path, home) for path in home.rglob(".*.version-*") if path.is_dir()]
    # the version before is kept for its readers
    return sorted(set(paths)) + [
        f"{name}: {versions.count(name)}" for name in sorted(set(versions)) if _spare(versions, name)
    ]


def _spare(versions: Sequence[str], name: str) -> bool:
    return versions.count(name) > 2


def _views(catalog: Path) -> list[str]:
    with duckdb.connect(str(catalog), read_only=True) as connection:
        views = "select schema_name || '.' || view_name as name from duckdb_views() where not internal order by 1"
        names = [name for (name,) in connection.execute(views).fetchall()]
        for name in names:
            connection.execute(f"select * from {name} limit 1").fetchall()
    return names


def _held(instance: dg.DagsterInstance) -> list[str]:
    begun = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    held = [f"{run.run_id} {run.status}" for run in instance.get_runs(filters=dg.RunsFilter(statuses=begun))]
    storage = instance.event_log_storage
    for key in sorted(storage.get_concurrency_keys()):
        held += [f"slot {key} {slot.run_id}" for slot in storage.get_concurrency_info(key).claimed_slots]
    return held


# -- homes that many tries begin from ---------------------------------------------------------------------------------


def _fast_folder() -> str | None:
    """Memory where there is some, since Dagster's databases flush to the disk 1,500 times in a run; None: the usual."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > NEEDED_BYTES else None


class Prepared:
    """A home at one path, brought back to a state before each try: absolute paths in its tables stay what they are."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.base = Path(tempfile.mkdtemp(prefix="torture-home-", dir=_fast_folder()))
        Finalize(None, shutil.rmtree, (self.base, True), exitpriority=0)  # of a worker process, too
        self.home = self.base / "home"
        self.home.mkdir()
        if pool == LINKS:
            (self.base / "port.txt").write_text(str(self.links.server_port))
        self._call("declare")
        self.save("declared")

    def _call(self, function: str, *, seconds: float = SECONDS, **arguments: Any) -> Any:
        given = {"home": str(self.home), "pool": self.pool, **arguments}
        where = function if ":" in function else f"{__name__}:{function}"
        ended = call(where, given, self.base, seconds=seconds)
        assert ended.status == 0, f"{function} ended with {ended.status}:\n{ended.log}"
        return ended.result

    @functools.cached_property
    def links(self) -> "Links":
        """The server of LINKS, for as long as this process lives."""
        return Links()

    def save(self, state: str) -> None:
        """Keep the home as it is now under a name."""
        shutil.copytree(self.home, self.base / state, symlinks=True)

    def restore(self, state: str) -> None:
        """Bring the home back to a state that was kept."""
        shutil.rmtree(self.home)
        shutil.copytree(self.base / state, self.home, symlinks=True)

    def begin(
        self,
        name: str,
        *,
        kill_at: Collection[str] = (),
        event: int | None = None,
        kill_after: float | None = None,
    ) -> tuple[Ended, str]:
        """A command, to its end or to a kill. Returns also the name of the point at which it killed itself."""
        killed_at = self.base / "killed_at.txt"
        killed_at.unlink(missing_ok=True)
        arguments = {
            "name": name, "home": str(self.home), "pool": self.pool, "killed_at": str(killed_at),
            "kill_at": sorted(kill_at), "event": event,
        }  # fmt: skip
        ended = call(f"{__name__}:command", arguments, self.base, seconds=SECONDS, kill_after=kill_after)
        return ended, killed_at.read_text(encoding="utf-8") if killed_at.is_file() else ""

    def facts(self) -> dict[str, Any]:
        """Facts about the home as it is."""
        return dict(self._call("facts"))

    def damage(self) -> None:
        """Damage files of the home."""
        self._call("damage")

    def deny_canary(self) -> None:
        """Put the canary on the denylist."""
        self._call("deny_canary")

    def traces(self) -> list[str]:
        """What the home still holds of the canary."""
        return list(self._call("tests.torture.canary:traces"))

    def neighbours(self) -> dict[str, str]:
        """What the home says of other samples than the canary."""
        return dict(self._call("neighbours"))

    def certificates(self) -> list[dict[str, Any]]:
        """Of the takedowns of the pool, oldest first."""
        return list(self._call("tests.torture.canary:certificates"))

    @functools.cached_property
    def undisturbed(self) -> dict[tuple[str, str], "Undisturbed"]:
        """(command, state) → what it does to that state where nobody kills it."""
        return {}

    def straight(self, name: str, state: str, keep: str | None = None) -> "Undisturbed":
        """What a command does to a state where nobody kills it; once."""
        if (name, state) not in self.undisturbed:
            self.restore(state)
            ended, _ = self.begin(name, event=0)
            assert ended.status == 0, f"{name}, undisturbed, ended with {ended.status}:\n{ended.log}"
            if keep is not None:
                self.save(keep)
            facts = self.facts()
            self.undisturbed[name, state] = Undisturbed(ended, facts)
        return self.undisturbed[name, state]


class Links(ThreadingHTTPServer):
    """Pictures of LINKS; of DEAD rows none until `are_alive`. Counts the requests of each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Link)
        self.are_alive = False
        self.requests: Counter[int] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Link(BaseHTTPRequestHandler):
    server: Links

    def do_GET(self) -> None:
        name = self.path.strip("/").removesuffix(".jpg")
        status, body = 404, b""
        if name.isdigit():
            self.server.requests[int(name)] += 1
            status = 503 if int(name) in DEAD and not self.server.are_alive else 200
            body = jpeg(int(name)) if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


class Undisturbed:
    """A command that nobody killed: its points, its events, its seconds and the home that it left."""

    def __init__(self, ended: Ended, facts: dict[str, Any]) -> None:
        self.points: list[str] = ended.result["points"]
        self.events: int = ended.result["events"]
        self.seconds = ended.seconds
        self.facts = facts


@functools.cache
def prepared(pool: str) -> Prepared:
    """The homes of a pool, made once per process."""
    return Prepared(pool)


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """A line per fact that is another."""
    lines = []
    for name in sorted(expected.keys() | got.keys()):
        before, after = expected.get(name), got.get(name)
        if before != after:
            if isinstance(before, list) and isinstance(after, list):
                lines.append(
                    f"{name}: missing {[one for one in before if one not in after][:5]}, "
                    f"more {[one for one in after if one not in before][:5]}"
                )
            else:
                lines.append(f"{name}: {json.dumps(before)[:150]} became {json.dumps(after)[:150]}")
    return lines
