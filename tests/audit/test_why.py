"""curate why: by id, URL and image hash, over pools, policies and their versions."""

import functools
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from curation_assets.audit.lookup import shards_of, write_lookup
from curation_assets.audit.why import explain, kind_of, sentence, with_rank
from curation_assets.core.settings import load_settings, shard_key, shard_number
from curation_assets.core.table_names import LOOKUP
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.shard_store import ShardStore
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos, jpeg


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"))


def row_of(ctx: PoolContext, number: int) -> dict[str, object]:
    samples = ctx.store.scan("raw/samples").filter(pl.col("url").str.ends_with(f"/{number}.jpg")).collect()
    return samples.to_dicts()[0]


def respelt(url: str) -> str:
    """Another spelling of http://host0.example/9.jpg."""
    scheme, host, name = url.replace("://", "/").split("/")
    return f"{scheme.upper()}://{host.upper()}.:80/x/../{name}#top"


def test_three_names_of_one_sample_give_one_answer(ctx: PoolContext) -> None:
    row = row_of(ctx, 9)
    image = hashlib.sha256(jpeg(9)).hexdigest()
    output = [explain(ctx.settings, str(name)) for name in (row["sample_id"], row["url"], image)]
    assert output[0] == output[1] == output[2]
    assert explain(ctx.settings, respelt(row["url"])) == output[0]
    assert [one["policy"] for one in output[0][0]["policies"]] == [
        "clip", "icc", "icc_after_clip", "random", "sieve", "sieve_clip",
    ]  # fmt: skip
    verdicts = ctx.store.scan("filtered/icc").collect().filter(pl.col("sample_id") == row["sample_id"]).to_dicts()[0]
    icc = output[0][0]["policies"][1]
    shared = ("verdict", "reason", "value", "threshold", "margin")
    assert {name: icc[name] for name in shared} == {name: verdicts[name] for name in shared}
    made = {one["table"]: one for one in icc["made_by"]}
    assert made["signals/icc"]["models"][0]["address"] == "embedded:icc"
    manifest = ctx.store.manifest("signals/icc", str(row["shard"]))
    assert manifest is not None
    assert made["signals/icc"]["content_sha256"] == manifest.content_sha256


def test_the_lookup_names_one_shard_and_those_written_since(
    ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(ctx.settings.home, home, symlinks=True)  # keeps times of change
    here = PoolContext.open(load_settings(home, "embedded"), "photos")
    tables = tables_of(here)
    assert shards_of(here.store, "photos", "sample_id", "0" * 32) is None, "none yet"
    row = row_of(here, 9)
    scanned = explain(here.settings, str(row["url"]))
    materialise_table(here, tables[LOOKUP], tables=tables)
    for kind, name in (("sample_id", "sample_id"), ("url", "url"), ("sha256", "image_sha256")):
        assert shards_of(here.store, "photos", kind, str(row[name])) == ["photos-000001"]
    assert shards_of(here.store, "photos", "url", "http://nowhere.example/1.jpg") == []
    read: list[list[str] | None] = []
    scan = type(here.store).scan
    monkeypatch.setattr(
        type(here.store), "scan", lambda self, asset, shards=None: read.append(shards) or scan(self, asset, shards)
    )
    for url in (row["url"], respelt(row["url"])):
        assert explain(here.settings, url) == scanned
        assert read.pop() == ["photos-000001"]
        assert read == []
    late = here.store.table_path("raw/samples", "photos-000002")
    os.utime(late.parent)  # written anew: what the lookup says of it may be wrong
    assert shards_of(here.store, "photos", "url", str(row["url"])) == ["photos-000001", "photos-000002"]
    assert shards_of(here.store, "photos", "sample_id", "0" * 32) == ["photos-000002"]


def test_the_lookup_of_a_pool_with_more_than_a_million_shards(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "work" / "big")
    rows = {
        shard_key("big", number): pl.DataFrame(
            {
                "sample_id": [f"{number:032x}"[::-1]],
                "url": ["u"],
                "image_sha256": [None],
                "original_sha256": ["f" * 64],
            },
            schema=dict.fromkeys(["sample_id", "url", "image_sha256", "original_sha256"], pl.String),
        )
        for number in (0, 999_999, 1_000_000, 1_048_575, 12_345_678)
    }
    assert sorted(rows) == list(rows), "keys sort as their numbers"
    for wide in (False, True):
        for shard in list(rows)[: 5 if wide else 4]:
            store.write("raw/samples", rows[shard], shard, code_version="1")
        write = functools.partial(write_lookup, store)
        manifest = store.materialise_folder(LOOKUP, write, code_version=str(wide)).manifest
        assert list(manifest.files) == ["keys_24.npy" if wide else "keys.npy"]
        for folder in store.asset_path("raw/samples").iterdir():
            os.utime(folder, ns=(0, 0))  # else all count as written since
        here = store.partitions("raw/samples")
        assert shards_of(store, "big", "url", "u") == here
        assert shards_of(store, "big", "sha256", "f" * 64) == here
        for shard in here:
            assert shards_of(store, "big", "sample_id", str(rows[shard]["sample_id"][0])) == [shard]
    in_memory = np.array(
        [
            int(name[:16], 16) >> 24 << 24 | number
            for number in map(shard_number, rows)
            for name in (f"{number:032x}"[::-1], "f" * 16, hashlib.sha256(b"u").hexdigest())
        ],
        dtype=np.uint64,
    )
    assert np.array_equal(np.load(store.folder_path(LOOKUP) / "keys_24.npy"), np.unique(in_memory))


def test_samples_that_no_policy_saw_and_values_that_are_missing_are_explained(ctx: PoolContext) -> None:
    broken = explain(ctx.settings, str(row_of(ctx, 2)["url"]))[0]
    assert broken["raw"] == {"status": "failed", "reason": "image_undecodable"}
    assert {sentence(one) for one in broken["policies"]} == {"failed before any policy: image_undecodable"}
    unvalued = explain(ctx.settings, str(row_of(ctx, 5)["url"]))[0]
    clip = next(one for one in unvalued["policies"] if one["policy"] == "clip")
    assert sentence(clip) == "failed: signals.clip_score gave no value (no_image)"


def test_what_is_nothing_is_refused_with_a_sentence(ctx: PoolContext) -> None:
    assert kind_of("a" * 32) == "sample_id"
    with pytest.raises(ValueError, match="sample_id"):
        kind_of("A" * 32)
    with pytest.raises(ValueError, match="no sample with url"):
        explain(ctx.settings, "http://nowhere.example/1.jpg")
    with pytest.raises(
        ValueError,
        match=r"no sample with sample_id .*; expected a sample_id \(32.*, the sha256 .*, a URL, or a key in a tar",
    ):
        explain(ctx.settings, "0" * 32)


def test_a_name_on_the_denylist_is_told(ctx: PoolContext, tmp_path: Path) -> None:
    settings = replace(ctx.settings, home=tmp_path)
    add_to_denylist(tmp_path, [("url", "http://gone.example/1.jpg"), ("domain", "bad.example")])
    for url in ("http://gone.example/1.jpg", "https://www.bad.example/2.jpg"):
        with pytest.raises(ValueError, match="on the denylist"):
            explain(settings, url)
    with pytest.raises(ValueError, match=r"\(none declared\); expected"):
        explain(settings, "http://other.example/1.jpg")


def test_command_prints_words_or_json(ctx: PoolContext) -> None:
    row = row_of(ctx, 9)
    home = ["--home", str(ctx.settings.home)]
    words = curate("why", row["sample_id"], *home)
    assert words.exit_code == 0, words.output
    for expected in ("caption", "cut at", "margin", "better than", "signals.icc", "embedded:icc abababab", "run-of-s"):
        assert expected in words.output, expected
    as_json = curate("why", row["url"], "--json", *home)
    assert json.loads(as_json.stdout)[0]["sample_id"] == row["sample_id"]
    refused = curate("why", "what", *home)
    assert refused.exit_code == 1


def test_the_best_is_better_than_all_others_and_an_exact_rank_is_counted(ctx: PoolContext) -> None:
    rows = ctx.store.scan("filtered/icc").filter(pl.col("value").is_not_null()).collect()
    rows = rows.sort("value", "sample_id", descending=[True, False])
    for place, sample_id in enumerate(rows["sample_id"]):
        verdict = next(one for one in explain(ctx.settings, sample_id)[0]["policies"] if one["policy"] == "icc")
        assert verdict["better_than"] == pytest.approx((rows.height - 1 - place) / rows.height, abs=2e-3)
        assert with_rank(ctx.settings, verdict, "photos", sample_id)["rank"] == place + 1
