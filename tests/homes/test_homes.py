"""Homes that earlier versions left: they open, are sound, go on with a new shard, and samples leave them.

A folder of homes.tar.xz is a home as its version's commands made it (`make.py`), unpacked elsewhere, as if moved.
"""

import json
import tarfile
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from tests.homes.make import PACKED, write_tar
from tests.support.command import curate as in_process
from tests.support.id_lists import read_subset

HOMES = ("format_1_before_its_number", "format_1")
POLICIES = ("icc", "random")
pytestmark = pytest.mark.slow


def curate(home: Path, *words: str) -> str:
    run = in_process(*words, home=home)
    assert run.exit_code == 0, run.output
    return run.output


def subsets(home: Path, pool: str) -> dict[str, list[str]]:
    folder = home / "work" / pool / "filtered" / "subsets"
    return {path.stem: read_subset(path) for path in sorted(folder.glob("*.npy"))}


def verdicts(home: Path, pool: str, policy: str) -> pl.DataFrame:
    ctx = PoolContext.open(load_settings(home, "embedded"), pool)
    return ctx.store.scan(f"filtered/{policy}").sort("shard", "source_row").collect()


@pytest.fixture(scope="module", params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home, whose source lies where it was unpacked."""
    folder = tmp_path_factory.mktemp("moved")
    with tarfile.open(PACKED) as tar:
        tar.extractall(folder, [one for one in tar if one.name.split("/")[0] == request.param], filter="data")
    home = folder / request.param
    curate(home, "pool", "set", "pictures", f"source={home / 'pictures'}")
    return home


def test_there_is_a_home_of_each_format() -> None:
    from curation_assets.stores.home_format import FORMAT

    assert {f"format_{number}" for number in range(1, FORMAT + 1)} <= set(HOMES)
    assert PACKED.stat().st_size < 1_000_000


def test_it_opens_and_is_sound(home: Path) -> None:
    assert "scenes" in curate(home, "pool", "list")
    curate(home, "verify")
    for release in (home / "releases" / "pictures").iterdir():  # the first one, and what the takedown made of it
        run = in_process("release", "verify", release)
        assert run.exit_code == (3 if release.name == "first" else 0), run.output
        assert ("withdrawn on" in run.output) == (release.name == "first")
    for pool, rows in (("scenes", 40), ("pictures", 20)):
        for policy in POLICIES:
            frame = verdicts(home, pool, policy)
            assert frame.height == rows
            kept = frame.filter(pl.col("verdict") == "kept")["sample_id"].sort().to_list()
            assert subsets(home, pool)[policy] == kept
            assert rows // 4 - len(kept) in (0, 1)  # one picture was taken down
    dropped = verdicts(home, "pictures", "icc").filter(pl.col("verdict") == "dropped")["sample_id"][0]
    assert "below_cut" in curate(home, "why", dropped, "--json")


def test_it_goes_on_and_what_was_cut_stays(home: Path) -> None:
    before = {(pool, policy): verdicts(home, pool, policy) for pool in ("scenes", "pictures") for policy in POLICIES}
    write_tar(home / "pictures" / "c.tar", range(20, 28))
    said = {}
    for pool in ("pictures", "scenes"):
        run = in_process("run", pool, "--json", home=home)
        assert run.exit_code == 0, run.output
        said[pool] = json.loads(run.stdout)["verdict_changes"]
    for (pool, policy), frame in before.items():
        now = verdicts(home, pool, policy)
        old = now.filter(pl.col("shard").is_in(frame["shard"].unique().implode()))
        assert old["sample_id"].equals(frame["sample_id"])
        changed = sum(sum(one["flips"].values()) for one in said[pool] if one["policy"] == policy)
        assert (old["verdict"] != frame["verdict"]).sum() == changed
        assert not changed or policy == "icc", (pool, said)  # whose student is another, or rounds otherwise
        assert now.height == frame.height + (8 if pool == "pictures" else 0)
    assert "everything is up to date" in curate(home, "plan", "pictures")
    curate(home, "verify")


def test_samples_are_taken_down_from_it(home: Path) -> None:
    before = subsets(home, "pictures")["random"]
    curate(home, "takedown", "add", "--uid", before[0])
    curate(home, "takedown", "apply")
    assert before[0] not in subsets(home, "pictures")["random"]
    work = home / "work" / "pictures"
    listed = work / "takedown"  # of each shard the ids that were removed, for the source's fingerprint
    files = [path for path in work.rglob("*") if path.is_file() and path.parent != listed]
    assert [path for path in files if before[0].encode() in path.read_bytes()] == []
    curate(home, "verify")
