"""raw/provenance: source, licence, creator, page, domain and language of every row, whatever brings them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from curation_assets.core.settings import Settings, load_settings
from curation_assets.core.table_names import DOWNLOADS, PROVENANCE, REGISTERED_SHARDS, SAMPLES
from curation_assets.core.validation import build
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.selection.kinds.mix import KIND
from curation_assets.sources.declaration import DeclaredSource, add_pool, save_pool
from curation_assets.stores.denylist import add_to_denylist, own_entries
from curation_assets.stores.provenance import PROVENANCE_SCHEMA
from tests.support.command import curate
from tests.support.hostile_sources import tar_bytes
from tests.support.lineage_pools import jpeg
from tests.support.marked_images import SIGNED, jpeg_with_xmp, xmp

ROWS: list[dict[str, Any]] = [
    {
        "caption": "a red bus on a road", "license": "CC BY 4.0", "author": "Ann", "source": "flickr",
        "page_url": "https://www.a.co.uk/p",
    },
    {
        "caption": "ein Hund läuft im Garten", "license": "https://creativecommons.org/licenses/by/2.0/", "author": " ",
        "source": "wiki",
    },
    {"caption": "un chat noir sur la table", "license": None, "author": "Eve", "source": None},
    {
        "caption": "A biker races .", "license": "own terms", "author": "x" * 2001, "source": "wiki",
        "page_url": "no url",
    },
]  # fmt: skip
EXPECTED = {
    "source": ["flickr", "wiki", "p", "wiki"],
    "licence": ["cc-by-4.0", "cc-by-2.0", None, "own terms"],
    "licence_url": [None, "https://creativecommons.org/licenses/by/2.0/", None, None],
    "creator": ["Ann", None, "Eve", None],
    "source_url": ["https://www.a.co.uk/p", None, None, "no url"],
    "domain": ["a.co.uk", None, None, None],
    "caption_words": [6, 5, 6, 4],
}
NAMES = ("caption", "license", "author", "source", "page_url")


def made(settings: Settings, name: str = "p") -> PoolContext:
    ctx = PoolContext.open(settings, name)
    run_with_upstream(ctx, PROVENANCE)
    return ctx


def provenance(ctx: PoolContext) -> pl.DataFrame:
    return ctx.store.scan(PROVENANCE).collect().sort("shard", "source_row")


def written(folder: Path, kind: str) -> Path:
    """ROWS as a source of some kind."""
    frame = pl.DataFrame([{name: row.get(name) for name in NAMES} for row in ROWS])
    if kind == "tars":
        members = {}
        for number, row in enumerate(ROWS):
            members |= {f"{number}.jpg": jpeg(number), f"{number}.txt": row["caption"].encode()}
            members[f"{number}.json"] = json.dumps({key: row.get(key) for key in NAMES if key != "caption"}).encode()
        (folder / "000000.tar").write_bytes(tar_bytes(members))
        return folder
    if kind == "images":
        frame = frame.with_columns(image=pl.Series([jpeg(number) for number in range(len(ROWS))]))
        frame.write_parquet(folder / "rows.parquet")
        return folder / "rows.parquet"
    frame.write_csv(folder / "rows.csv")
    return folder / "rows.csv"


@pytest.mark.parametrize("kind", ["captions", "images", "tars"])
def test_what_the_rows_bring_along_is_there_from_every_kind_of_source(tmp_path: Path, kind: str) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    folder = tmp_path / "source"
    folder.mkdir()
    add_pool(settings, "p", written(folder, kind), profile="embedded")
    ctx = made(settings)
    rows = provenance(ctx)
    assert rows.schema == PROVENANCE_SCHEMA
    assert {name: rows[name].to_list() for name in EXPECTED} == EXPECTED
    assert rows["language"].to_list() == ["en", "de", "fr", "en"]  # the last one's likeliest is Dutch
    assert (rows["image_bytes"].null_count() == 0) == (kind != "captions")


def test_a_host_has_one_domain_however_it_is_written(tmp_path: Path) -> None:
    """In raw/provenance, of which summaries, mixtures and counts are made, and where hosts are counted."""
    pages = ["http://пример.рф/1", "https://www.XN--E1AFMKFD.xn--p1ai.:443/2", "http://user@images.ПРИМЕР。рф:8080/3"]
    pages += ["http://[2001:DB8:0::1]/4", "http://[2001:db8::1]:80/5", "http://a.公司.cn/6", "http://b.公司.cn/7"]
    source = tmp_path / "rows.csv"
    captions = [f"a photo of {number} dogs on a beach" for number in range(len(pages))]
    pl.DataFrame({"caption": captions, "page_url": pages}).write_csv(source)
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", source)
    ctx = made(settings)
    one = "xn--e1afmkfd.xn--p1ai"
    assert provenance(ctx)["domain"].to_list() == [
        one, one, one, "2001:db8::1", "2001:db8::1", "a.xn--55qx5d.cn", "b.xn--55qx5d.cn",
    ]  # fmt: skip
    assert build(KIND, {"by": "domain", "shares": {"Пример.рф.": 1}, "samples": 9}, "mix").shares == {one: 1}


def test_a_declared_source_fills_what_rows_lack_and_restales_no_score(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    pool = add_pool(settings, "p", written(tmp_path, "captions"))
    before = made(settings).store.manifest(SAMPLES, "p-000000")
    declared = (
        DeclaredSource("wiki", licence="CC BY-SA 3.0"),
        DeclaredSource("p", licence="cc0-1.0", licence_url="https://creativecommons.org/publicdomain/zero/1.0/"),
    )
    save_pool(settings, replace(pool, sources=declared))
    ctx = made(settings)
    rows = provenance(ctx)
    assert rows["licence"].to_list() == ["cc-by-4.0", "cc-by-2.0", "cc0-1.0", "own terms"]
    assert rows["licence_url"].to_list()[2] == "https://creativecommons.org/publicdomain/zero/1.0/"
    assert ctx.store.manifest(SAMPLES, "p-000000") == before
    readers = [name for name, table in tables_of(ctx).items() if PROVENANCE in table.inputs]
    assert not any(name.startswith(("signals/", "fused/", "distilled/")) for name in readers)


def test_the_only_declared_source_is_that_of_every_row(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    pool = add_pool(settings, "p", written(tmp_path, "captions"), columns={"source": None, "licence": None})
    save_pool(settings, replace(pool, sources=(DeclaredSource("cc12m", licence="mit"),)))
    rows = provenance(made(settings))
    assert rows["source"].to_list() == ["cc12m"] * 4
    assert rows["licence"].to_list() == ["mit"] * 4


def test_a_sample_that_was_taken_down_keeps_its_source_alone(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", written(tmp_path, "captions"))
    sample_id = provenance(made(settings))["sample_id"][0]
    add_to_denylist(settings.home, [("uid", sample_id)])
    ctx = made(settings)
    registered = ctx.store.read(REGISTERED_SHARDS, "p-000000").row(0, named=True)
    assert [registered[name] for name in ("licence", "creator", "source_url")] == [None] * 3
    row = provenance(ctx).row(0, named=True)
    kept = {name for name, value in row.items() if value is not None}
    assert kept == {"sample_id", "shard", "source_row", "source"}


def test_columns_are_named_on_the_command_line_and_can_be_refused(tmp_path: Path) -> None:
    pl.DataFrame({"caption": ["a"], "terms": ["MIT"], "lang": ["EN"]}).write_csv(tmp_path / "rows.csv")
    home = ["--home", str(tmp_path / "home")]
    source = str(tmp_path / "rows.csv")
    shown = curate("pool", "add", "p", source, "--licence-column", "terms", "--language-column", "none", *home)
    assert "licence terms" in shown.output
    declared = yaml.safe_load((tmp_path / "home/pools/p.yaml").read_text())
    assert declared["columns"]["licence"] == "terms"
    assert "language" not in declared["columns"]
    wrong = curate("pool", "add", "q", source, "--creator-column", "who", *home)
    assert wrong.exit_code == 1
    assert "'who'" in wrong.output
    assert "--creator-column" in wrong.output


def test_a_profile_without_a_language_identifier_leaves_languages_unknown(tmp_path: Path) -> None:
    profile = tmp_path / "bare.yaml"
    profile.write_text("name: bare\nroles: {}\n")
    settings = load_settings(tmp_path / "home", str(profile))
    add_pool(settings, "p", written(tmp_path, "captions"))
    rows = provenance(made(settings))
    assert rows["language"].null_count() == rows.height == 4
    assert rows["licence"].to_list() == EXPECTED["licence"]


def test_why_shows_where_a_row_comes_from(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", written(tmp_path, "captions"))
    sample_id = provenance(made(settings))["sample_id"][0]
    shown = curate("why", sample_id, home=settings.home)
    assert "source flickr, licence cc-by-4.0, creator Ann, source_url https://www.a.co.uk/p" in shown.output
    found = json.loads(curate("why", sample_id, "--json", home=settings.home).output)
    assert found[0]["origin"]["domain"] == "a.co.uk"


def test_sources_are_declared_once_each_with_days_or_months() -> None:
    with pytest.raises(ValueError, match="collected_from must be a day or month"):
        DeclaredSource("a", collected_from="last year")
    assert (
        build(DeclaredSource, yaml.safe_load("{name: a, collected_to: 2025-01-31}"), "x").collected_to == "2025-01-31"
    )


NO = "http://ns.useplus.org/ldf/vocab/DMI-PROHIBITED"


@pytest.mark.parametrize("kind", ["images", "tars"])
def test_images_that_came_with_the_source_are_looked_at_inside(tmp_path: Path, kind: str) -> None:
    """A refused one fails with the declaration as its message; the option makes the table stale, and is obeyed."""
    images = [jpeg(0), jpeg_with_xmp(xmp(NO)), (SIGNED / "signed.png").read_bytes(), b"no image"]
    folder = tmp_path / "source"
    folder.mkdir()
    if kind == "tars":
        members = {f"{number}.{'png' if number == 2 else 'jpg'}": data for number, data in enumerate(images)}
        members |= {f"{number}.txt": f"caption {number}".encode() for number in range(4)}
        (folder / "000000.tar").write_bytes(tar_bytes(members))
    else:
        captions = [f"caption {number}" for number in range(4)]
        pl.DataFrame({"caption": captions, "image": images}).write_parquet(folder / "rows.parquet")
    settings = load_settings(tmp_path / "home", "embedded")
    pool = add_pool(settings, "p", folder if kind == "tars" else folder / "rows.parquet")
    training = [("image", "cawg.ai_generative_training=notAllowed"), ("image", "cawg.ai_training=allowed")]
    inside = [[], [("image", NO)], [*training, ("image", "cawg.data_mining=constrained")], []]
    for treatment, reasons in (
        (None, [None, "opt_out", "opt_out", "image_undecodable"]),
        ("record", [None, None, None, "image_undecodable"]),
        ("ignore", [None, None, None, "image_undecodable"]),
        ("refuse", [None, "opt_out", "opt_out", "image_undecodable"]),
    ):
        opt_outs = {} if treatment is None else {"image": treatment}
        save_pool(settings, replace(pool, download=replace(pool.download, opt_outs=opt_outs)))
        ctx = made(settings)
        downloads = ctx.store.scan(DOWNLOADS).collect().sort("source_row")
        assert ctx.store.scan(SAMPLES).collect().sort("source_row")["reason"].to_list() == reasons, treatment
        signals = provenance(ctx)["rights_signals"].to_list()
        found = [None if cell is None else [(one["kind"], one["value"]) for one in cell] for cell in signals]
        assert found == ([None] * 4 if treatment == "ignore" else inside)
        if "opt_out" in reasons:
            assert downloads["message"].to_list()[1:3] == [
                f"forbidden by image {NO} (XMP)",
                "forbidden by image cawg.ai_generative_training=notAllowed (C2PA)",
            ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["captions", "images", "tars"])
@pytest.mark.parametrize(
    ("listed", "value", "rows"),
    [("creator", "ANN ", [0]), ("domain", "a.co.uk", [0]), ("source", "wiki", [1, 3]), ("source", "p", [2])],
)
def test_a_creator_a_source_and_the_domain_of_a_page_are_taken_down_and_do_not_come_back(
    tmp_path: Path, kind: str, listed: Any, value: str, rows: list[int]
) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    source = written(tmp_path, kind)
    add_pool(settings, "p", source)
    ctx = made(settings)
    before = provenance(ctx)
    ids = sorted(before["sample_id"][rows])
    add_to_denylist(settings.home, [(listed, value)], {(listed, value): "privacy"})
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    assert sorted(begun.samples["sample_id"]) == ids
    run_with_upstream(ctx, PROVENANCE)
    certificate, _ = finish_takedown(ctx, tables, begun)
    assert certificate["left"] == []
    after = provenance(ctx)
    assert after["sample_id"].equals(before["sample_id"])
    assert after["source"].equals(before["source"])
    for name in ("creator", "source_url", "licence", "domain"):
        assert after[name].to_list() == [None if at in rows else one for at, one in enumerate(before[name])]
    _, entries = own_entries(settings.home)
    uids = [entry for entry in entries if entry.kind == "uid"]
    assert [entry.reason for entry in uids] == ["privacy"] * len(rows), "the ids' reason is that of the entry"
    assert begin_takedown(ctx, tables) is None

    # a home that has the entry alone never registers such rows
    other = load_settings(tmp_path / "other", "embedded")
    add_to_denylist(other.home, [(listed, value)])
    add_pool(other, "p", source)
    registered = made(other).store.scan(REGISTERED_SHARDS).sort("source_row").collect()
    assert [at for at, one in enumerate(registered["source_reason"]) if one == "takedown"] == rows
    assert registered["caption"].is_null().to_list() == [at in rows for at in range(len(ROWS))]
    texts = [one.read_bytes() for one in other.work("p").rglob("*.parquet")]
    assert not any(ROWS[at]["caption"].encode() in text for at in rows for text in texts)
