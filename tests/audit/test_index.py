"""The index of a pool in a bucket: what one machine read of the tables, another does not read again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from curation_assets.audit.index import SHARED, Index, refresh_index
from curation_assets.core.settings import home_of
from curation_assets.stores.objects import open_home
from curation_assets.stores.shard_store import ShardStore
from tests.support.bucket import BUCKET, Bucket, running_bucket

PREFIX = "home"
URL = f"s3://{BUCKET}/{PREFIX}"
ASSETS = ("raw/registered_shards", "raw/samples", "raw/lookup")
SHARDS = [f"toy-{number:06d}" for number in range(4)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket."""
    with running_bucket(monkeypatch) as running:
        yield running


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], ShardStore]:
    """A function that makes this process another machine: its view of the pool."""

    def become(name: str) -> ShardStore:
        monkeypatch.setenv("CURATION_HOMES", str(tmp_path / name))
        open_home(home_of(URL))
        return ShardStore(home_of(URL) / "work/toy")

    return become


def write(store: ShardStore, shard: str, value: int) -> None:
    """The tables of a shard, the second made from the first."""
    rows = pl.DataFrame({"value": [value]})
    store.write("raw/registered_shards", rows, shard, code_version="1")
    read = store.input_versions("raw/samples", [("raw/registered_shards", shard)])
    store.write("raw/samples", rows, shard, code_version="1", inputs=read)


def tables_fetched(bucket: Bucket) -> int:
    """Tables that were fetched since this was asked last."""
    fetched = [one.key for one in bucket.requests if one.method == "GET" and one.key.endswith("/data.parquet")]
    bucket.requests.clear()
    return len(fetched)


def contents(store: ShardStore) -> dict[str, list[list[int]]]:
    """Table → contents, and sums of the contents of what it read."""
    tables = Index.read(store.root / "index", SHARDS).tables
    return {
        name: [table.content.tolist(), *(part.tolist() for pair in table.inputs.values() for part in pair)]
        for name, table in tables.items()
    }


def test_another_machine_reads_the_index_and_no_table(bucket: Bucket, on: Callable[[str], ShardStore]) -> None:
    one = on("one")
    for number, shard in enumerate(SHARDS):
        write(one, shard, number)
    one.write("raw/lookup", pl.DataFrame({"value": [0]}), code_version="1")
    refresh_index(one, ASSETS)
    tables_fetched(bucket)
    two = on("two")
    refresh_index(two, ASSETS)
    assert tables_fetched(bucket) == 0
    assert contents(two) == contents(one)
    assert len(contents(two)["raw/samples"]) == 3

    write(two, SHARDS[2], 7)
    refresh_index(two, ASSETS)
    three = on("three")
    tables_fetched(bucket)
    refresh_index(three, ASSETS)
    assert tables_fetched(bucket) == 0
    assert contents(three) == contents(two) != contents(one)

    bucket.requests.clear()
    refresh_index(three, ASSETS)
    assert [one for one in bucket.requests if one.method == "PUT"] == []  # nothing has changed


@pytest.mark.slow
@pytest.mark.parametrize("what", ["damaged", "missing", "of before"])
def test_what_the_shared_index_lacks_is_read_from_the_tables(
    bucket: Bucket, on: Callable[[str], ShardStore], what: str
) -> None:
    one = on("one")
    for number, shard in enumerate(SHARDS):
        write(one, shard, number)
    refresh_index(one, ASSETS)
    key = f"{PREFIX}/work/toy/{SHARED}"
    if what == "damaged":
        bucket.client.put_object(Bucket=BUCKET, Key=key, Body=bucket.read(key)[:-9])
    elif what == "missing":
        bucket.client.delete_object(Bucket=BUCKET, Key=key)
    else:
        write(one, SHARDS[1], 9)
    two = on("two")
    tables_fetched(bucket)
    refresh_index(two, ASSETS)
    assert tables_fetched(bucket) == (2 if what == "of before" else 8)
    refresh_index(one, ASSETS)
    assert contents(two) == contents(one)
    three = on("three")
    tables_fetched(bucket)
    refresh_index(three, ASSETS)
    assert tables_fetched(bucket) == 0


@pytest.mark.parametrize("name", ["tables", "inputs"])
@pytest.mark.parametrize("damaged", [lambda data: data[:-9], lambda data: bytes(len(data)), lambda data: b""])
def test_a_damaged_index_is_made_again(tmp_path: Path, name: str, damaged: Callable[[bytes], bytes]) -> None:
    store = ShardStore(tmp_path)
    for number, shard in enumerate(SHARDS):
        write(store, shard, number)
    refresh_index(store, ASSETS)
    before, path = contents(store), tmp_path / "index" / f"{name}.parquet"
    path.write_bytes(damaged(path.read_bytes()))
    refresh_index(store, ASSETS)
    assert contents(store) == before
    assert any(before.values())
