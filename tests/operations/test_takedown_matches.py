"""What a takedown finds: addresses in any spelling, entries that named no row, rows with the same image or caption."""

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.operations.takedown import begin_takedown, finish_takedown, pending_path
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.download.download import DownloadSettings, download_shard
from curation_assets.stores.denylist import (
    Denylist,
    add_to_denylist,
    entries_without_rows,
    own_entries,
)
from tests.support.command import curate
from tests.support.lineage_pools import OPTIONS, jpeg
from tests.support.raw_server import RawServer, reply

#: Path of the image, caption. Rows 0 and 1 have one image, rows 0 and 2 one caption.
ROWS = [("/a.jpg", "a photo of a dog"), ("/b.jpg", "a red bus"), ("/c.jpg", "a photo of a dog"), ("/d%C3%A9.jpg", "d")]


@pytest.fixture
def server() -> Iterator[RawServer]:
    images = dict(zip([path for path, _ in ROWS], map(jpeg, (1, 1, 2, 3)), strict=True))
    with RawServer({path: reply(200, image) for path, image in images.items()}) as running:
        yield running


def pool_of(home: Path, name: str, server: RawServer, rows: list[tuple[str, str]]) -> PoolContext:
    """A pool of URLs of images.example, up to raw/samples."""
    urls = [f"http://images.example{path}" for path, _ in rows]
    pl.DataFrame({"url": urls, "caption": [caption for _, caption in rows]}).write_csv(home / f"{name}.csv")
    settings, download = load_settings(home, "embedded"), DownloadSettings(connect_to={"images.example": server.host})
    add_pool(settings, name, home / f"{name}.csv", options=OPTIONS, download=download)
    ctx = PoolContext.open(settings, name)
    run_with_upstream(ctx, SAMPLES)
    return ctx


def test_a_takedown_names_what_it_found_and_what_stays(tmp_path: Path, server: RawServer) -> None:
    ctx, other = pool_of(tmp_path, "one", server, ROWS), pool_of(tmp_path, "two", server, ROWS[1:2])
    assert ctx.store.read(SAMPLES, "one-000000")["status"].to_list() == ["kept"] * 4
    values = [
        ("url", "HTTP://user@Images.Example.:80/x/../%61.jpg#top"),
        ("url", "http://images.example/dé.jpg"),
        ("url", "http://images.example/nowhere.jpg"),
        ("creator", "Jane Doe"),
    ]
    words = [word for kind, value in values for word in (f"--{kind}", value)]
    output = curate("takedown", "add", *words, home=tmp_path).output
    listed = Denylist.load(tmp_path)
    names = [listed.entry_of(kind, value) for kind, value in values]  # type: ignore[arg-type]
    for (kind, value), name in zip(values, names, strict=True):
        assert f"entry {name[:12]}: {kind} {value}" in output

    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    run_with_upstream(ctx, SAMPLES)
    certificate, _ = finish_takedown(ctx, tables, begun)
    rows = ctx.store.read(SAMPLES, "one-000000")
    assert rows["reason"].to_list() == ["takedown", None, None, "takedown"]
    assert certificate["entries"] == sorted(({"kind": "url", "entry": name} for name in names[:2]), key=str)
    unfound = [{"kind": one["kind"], "entry": one["entry"]} for one in certificate["entries_without_rows"]]
    assert unfound == [{"kind": "creator", "entry": names[3]}, {"kind": "url", "entry": names[2]}]
    assert [(one["pool"], one["source_row"], one["same_as"]) for one in certificate["same_image"]] == [
        ("one", 1, rows["sample_id"][0]),
        ("two", 0, rows["sample_id"][0]),
    ]
    # the image and the caption are other rows' as well: finding them is no residue, and the takedown has ended
    assert certificate["left"] == []
    assert not pending_path(tmp_path, "one").exists()
    assert begin_takedown(other, tables_of(other)) is None
    add_to_denylist(tmp_path, [("domain", "IMAGES.example.")])
    begun = begin_takedown(other, tables_of(other))
    assert begun is not None
    assert begun.samples["source_row"].to_list() == [0]
    assert [entry.kind for entry in entries_without_rows(tmp_path)] == ["creator", "url"]
    assert all("example" not in (tmp_path / "takedown" / "denylist.json").read_text() for _ in values)


def test_a_denied_domain_is_neither_requested_nor_stored_however_its_host_is_written(
    tmp_path: Path, server: RawServer
) -> None:
    hosts = ["images.example", "images.example.", "IMAGES.Example.:80", "user@images.example。", "%69mages.example"]
    rows = pl.DataFrame(
        {
            "sample_id": [f"{number:032x}" for number in range(len(hosts))],
            "source_row": range(len(hosts)),
            "url": [f"http://{host}/a.jpg" for host in hosts],
            "caption": ["a dog"] * len(hosts),
        }
    )
    add_to_denylist(tmp_path, [("domain", "Images.EXAMPLE.")])
    settings = DownloadSettings(connect_to={"images.example": server.host})
    denylist = Denylist.load(tmp_path)
    frame = download_shard(rows, tmp_path / "out", "toy-000000", settings=settings, denylist=denylist)
    assert frame["reason"].to_list() == ["takedown"] * len(hosts)
    assert server.requests == []
    assert not list((tmp_path / "out").rglob("*.tar"))


@pytest.mark.slow
def test_apply_names_entries_without_rows_and_rows_of_the_same_image(tmp_path: Path, server: RawServer) -> None:
    ctx = pool_of(tmp_path, "one", server, ROWS)
    rows = ctx.store.read(SAMPLES, "one-000000")
    url = "http://images.example/nowhere.jpg"
    add_to_denylist(tmp_path, [("url", url)])
    nowhere = str(Denylist.load(tmp_path).entry_of("url", url))[:12]

    def apply() -> str:
        result = curate("takedown", "apply", home=tmp_path, width=300)
        assert result.exit_code == 0, result.output
        assert f"1 entries of the denylist have named no row that a pool held, so far: url {nowhere}" in result.output
        return result.output

    assert "holds nothing that is on the denylist" in apply()
    add_to_denylist(tmp_path, [("url", "http://IMAGES.example./a.jpg")])
    assert f"stays in 1 other rows: one {rows['sample_id'][1]}" in apply()


def test_entries_of_an_earlier_version_are_not_said_to_have_named_nothing(tmp_path: Path) -> None:
    add_to_denylist(tmp_path, [("url", "http://a.example/1.jpg")])
    path = tmp_path / "takedown" / "denylist.json"
    content = json.loads(path.read_text())
    for entry in content["entries"]:
        del entry["is_found"]
    path.write_text(json.dumps({name: content[name] for name in ("salt", "entries")}))
    assert entries_without_rows(tmp_path) == []
    assert len(own_entries(tmp_path)[1]) == 1
