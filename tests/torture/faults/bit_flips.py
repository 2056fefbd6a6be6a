"""One random bit of one random file turns over, its size and time stay: `curate verify` names that file and no other.

A small pool of tars (raw, fused and filtered tables, subsets, a model) and one of images in tables (with its
downloads) are built once; every try has a copy of its own.
"""

import atexit
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import polars as pl

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.progress import Silent
from curation_assets.core.settings import load_settings
from curation_assets.core.table_names import SUBSETS
from curation_assets.engines import addresses, pins
from curation_assets.engines.addresses import local_folder, resolve_address
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.operations.verify import verify_pool, verify_weights
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.damage import Damage
from curation_assets.stores.shard_store import CorruptTableError
from tests.support.lineage_pools import OPTIONS, bring_up_to_date, jpeg, webdataset_pool
from tests.torture.outcome import Fault, Outcome, Try

TARS, IMAGES = "photos", "pictures"
STUDENT = "icc_student"  # the folder that stands for a model which the pool trained


# -- pools ------------------------------------------------------------------------------------------------------------


@functools.cache
def _built() -> Path:
    """A home with both pools; removed when the process ends."""
    home = Path(tempfile.mkdtemp(prefix="bit-flips-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    ctx = bring_up_to_date(webdataset_pool(home, name=TARS, shards=2, per_shard=6), TARS)
    shipped = addresses.WEIGHTS_ROOT / STUDENT
    ctx.store.materialise_folder(
        f"distilled/{STUDENT}",
        lambda folder: [shutil.copy(path, folder) for path in shipped.iterdir()],
        code_version="1",
    )
    table = home / "pictures.parquet"
    pl.DataFrame({"image": [jpeg(n) for n in range(8)], "caption": [f"a thing {n}" for n in range(8)]}).write_parquet(
        table
    )
    settings = load_settings(home, "embedded")
    add_pool(settings, IMAGES, table, shard_size=4, options=OPTIONS)
    images = PoolContext.open(settings, IMAGES)
    tables = tables_of(images)
    for shard in images.shards():
        for name in ("raw/registered_shards", "raw/downloads", "raw/samples"):
            materialise_table(images, tables[name], shard, tables=tables)
    return home


def _copied(folder: Path, pool: str) -> PoolContext:
    """The pool in a home of its own, with its own source."""
    home = folder / "home"
    shutil.copytree(_built(), home, symlinks=True)
    settings = load_settings(home, "embedded")
    return PoolContext.open(settings, pool)


# -- a flip and who sees it -------------------------------------------------------------------------------------------


def flip_bit(path: Path, rng: random.Random) -> int:
    """Turn one bit of a file over and keep its times, as a failing disk does. Returns the bit's position."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return bit


def flip_link(path: Path, rng: random.Random) -> int:
    """The same of a link's target."""
    target = bytearray(os.readlink(os.fsencode(path)))
    bit = rng.randrange(8 * len(target))
    target[bit // 8] ^= 1 << (bit % 8)
    if not target[bit // 8]:  # no file system keeps a zero byte
        target[bit // 8] ^= 2
    path.unlink()
    os.symlink(bytes(target), os.fsencode(path))
    return bit


def _count(outcome: Outcome, path: Path, bit: int, damages: list[Damage]) -> None:
    named = [damage for damage in damages if damage.path == path]
    outcome.faults_reached += len(named)
    outcome.faults_missed += not named
    outcome.harmed_neighbours += len(damages) - len(named)
    assert named, f"bit {bit} of {path} turned over: verify named {[str(damage) for damage in damages]}"
    assert len(named) == len(damages), f"bit {bit} of {path} alone turned over: verify named {list(map(str, damages))}"


def _flips(
    pool: str,
    pattern: str,
    *,
    flip: Callable[[Path, random.Random], int] = flip_bit,
    readers: Callable[[PoolContext, Path], None] = lambda ctx, path: None,
) -> Try:
    """A try that flips a bit of one of the files of `pattern` in the home."""

    def attempt(folder: Path, rng: random.Random, outcome: Outcome) -> None:
        ctx = _copied(folder, pool)
        is_kind = Path.is_symlink if flip is flip_link else Path.is_file
        path = rng.choice(sorted(path for path in ctx.settings.home.glob(pattern) if is_kind(path)))
        bit = flip(path, rng)
        _count(outcome, path, bit, verify_pool(ctx, tables_of(ctx), Silent()).damages)
        readers(ctx, path)

    return attempt


def _refused(read: Callable[[], object], path: Path) -> None:
    try:
        read()
    except (CorruptTableError, ModelUnavailableError):
        return
    raise AssertionError(f"{path} was read although a bit of it turned over")


def _reads_table(ctx: PoolContext, path: Path) -> None:
    stage, name = path.relative_to(ctx.store.root).parts[:2]
    _refused(lambda: ctx.store.scan(f"{stage}/{name}").collect(), path)


def _reads_ledger(ctx: PoolContext, path: Path) -> None:
    name = path.relative_to(ctx.store.root).parts[1]
    _refused(lambda: list(recorded_ledger(ctx.store, name).parts()), path)


def _reads_model(ctx: PoolContext, path: Path) -> None:
    _refused(lambda: local_folder(resolve_address(f"pool:{STUDENT}", ctx.pool_models)), path)


@contextmanager
def _weights_at(root: Path) -> Iterator[None]:
    """Shipped weights lie under another root meanwhile."""
    with mock.patch.object(addresses, "WEIGHTS_ROOT", root), mock.patch.object(pins, "WEIGHTS_ROOT", root):
        yield


def _shipped_weights(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    root = folder / "weights"
    shutil.copytree(addresses.WEIGHTS_ROOT, root)
    path = rng.choice(sorted(path for path in root.glob("*/**/*") if path.is_file()))
    bit = flip_bit(path, rng)
    with _weights_at(root):
        _count(outcome, path, bit, verify_weights(Silent()).damages)
        name = path.relative_to(root).parts[0]
        _refused(lambda: local_folder(resolve_address(f"embedded:{name}")), path)


def _repaired(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """Tables come back with the same content, subsets byte for byte."""
    from curation_assets.defs.repairing import repair_pool

    ctx = _copied(folder, TARS)
    before = _contents(ctx)
    patterns = ["raw/samples/*/data.parquet", "filtered/icc/*/manifest.json", "filtered/clip/*/data.parquet"]
    for pattern in [*patterns, "filtered/subsets/*.npy", "source/*.json"]:
        flip_bit(rng.choice(sorted(ctx.store.root.glob(pattern))).resolve(), rng)
    damages = verify_pool(ctx, tables_of(ctx), Silent()).damages
    outcome.faults_reached += len(damages)
    assert len(damages) == 5, [str(damage) for damage in damages]
    left = repair_pool(ctx.settings, TARS, damages, progress=Silent())
    outcome.faults_missed += len(left)
    assert not left, [str(damage) for damage in left]
    after = _contents(ctx)
    other = {name for name in before if after.get(name) != before[name]}
    outcome.harmed_neighbours += len(other)
    assert not other, f"repair left {sorted(other)} otherwise than before"


def _contents(ctx: PoolContext) -> dict[str, object]:
    """What tables and subsets hold, by name."""
    found: dict[str, object] = {}
    for path in sorted(ctx.store.root.glob("*/*/*/data.parquet")):
        found[path.relative_to(ctx.store.root).as_posix()] = pl.read_parquet(path).to_dict(as_series=False)
    for path in sorted(path for path in ctx.store.folder_path(SUBSETS).glob("*") if path.is_file()):
        found[f"{SUBSETS}/{path.name}"] = path.read_bytes()
    return found


SEEN = "verify names the file"
FAULTS = [
    Fault(
        "a bit of a table", f"{SEEN}; scan refuses it",
        _flips(TARS, f"work/{TARS}/*/*/**/data.parquet", readers=_reads_table), full=60,
    ),
    Fault("a bit of a table's manifest.json", SEEN, _flips(TARS, f"work/{TARS}/*/*/**/manifest.json"), full=25),
    Fault(
        "a bit of a folder's manifest.json", SEEN,
        _flips(TARS, f"work/{TARS}/*/.*.version-*/manifest.json"), full=20,
    ),
    Fault("a bit of a folder's link", SEEN, _flips(TARS, f"work/{TARS}/*/[ls]*", flip=flip_link), full=15),
    Fault(
        "a bit of a ledger", f"{SEEN}; its readers refuse it",
        _flips(TARS, f"work/{TARS}/filtered/icc/*/data.parquet", readers=_reads_ledger), full=25,
    ),
    Fault(
        "a bit of a subset (.npy, .parquet, .tsv)", SEEN,
        _flips(TARS, f"work/{TARS}/filtered/.subsets.version-*/files/*"), full=25,
    ),
    Fault("a bit of a source tar", f"{SEEN}; it cannot be repaired", _flips(TARS, "tars/*.tar"), full=20),
    Fault("a bit of a source table", f"{SEEN}; it cannot be repaired", _flips(IMAGES, "pictures.parquet"), full=15),
    Fault("a bit of a part of a source", SEEN, _flips(IMAGES, f"work/{IMAGES}/source/**/*"), full=15),
    Fault("a bit of a download", SEEN, _flips(IMAGES, f"work/{IMAGES}/downloads/*/*"), full=25),
    Fault(
        "a bit of a model that the pool trained", f"{SEEN}; it is not loaded",
        _flips(TARS, f"work/{TARS}/distilled/.*.version-*/files/*", readers=_reads_model), full=15,
    ),
    Fault("a bit of shipped weights", f"{SEEN}; they are not loaded", _shipped_weights, full=20),
    Fault("five damaged files, repaired", "tables equal, .npy byte for byte", _repaired, full=2),
]  # fmt: skip
