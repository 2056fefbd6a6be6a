"""curate export: real files in four formats, read back with the libraries that trainers use."""

import hashlib
import importlib.util
import io
import json
import shutil
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import mlcroissant as mlc
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds
import yaml
from open_clip_train.data import filter_no_caption_or_no_image, get_wds_dataset
from open_clip_train.params import parse_args as open_clip_args
from PIL import Image

from curation_assets.audit.ledger import recorded_ledger, replayed, subset_of
from curation_assets.core.settings import Settings, load_settings
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.concept_batches import choose_batch
from curation_assets.numeric.identity import draw_keys, pack_uids
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.outputs.exports import manifest
from curation_assets.outputs.exports import subset as exported
from curation_assets.outputs.exports.card import size_category
from curation_assets.outputs.exports.croissant import InvalidCroissantError, check_croissant
from curation_assets.outputs.exports.formats import FORMATS
from curation_assets.outputs.exports.huggingface import export_huggingface
from curation_assets.outputs.exports.lists import export_keys, export_npy
from curation_assets.outputs.exports.manifest import exporting
from curation_assets.outputs.exports.subset import Subset, find_subset, split_subset, subset_of_ids
from curation_assets.outputs.exports.taken_down import take_out
from curation_assets.outputs.exports.webdataset import export_webdataset
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.outputs.registry import recorded_exports
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.shards import register_shard
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.images import decode_image
from curation_assets.stores.samples import SAMPLES_SCHEMA
from curation_assets.stores.waiting import PoolHeldError
from tests.support.allow_list import AllowList
from tests.support.command import curate
from tests.support.hostile_sources import tar_bytes
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import (
    OPTIONS,
    bring_up_to_date,
    caption_of,
    finished_photos,
    jpeg,
    write_tar,
)
from tests.support.tiny_wordnet import write_wordnet
from tests.support.verdicts import kept_ids


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"))


def manifest_of(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    for one in content["files"]:  # type: ignore[attr-defined]
        data = (folder / one["path"]).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (one["sha256"], one["bytes"])
    listed = {one["path"] for one in content["files"]} | {"manifest.json"}  # type: ignore[attr-defined]
    assert listed == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return content


def read_missing(folder: Path) -> pl.DataFrame:
    return pl.read_csv(folder / "missing.tsv", separator="\t", schema_overrides={"sample_id": pl.String})


def weighted(ctx: PoolContext, path: Path) -> dict[str, int]:
    """A `.npy` in which the first sample counts three times, the second twice, a third is unknown to the pool."""
    first, second, *_ = kept_ids(ctx, "icc")
    np.save(path, pack_uids([first] * 3 + [second] * 2 + ["0" * 31 + "1"]))
    return {first: 3, second: 2}


def test_npy_is_the_subset_and_what_the_ledger_replays(ctx: PoolContext, tmp_path: Path) -> None:
    path = export_npy(find_subset(ctx, "sieve_clip"), tmp_path / "out")
    assert path.read_bytes() == (ctx.store.folder_path("filtered/subsets") / "sieve_clip.npy").read_bytes()
    kept = (part.filter(verdict="kept") for part in replayed(recorded_ledger(ctx.store, "sieve_clip")))
    assert np.array_equal(np.load(path), subset_of(part.with_columns(multiplicity=1) for part in kept))
    content = manifest_of(tmp_path / "out")
    assert content["counts"]["asked"] == content["counts"]["written"] == len(kept_ids(ctx, "sieve_clip"))
    assert content["subset"]["chosen_by"]["policy"]["name"] == "sieve_clip"
    models = {one["address"] for one in content["subset"]["models"]}
    assert models == {"embedded:clip_score", "embedded:sieve"}


def test_webdataset_has_stable_keys_multiplicities_and_the_scored_bytes(ctx: PoolContext, tmp_path: Path) -> None:
    counts = weighted(ctx, tmp_path / "weighted.npy")
    subset = find_subset(ctx, str(tmp_path / "weighted.npy"))
    out = export_webdataset(subset, tmp_path / "out", max_samples=2)
    content = manifest_of(out)
    assert content["counts"] == {"asked": 3, "written": 2, "missing": 1, "entries": 5}
    missing = read_missing(out).to_dicts()
    assert missing == [{"sample_id": "0" * 31 + "1", "multiplicity": 1, "reason": "not_in_pool"}]
    tars = sorted(out.glob("*.tar"))
    assert json.loads((out / "sizes.json").read_text()) == {
        path.name: n for path, n in zip(tars, (2, 2, 1), strict=True)
    }
    samples = list(wds.WebDataset([str(tar) for tar in tars], shardshuffle=False))
    assert [one["__key__"] for one in samples] == [
        f"{row['sample_id']}-{i}" for row in subset.rows.to_dicts() for i in range(row["multiplicity"])
    ]
    stored = {row["sample_id"]: row for row in subset.rows.to_dicts()}
    for one in samples:
        output = json.loads(one["json"])
        assert "." not in one["__key__"]
        assert one["txt"].decode() == output["caption"] == stored[output["uid"]]["caption"]
        assert hashlib.sha256(one["jpg"]).hexdigest() == output["sha256"] == stored[output["uid"]]["image_sha256"]
    assert read_subset(out / "sample_ids.npy") == sorted(i for i, n in counts.items() for _ in range(n))
    again = export_webdataset(subset, tmp_path / "again", max_samples=2)
    for tar in tars:
        assert tar.read_bytes() == (again / tar.name).read_bytes()


def test_an_exported_webdataset_is_a_pool_of_the_same_samples(ctx: PoolContext, tmp_path: Path) -> None:
    subset = find_subset(ctx, "icc")
    out = export_webdataset(subset, tmp_path / "out", max_bytes=5000)
    assert len(list(out.glob("*.tar"))) > 1
    settings = ctx.settings
    add_pool(settings, "back", out, options={"distil": False, "downstream": False})
    back = PoolContext.open(settings, "back")
    tables = tables_of(back)
    for shard in back.shards():
        for table in ("raw/registered_shards", "raw/downloads", "raw/samples"):
            materialise_table(back, tables[table], shard, tables=tables)
    columns = ["sample_id", "url", "caption", "image_sha256", "status"]
    output = back.store.scan("raw/samples").select(columns).sort("sample_id").collect()
    expected = subset.rows.with_columns(pl.lit("kept").alias("status")).select(columns).sort("sample_id")
    assert output.equals(expected)


def test_allow_list_gives_training_the_same_samples_without_resharding(ctx: PoolContext, tmp_path: Path) -> None:
    counts = weighted(ctx, tmp_path / "weighted.npy")
    listed = export_keys(find_subset(ctx, str(tmp_path / "weighted.npy")), tmp_path / "out")
    manifest_of(tmp_path / "out")
    moved = tmp_path / "moved" / "tars"  # the tars went elsewhere: the end of the path still tells them apart
    shutil.copytree(ctx.settings.home / "tars", moved)
    urls = [str(path) for path in sorted(moved.glob("*.tar"))]
    seen = list(wds.WebDataset(urls, shardshuffle=False).compose(AllowList.read(listed).samples))
    by_url = {row["url"]: row["sample_id"] for row in ctx.store.scan("raw/samples").collect().to_dicts()}
    ids = [by_url[json.loads(one["json"])["url"]] for one in seen]
    assert {i: ids.count(i) for i in ids} == counts


def test_the_flow_lists_keys_with_their_folder_up_to_the_first_dot(tmp_path: Path) -> None:
    for shard in range(2):
        numbers = range(8 * shard, 8 * shard + 8)
        rows = [(f"a.b/{n:06d}", f"http://a.example/{n}", caption_of(n), jpeg(n)) for n in numbers]
        write_tar(tmp_path / "tars" / f"{shard:06d}.tar", rows)
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "dotted", tmp_path / "tars", options=OPTIONS)
    ctx = bring_up_to_date(settings, "dotted")
    subsets = ctx.store.folder_path("filtered/subsets")
    allowed = AllowList.read(subsets / "icc.keys.tsv")
    tars = [str(tar) for tar in sorted((tmp_path / "tars").glob("*.tar"))]
    seen = wds.WebDataset(tars, shardshuffle=False).compose(allowed.samples)
    by_url = {row["url"]: row["sample_id"] for row in ctx.store.scan("raw/samples").collect().to_dicts()}
    kept = read_subset(subsets / "icc.npy")
    assert sorted(by_url[json.loads(one["json"])["url"]] for one in seen) == kept
    assert len(kept) == 4
    assert all(key.startswith("a.b/0000") for keys in allowed.multiplicity.values() for key in keys)


def test_what_was_taken_down_is_left_out_and_told_and_every_export_is_recorded(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    home = ctx.settings.home
    whole = export_webdataset(find_subset(ctx, "icc"), tmp_path / "whole")
    first, second, *others = kept_ids(ctx, "icc")
    url = find_subset(ctx, "icc").rows.filter(sample_id=second)["url"][0]
    add_to_denylist(home, [("uid", first), ("url", url)])  # not applied yet
    for name, export in (("tar", export_webdataset), ("hf", export_huggingface), ("npy", export_npy)):
        export(find_subset(ctx, "icc"), tmp_path / name)  # type: ignore[operator]
        assert read_subset(tmp_path / name / "sample_ids.npy") == others
        missing = read_missing(tmp_path / name)
        assert dict(missing.select("sample_id", "reason").iter_rows()) == dict.fromkeys(
            (first, second), "dropped:takedown"
        )
    ids = tmp_path / "ids.npy"
    np.save(ids, pack_uids([first, *others]))
    assert find_subset(ctx, str(ids)).missing["reason"].to_list() == ["dropped:takedown"]
    assert [Path(one.folder).name for one in recorded_exports(home)] == ["whole", "tar", "hf", "npy"]
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    bring_up_to_date(ctx.settings)
    certificate, _ = finish_takedown(ctx, tables, begun)
    assert certificate["exports_flagged"] == [{"folder": str(whole), "samples": 2}]
    assert sorted(json.loads((whole / EXPORT_FLAG).read_text())["sample_ids"]) == [first, second]


def raw_pool(settings: Settings, name: str, source: Path) -> PoolContext:
    """The raw tables of a pool."""
    add_pool(settings, name, source, options={"distil": False, "downstream": False})
    made = PoolContext.open(settings, name)
    tables = tables_of(made)
    for shard in made.shards():
        for table in ("raw/registered_shards", "raw/downloads", "raw/samples"):
            materialise_table(made, tables[table], shard, tables=tables)
    return made


def all_of(ctx: PoolContext, path: Path) -> Subset:
    """Every kept sample of a pool."""
    kept = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()["sample_id"].to_list()
    np.save(path, pack_uids(kept))
    return find_subset(ctx, str(path))


def of_every_format() -> dict[str, bytes]:
    """Caption → image."""
    grey = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (24, 1))
    found = {}
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        buffer = io.BytesIO()
        Image.fromarray(grey).convert("RGB").rotate(len(found)).save(buffer, form)
        found[f"a picture as {form}"] = buffer.getvalue()
    buffer = io.BytesIO()
    Image.fromarray(grey.astype(np.uint16) * 257).save(buffer, "PNG")
    return found | {"a picture of 16 bits": buffer.getvalue()}


@pytest.mark.parametrize("source", ["parquet", "folder", "tar"])
def test_every_format_that_is_read_comes_back_and_is_trained_on(tmp_path: Path, source: str) -> None:
    images = of_every_format()
    folder = tmp_path / "source"
    folder.mkdir()
    settings = load_settings(tmp_path / "home", "embedded")
    extensions = ("jfif", "png", "webp", "GIF", "bmp", "PNG")
    files = {
        f"{number}.{extension}": data
        for number, (extension, data) in enumerate(zip(extensions, images.values(), strict=True))
    }
    if source == "parquet":
        cells = [{"bytes": data, "path": None} for data in images.values()]
        pl.DataFrame({"image": cells, "caption": list(images)}).write_parquet(folder / "0.parquet")
    else:
        texts = {f"{number}.txt": caption.encode() for number, caption in enumerate(images)}
        with tarfile.open(folder / "0.tar", "w") as tar:
            for name, data in (files | texts).items():
                (folder / name).write_bytes(data)
                tar.add(folder / name, name)
                if source == "tar":
                    (folder / name).unlink()
        if source == "folder":
            (folder / "0.tar").unlink()
    first = raw_pool(settings, "first", folder)
    subset = all_of(first, tmp_path / "all.npy")
    assert subset.rows.height == len(images)
    out = export_webdataset(subset, tmp_path / "out")
    assert manifest_of(out)["reencoded"] == {"GIF to PNG": 1, "BMP to PNG": 1, "PNG to PNG": 1}
    trained = list(wds.WebDataset([str(tar) for tar in out.glob("*.tar")], shardshuffle=False))
    assert all(filter_no_caption_or_no_image(one) for one in trained)
    assert len(trained) == len(images)
    for one in trained:
        written = next(one[extension] for extension in ("jpg", "png", "webp") if extension in one)
        facts = json.loads(one["json"])
        assert hashlib.sha256(written).hexdigest() == facts["sha256"]
        as_trained = np.asarray(Image.open(io.BytesIO(written)).convert("RGB"))
        as_scored = np.asarray(decode_image(images[one["txt"].decode()]))
        assert np.array_equal(as_trained, as_scored)
    back = raw_pool(settings, "back", out).store.scan("raw/samples").collect()
    assert back["reason"].to_list() == [None] * len(images)
    assert sorted(back["sample_id"]) == sorted(subset.rows["sample_id"])


OWN_IDS = ["img-1", "7", "0" * 31]


@pytest.mark.parametrize("source", ["image parquet", "captions csv", "integers", "json lines", "tar"])
def test_ids_of_the_owner_come_along_into_every_export(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    own = ["101", "102", "103"] if source == "integers" else OWN_IDS
    images = [jpeg(number) for number in range(3)]
    table = pl.DataFrame({"caption": [caption_of(number) for number in range(3)], "uid": own})
    match source:
        case "captions csv":
            table.write_csv(folder / "0.csv")
        case "json lines":
            table.write_ndjson(folder / "0.jsonl")
        case "integers":
            table.select("caption", pl.col("uid").cast(pl.Int64).alias("SAMPLE_ID")).write_parquet(folder / "0.parquet")
        case "image parquet":
            table.with_columns(pl.Series("image", images)).write_parquet(folder / "0.parquet")
        case "tar":
            with tarfile.open(folder / "0.tar", "w") as tar:
                for number, (caption, uid) in enumerate(table.iter_rows()):
                    facts = json.dumps({"uid": uid}).encode()
                    for name, data in (("jpg", images[number]), ("txt", caption.encode()), ("json", facts)):
                        info = tarfile.TarInfo(f"{number}.{name}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
    ctx = raw_pool(load_settings(tmp_path / "home", "embedded"), "owned", folder)
    samples = ctx.store.scan("raw/samples").collect()
    assert samples["own_id"].to_list() == own
    expected = dict(zip(samples["sample_id"], own, strict=True))
    subset = all_of(ctx, tmp_path / "all.npy")
    assert "own_id" not in subset.signals
    formats = {"npy": export_npy, "hf": export_huggingface}
    if ctx.pool.has_images:
        formats |= {"keys": export_keys, "webdataset": export_webdataset}
    for name, export in formats.items():
        export(subset, tmp_path / name)  # type: ignore[operator]
        manifest_of(tmp_path / name)
        assert dict(pl.read_parquet(tmp_path / name / "own_ids.parquet").iter_rows()) == expected
    shown = pl.read_parquet(tmp_path / "hf" / "data").select("sample_id", "own_id")
    assert dict(shown.iter_rows()) == expected
    if "webdataset" in formats:
        tars = [str(tar) for tar in (tmp_path / "webdataset").glob("*.tar")]
        facts = [json.loads(one["json"]) for one in wds.WebDataset(tars, shardshuffle=False)]
        assert {one["uid"]: one["own_id"] for one in facts} == expected
        back = raw_pool(ctx.settings, "back", tmp_path / "webdataset").store.scan("raw/samples").collect()
        assert dict(back.select("sample_id", "own_id").iter_rows()) == expected
    first = samples["sample_id"][0]
    add_to_denylist(ctx.settings.home, [("uid", first)])
    left = register_shard(ctx.pool, ctx.shards()[0], ctx.settings).filter(sample_id=first)
    assert left.select("own_id", "caption").rows() == [(None, None)]
    take_out(ctx.settings.home, tmp_path / "hf")
    after = json.loads((tmp_path / "hf" / "manifest.json").read_text())["subset"]
    assert after["samples"] == after["caption_words"]["count"] == 2


def test_a_column_of_ids_of_ones_own_is_kept(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    path = tmp_path / "0.csv"
    pl.DataFrame({"caption": ["one", "two"], "uid": ["img-1", "img-2"]}).write_csv(path)
    added = add_pool(settings, "owned", path)
    assert added.columns["own_id"] == "uid"
    assert add_pool(settings, "owned", path) == added
    pl.DataFrame({"caption": ["one", "two"], "uid": ["a" * 32, "b" * 32]}).write_csv(tmp_path / "1.csv")
    assert "own_id" not in add_pool(settings, "usual", tmp_path / "1.csv").columns


def test_a_key_with_a_dot_is_not_listed_under_a_key_of_several_samples(tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    write_tar(folder / "0.tar", [(f"a.{n}", f"http://a.example/{n}", caption_of(n), jpeg(n)) for n in range(3)])
    subset = all_of(raw_pool(load_settings(tmp_path, "embedded"), "dotted", folder), tmp_path / "all.npy")
    assert subset.rows.height == 3
    with pytest.raises(ValueError, match="key_has_dot"):
        export_keys(subset, tmp_path / "keys")
    tars = export_webdataset(subset, tmp_path / "out").glob("*.tar")
    assert len(list(wds.WebDataset([str(tar) for tar in tars], shardshuffle=False))) == 3


def test_allow_lists_refuse_what_they_cannot_tell_apart(tmp_path: Path) -> None:
    (tmp_path / "keys.tsv").write_text("x/a/0.tar\t1\nx/b/0.tar\t2\n")
    allowed = AllowList.read(tmp_path / "keys.tsv")
    assert (allowed.count("y/a/0.tar", "1"), allowed.count("y/b/0.tar", "1"), allowed.count("z.tar", "1")) == (1, 0, 0)
    with pytest.raises(ValueError, match="give more of its path"):
        allowed.count("0.tar", "1")
    (tmp_path / "keys.tsv").write_text("no tab\n")
    with pytest.raises(ValueError, match="line 1"):
        AllowList.read(tmp_path / "keys.tsv")


def test_hugging_face_folder_reads_back_through_its_croissant(ctx: PoolContext, tmp_path: Path) -> None:
    subset = find_subset(ctx, "sieve_clip")
    out = export_huggingface(subset, tmp_path / "out", license="cc-by-4.0", max_bytes=6000)
    manifest_of(out)
    files = sorted((out / "data").glob("*.parquet"))
    assert [path.name for path in files] == [f"train-{i:05d}-of-{len(files):05d}.parquet" for i in range(len(files))]
    assert len(files) > 1
    features = json.loads(pq.read_schema(files[0]).metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert features["signals_sieve"] == {"dtype": "float64", "_type": "Value"}
    rows = pl.concat([pl.read_parquet(path) for path in files])
    assert rows["sample_id"].to_list() == subset.rows["sample_id"].to_list()
    for row in rows.to_dicts():
        assert hashlib.sha256(row["image"]["bytes"]).hexdigest() == row["image_sha256"]
        assert Image.open(io.BytesIO(row["image"]["bytes"])).size == (row["width"], row["height"])
    records = list(mlc.Dataset(out / "croissant.json").records("samples"))
    assert [one["samples/sample_id"].decode() for one in records] == rows["sample_id"].to_list()
    assert records[0]["samples/image"].size == (rows["width"][0], rows["height"][0])
    assert records[0]["samples/signals_sieve"] == pytest.approx(rows["signals_sieve"][0])


def test_card_says_what_the_ledger_says(ctx: PoolContext, tmp_path: Path) -> None:
    out = export_huggingface(find_subset(ctx, "icc_after_clip"), tmp_path / "out", license="cc-by-4.0")
    card = (out / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["license"], front["size_categories"]) == ("cc-by-4.0", ["n<1K"])
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": "data/train-*.parquet"}]
    verdicts = ctx.store.scan("filtered/icc_after_clip").collect()
    for (verdict, reason), rows in verdicts.group_by("verdict", "reason"):
        assert f"| {verdict} | {reason or '–'} | {rows.height} |" in card
    assert "prefilter:signals.clip_score" in card
    assert "`embedded:icc` | shipped | `abab" in card
    content = json.loads((out / "croissant.json").read_text())
    for name in ("dataCollection", "dataManipulationProtocol", "personalSensitiveInformation"):
        assert content[f"rai:{name}"] in card, name
    assert [size_category(n) for n in (999, 1000, 12_800_000)] == ["n<1K", "1K<n<10K", "10M<n<100M"]


def test_croissant_has_provenance_and_is_refused_when_wrong(ctx: PoolContext, tmp_path: Path) -> None:
    out = export_webdataset(find_subset(ctx, "icc"), tmp_path / "out")
    content = json.loads((out / "croissant.json").read_text())
    assert content["conformsTo"][0] == "http://mlcommons.org/croissant/1.1"
    manifest = ctx.store.manifest("raw/samples", "photos-000000")
    assert manifest is not None
    assert f"urn:sha256:{manifest.content_sha256}" in {one["@id"] for one in content["prov:wasDerivedFrom"]}
    activity = content["prov:wasGeneratedBy"]
    policy = find_subset(ctx, "icc").ledger
    assert policy is not None
    assert activity["@id"] == f"urn:sha256:{policy.policy.version}"
    assert any("embedded:icc" in one["prov:label"] for one in activity["prov:used"])
    records = list(mlc.Dataset(out / "croissant.json").records("samples"))
    assert sorted(one["samples/uid"].decode() for one in records) == kept_ids(ctx, "icc")
    content["recordSet"][0]["field"][0]["source"]["fileSet"]["@id"] = "nowhere"
    with pytest.raises(InvalidCroissantError, match="nowhere"):
        check_croissant(content)


def test_images_that_changed_or_went_are_missing_with_a_reason(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home", shards=2)
    subset = find_subset(ctx, "icc")
    shards = subset.rows["shard"].unique().sort().to_list()
    assert len(shards) == 2
    lost = ctx.store.root / subset.rows.filter(pl.col("shard") == shards[0])["tar"][0]
    changed = ctx.store.root / subset.rows.filter(pl.col("shard") == shards[1])["tar"][0]
    lost.unlink()
    with tarfile.open(changed) as tar:
        offset = tar.getmember(subset.rows.filter(pl.col("shard") == shards[1])["member"][0]).offset_data
    with changed.open("r+b") as file:
        file.seek(offset + 200)
        file.write(b"\0" * 8)
    out = tmp_path / "out"
    export_webdataset(subset, out)
    missing = read_missing(out)
    expected = {row["sample_id"]: "image_gone" for row in subset.rows.filter(pl.col("shard") == shards[0]).to_dicts()}
    expected[subset.rows.filter(pl.col("shard") == shards[1])["sample_id"][0]] = "image_changed"
    assert dict(missing.select("sample_id", "reason").iter_rows()) == expected
    counts = manifest_of(out)["counts"]
    assert counts["written"] == subset.rows.height - len(expected) == counts["asked"] - counts["missing"]
    hf = export_huggingface(subset, tmp_path / "hf", max_bytes=1)  # a file per image; those without one go
    assert len(list((hf / "data").glob("*.parquet"))) == counts["written"]
    assert manifest_of(hf)["counts"] == counts
    changed.unlink()
    with pytest.raises(ValueError, match="none of the"):
        export_webdataset(subset, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".txt"])
def test_a_plain_list_of_ids_is_exported_and_compared(ctx: PoolContext, tmp_path: Path, suffix: str) -> None:
    ids, path = kept_ids(ctx, "icc")[:3], tmp_path / f"ids{suffix}"
    frame = pl.DataFrame({"sample_id": ids})
    if suffix == ".txt":
        path.write_text("\n".join(ids))
    else:
        (frame.write_parquet if suffix == ".parquet" else frame.write_csv)(path)
    home = ("--home", str(ctx.settings.home), "--pool", ctx.pool.name)
    for command in (
        ["export", "npy", str(path), "--out", str(tmp_path / "out")],
        ["diff", "icc", "--against", str(path)],
    ):
        run = curate(*command, *home)
        assert run.exit_code == 0, run.output
    assert read_subset(tmp_path / "out" / "sample_ids.npy") == ids


@pytest.mark.parametrize("kind", FORMATS)
def test_a_second_export_into_a_folder_that_is_being_filled_is_refused(
    ctx: PoolContext, tmp_path: Path, kind: str
) -> None:
    subset, before = find_subset(ctx, "icc"), len(recorded_exports(ctx.settings.home))
    refusals = []

    def second() -> None:
        try:
            FORMATS[kind].write(subset, tmp_path / "out")
        except PoolHeldError as error:
            refusals.append(str(error))

    with exporting(find_subset(ctx, "icc"), tmp_path / "out", "npy") as export:
        (export.folder / "of_the_first.txt").write_text("1")
        other = threading.Thread(target=second)
        other.start()
        other.join(60)
    assert len(refusals) == 1
    assert f"holds {tmp_path / 'out'}; give another folder" in refusals[0]
    assert (tmp_path / "out" / "of_the_first.txt").read_text() == "1"
    manifest_of(tmp_path / "out")
    with pytest.raises(ValueError, match="is not empty and is never overwritten"):
        FORMATS[kind].write(subset, tmp_path / "out")
    assert len(recorded_exports(ctx.settings.home)) == before + 1
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "the lock's file is gone"


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_put_into_the_folder_meanwhile_stays(
    ctx: PoolContext, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = tmp_path / "out", recorded_exports(ctx.settings.home)
    real = manifest.subset_facts

    def slow(subset: Subset) -> dict[str, object]:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
        return real(subset)

    monkeypatch.setattr(manifest, "subset_facts", slow)
    with pytest.raises(ValueError, match="is not empty and is never overwritten"):
        FORMATS[kind].write(find_subset(ctx, "icc"), out)
    assert (out / "notes.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.rglob("*")} == {"out", "notes.txt"}
    assert recorded_exports(ctx.settings.home) == before


def test_an_empty_folder_a_link_to_one_and_what_a_killed_export_left_are_filled(
    ctx: PoolContext, tmp_path: Path
) -> None:
    (tmp_path / "other disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "other disk")
    (tmp_path / ".other disk.lock").touch()
    export_npy(find_subset(ctx, "icc"), tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    manifest_of(tmp_path / "other disk")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "other disk"}
    shutil.rmtree(tmp_path / "other disk")
    export_keys(find_subset(ctx, "icc"), tmp_path / "other disk")
    records = [one for one in recorded_exports(ctx.settings.home) if one.folder == str(tmp_path / "other disk")]
    assert [one.format for one in records] == ["keys"], "of a folder that was filled again the last record counts"


def test_split_takes_exactly_so_many_and_keeps_images_whole(ctx: PoolContext) -> None:
    """Rao et al.: of the best 2.015 M, 2 M to train on and 15 K to validate with."""
    found = find_subset(ctx, "icc")
    train, validation = split_subset(found, 2)
    assert (validation.rows.height, train.rows.height) == (2, found.rows.height - 2)
    assert sorted(train.sample_ids + validation.sample_ids) == found.sample_ids
    backwards = split_subset(replace(found, rows=found.rows.reverse()), 2)[1]
    assert backwards.sample_ids == validation.sample_ids  # the order of rows decides nothing
    draws = {tuple(split_subset(found, 2, seed)[1].sample_ids) for seed in range(20)}
    assert len(draws) > 5
    rows = found.rows
    captions_of_three = rows.with_columns(pl.lit("ab" * 32).alias("image_sha256"))[:3]
    whole = replace(found, rows=pl.concat([captions_of_three, rows[3:]]))
    for seed in range(20):
        for part in split_subset(whole, 1, seed):
            assert (part.rows["image_sha256"] == "ab" * 32).sum() in (0, 3)
    with pytest.raises(ValueError, match="at least 1 and below the 6 samples of 'icc', got 6"):
        split_subset(found, found.rows.height)
    with pytest.raises(ValueError, match="nearest to 2 samples that whole images of 'icc' give are 0"):
        split_subset(replace(found, rows=captions_of_three), 2)


def test_split_export_reads_back_as_the_parts_it_names(ctx: PoolContext, tmp_path: Path) -> None:
    for kind in ("npy", "hf"):
        arguments = ["export", kind, "icc", "--out", str(tmp_path / kind), "--validation", "2"]
        arguments += ["--home", str(ctx.settings.home), "--pool", "photos"]
        run = curate(*arguments)
        assert run.exit_code == 0, run.output
        parts = {name: read_subset(tmp_path / kind / name / "sample_ids.npy") for name in ("train", "validation")}
        assert sorted(parts["train"] + parts["validation"]) == kept_ids(ctx, "icc")
        assert len(parts["validation"]) == 2
        content = manifest_of(tmp_path / kind / "validation")
        assert content["subset"]["part"] == "validation"  # type: ignore[index]
        assert curate(*arguments).exit_code == 1  # never overwritten
    card = (tmp_path / "hf" / "validation" / "README.md").read_text()
    config = yaml.safe_load(card.split("---")[1])["configs"][0]["data_files"]
    assert config == [{"split": "validation", "path": "data/validation-*.parquet"}]
    assert "This is the part to validate with" in card
    rows = pq.read_table(tmp_path / "hf" / "validation" / "data").column("sample_id").to_pylist()
    assert sorted(rows) == parts["validation"]


def test_command(ctx: PoolContext, tmp_path: Path) -> None:
    home = ["--home", str(ctx.settings.home), "--pool", "photos"]
    for kind in FORMATS:
        run = curate("export", kind, "icc", "--out", tmp_path / kind, *home)
        assert run.exit_code == 0, run.output
        assert f"{manifest_of(tmp_path / kind)['counts']['written']} samples, " in run.output
    noted = {(one.format, one.folder) for one in recorded_exports(ctx.settings.home, "photos")}
    assert {(kind, str(tmp_path / kind)) for kind in FORMATS} <= noted
    for bad, said in (
        (["npy", "icc", "--out", str(tmp_path / "npy")], "not empty"),
        (["npy", "nothing", "--out", str(tmp_path / "new")], "no ledger of policy"),
        (["webdataset", "icc", "--out", str(tmp_path / "new"), "--max-samples", "0"], "at least 1"),
        (["npy", "icc", "--out", str(tmp_path / "new"), "--max-bytes", "9"], "formats that have it: hf, webdataset"),
        (["webdatset", "icc", "--out", str(tmp_path / "new")], "did you mean 'webdataset'?"),
        (["wds", "icc", "--out", str(tmp_path / "new")], "no export format 'wds'; known: hf, index"),
    ):
        run = curate("export", *bad, *home, width=400)
        assert run.exit_code == 1
        assert said in run.output


# -- part by part


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_on_disk_in_parts_of_three_give_the_bytes_of_rows_in_memory(
    ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(manifest, "utc_now", lambda: "2026-01-01T00:00:00Z")
    weighted(ctx, tmp_path / "weighted.npy")

    def written() -> dict[str, str]:
        found, out = {}, tmp_path / "out"
        for name in ("icc", "sieve_clip", str(tmp_path / "weighted.npy")):
            whole = find_subset(ctx, name)
            for part in (whole, *(split_subset(whole, 2) if name == "icc" else ())):
                FORMATS[kind].write(part, out)
                for path in sorted(path for path in out.rglob("*") if path.is_file()):
                    place = f"{name}/{part.part}/{part.split}/{path.relative_to(out)}"
                    found[place] = hashlib.sha256(path.read_bytes()).hexdigest()
                shutil.rmtree(out)
        return found

    expected = written()
    monkeypatch.setattr(exported, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(pl.DataFrame, "iter_slices", partialmethod(pl.DataFrame.iter_slices, 3))
    assert len(list(find_subset(ctx, "icc").rows.iter_slices())) == 2
    assert written() == expected


def test_a_sample_that_lies_elsewhere_now_is_found_in_its_place(
    ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger names where each row lay; shards may have been cut anew since."""
    expected = find_subset(ctx, "icc")
    ledger = recorded_ledger(ctx.store, "icc")

    def moved(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        is_in_place = pl.int_range(pl.len()) % 2 == 0
        for part in ledger.read(path, columns):
            yield part.with_columns(
                source_row=pl.when(is_in_place).then("source_row").otherwise(pl.col("source_row") + 50),
                shard=pl.col("shard").replace({"photos-000001": "photos-000077"}),
            )

    monkeypatch.setattr(exported, "recorded_ledger", lambda *_: replace(ledger, read=moved))
    found = find_subset(ctx, "icc")
    assert found.rows.equals(expected.rows)
    assert not found.missing.height


def test_a_sample_is_denied_where_any_of_its_rows_is(tmp_path: Path) -> None:
    """Of a sample that raw keeps in two shards, the row that is exported is not the one on the denylist."""
    settings = load_settings(tmp_path, "embedded")
    (tmp_path / "texts.csv").write_text("caption\na red dog\n")
    add_pool(settings, "texts", tmp_path / "texts.csv")
    ctx = PoolContext.open(settings, "texts")
    for number in range(2):
        rows = {"sample_id": ["a" * 32, f"{number}" * 32], "source_row": [0, 1], "caption": ["a dog", "a cat"]}
        urls = [f"http://h.example/{number}", f"http://h.example/{number}/cat"]
        frame = pl.DataFrame({**rows, "url": urls}).with_columns(
            pl.lit(f"texts-{number:06d}").alias("shard"), pl.lit("kept").alias("status")
        )
        full = frame.with_columns(pl.lit(None).alias(name) for name in SAMPLES_SCHEMA if name not in frame.columns)
        ctx.store.write(
            SAMPLES, full.select(list(SAMPLES_SCHEMA)).cast(dict(SAMPLES_SCHEMA)), frame["shard"][0], code_version="1"
        )
    ids = ["0" * 32, "1" * 32, "a" * 32]
    assert subset_of_ids(ctx, ids, "all").rows["sample_id"].sort().to_list() == ids
    add_to_denylist(tmp_path, [("url", "http://h.example/1")])
    subset = subset_of_ids(ctx, ids, "all")
    assert subset.rows["sample_id"].sort().to_list() == ids[:2]
    assert subset.missing.rows() == [("a" * 32, 1, "dropped:takedown")]


# -- batches by concepts


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Subset:
    """60 images, of which one is no longer there; dogs are everywhere, the other nouns are rare."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("tars")
    nouns = ["dog", "kite", "city", "goose", "crowd"]
    captions = [f"a {nouns[0 if number % 3 else number % 5]} numbered {number}" for number in range(60)]
    write_tar(
        folder / "0.tar", [(f"{n:03d}", f"http://h.example/{n}", text, jpeg(n)) for n, text in enumerate(captions)]
    )
    write_wordnet(home / "wordnet")
    settings = load_settings(home, "embedded")
    add_pool(settings, "wild", folder, roles={"wordnet": f"path:{home / 'wordnet'}"})
    ctx = PoolContext.open(settings, "wild")
    run_with_upstream(ctx, "raw/samples", "raw/provenance")
    return all_of(ctx, home / "all.npy")


def test_every_so_many_entries_are_the_batch_that_the_formula_chooses(wild: Subset, tmp_path: Path) -> None:
    options = {"batches": "concept", "batch_size": 8, "keep": 0.4, "max_samples": 20}
    out = export_webdataset(wild, tmp_path / "out", **options)
    content = manifest_of(out)
    tars = sorted(out.glob("*.tar"))
    samples = list(wds.WebDataset([str(tar) for tar in tars], shardshuffle=False))
    facts = content["subset"]["batches"]  # type: ignore[index]
    # 60 entries in super-batches of 20, in two passes (1 / .4, rounded)
    assert (facts["batches"], facts["passes"], len(samples)) == (6, 2, 48)
    assert json.loads((out / "sizes.json").read_text()) == {tar.name: 16 for tar in tars}  # tars end with batches
    assert len(tars) == 3
    ids = wild.rows["sample_id"].to_list()
    concepts = {row["sample_id"]: [row["caption"].split()[1]] for row in wild.rows.to_dicts()}
    for number in range(2):
        order = sorted(ids, key=lambda one: draw_keys([one], f"concept_batches:0:{number}")[0])
        for start in range(0, 60, 20):
            chosen = choose_batch([concepts[one] for one in order[start : start + 20]], 8)
            place = (number * 3 + start // 20) * 8
            written = [one["__key__"].partition("-")[0] for one in samples[place : place + 8]]
            assert written == [order[start + position] for position in chosen]
            held = Counter(one["txt"].decode().split()[1] for one in samples[place : place + 8])
            assert held == Counter(concepts[order[start + position]][0] for position in chosen)
    assert len({one["__key__"] for one in samples}) == 48
    counts = content["counts"]
    unchosen = read_missing(out)
    assert set(unchosen["reason"]) == {"in_no_batch"}
    assert counts["asked"] == 60 == counts["written"] + unchosen.height  # type: ignore[index]
    assert counts["entries"] == 48  # type: ignore[index]
    again = export_webdataset(wild, tmp_path / "again", **options)
    assert [tar.read_bytes() for tar in tars] == [(again / tar.name).read_bytes() for tar in tars]
    other = export_webdataset(wild, tmp_path / "other", **options, seed=1)
    assert [tar.read_bytes() for tar in tars] != [(other / tar.name).read_bytes() for tar in tars]


def test_an_unchanged_open_clip_reads_the_batches(wild: Subset, tmp_path: Path) -> None:
    out = export_webdataset(wild, tmp_path / "out", batches="concept", batch_size=8, keep=0.4, max_samples=16)
    tars = sorted(out.glob("*.tar"))
    args = open_clip_args(["--val-data", f"{out}/{{{tars[0].stem}..{tars[-1].stem}}}.tar", "--val-num-samples", "48"])
    args.batch_size, args.workers, args.world_size, args.distributed = 8, 0, 1, False
    data = get_wds_dataset(args, lambda image: np.asarray(image.resize((4, 4))), False, tokenizer=lambda text: [text])
    batches = [[text[0] if isinstance(text, list | tuple) else text for text in texts] for _, texts in data.dataloader]
    expected = [one["txt"].decode() for one in wds.WebDataset([str(tar) for tar in tars], shardshuffle=False)]
    assert [len(batch) for batch in batches] == [8] * 6
    assert [text for batch in batches for text in batch] == expected


def test_batches_that_cannot_be(wild: Subset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 60 entries, and a batch 100"):
        export_webdataset(wild, tmp_path / "out", batches="concept", batch_size=100)
    with pytest.raises(ValueError, match="keep must be in"):
        export_webdataset(wild, tmp_path / "out", batches="concept", batch_size=8, keep=1.5)
    with pytest.raises(ValueError, match="batches must be concept"):
        export_webdataset(wild, tmp_path / "out", batches="words")
    run = curate("export", "webdataset", "x", "--out", tmp_path / "o", "--home", tmp_path, "--keep", "0.5")
    assert run.exit_code == 1
    assert not (tmp_path / "out").exists()


def test_an_image_that_is_gone_is_in_no_batch(wild: Subset, tmp_path: Path) -> None:
    rows = wild.rows.with_columns(
        pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("0" * 64)).otherwise("image_sha256").alias("image_sha256")
    )
    out = export_webdataset(replace(wild, rows=rows), tmp_path / "out", batches="concept", batch_size=8, keep=1.0)
    missing = read_missing(out)
    assert missing.filter(pl.col("reason") == "image_changed")["sample_id"].to_list() == [rows["sample_id"][0]]
    assert manifest_of(out)["counts"]["entries"] == 56  # type: ignore[index]


# -- where samples come from


def test_exports_carry_licences_and_credit_creators(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    members: dict[str, bytes] = {}
    for number in range(4):
        members |= {f"{number}.jpg": jpeg(number), f"{number}.txt": f"thing {number} on a table".encode()}
        if number:
            page = {"license": "CC BY 4.0", "author": f"Ann {number}", "page_url": f"https://a.org/{number}"}
            members[f"{number}.json"] = json.dumps(page).encode()
    (folder / "000000.tar").write_bytes(tar_bytes(members))
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", folder, profile="embedded")
    ctx = PoolContext.open(settings, "p")
    run_with_upstream(ctx, "raw/provenance")
    ids = ctx.store.read("raw/samples", "p-000000")["sample_id"].to_list()
    (tmp_path / "all.txt").write_text("\n".join(ids))
    subset = find_subset(ctx, str(tmp_path / "all.txt"))
    tars = FORMATS["webdataset"].write(subset, tmp_path / "tars")
    credits = pl.read_csv(tars / "CREDITS.csv").sort("creator")
    assert credits["creator"].to_list() == ["Ann 1", "Ann 2", "Ann 3"]
    assert credits["licence"].to_list() == ["cc-by-4.0"] * 3
    assert json.loads((tars / "manifest.json").read_text())["credited"] == 3
    table = FORMATS["hf"].write(subset, tmp_path / "hf")
    rows = pl.concat([pl.read_parquet(path) for path in sorted((table / "data").glob("*.parquet"))])
    assert rows.sort("source_row")["source_url"].to_list() == [None, *(f"https://a.org/{n}" for n in (1, 2, 3))]
    assert "source" not in rows.columns  # nobody declared one
    again = add_pool(settings, "again", tars, profile="embedded")
    assert again.columns["licence"] == "licence"
    other = PoolContext.open(settings, "again")
    run_with_upstream(other, "raw/provenance")
    read_back = other.store.scan("raw/provenance").collect()
    assert sorted(filter(None, read_back["creator"].to_list())) == ["Ann 1", "Ann 2", "Ann 3"]


# -- what `datasets` makes of tars


def arrow_type(features: list[dict[str, Any]]) -> pa.DataType:
    """The type of a struct of a card's features."""
    return pa.struct(
        [(one["name"], arrow_type(one["struct"]) if "struct" in one else one["dtype"]) for one in features]
    )


def test_members_of_tars_have_the_same_keys_and_types(tmp_path: Path) -> None:
    """The first samples, of which a reader takes the types, have no licence and no URL; one image is no JPEG."""
    folder, members = tmp_path / "source", dict[str, bytes]()
    folder.mkdir()
    for number in range(9):
        picture = jpeg(number)
        if number == 8:
            Image.open(io.BytesIO(picture)).save(avif := io.BytesIO(), "AVIF")
            picture = avif.getvalue()
        members |= {f"{number}.jpg": picture, f"{number}.txt": f"thing {number} on a table".encode()}
        if number > 6:
            page = {"license": "CC BY 4.0", "url": f"https://a.org/{number}.jpg"}
            members[f"{number}.json"] = json.dumps(page).encode()
    (folder / "000000.tar").write_bytes(tar_bytes(members))
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", folder, profile="embedded")
    ctx = PoolContext.open(settings, "p")
    run_with_upstream(ctx, "raw/provenance")
    (tmp_path / "all.txt").write_text("\n".join(ctx.store.read("raw/samples", "p-000000")["sample_id"]))
    subset = find_subset(ctx, str(tmp_path / "all.txt"))
    out = export_webdataset(subset, tmp_path / "out")
    samples = list(wds.WebDataset([str(tar) for tar in out.glob("*.tar")], shardshuffle=False))
    described = [json.loads(one["json"]) for one in samples]
    assert len(described) == 9
    assert {tuple(one) for one in described} == {tuple(described[0])}
    assert {(name, type(value)) for one in described for name, value in one.items()} == {
        (name, type(value)) for name, value in described[0].items()
    }
    assert [one["licence"] for one in described] == [""] * 7 + ["cc-by-4.0"] * 2
    assert "creator" not in described[0]  # of no sample
    assert [one["original_sha256"] == one["sha256"] for one in described] == [True] * 8 + [False]
    card = yaml.safe_load((out / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert card["configs"][0]["data_files"] == [{"split": "train", "path": "*.tar"}]
    features = {one["name"]: one for one in card["dataset_info"]["features"]}
    assert set(features) == {"__key__", "__url__", "jpg", "png", "txt", "json"}
    assert features["jpg"]["dtype"] == features["png"]["dtype"] == "image"
    stated = arrow_type(features["json"]["struct"])
    assert pa.array(described, type=stated).to_pylist() == described  # nothing is left out of the card
    inferred = pa.array(described[:5]).type  # without the card
    assert pa.array(described, type=inferred).to_pylist() == described
    if importlib.util.find_spec("datasets") is not None:
        from datasets import load_dataset

        assert load_dataset(str(out), cache_dir=str(tmp_path / "cache"), split="train").num_rows == 9
