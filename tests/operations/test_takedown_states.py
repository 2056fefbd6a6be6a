"""A takedown ends whatever else is declared, missing, stale or failing, and the pool runs afterwards."""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from curation_assets.core.errors import StoreError
from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.publishing import run_and_publish
from curation_assets.defs.takedown import take_down
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import tables_of
from curation_assets.numeric.identity import sample_id_of
from curation_assets.operations.takedown import pending_path
from curation_assets.sources.declaration import add_pool, load_pool, save_pool
from curation_assets.stores.denylist import add_to_denylist
from tests.operations.test_takedown import holders
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import caption_of, jpeg, write_tar

POOL, ROWS, SHARDS, TAKEN = "photos", 12, 3, 5
OWN_POLICY = {"name": "own", "description": "half by ICC", "rank_by": "signals.icc", "fraction": 0.5}
OWN_RECIPE = """-- Grain: one row per row of raw.samples; quality is null, with a reason, where a signal has no value.
-- applied: per shard
-- test: unique shard source_row
with final as (
    select * exclude (reason), .3 * icc_score + .7 * clip_score as quality, reason
    from fused.scaled
)

select * from final
"""
Change = Callable[[Settings, random.Random], None]


@pytest.fixture(scope="module")
def run_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose pool has run with two policies; every signal is given, so that nothing loads a model."""
    home = tmp_path_factory.mktemp("states") / "home"
    numbers = range(ROWS)
    urls = [f"http://host{n % 3}.example/{n}.jpg" for n in numbers]
    rows = [(f"{n:06d}", urls[n], caption_of(n), jpeg(n)) for n in numbers]
    size = ROWS // SHARDS
    for shard in range(SHARDS):
        write_tar(home / "tars" / f"{shard:06d}.tar", rows[shard * size : (shard + 1) * size])
    ids = [sample_id_of(urls[n], caption_of(n)) for n in numbers]
    values = {
        name: [n * step % 13 / 13 for n in numbers] for name, step in (("icc", 3), ("clip_score", 5), ("sieve", 7))
    }
    generated = [[f"thing {n}"] for n in numbers]
    given = pl.DataFrame({"sample_id": ids, "generated_captions": generated, **values})
    given.write_parquet(home / "given.parquet")
    options = {
        "distil": False, "downstream": False, "policies": ["clip", "icc"], "fraction": 0.5, "image_domain": "other",
        "given_signals": {name: f"{home / 'given.parquet'}:{name}" for name in values},
        "given": {"generated_captions": str(home / "given.parquet")},
    }  # fmt: skip
    settings = load_settings(home, "embedded")
    add_pool(settings, POOL, home / "tars", options=options)
    run_and_publish(settings, POOL)
    yield home
    shutil.rmtree(home)


def options(settings: Settings, **changed: Any) -> None:
    pool = load_pool(settings, POOL)
    save_pool(settings, replace(pool, options=replace(pool.options, **changed)))


def policy_saved(settings: Settings, rng: random.Random) -> None:
    folder = settings.pools_root / POOL
    folder.mkdir(exist_ok=True)
    (folder / "own.yaml").write_text(yaml.safe_dump(OWN_POLICY))


def policy_of_the_home(settings: Settings, rng: random.Random) -> None:
    folder = settings.pools_root / "policies"
    folder.mkdir()
    (folder / "own_of_home.yaml").write_text(yaml.safe_dump({**OWN_POLICY, "name": "own_of_home"}))
    options(settings, policies=None)


def policies_of_a_new_version(settings: Settings, rng: random.Random) -> None:
    """As in a home that an earlier version ran: shipped policies that never ran here."""
    options(settings, policies=None)


def policy_removed(settings: Settings, rng: random.Random) -> None:
    options(settings, policies=[rng.choice(["clip", "icc"])])


def recipe_added(settings: Settings, rng: random.Random) -> None:
    folder = settings.pools_root / "recipes"
    folder.mkdir()
    (folder / "own_mix.sql").write_text(OWN_RECIPE)


def fraction_changed(settings: Settings, rng: random.Random) -> None:
    options(settings, fraction=0.25)


def profile_without_weights(settings: Settings, rng: random.Random) -> None:
    """Its models are not on this disk: whatever asks for one fails."""
    save_pool(settings, replace(load_pool(settings, POOL), profile="hub"))


def tables_missing(settings: Settings, rng: random.Random) -> None:
    """Any but the rows themselves, of which one of the two tables may be away."""
    store = PoolContext.open(settings, POOL).store
    stored = [
        path for path in sorted(store.root.glob("*/[a-z]*")) if path.parent.name in ("signals", "fused", "filtered")
    ]
    for path in rng.sample(stored, 3):
        store.remove(f"{path.parent.name}/{path.name}")
    store.remove(rng.choice(["raw/registered_shards", "raw/samples", "raw/provenance"]), f"{POOL}-000001")


def table_damaged(settings: Settings, rng: random.Random) -> None:
    store = PoolContext.open(settings, POOL).store
    name = rng.choice(["signals/icc", "raw/downloads", "filtered/clip"])
    store.table_path(name, f"{POOL}-000001").write_bytes(b"no table")


def source_away(settings: Settings, rng: random.Random) -> None:
    (settings.home / "tars").rename(settings.home.parent / "away")


def given_file_away(settings: Settings, rng: random.Random) -> None:
    (settings.home / "given.parquet").rename(settings.home.parent / "given.away")


def policy_that_cannot_be_read(settings: Settings, rng: random.Random) -> None:
    """No command can list the pool's tables."""
    (settings.pools_root / POOL).mkdir(exist_ok=True)
    (settings.pools_root / POOL / "broken.yaml").write_text("rank_by: [")


def profile_removed(settings: Settings, rng: random.Random) -> None:
    pool = load_pool(settings, POOL)
    save_pool(settings, replace(pool, profile=str(settings.home / "no_profile.yaml")))


CHANGES: list[Change] = [
    policy_saved, policy_of_the_home, policies_of_a_new_version, policy_removed, recipe_added, fraction_changed,
    profile_without_weights, tables_missing, table_damaged, source_away, given_file_away,
    policy_that_cannot_be_read, profile_removed,
]  # fmt: skip


def brought_back(settings: Settings) -> None:
    """What a person can bring back, so that a run is possible at all."""
    for name, place in (("away", "tars"), ("given.away", "given.parquet")):
        if (settings.home.parent / name).exists():
            (settings.home.parent / name).rename(settings.home / place)
    (settings.pools_root / POOL / "broken.yaml").unlink(missing_ok=True)
    save_pool(settings, replace(load_pool(settings, POOL), profile="embedded"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(CHANGES)))
def test_a_takedown_ends_whatever_state_its_pool_is_in(run_home: Path, tmp_path: Path, seed: int) -> None:
    """Each change once, beside up to three others."""
    home, rng = tmp_path / "home", random.Random(seed)
    shutil.copytree(run_home, home, symlinks=True)
    for path in (home / "pools").glob("*.yaml"):
        path.write_text(path.read_text().replace(str(run_home), str(home)))
    settings = load_settings(home, "embedded")
    chosen = {CHANGES[seed], *rng.sample(CHANGES, rng.randrange(4))}
    for change in (change for change in CHANGES if change in chosen):
        change(settings, rng)
    url = f"http://host{TAKEN % 3}.example/{TAKEN}.jpg"
    sample_id = sample_id_of(url, caption_of(TAKEN))
    add_to_denylist(home, [("uid", sample_id)])

    said: list[str] = []
    certificate = take_down(settings, POOL, on_notice=said.append)
    names = ", ".join(sorted(change.__name__ for change in chosen))
    assert certificate is not None, names
    assert certificate["left"] == [], (names, said)
    assert not pending_path(home, POOL).exists()
    assert [one["sample_id"] for one in certificate["samples"]] == [sample_id]

    brought_back(settings)
    run_and_publish(settings, POOL, on_notice=said.append)
    ctx = PoolContext.open(settings, POOL)
    tables = tables_of(ctx)
    for name, table in tables.items():
        for key in table.partitions(ctx.shards()):
            assert is_up_to_date(ctx, table, key, tables=tables), (names, name, key)
    samples = ctx.store.scan("raw/samples").collect()
    assert samples.filter(pl.col("reason") == "takedown")["sample_id"].to_list() == [sample_id]
    subsets = list(ctx.store.folder_path("filtered/subsets").glob("*.npy"))
    assert len(subsets) == len([name for name in tables if name.endswith("_cut")])
    assert all(sample_id not in read_subset(path) for path in subsets)
    assert holders(ctx.store.root, caption_of(TAKEN).encode(), url.encode()) == []
    assert take_down(settings, POOL) is None


@pytest.mark.slow
def test_a_run_goes_on_beside_a_takedown_that_cannot_end(run_home: Path, tmp_path: Path) -> None:
    """A release that nobody can read stops the certificate, and says so; tables are made all the same."""
    home = tmp_path / "home"
    shutil.copytree(run_home, home, symlinks=True)
    path = home / "pools" / f"{POOL}.yaml"
    path.write_text(path.read_text().replace(str(run_home), str(home)))
    settings = load_settings(home, "embedded")
    broken = home / "releases" / POOL / "v1" / "release.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    add_to_denylist(home, [("url", f"http://host{TAKEN % 3}.example/{TAKEN}.jpg")])
    with pytest.raises(StoreError, match="release"):
        take_down(settings, POOL)
    assert pending_path(home, POOL).is_file()
    said: list[str] = []
    reports = run_and_publish(settings, POOL, on_notice=said.append)
    assert "filtered/subsets" in {report.table for report in reports}
    (sentence,) = [one for one in said if "cannot be finished" in one]
    assert str(broken) in sentence
    assert f"`curate takedown apply --pool {POOL}`" in sentence
    shutil.rmtree(broken.parent)
    run_and_publish(settings, POOL)
    assert not pending_path(home, POOL).exists()
