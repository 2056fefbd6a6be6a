"""ca.dataset: a subset read from the tars as they are, in an order that ranks and workers share and a kill survives."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import polars as pl
import pytest
import torch
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st
from open_clip_train.data import DataInfo
from open_clip_train.train import train_one_epoch
from PIL import Image
from torch.utils.data import DataLoader

import curation_assets as ca
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import pack_uids
from curation_assets.operations.releases import create_release
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.outputs.exports.webdataset import export_webdataset
from curation_assets.outputs.loading import dataset as loading
from curation_assets.outputs.loading.dataset import MissingSampleError
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.denylist import add_to_denylist
from tests.support.lineage_pools import OPTIONS, caption_of, finished_photos, write_tar

ALL = ("key", "image", "caption")


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"), per_shard=40)


@pytest.fixture(scope="module")
def weighted(ctx: PoolContext, tmp_path_factory: pytest.TempPathFactory) -> str:
    """117 kept samples; the first counts five times, the second twice."""
    ids = ctx.store.scan("raw/samples").collect().filter(status="kept")["sample_id"].sort().to_list()
    path = tmp_path_factory.mktemp("lists") / "all.npy"
    np.save(path, pack_uids(sorted([ids[0]] * 4 + [ids[1]] + ids)))
    return str(path)


@pytest.fixture(scope="module")
def few(ctx: PoolContext, tmp_path_factory: pytest.TempPathFactory) -> str:
    """17 samples of two tars."""
    path = tmp_path_factory.mktemp("lists") / "few.npy"
    np.save(path, pack_uids(find_subset(ctx, "icc").rows["sample_id"].head(17).sort().to_list()))
    return str(path)


def opened(ctx: PoolContext, subset: str, **options: Any) -> Any:
    return ca.dataset(subset, home=ctx.settings.home, **{"columns": ALL, **options})


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["key"]]


# -- what is read -----------------------------------------------------------------------------------------------------


def exported(ctx: PoolContext, subset: str, out: Path) -> list[tuple[str, bytes, str]]:
    """(key, image, caption) of `curate export webdataset`, read by webdataset."""
    tars = sorted(str(path) for path in export_webdataset(find_subset(ctx, subset), out).glob("*.tar"))
    found = []
    for one in wds.WebDataset(tars, shardshuffle=False):
        (image,) = (one[name] for name in ("jpg", "png", "webp") if name in one)
        found.append((one["__key__"], image, one["txt"].decode()))
    return found


def test_the_samples_bytes_and_captions_are_those_of_the_exported_tars(ctx, weighted, tmp_path) -> None:
    for number, subset in enumerate((weighted, "icc")):
        expected = exported(ctx, subset, tmp_path / str(number))
        stream = opened(ctx, subset)
        assert [tuple(sample.values()) for sample in stream] == expected
        assert len(stream) == len(stream.samples) == len(expected)
        backwards = [stream.samples[-1 - n] for n in range(len(expected))]
        assert [tuple(sample.values()) for sample in reversed(backwards)] == expected
        with pytest.raises(IndexError):
            stream.samples[len(expected)]


def test_images_that_trainings_misread_are_given_as_the_export_writes_them(tmp_path) -> None:
    rows = []
    for number, form in enumerate(("JPEG", "GIF", "BMP", "PNG")):
        data = io.BytesIO()
        Image.new("RGB", (20 + number, 30), (9, 99, 199)).save(data, form)
        rows.append((f"{number:03d}", f"http://host/{number}", caption_of(number), data.getvalue()))
    write_tar(tmp_path / "tars" / "000000.tar", rows)
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "forms", tmp_path / "tars", options=OPTIONS)
    ctx = PoolContext.open(settings, "forms")
    run_with_upstream(ctx, "raw/samples")
    np.save(tmp_path / "all.npy", pack_uids(ctx.store.scan("raw/samples").collect()["sample_id"].sort().to_list()))
    expected = exported(ctx, str(tmp_path / "all.npy"), tmp_path / "out")
    assert len(expected) == 4
    stream = opened(ctx, str(tmp_path / "all.npy"), columns=(*ALL, "pixels"))
    assert [tuple(sample.values())[:3] for sample in stream] == expected
    for sample in stream:
        file = Image.open(io.BytesIO(sample["image"])).convert("RGB")
        assert sample["pixels"].tobytes() == file.tobytes()


def test_columns_are_those_of_the_subset_and_unknown_ones_are_refused(ctx) -> None:
    rows = find_subset(ctx, "icc").rows
    got = list(opened(ctx, "icc", columns=("sample_id", "width", "signals_icc")))
    assert got == rows.select("sample_id", "width", "signals_icc").to_dicts()
    with pytest.raises(ValueError, match=r"columns must be some of key, image, pixels, .*; got colour"):
        opened(ctx, "icc", columns=("image", "colour"))
    with pytest.raises(ValueError, match="got none"):
        opened(ctx, "icc", columns=())


def test_captions_alone_can_be_read_of_a_pool_without_images(tmp_path) -> None:
    pl.DataFrame({"caption": [caption_of(number) for number in range(5)]}).write_csv(tmp_path / "c.csv")
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "texts", tmp_path / "c.csv", columns={"url": None}, options=OPTIONS)
    ctx = PoolContext.open(settings, "texts")
    run_with_upstream(ctx, "raw/samples")
    np.save(tmp_path / "all.npy", pack_uids(ctx.store.scan("raw/samples").collect()["sample_id"].sort().to_list()))
    stream = opened(ctx, str(tmp_path / "all.npy"), columns=("caption",), shuffle_seed=1)
    assert sorted(sample["caption"] for sample in stream) == sorted(caption_of(number) for number in range(5))
    with pytest.raises(ValueError, match="captions only: leave image and pixels out"):
        opened(ctx, str(tmp_path / "all.npy"))


def test_a_release_is_read_by_its_name(ctx, tmp_path) -> None:
    shutil.copytree(ctx.settings.home, tmp_path / "home", symlinks=True)
    home = PoolContext.open(load_settings(tmp_path / "home", "embedded"), "photos")
    create_release(home, tables_of(home), "icc", "first")
    assert list(opened(home, "release:first")) == list(opened(home, "icc"))
    with pytest.raises(ca.ExpectedError, match="no release 'second'"):
        opened(home, "release:second")


# -- order, ranks, workers --------------------------------------------------------------------------------------------


def test_two_workers_of_a_plain_loader_give_the_order_of_none(ctx, weighted) -> None:
    stream = opened(ctx, weighted, shuffle_seed=3, batch_size=8)
    alone = keys(DataLoader(stream, batch_size=8))
    assert Counter(alone) == Counter(sample["key"] for sample in opened(ctx, weighted))
    loader = DataLoader(stream, batch_size=8, num_workers=2, persistent_workers=True)
    assert keys(loader) == alone
    stream.set_epoch(1)  # workers that live on hear of it
    second = keys(loader)
    assert sorted(second) == sorted(alone)
    assert second != alone
    assert keys(DataLoader(stream.samples, batch_size=8, shuffle=True, num_workers=2)) != alone


@given(
    count=st.integers(0, 60), batch=st.integers(1, 5), ranks=st.integers(1, 4), workers=st.integers(1, 3),
    start=st.integers(0, 60), drop_last=st.booleans(), size=st.integers(1, 9),
)  # fmt: skip
def test_readers_share_all_positions_and_none_twice(count, batch, ranks, workers, start, drop_last, size) -> None:
    start = min(start, count)
    read, steps = [], []
    for rank in range(ranks):
        mine = 0
        for worker in range(workers):
            reader = rank + ranks * worker
            share = loading._Share(start, count, batch, reader, ranks * workers, drop_last, ranks)
            positions = [int(one) for chunk in share.chunks(0, size) for one in chunk]
            assert len(positions) == share.count
            half = share.count // 2
            assert [int(one) for chunk in share.chunks(half, size) for one in chunk] == positions[half:]
            read += positions
            mine += len(positions)
        assert mine == loading._Share(start, count, batch, rank, ranks, drop_last).count
        steps.append(mine)
    assert sorted(read) == list(range(start, share.end))
    assert max(steps) - min(steps) <= (0 if drop_last else batch)
    assert count - share.end < (batch * ranks if drop_last else 1)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (3, 0), (2, 2)])
def test_ranks_and_workers_read_every_entry_once(ctx, weighted, monkeypatch, ranks, workers) -> None:
    read = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        stream = opened(ctx, weighted, shuffle_seed=3, batch_size=7)
        mine = keys(DataLoader(stream, batch_size=7, num_workers=workers))
        assert len(mine) == len(stream)
        read += mine
    assert Counter(read) == Counter(sample["key"] for sample in opened(ctx, weighted, rank=0, world_size=1))


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=4))
def test_a_state_goes_on_with_other_ranks_and_batches_without_a_repeat_or_a_loss(ctx, weighted, parts) -> None:
    """`parts`: steps, then ranks and batch size that go on after them; at the end all is read by one."""
    samples, state, read = _SAMPLES.setdefault(weighted, opened(ctx, weighted).samples), None, []
    for steps, ranks, batch in [*parts, (1000, 1, 9)]:
        after = []
        for rank in range(ranks):
            stream = loading.SubsetStream(samples, shuffle_seed=3, batch_size=batch, rank=rank, world_size=ranks)
            if state is not None:
                stream.load_state_dict(state)
            loader = iter(DataLoader(stream, batch_size=batch))
            read += keys(batch for _, batch in zip(range(steps), loader, strict=False))
            after.append(json.loads(json.dumps(stream.state_dict())))
        assert [one["taken"] for one in after] == [0] * ranks
        state = after[0]  # of the rank that has the last batch, where it is one of its own
    assert Counter(read) == Counter(sample["key"] for sample in loading.SubsetStream(samples))


_SAMPLES: dict[str, Any] = {}


@pytest.mark.slow
@given(st.lists(st.integers(0, 40), max_size=3), st.booleans())
def test_a_rank_stops_amid_a_step_and_goes_on(ctx, weighted, stops, is_counted) -> None:
    samples = _SAMPLES.setdefault(weighted, opened(ctx, weighted).samples)

    def fresh() -> Any:
        return loading.SubsetStream(samples, shuffle_seed=3, batch_size=4, rank=1, world_size=2)

    whole, read, state = [sample["key"] for sample in fresh()], [], None
    for stop in [*stops, len(whole)]:
        stream = fresh()
        if state is not None:
            stream.load_state_dict(state)
        taken = [sample["key"] for _, sample in zip(range(stop), stream, strict=False)]
        read += taken
        state = stream.state_dict(len(taken)) if is_counted else stream.state_dict()
    assert read == whole


TRAINING = """
import json, sys
import curation_assets as ca
from torch.utils.data import DataLoader

home, subset, log, workers = sys.argv[1:]
stream = ca.dataset(subset, home=home, columns=("key", "image"), shuffle_seed=5, batch_size=4)
lines = [line for line in open(log) if line.endswith("\\n")]
if lines:
    stream.load_state_dict(json.loads(lines[-1])["state"])
with open(log, "a") as file:
    for step, batch in enumerate(DataLoader(stream, batch_size=4, num_workers=int(workers)), start=1):
        line = json.dumps({"keys": batch["key"], "state": stream.state_dict(step * 4 if len(batch["key"]) == 4 else
                           step * 4 - 4 + len(batch["key"]))})
        print(line, file=file, flush=True)
        print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_that_is_killed_again_and_again_sees_every_sample_once(ctx, weighted, tmp_path, workers) -> None:
    log, draw = tmp_path / "log", random.Random(workers)
    log.touch()
    arguments = [sys.executable, "-c", TRAINING, str(ctx.settings.home), weighted, str(log), str(workers)]
    for kill in (True, True, True, False):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout is not None
            for _ in range(draw.randrange(1, 8) if kill else 1000):
                if not process.stdout.readline():
                    break
            if kill:
                os.killpg(process.pid, signal.SIGKILL)
                lines = log.read_text()
                log.write_text(lines[: lines.rfind("\n") + 1])  # as whoever writes logs with a kill in mind
    assert process.returncode == 0
    read = [key for line in log.read_text().splitlines() for key in json.loads(line)["keys"]]
    assert Counter(read) == Counter(sample["key"] for sample in opened(ctx, weighted))


def test_states_that_would_repeat_or_lose_samples_are_refused(ctx, weighted) -> None:
    stream = opened(ctx, weighted, shuffle_seed=3, batch_size=4)
    state = stream.state_dict()
    for other in ({"shuffle_seed": 4}, {"shuffle_window": 8}):
        with pytest.raises(ValueError, match="its samples or the order have changed"):
            opened(ctx, weighted, **{"shuffle_seed": 3, **other}).load_state_dict(state)
    with pytest.raises(ValueError, match="its samples or the order have changed"):
        opened(ctx, "icc", shuffle_seed=3).load_state_dict(state)
    subset = find_subset(ctx, weighted)
    moved = replace(subset, rows=subset.rows.with_columns(tar=pl.lit("another.tar")))  # blocks end with tars
    reading = replace(stream.samples._reading, columns=("key",))
    with pytest.raises(ValueError, match="its samples or the order have changed"):
        loading.SubsetStream(loading.SubsetSamples(moved, reading), shuffle_seed=3).load_state_dict(state)
    next(iter(DataLoader(stream, batch_size=4, num_workers=1)))
    with pytest.raises(ValueError, match="give consumed"):
        stream.state_dict()
    state = stream.state_dict(4)
    stream.load_state_dict(state)
    rest = keys(DataLoader(stream, batch_size=4))
    assert len(rest) == len(stream) - 4
    with pytest.raises(ValueError, match=r"call set_epoch\(epoch\) before every epoch"):
        keys(DataLoader(stream, batch_size=4))
    stream.set_epoch(1)
    assert len(keys(DataLoader(stream, batch_size=4))) == len(stream)
    with pytest.raises(ValueError, match="consumed must be 0 to"):
        stream.state_dict(1000)


# -- what changed or went ---------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path) -> PoolContext:
    home = tmp_path / "home"
    finished_photos(home)
    settings = load_settings(home, "embedded")
    return PoolContext.open(settings, "photos")


def own_tars(ctx: PoolContext) -> list[Path]:
    """The tars that the pool's rows are in."""
    return sorted({(ctx.store.root / tar).resolve() for tar in find_subset(ctx, "icc").rows["tar"]})


def rewritten(tar: Path, change: Any) -> None:
    """The members of a tar that `change` (name, bytes) → bytes or None lets through."""
    with tarfile.open(tar) as source:
        members = [(one.name, source.extractfile(one).read()) for one in source]  # type: ignore[union-attr]
    with tarfile.open(tar, "w") as target:
        for name, data in members:
            changed = change(name, data)
            if changed is not None:
                info = tarfile.TarInfo(name)
                info.size = len(changed)
                target.addfile(info, io.BytesIO(changed))


def test_a_member_that_moved_in_its_tar_is_found(copied) -> None:
    stream, before = opened(copied, "icc"), list(opened(copied, "icc"))
    for tar in own_tars(copied):
        rewritten(tar, lambda name, data: data + b" " * 5000 if name.endswith("json") else data)
    assert list(stream) == before  # opened before, with the old places
    assert list(opened(copied, "icc")) == before


def test_a_member_that_changed_is_an_error_that_names_it_or_is_counted(copied) -> None:
    row = find_subset(copied, "icc").rows.row(1, named=True)
    stream, skipping = opened(copied, "icc"), opened(copied, "icc", missing="skip")
    other = {"now": b""}

    def swap(name: str, data: bytes) -> bytes:
        if name == row["member"]:
            other["now"] = data[:-9] + b"123456789"
            return other["now"]
        return data

    rewritten((copied.store.root / row["tar"]).resolve(), swap)
    digest = hashlib.sha256(other["now"]).hexdigest()
    expected = (
        rf"shard {row['shard']}: member {row['member']} of .* \(sample {row['sample_id']}\) was "
        rf"{row['image_bytes']:,} bytes with sha256 {row['image_sha256']}; found {row['image_bytes']:,} bytes with "
        rf"sha256 {digest}"
    )
    for again in (stream, opened(copied, "icc")):  # its size is the same: only its bytes tell
        with pytest.raises(MissingSampleError, match=expected):
            list(again)
    with pytest.raises(MissingSampleError, match=expected):
        list(DataLoader(opened(copied, "icc"), num_workers=1))
    left = [sample["key"] for sample in skipping]
    assert (skipping.skipped, len(left)) == (1, len(skipping) - 1)
    assert f"{row['sample_id']}-0" not in left
    state = skipping.state_dict()
    assert state["position"] == len(skipping)  # a position that was left out is taken
    with pytest.raises(MissingSampleError, match=expected):
        skipping.samples[1]


@pytest.mark.slow
def test_members_and_tars_that_went_are_known_when_a_dataset_is_opened(copied) -> None:
    rows = find_subset(copied, "icc").rows
    absent, shorter = rows.row(0, named=True), rows.row(-1, named=True)
    changes = {absent["member"]: lambda data: None, shorter["member"]: lambda data: data[:-1]}
    for tar in own_tars(copied):
        rewritten(tar, lambda name, data: changes.get(name, lambda data: data)(data))
    names = (
        rf"2 of the {rows.height} samples of 'icc' are not where they were: .*image_gone: member {absent['member']} of "
        rf".*{absent['tar']} \(shard {absent['shard']}\) was {absent['image_bytes']} bytes, found none"
    )
    with pytest.raises(MissingSampleError, match=names):
        opened(copied, "icc")
    stream = opened(copied, "icc", missing="skip")
    assert stream.missing == {"image_gone": 1, "image_changed": 1}
    assert len(list(stream)) == len(stream) == rows.height - 2
    assert stream.skipped == 0
    for tar in own_tars(copied):
        tar.unlink()
    with pytest.raises(MissingSampleError, match=f"{rows.height} of the {rows.height}"):
        opened(copied, "icc")
    with pytest.raises(ValueError, match="has no sample that can be read"):
        opened(copied, "icc", missing="skip")


def test_what_is_taken_down_is_never_given(copied) -> None:
    home, rows = copied.settings.home, find_subset(copied, "icc").rows
    stream = opened(copied, "icc", missing="error")
    first, second = rows["sample_id"][0], rows["sample_id"][1]
    add_to_denylist(home, [("uid", first)])
    given = [sample["key"] for sample in stream]  # opened before
    assert f"{first}-0" not in given
    assert (len(given), stream.skipped) == (rows.height - 1, 1)
    with pytest.raises(MissingSampleError, match=f"sample {first} was taken down"):
        stream.samples[0]
    add_to_denylist(home, [("url", rows["url"][1])])
    again = opened(copied, "icc")  # no error: that it went is right
    assert not {f"{first}-0", f"{second}-0"} & {sample["key"] for sample in again}
    assert again.missing == {"dropped:takedown": 2}


def test_what_is_kept_of_the_places_is_numbers(copied) -> None:
    time.sleep(0.2)  # tars that are younger may change without a trace
    before = list(opened(copied, "icc"))
    kept = sorted((copied.store.root / "source").glob("*.places.parquet"))
    assert kept
    for path in kept:
        frame = pl.read_parquet(path)
        assert frame.height > 0
        assert set(frame.dtypes) == {pl.Int64}
        path.write_bytes(path.read_bytes()[:40])  # damaged: made again
    assert list(opened(copied, "icc")) == before


# -- in a training ----------------------------------------------------------------------------------------------------


def test_open_clip_trains_two_steps_from_it(ctx, few) -> None:
    """Its own loop, loss and optimiser; the dataset stands where its reader of tars would."""
    config = {"embed_dim": 8, "quick_gelu": False}
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    torch.manual_seed(0)
    model = open_clip.CLIP(**config, vision_cfg=vision, text_cfg=text, output_dict=True)
    preprocess = open_clip.image_transform(32, is_train=True)
    tokenize = open_clip.SimpleTokenizer(context_length=16)
    stream = opened(
        ctx, few, columns=("pixels", "caption"), shuffle_seed=0, batch_size=8, drop_last=True,
        transform=lambda sample: (preprocess(sample["pixels"]), tokenize(sample["caption"])[0]),
    )  # fmt: skip
    loader = DataLoader(stream, batch_size=8, num_workers=2)
    loader.num_batches, loader.num_samples = len(loader), len(stream)  # type: ignore[attr-defined] # as its own have
    args = Namespace(
        device="cpu", precision="fp32", distill=False, accum_freq=1, skip_scheduler=True, grad_clip_norm=None,
        log_every_n_steps=1, rank=0, local_rank=0, batch_size=8, world_size=1, wandb=False, save_logs=False,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    data = {"train": DataInfo(loader, shared_epoch=SimpleNamespace(set_value=stream.set_epoch))}
    train_one_epoch(model, data, open_clip.ClipLoss(), 1, optimizer, None, None, None, args)
    assert stream.epoch == 1
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}
    assert any(not torch.equal(left, right) for left, right in zip(before, model.parameters(), strict=True))
