"""curate export index: byte ranges of a subset, read by webdataset, by SQLite, and by Megatron-Energon where it is."""

import base64
import itertools
import json
import os
import re
import sqlite3
import struct
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import webdataset as wds

from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.numeric.identity import pack_uids
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.outputs.exports.index import ENERGON, export_index
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.outputs.exports.taken_down import take_out
from curation_assets.outputs.exports.webdataset import export_webdataset
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.stores.denylist import add_to_denylist
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos
from tests.support.paths import REPOSITORY

Samples = dict[str, tuple[bytes, str]]


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"), per_shard=16)


@pytest.fixture(scope="module")
def weighted(ctx: PoolContext, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The samples of a policy, the first of them three times."""
    ids = find_subset(ctx, "icc").sample_ids
    path = tmp_path_factory.mktemp("lists") / "weighted.npy"
    np.save(path, pack_uids(sorted([ids[0], ids[0], *ids])))
    return str(path)


@pytest.fixture(scope="module")
def exported(ctx: PoolContext, weighted: str, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Key → image and caption of the exported tars."""
    out = export_webdataset(find_subset(ctx, weighted), tmp_path_factory.mktemp("tars") / "out")
    samples = wds.WebDataset([str(tar) for tar in sorted(out.glob("*.tar"))], shardshuffle=False)
    return {one["__key__"]: (one["jpg"], one["txt"].decode()) for one in samples}


@pytest.fixture(scope="module")
def out(ctx: PoolContext, weighted: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_index(find_subset(ctx, weighted), tmp_path_factory.mktemp("index") / "out").parent


def part_of(path: str, offset: int, length: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(length)


def test_the_reader_of_the_page_gives_webdataset_the_samples_of_the_exported_tars(out, exported) -> None:
    page = (REPOSITORY / "docs/user/loader.md").read_text(encoding="utf-8")
    code = re.findall(r"<!-- not run: the reader for webdataset;.*?-->\n```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict = {}
    exec(code.replace("OUT/", f"{out}/").replace(', wds.decode("pil")', ""), names)
    read = [(one["__key__"], (one["jpg"], one["txt"].decode())) for one in names["dataset"]]
    assert len(read) == len(exported)
    assert dict(read) == exported
    exec(code.replace("OUT/", f"{out}/"), names)
    assert next(iter(names["dataset"]))["jpg"].size == (32, 24)


def test_the_files_for_energon_lead_to_the_same_bytes_by_its_rules(out, exported) -> None:
    """Its query, its offsets into `samples.jsonl`, its names of parts (`KEY.EXTENSION`), its numbers of tars."""
    folder = out / ENERGON
    tars = list(json.loads((folder / "images/.nv-meta/.info.json").read_text())["shard_counts"])
    lines = (folder / "samples.jsonl").read_bytes()
    ends = struct.unpack(f"<{len(exported) + 1}Q", (folder / "samples.jsonl.idx").read_bytes())
    assert (ends[0], ends[-1]) == (0, len(lines))
    database = sqlite3.connect(folder / "images/.nv-meta/index.sqlite")
    query = (
        "select sp.tar_file_id, sp.content_byte_offset, sp.content_byte_size from sample_parts sp join samples s "
        "on sp.tar_file_id = s.tar_file_id and sp.sample_index = s.sample_index "
        "where s.sample_key = ? and sp.part_name = ?"
    )
    read: Samples = {}
    for start, end in itertools.pairwise(ends):
        entry = json.loads(lines[start:end])
        ((tar, offset, size),) = database.execute(query, entry["image"].rsplit(".", 1)).fetchall()
        read[entry["key"]] = part_of(tars[tar], offset, size), entry["caption"]
    assert read == exported


ENERGON_READS = """
import base64, json, sys
from megatron.energon import (CaptioningSample, Cooker, DefaultTaskEncoder, WorkerConfig, basic_sample_keys, get_loader,
                              get_val_dataset, stateless)

@stateless
def cook(sample, images):
    entry = sample["json"]
    image = images.get(entry["image"], sample)
    return CaptioningSample(**basic_sample_keys(sample), image=image, caption=[entry["key"], entry["caption"]])

class Encoder(DefaultTaskEncoder):
    cookers, decoder = [Cooker(cook)], None
    batch = staticmethod(lambda samples: samples)
    encode_batch = staticmethod(lambda batch: batch)

config = WorkerConfig(rank=0, world_size=1, num_workers=2)
data = get_val_dataset(sys.argv[1], split_part="train", batch_size=3, worker_config=config, task_encoder=Encoder())
found = [[*one.caption, base64.b64encode(one.image).decode()] for batch in get_loader(data) for one in batch]
print(json.dumps(found))
"""


@pytest.mark.infra
@pytest.mark.skipif("ENERGON_PYTHON" not in os.environ, reason="ENERGON_PYTHON names no python with megatron-energon")
def test_megatron_energon_reads_every_entry(out, exported) -> None:
    python, path = os.environ["ENERGON_PYTHON"], out / ENERGON / "metadataset.yaml"
    done = subprocess.run([python, "-c", ENERGON_READS, str(path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(exported)
    assert {key: (base64.b64decode(image), caption) for key, caption, image in found} == exported


def test_what_is_gone_is_missing_with_its_reason(tmp_path) -> None:
    ctx = finished_photos(tmp_path / "home")
    rows = find_subset(ctx, "icc").rows
    (ctx.store.root / rows["tar"][0]).resolve().unlink()
    lost = rows.filter(tar=rows["tar"][0])
    export_index(find_subset(ctx, "icc"), tmp_path / "out")
    missing = pl.read_csv(tmp_path / "out" / "missing.tsv", separator="\t", schema_overrides={"sample_id": pl.String})
    assert sorted(missing["sample_id"]) == sorted(lost["sample_id"])
    assert set(missing["reason"]) == {"image_gone"}
    assert pl.read_parquet(tmp_path / "out" / "index.parquet").height == rows.height - lost.height


def test_a_takedown_flags_an_index_and_asks_for_a_new_one(tmp_path) -> None:
    ctx = finished_photos(tmp_path / "home")
    home, rows = ctx.settings.home, find_subset(ctx, "icc").rows
    result = curate("export", "index", "icc", "--out", tmp_path / "out", "--home", home, "--pool", "photos")
    assert result.exit_code == 0, result.output
    taken = rows["sample_id"][0]
    add_to_denylist(home, [("url", rows["url"][0])])
    tables = tables_of(ctx)
    takedown = begin_takedown(ctx, tables)
    assert takedown is not None
    certificate, _ = finish_takedown(ctx, tables, takedown)
    assert [flagged["folder"] for flagged in certificate["exports_flagged"]] == [str(tmp_path / "out")]
    assert json.loads((tmp_path / "out" / EXPORT_FLAG).read_text())["sample_ids"] == [taken]
    with pytest.raises(ValueError, match="format 'index' is not rewritten in part; export it again"):
        take_out(home, tmp_path / "out")
