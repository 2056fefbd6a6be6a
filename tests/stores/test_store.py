"""Identity, stored tables, manifests, model folders, subsets and the catalogue."""

import contextlib
import hashlib
import json
import math
import os
import shutil
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.core.errors import StoreError
from curation_assets.core.roles import ModelIdentity
from curation_assets.core.stages import BackwardsReadError
from curation_assets.numeric.identity import (
    pack_uids,
    sample_id_of,
    seed_of,
    sorted_uids,
    unit_interval_of,
)
from curation_assets.stores.atomic import remove_stale, writing_new
from curation_assets.stores.catalog import open_pool, rebuild_catalog, view_sql
from curation_assets.stores.columns import by_shard, hex_column
from curation_assets.stores.content_hash import frame_sha256, with_file_hashes
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.shard_store import CorruptTableError, MissingInputError, MissingTableError, ShardStore
from curation_assets.stores.subsets import ID_SUFFIXES, write_keys, write_sorted_subset
from tests.support.id_lists import read_subset, unpack_uids
from tests.support.killing import Killed, killed_at_rename

SHARD_0, SHARD_1 = "toy-000000", "toy-000001"
IDS = [f"{number:032x}" for number in range(4)]


def values(*numbers: float) -> pl.DataFrame:
    return pl.DataFrame({"sample_id": IDS[: len(numbers)], "value": list(numbers)})


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    return ShardStore(tmp_path / "work" / "toy")


class Counted:
    """A computation that counts how often it ran."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame, self.runs = frame, 0

    def __call__(self) -> pl.DataFrame:
        self.runs += 1
        return self.frame


# -- identity -----------------------------------------------------------------------------------------------------


def test_a_valid_uid_is_kept_and_everything_else_is_hashed() -> None:
    assert sample_id_of("u", "c", "0" * 32) == "0" * 32
    # shell: printf 'u\0c' | sha256sum | cut -c1-32
    assert sample_id_of("u", "c") == "1bdd3f562c63fab24ddebdae26e4a7d9"
    for bad in ("0" * 31, "0" * 33, "G" * 32, "A" * 32, " " * 32, "0" * 32 + "\n", ""):
        assert sample_id_of("u", "c", bad) == sample_id_of("u", "c")
    assert sample_id_of("ab", "c") != sample_id_of("a", "bc")
    assert sample_id_of(None, "c") == sample_id_of("", "c")
    assert sample_id_of("u", "lone surrogate \ud800") != sample_id_of("u", "lone surrogate ")


def test_pairs_follow_the_worked_example_of_datacomp() -> None:
    # formulas.md §3.3
    assert pack_uids(["139e4a9b22a614771f06c700a8ebe150"])[0].tolist() == (1413649363202610295, 2235693070683988304)
    assert pack_uids(["6e356964a967af455c8016b75d691203"])[0].tolist() == (7941369398997528389, 6665352425310327299)


def test_packing_sorts_as_unsigned_pairs() -> None:
    low, middle, high = "0" * 32, "0" * 16 + "f" * 16, "f" * 16 + "0" * 15 + "1"
    packed = pack_uids([high, middle, low, middle])
    assert packed.dtype == np.dtype("u8,u8")
    assert unpack_uids(packed) == [low, middle, middle, high]
    assert len(pack_uids([])) == 0
    with pytest.raises(ValueError, match="32 lower-case hex"):
        pack_uids(["0" * 31])


def test_sorting_ids_takes_little_memory_beside_them() -> None:
    """Of a subset of 19 million ids 0.3 GiB are given, and 0.3 returned."""
    halves = np.random.default_rng(0).integers(0, 1 << 64, (100_000, 2), dtype=np.uint64)
    tracemalloc.start()
    packed = sorted_uids(halves)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed.tolist() == sorted(map(tuple, halves.tolist()))
    assert peak < 1.75 * packed.nbytes


def test_npy_has_the_bytes_of_the_published_procedure(tmp_path: Path) -> None:
    """DataComp: halves of the uid read as numbers, dtype u8,u8, numpy's own sort and save (formulas.md §3.3)."""
    rng = np.random.default_rng(0)
    uids = [rng.bytes(16).hex() for _ in range(200)] + ["f" * 32, "0" * 32, "f" * 16 + "0" * 16, "f" * 32]
    pairs = np.array([(int(uid[:16], 16), int(uid[16:], 16)) for uid in uids], np.dtype("u8,u8"))
    pairs.sort()
    np.save(tmp_path / "theirs.npy", pairs)
    write_sorted_subset(tmp_path / "ours.npy", tmp_path / "ours.parquet", pack_uids(uids))
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


def test_numbers_drawn_from_an_id_are_stable_and_in_range() -> None:
    assert seed_of(IDS[0], "vba") == seed_of(IDS[0], "vba")
    assert seed_of(IDS[0], "vba") != seed_of(IDS[0], "sba") != seed_of(IDS[1], "sba")
    drawn = np.array([unit_interval_of(f"{i:032x}", "p") for i in range(4000)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.03  # sd of the mean: 0.29 / sqrt(4000) = 0.005
    assert 0 <= seed_of(IDS[2], "x") < 2**63


# -- content hash -------------------------------------------------------------------------------------------------


def test_hash_sees_content_and_not_layout() -> None:
    whole = pl.DataFrame({"a": [1.0, None, math.nan], "b": [["x"], [], None], "c": [{"d": 1}, None, {"d": None}]})
    chunked = pl.concat([whole[:1], whole[1:]], rechunk=False)
    assert chunked.n_chunks() == 2
    assert frame_sha256(whole) == frame_sha256(chunked)
    for changed in (
        whole[::-1],
        whole.rename({"a": "z"}),
        whole.with_columns(a=pl.col("a").fill_null(0.0)),
        whole.with_columns(a=pl.col("a").fill_nan(None)),
        whole.with_columns(b=pl.Series([["x"], None, None], dtype=pl.List(pl.String))),
        whole.with_columns(b=pl.Series([["x"], [""], None], dtype=pl.List(pl.String))),
        whole.with_columns(pl.col("a").cast(pl.Float32)),
        whole.select("b", "a", "c"),
    ):
        assert frame_sha256(changed) != frame_sha256(whole)
    # string boundaries count, and so does which row is null
    assert frame_sha256(pl.DataFrame({"s": ["ab", "c"]})) != frame_sha256(pl.DataFrame({"s": ["a", "bc"]}))
    assert frame_sha256(pl.DataFrame({"s": ["", None]})) != frame_sha256(pl.DataFrame({"s": [None, ""]}))
    texts = pa.LargeStringArray.from_buffers(3, pa.py_buffer(np.array([0, 2, 5, 6])), pa.py_buffer(b"abxyzc"),
                                             pa.py_buffer(b"\x05"))  # fmt: skip
    under_null = pl.DataFrame({"s": pl.Series(texts)})  # three bytes lie under the null
    assert frame_sha256(under_null) == frame_sha256(pl.DataFrame({"s": ["ab", None, "c"]}))
    with pytest.raises(TypeError, match="which no table"):
        frame_sha256(pl.DataFrame({"o": pl.Series([object()], dtype=pl.Object)}))


_CELLS = {
    "f": (pl.Float64, st.none() | st.floats(allow_nan=True, allow_infinity=True)),
    "i": (pl.Int32, st.none() | st.integers(-(2**31), 2**31 - 1)),
    "t": (pl.String, st.none() | st.text(max_size=5)),
    "b": (pl.Boolean, st.none() | st.booleans()),
    "l": (pl.List(pl.String), st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3)),
    "s": (pl.Struct({"x": pl.Int8}), st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9)})),
    "y": (pl.Binary, st.none() | st.binary(max_size=3)),
}


@settings(max_examples=20)
@given(st.lists(st.fixed_dictionaries({name: cells for name, (_, cells) in _CELLS.items()}), max_size=5))
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[dict]) -> None:
    frame = pl.DataFrame(rows, schema={name: dtype for name, (dtype, _) in _CELLS.items()}, orient="row")
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store.write("signals/x", frame, SHARD_0, code_version="1")
    assert store.read("signals/x", SHARD_0).equals(frame)  # read() also compares the content hash


# -- tables -------------------------------------------------------------------------------------------------------


def test_layout_manifest_and_scan(store: ShardStore) -> None:
    identity = ModelIdentity("embedded:clip", "shipped", "ab" * 32)
    manifest = store.write(
        "signals/clip_score", values(0.1, 0.2), SHARD_0, code_version="3", models=[identity], run_id="r", seconds=1.5
    )
    store.write("signals/clip_score", values(0.3), SHARD_1, code_version="3")
    assert store.table_path("signals/clip_score", SHARD_0) == (
        store.root / "signals" / "clip_score" / f"shard={SHARD_0}" / "data.parquet"
    )
    assert store.manifest("signals/clip_score", SHARD_0) == manifest
    sidecar = store.table_path("signals/clip_score", SHARD_0).with_name("manifest.json")
    assert Manifest.from_json(sidecar.read_text()) == manifest
    assert (manifest.row_count, manifest.seconds) == (2, 1.5)
    assert manifest.models[0]["weights_sha256"] == "ab" * 32
    assert store.partitions("signals/clip_score") == [SHARD_0, SHARD_1]
    scanned = store.scan("signals/clip_score").collect()
    assert scanned["shard"].to_list() == [SHARD_0, SHARD_0, SHARD_1]
    assert store.scan("signals/clip_score", [SHARD_1]).collect()["value"].to_list() == [0.3]
    assert store.read("signals/clip_score", SHARD_0, columns=["value"]).columns == ["value"]
    assert store.manifest("signals/clip_score", "toy-000009") is None
    with pytest.raises(StoreError, match="lacks a requested column"):
        store.read("signals/clip_score", SHARD_0, columns=["nope"])


def test_a_table_that_is_not_there_says_what_to_materialise(store: ShardStore) -> None:
    with pytest.raises(MissingTableError, match="materialise signals/icc first"):
        store.read("signals/icc", SHARD_0)
    with pytest.raises(MissingTableError, match="materialise signals/icc first"):
        store.scan("signals/icc")
    store.write("signals/icc", values(1.0), SHARD_0, code_version="1")
    with pytest.raises(MissingTableError, match=SHARD_1):
        store.scan("signals/icc", [SHARD_0, SHARD_1])


@pytest.mark.parametrize("asset", ["signal/icc", "signals/ICC", "signals", "signals/a/b", "signals/../raw"])
def test_names_off_the_grid_are_refused(store: ShardStore, asset: str) -> None:
    with pytest.raises(ValueError, match="must"):
        store.write(asset, values(1.0), code_version="1")


def test_shard_keys_and_columns_must_agree(store: ShardStore) -> None:
    with pytest.raises(ValueError, match="shard key must match"):
        store.write("signals/icc", values(1.0), "../evil", code_version="1")
    with pytest.raises(ValueError, match="must be 'toy-000000'"):
        store.write("signals/icc", values(1.0).with_columns(shard=pl.lit(SHARD_1)), SHARD_0, code_version="1")


def test_materialise_works_once_per_version_of_anything_it_depends_on(store: ShardStore) -> None:
    store.write("raw/samples", values(1.0), SHARD_0, code_version="1")
    compute = Counted(values(0.5))

    def bring_up(**changes: object) -> bool:
        given_ = {"code_version": "1", "inputs": [("raw/samples", SHARD_0)], "config": {"a": 1, "b": 2}, **changes}
        return store.materialise("signals/icc", compute, partition=SHARD_0, **given_).is_reused  # type: ignore[arg-type]

    assert [bring_up(), bring_up(), bring_up(config={"b": 2, "a": 1})] == [False, True, True]
    assert compute.runs == 1
    assert not bring_up(code_version="2")
    assert not bring_up()
    assert not bring_up(config={"a": 2})
    assert not bring_up(models=[ModelIdentity("embedded:a", "r", "0")])
    assert not bring_up()
    store.write("raw/samples", values(2.0), SHARD_0, code_version="1")
    assert not bring_up()
    # the input is made again with the same content: nothing to do
    store.write("raw/samples", values(2.0), SHARD_0, code_version="9")
    assert bring_up()
    assert store.manifest("signals/icc", SHARD_0).seconds >= 0  # type: ignore[union-attr]


def test_a_global_table_depends_on_every_shard_of_its_input(store: ShardStore) -> None:
    compute = Counted(values(1.0))
    for key in (SHARD_0, SHARD_1):
        store.write("teachers/vba", values(1.0), key, code_version="1")
    inputs = [("teachers/vba", None)]
    first = store.materialise("standardised/length_statistics", compute, code_version="1", inputs=inputs)
    assert [one.partition for one in first.manifest.inputs] == [SHARD_0, SHARD_1]
    assert store.is_fresh("standardised/length_statistics", code_version="1", inputs=inputs)
    store.write("teachers/vba", values(3.0), SHARD_1, code_version="1")
    assert not store.is_fresh("standardised/length_statistics", code_version="1", inputs=inputs)


def test_missing_and_backward_inputs_are_refused(store: ShardStore) -> None:
    compute = Counted(values(1.0))
    with pytest.raises(
        MissingInputError, match=r"signals/icc reads raw/samples of shard .*materialise raw/samples first"
    ):
        store.materialise(
            "signals/icc", compute, partition=SHARD_0, code_version="1", inputs=[("raw/samples", SHARD_0)]
        )
    with pytest.raises(MissingInputError, match="materialise raw/samples first"):
        store.materialise("signals/icc", compute, code_version="1", inputs=[("raw/samples", None)])
    store.write("fused/sieve_clip", values(1.0), code_version="1")
    with pytest.raises(BackwardsReadError, match="against the flow"):
        store.materialise("signals/icc", compute, code_version="1", inputs=[("fused/sieve_clip", None)])
    assert compute.runs == 0


def test_damage_is_noticed_when_read_and_repaired_by_materialising(store: ShardStore) -> None:
    compute = Counted(values(*np.linspace(0, 1, 4)))
    store.materialise("signals/icc", compute, partition=SHARD_0, code_version="1")
    path = store.table_path("signals/icc", SHARD_0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptTableError, match=r"Delete .* and materialise signals/icc again"):
        store.read("signals/icc", SHARD_0)
    assert not store.materialise("signals/icc", compute, partition=SHARD_0, code_version="1").is_reused
    # a foreign Parquet in its place
    pl.DataFrame({"sample_id": IDS}).write_parquet(path)
    with pytest.raises(CorruptTableError, match="another program wrote it"):
        store.read("signals/icc", SHARD_0)
    # other content under our manifest
    manifest = store.write("signals/icc", values(1.0), SHARD_0, code_version="1")
    values(2.0).write_parquet(path, metadata={"curation_manifest": manifest.to_json()})
    with pytest.raises(CorruptTableError, match=f"expected sha256 {manifest.seal}, got"):
        store.read("signals/icc", SHARD_0)
    # a table of a version before 0.3, which holds no sha256 of itself
    older = {name: fact for name, fact in json.loads(manifest.to_json()).items() if name not in ("seal", "files")}
    values(1.0).write_parquet(path, metadata={"curation_manifest": json.dumps(older)})
    with pytest.raises(CorruptTableError, match=r"no seal: a version before 0\.3 wrote it.*Delete .* and materialise"):
        store.read("signals/icc", SHARD_0)


@pytest.mark.parametrize("columns", [None, ["value"]], ids=["whole", "one column"])
def test_no_flipped_bit_is_read_as_another_value(store: ShardStore, columns: list[str] | None) -> None:
    store.write("signals/icc", values(*np.linspace(0, 1, 4)), SHARD_0, code_version="1")
    store.write("signals/icc", values(0.5), SHARD_1, code_version="1")
    path = store.table_path("signals/icc", SHARD_0)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for bit in [*rng.integers(0, 8 * len(whole), 60), *range(8 * len(whole) - 64, 8 * len(whole), 5)]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptTableError):
            store.read("signals/icc", SHARD_0, columns)
        with pytest.raises(CorruptTableError):
            store.scan("signals/icc").select("value").collect()
    path.write_bytes(whole)
    assert store.scan("signals/icc").collect().height == 5


def test_no_flipped_bit_of_a_folder_passes(store: ShardStore) -> None:
    def write_model(folder: Path) -> None:
        (folder / "model.bin").write_bytes(bytes(range(256)))

    store.materialise_folder("distilled/student", write_model, code_version="1")
    manifest = store.folder_path("distilled/student").resolve().parent / "manifest.json"
    text = manifest.read_bytes()
    for bit in range(0, 8 * len(text), 7):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << (bit % 8)
        manifest.write_bytes(damaged)
        with pytest.raises(CorruptTableError):
            store.manifest("distilled/student")
    manifest.write_bytes(text)
    model = store.checked_file("distilled/student", "model.bin")
    assert model.read_bytes() == bytes(range(256))
    model.write_bytes(bytes([1, *range(1, 256)]))
    with pytest.raises(CorruptTableError, match=r"expected sha256 .* of .*model.bin, got"):
        store.checked_file("distilled/student", "model.bin")


def test_a_killed_writer_leaves_the_old_state_and_its_litter_is_cleared(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.write("signals/icc", values(1.0), SHARD_0, code_version="1")

    def explode() -> pl.DataFrame:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        store.materialise("signals/icc", explode, partition=SHARD_0, code_version="2")
    folder = store.table_path("signals/icc", SHARD_0).parent
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            store.write("signals/icc", values(2.0), SHARD_0, code_version="2")
    assert store.manifest("signals/icc", SHARD_0) == old
    assert store.read("signals/icc", SHARD_0)["value"].to_list() == [1.0]
    assert sorted(path.name for path in folder.iterdir()) == ["data.parquet", "manifest.json"]

    from curation_assets.stores.temporary import host, temporary_path

    dead = folder / f".data.parquet.tmp-{host()}-999999999-0123abcd.parquet"
    alive = temporary_path(folder / "data.parquet")
    begin = alive.name.index(f"-{os.getpid()}-") + len(f"-{os.getpid()}-")
    digits = f"{int(alive.name[begin : begin + 4], 16) ^ 1:04x}"
    of_another_boot = alive.with_name(f"{alive.name[:begin]}{digits}{alive.name[begin + 4 :]}")  # with our number
    foreign = folder / ".data.parquet.tmp-elsewhere-1-0123abcd.parquet"
    beside = dead.with_name(f"{dead.name}.wal")  # as DuckDB writes beside its file
    for path in (dead, beside, alive, foreign, of_another_boot):
        path.write_bytes(b"half")
    store.write("signals/icc", values(3.0), SHARD_0, code_version="2")
    assert not dead.exists()
    assert not beside.exists()
    assert not of_another_boot.exists()
    assert alive.exists()
    assert foreign.exists()
    os.utime(foreign, (0, 0))
    assert remove_stale(folder / "data.parquet") == [foreign]
    assert store.partitions("signals/icc") == [SHARD_0]


def test_a_writer_that_may_not_be_looked_at_is_not_taken_for_one_that_ended(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hidepid processes of other users have no folder in /proc, and may not be sent a signal."""
    from curation_assets.stores import temporary

    temporaries = [temporary.temporary_path(store.root / "data.parquet") for _ in range(2)]
    for path in temporaries:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    monkeypatch.setattr(temporary, "start_of", lambda pid: None)
    monkeypatch.setattr(os, "kill", lambda pid, signal: (_ for _ in ()).throw(PermissionError))
    assert remove_stale(store.root / "data.parquet") == []
    monkeypatch.setattr(os, "kill", lambda pid, signal: None)  # one that ended, and whose parent has not heard of it
    assert remove_stale(store.root / "data.parquet") == sorted(temporaries)


def test_the_footer_decides_when_only_the_table_was_replaced(store: ShardStore) -> None:
    """Killed between table and sidecar: the table's own manifest is the one in force."""
    store.write("signals/icc", values(1.0), SHARD_0, code_version="1")
    sidecar = store.table_path("signals/icc", SHARD_0).with_name("manifest.json")
    stale = sidecar.read_text()
    new = store.write("signals/icc", values(2.0), SHARD_0, code_version="2")
    sidecar.write_text(stale)
    assert store.manifest("signals/icc", SHARD_0) == new
    assert store.is_fresh("signals/icc", SHARD_0, code_version="2")


@pytest.mark.parametrize("number", range(3))
def test_a_writer_killed_at_any_rename_leaves_nothing_that_the_next_does_not_mend(
    store: ShardStore, number: int
) -> None:
    """The copy of the manifest included: it was the old one for good, or missing, after a kill between the two."""
    folder = store.table_path("signals/icc", SHARD_0).parent

    def write(value: float, version: str) -> None:
        unfinished = store.unfinished_path("signals/icc", SHARD_0)
        unfinished.mkdir(parents=True, exist_ok=True)  # as a long computation does
        store.materialise("signals/icc", lambda: values(value), partition=SHARD_0, code_version=version)

    write(1.0, "1")
    with pytest.MonkeyPatch.context() as monkeypatch:
        killed_at_rename(number, monkeypatch)
        with pytest.raises(Killed) if number < 2 else contextlib.nullcontext():
            write(2.0, "2")
    write(2.0, "2")
    assert store.read("signals/icc", SHARD_0)["value"].to_list() == [2.0]
    manifest = store.manifest("signals/icc", SHARD_0)
    assert manifest is not None
    assert (folder / "manifest.json").read_text() == manifest.to_json()
    assert not store.unfinished_path("signals/icc", SHARD_0).exists()


def test_what_a_run_saved_on_its_way_goes_although_the_table_was_written_before_the_kill(store: ShardStore) -> None:
    unfinished = store.unfinished_path("signals/icc", SHARD_0)
    for reused in (False, True):
        unfinished.mkdir(parents=True)
        if not reused:
            store.write("signals/icc", values(1.0), SHARD_0, code_version="1")  # and killed here
        store.materialise("signals/icc", lambda: values(1.0), partition=SHARD_0, code_version="1")
        assert not unfinished.exists()


# -- folders ------------------------------------------------------------------------------------------------------


def test_a_model_folder_is_swapped_whole(store: ShardStore) -> None:
    store.write("teachers/vba", values(1.0), SHARD_0, code_version="1")
    inputs = [("teachers/vba", None)]

    def write_model(text: str, runs: list[str]):
        def compute(folder: Path) -> None:
            (folder / "sub").mkdir()
            (folder / "sub" / "model.txt").write_text(text)
            (folder / "config.json").write_text("{}")
            runs.append(text)

        return compute

    runs: list[str] = []
    first = store.materialise_folder("distilled/student", write_model("one", runs), code_version="1", inputs=inputs)
    assert first.manifest.row_count == 2
    assert store.materialise_folder(
        "distilled/student", write_model("x", runs), code_version="1", inputs=inputs
    ).is_reused
    folder = store.folder_path("distilled/student")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "sub"]  # no manifest among the weights
    opened = folder.resolve()
    second = store.materialise_folder("distilled/student", write_model("two", runs), code_version="2", inputs=inputs)
    assert (folder / "sub" / "model.txt").read_text() == "two"
    assert (opened / "sub" / "model.txt").read_text() == "one"  # a reader of the version before goes on
    assert first.manifest.content_sha256 != second.manifest.content_sha256
    assert store.manifest("distilled/student") == second.manifest
    assert runs == ["one", "two"]

    def explode(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        store.materialise_folder("distilled/student", explode, code_version="3", inputs=inputs)
    with pytest.raises(ValueError, match="wrote no file"):
        store.materialise_folder("distilled/student", lambda folder: None, code_version="3", inputs=inputs)
    assert (folder / "sub" / "model.txt").read_text() == "two"
    assert not list(folder.parent.glob(".student.tmp-*"))
    store.materialise_folder("distilled/student", write_model("three", runs), code_version="3", inputs=inputs)
    assert not opened.exists()
    # a folder is an input like any table
    used = store.materialise(
        "signals/icc", Counted(values(1.0)), code_version="1", inputs=[("distilled/student", None)]
    )
    assert used.manifest.inputs[0].content_sha256 == store.manifest("distilled/student").content_sha256  # type: ignore[union-attr]


# -- catalogue ----------------------------------------------------------------------------------------------------


def test_catalogue_is_swapped_under_a_connected_reader(tmp_path: Path, store: ShardStore) -> None:
    store.write("signals/clip_score", values(0.1, 0.2), SHARD_0, code_version="1")
    store.write("raw/samples", values(1.0).with_columns(shard=pl.lit(SHARD_0)), SHARD_0, code_version="1")
    catalog = rebuild_catalog(tmp_path)
    with duckdb.connect(str(catalog), read_only=True) as reader:
        assert reader.sql("select count(*) from toy.signals_clip_score").fetchall() == [(2,)]
        store.write("fused/sieve_clip", values(0.5), code_version="1")
        store.write("signals/clip_score", values(0.3), SHARD_1, code_version="1")
        rebuild_catalog(tmp_path)
        # the old connection reads on, and sees the new shard of the old view
        assert reader.sql("select shard, value from toy.signals_clip_score order by all").fetchall() == [
            (SHARD_0, 0.1),
            (SHARD_0, 0.2),
            (SHARD_1, 0.3),
        ]
    with duckdb.connect(str(catalog), read_only=True) as reader:
        assert reader.sql("select value from toy.fused_sieve_clip").fetchall() == [(0.5,)]
        assert reader.sql("select shard from toy.raw_samples").fetchall() == [(SHARD_0,)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalog.duckdb", "work"]


def test_the_catalogue_of_a_copied_home_reads_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, copy = tmp_path / "original", tmp_path / "o'copy" / "home"
    store = ShardStore(original / "work" / "toy")
    store.write("signals/clip_score", values(0.1), SHARD_0, code_version="1")
    store.write("fused/sieve_clip", values(0.1), code_version="1")
    write_verdicts(store)
    rebuild_catalog(original)
    shutil.copytree(original, copy, symlinks=True)
    for asset, shard in (("signals/clip_score", SHARD_0), ("fused/sieve_clip", None)):
        ShardStore(copy / "work" / "toy").write(asset, values(0.2), shard, code_version="1")
    write_verdicts(ShardStore(copy / "work" / "toy"), threshold=0.2)

    def read(connection: duckdb.DuckDBPyConnection, catalog: str = "") -> list[tuple[float]]:
        names = ("signals_clip_score", "fused_sieve_clip")
        sql = " union all ".join(f"select value from {catalog}toy.{name}" for name in names)
        return connection.sql(f"{sql} union all select threshold from {catalog}toy.ledger_icc").fetchall()

    for folder in (tmp_path, original, copy):  # wherever it is opened from
        monkeypatch.chdir(folder)
        with duckdb.connect(str(copy / "catalog.duckdb"), read_only=True) as connection:
            assert read(connection) == [(0.2,)] * 3
    monkeypatch.chdir(copy)
    with duckdb.connect("catalog.duckdb") as connection:
        assert read(connection) == [(0.2,)] * 3
    monkeypatch.chdir(original)
    with duckdb.connect() as connection:  # attached, DuckDB does not show where it lies
        attached = str(copy / "catalog.duckdb").replace("'", "''")
        connection.execute(f"attach '{attached}' as other (read_only)")
        with pytest.raises(duckdb.Error, match="set variable curation_home"):
            read(connection, "other.")
        connection.execute("set variable curation_home = $home", {"home": str(copy)})
        assert read(connection, "other.") == [(0.2,)] * 3


#: Folder of a home → another one that it would match as a pattern, or that Parquet readers take for a column.
ODD_FOLDERS = {
    "exp [a-b] 1 é": "exp a 1 é",
    "st*r": "star",
    "[!x]": "y",
    "x] [y": "x] y",
    "**": "any",
    "seed=3": "seed=4",
    "value=7": "value=8",
    "o'{a,b}~$#": "oa",
}


@pytest.mark.parametrize("folder", ODD_FOLDERS)
def test_no_character_of_a_path_is_a_pattern_or_a_column(tmp_path: Path, folder: str) -> None:
    for name, number in ((ODD_FOLDERS[folder], 0.9), (folder, 0.1)):
        store = ShardStore(tmp_path / name / "work" / "toy")
        samples = values(number).with_columns(shard=pl.lit(SHARD_0))  # a column of its own, as raw/samples has it
        store.write("raw/samples", samples, SHARD_0, code_version="1")
        store.write("signals/clip_score", values(number), SHARD_0, code_version="1")
        store.write("signals/clip_score", values(number), SHARD_1, code_version="1")
        store.write("fused/sieve_clip", values(number), code_version="1")
        write_verdicts(store, threshold=number)
    of_shards = [(SHARD_0, 0.1), (SHARD_1, 0.1)]
    assert store.read("signals/clip_score", SHARD_0)["value"].to_list() == [0.1]
    assert store.scan("signals/clip_score").select("shard", "value").collect().rows() == of_shards
    assert store.scan("raw/samples").select("shard", "value").collect().rows() == of_shards[:1]
    assert store.scan("fused/sieve_clip").collect()["value"].to_list() == [0.1]
    with open_pool(store, ["signals/clip_score", "fused/sieve_clip", "raw/samples"], threads=1) as connection:
        assert connection.sql("select shard, value from signals.clip_score order by all").fetchall() == of_shards
        assert connection.sql("select shard, value from raw.samples").fetchall() == of_shards[:1]
        assert connection.sql("select value from fused.sieve_clip").fetchall() == [(0.1,)]
    with duckdb.connect(str(rebuild_catalog(tmp_path / folder)), read_only=True) as connection:
        assert connection.sql("select shard, value from toy.signals_clip_score order by all").fetchall() == of_shards
        assert connection.sql("select value from toy.fused_sieve_clip").fetchall() == [(0.1,)]
        assert connection.sql("select threshold from toy.ledger_icc").fetchall() == [(0.1,)]


@pytest.mark.parametrize("name", ["temp", "system", "catalog", "information_schema", "pg_catalog"])
def test_one_pool_without_views_costs_no_other_its_own(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A name of DuckDB's own; a table that is damaged."""
    for pool in ("alpha", name, "zulu"):
        ShardStore(tmp_path / "work" / pool).write("fused/sieve_clip", values(0.1), code_version="1")
    store = ShardStore(tmp_path / "work" / "alpha")
    store.write("signals/clip_score", values(0.1), SHARD_0, code_version="1")
    store.table_path("signals/clip_score", SHARD_0).write_bytes(b"no parquet")
    with duckdb.connect(str(rebuild_catalog(tmp_path)), read_only=True) as connection:
        for pool in ("alpha", "zulu"):
            assert connection.sql(f"select value from {view_sql(pool, 'fused/sieve_clip')}").fetchall() == [(0.1,)]
    assert f'no view "{name}".fused_sieve_clip' in caplog.text or f'schema if not exists "{name}"' in caplog.text
    assert 'view "alpha".signals_clip_score' in caplog.text


@pytest.mark.parametrize(
    "name", ["select", "order", "main", "memory", "123", "1a", "left", "user", "pg_temp", "default"]
)
def test_a_pool_may_be_called_as_any_word_of_sql(tmp_path: Path, name: str) -> None:
    store = ShardStore(tmp_path / "work" / name)
    store.write("fused/sieve_clip", values(0.1), code_version="1")
    with duckdb.connect(str(rebuild_catalog(tmp_path)), read_only=True) as connection:
        assert connection.sql(f"select value from {view_sql(name, 'fused/sieve_clip')}").fetchall() == [(0.1,)]


def write_verdicts(store: ShardStore, threshold: float = 0.1) -> None:
    """A policy's cut, and its verdict table of a shard."""
    store.write("filtered/icc_cut", values(threshold), code_version="1")
    verdicts = pl.DataFrame({"sample_id": ["a" * 32], "threshold": [threshold]})
    store.write("filtered/icc", verdicts, SHARD_0, code_version="1")


def test_open_pool_names_views_by_stage(store: ShardStore) -> None:
    store.write("signals/clip_score", values(0.1), SHARD_0, code_version="1")
    with open_pool(store, ["signals/clip_score"], threads=1) as connection:
        assert connection.sql("select value, shard from signals.clip_score").fetchall() == [(0.1, SHARD_0)]
    with pytest.raises(MissingTableError, match="materialise signals/icc first"), open_pool(store, ["signals/icc"]):
        pass


def test_connections_to_pools_share_a_database_and_see_their_own_tables_alone(tmp_path: Path) -> None:
    def of(number: int) -> ShardStore:
        store = ShardStore(tmp_path / str(number))
        store.write("signals/clip_score", values(number / 10), SHARD_0, code_version="1")
        return store

    def read(store: ShardStore) -> list[float]:
        found = []
        for _ in range(20):
            with open_pool(store, ["signals/clip_score"], threads=1) as connection:
                found += [value for (value,) in connection.sql("select value from signals.clip_score").fetchall()]
        return found

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(read, map(of, range(4)))) == [[number / 10] * 20 for number in range(4)]
    store = of(1)
    with (
        open_pool(store, ["signals/clip_score"], threads=1) as first,
        open_pool(store, [], threads=1) as second,
    ):
        with pytest.raises(duckdb.CatalogException, match="clip_score does not exist"):
            second.sql("select value from signals.clip_score")
        first.execute("select value from signals.clip_score")  # what nobody fetches holds nothing back
    with open_pool(store, [], threads=1) as third:
        names = [
            name for (name,) in third.sql("select database_name from duckdb_databases() where not internal").fetchall()
        ]
        assert len(names) == 2  # its own, and the one that all share


# -- subsets ------------------------------------------------------------------------------------------------------


def test_subset_files_keep_multiplicities_and_answer_bisection(tmp_path: Path) -> None:
    wanted = ["f" * 32, IDS[1], IDS[1], IDS[0]]
    assert write_sorted_subset(tmp_path / "kept.npy", tmp_path / "kept.parquet", pack_uids(wanted)) == 4
    assert read_subset(tmp_path / "kept.npy") == sorted(wanted)
    # as the resharder does: find each sample of a shard by bisection, write it as often as it is listed
    listed = np.load(tmp_path / "kept.npy")
    for sample_id, copies in {IDS[1]: 2, "f" * 32: 1, IDS[2]: 0}.items():
        one = pack_uids([sample_id])
        left, right = (int(np.searchsorted(listed, one, side=side)[0]) for side in ("left", "right"))
        assert right - left == copies
    assert read_subset(tmp_path / "kept.parquet") == sorted(wanted)
    keys = pl.DataFrame({"tar": ["000001.tar", "000001.tar", "000000.tar"], "key": ["b", "a", "c"]})
    assert write_keys(tmp_path / "keys.txt", [keys.sort("tar", "key")]) == 3
    assert (tmp_path / "keys.txt").read_text() == "000000.tar\tc\n000001.tar\ta\n000001.tar\tb\n"
    np.save(tmp_path / "unsorted.npy", listed[::-1])
    with pytest.raises(ValueError, match="sorted"):
        read_subset(tmp_path / "unsorted.npy")
    np.save(tmp_path / "signed.npy", np.zeros(2, dtype="i8"))
    with pytest.raises(ValueError, match="u8,u8"):
        read_subset(tmp_path / "signed.npy")


def _listing(path: Path, ids: list[Any], counts: list[Any] | None) -> None:
    """A file of ids as another program writes it."""
    if path.suffix == ".npy":
        np.save(path, np.array(ids))
    elif path.suffix == ".txt":
        path.write_text("".join(f"{one}\n" for one in ids))
    else:
        frame = pl.DataFrame({"uid" if path.suffix == ".csv" else "sample_id": ids})
        if counts is not None:
            frame = frame.with_columns(multiplicity=pl.Series(counts))
        writers = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}
        if path.suffix == ".tsv":
            frame.write_csv(path, separator="\t")
        else:
            getattr(frame, writers[path.suffix])(path)


@pytest.mark.parametrize("suffix", ID_SUFFIXES)
@pytest.mark.parametrize("counts", [None, [2, 1, 3]], ids=["plain", "counted"])
@pytest.mark.parametrize("form", ["lower", "upper", "uuid"])
def test_lists_of_ids_are_read_as_others_write_them(
    tmp_path: Path, suffix: str, counts: list[int] | None, form: str
) -> None:
    """A plain list, with repeats; in capitals; with a UUID's dashes; with or without multiplicities."""
    written = {
        "lower": lambda one: one,
        "upper": str.upper,
        "uuid": lambda one: f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}",
    }[form]
    ids = [IDS[1], IDS[0], IDS[1]]
    has_counts = counts is not None and suffix not in (".npy", ".txt")
    path = tmp_path / f"ids é 1{suffix}"
    _listing(path, [written(one) for one in ids], counts)
    times = counts if has_counts and counts is not None else [1, 1, 1]
    assert read_subset(path) == sorted(one for one, count in zip(ids, times, strict=True) for _ in range(count))


@pytest.mark.parametrize(
    "cells",
    [
        pl.Series([bytes.fromhex(IDS[1]), bytes.fromhex(IDS[0])]),
        pl.Series([IDS[1].encode(), IDS[0].encode()]),
        pl.Series([IDS[1], IDS[0]], dtype=pl.Categorical),
    ],
    ids=["16 bytes", "letters as bytes", "dictionary"],
)
def test_ids_of_other_types_of_parquet_are_read(tmp_path: Path, cells: pl.Series) -> None:
    pl.DataFrame({"sample_id": cells, "multiplicity": pl.Series([2, 1], dtype=pl.UInt8)}).write_parquet(
        tmp_path / "ids.parquet"
    )
    assert read_subset(tmp_path / "ids.parquet") == sorted([IDS[0], IDS[1], IDS[1]])


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({"key": [IDS[0]]}, r"expected a column sample_id \(or uid\), got \['key'\]"),
        ({"sample_id": [IDS[0], None]}, "sample_id of row 1 must be 32 hex digits, as sample_ids are, got None"),
        ({"sample_id": [7]}, "row 0 must be 32 hex digits"),
        ({"sample_id": [[IDS[0]]]}, "row 0 must be 32 hex digits"),
        ({"sample_id": [IDS[0][:31]]}, "row 0 must be 32 hex digits"),
        ({"sample_id": [IDS[0]], "multiplicity": [0]}, "at least 1, got 0 in row 0"),
        ({"sample_id": [IDS[0]], "multiplicity": [-1]}, "at least 1, got -1 in row 0"),
        ({"sample_id": [IDS[0], IDS[1]], "multiplicity": [1, None]}, "at least 1, got None in row 1"),
        ({"sample_id": [IDS[0]], "multiplicity": [1.5]}, "at least 1, got 1.5 in row 0"),
        ({"sample_id": [IDS[0]], "multiplicity": ["two"]}, "at least 1, got 'two' in row 0"),
        ({"sample_id": [IDS[0]], "multiplicity": [[1]]}, "at least 1"),
        ({"sample_id": [IDS[0]], "multiplicity": [float("inf")]}, "at least 1, got inf in row 0"),
        ({"sample_id": [IDS[0]], "multiplicity": [float("nan")]}, "at least 1, got nan in row 0"),
    ],
)
def test_what_is_no_list_of_ids_is_answered_in_a_sentence(tmp_path: Path, frame: dict[str, Any], said: str) -> None:
    pl.DataFrame(frame).write_parquet(tmp_path / "ids.parquet")
    with pytest.raises(ValueError, match=said):
        read_subset(tmp_path / "ids.parquet")


@pytest.mark.parametrize("suffix", [*ID_SUFFIXES, ".json"])
def test_damaged_lists_of_ids_are_answered_in_a_sentence(tmp_path: Path, suffix: str) -> None:
    for content in (b"", b"\x00\xff\xfe no such file", b"PAR1"):
        path = tmp_path / f"ids{suffix}"
        path.write_bytes(content)
        if suffix == ".txt" and not content:
            assert read_subset(path) == []
            continue
        with pytest.raises(ValueError, match="ids"):
            read_subset(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        read_subset(tmp_path / f"none{suffix}")


def test_a_reader_survives_a_writer_that_replaces_the_table_under_it(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New content between looking at the manifest and reading the rows is a new look, not a damaged file."""
    store.write("signals/icc", values(1.0), SHARD_0, code_version="1")
    read_parquet, replaced = pl.read_parquet, []

    def replace_then_read(*args: Any, **options: Any) -> pl.DataFrame:
        if not replaced:
            replaced.append(store.write("signals/icc", values(2.0), SHARD_0, code_version="2"))
        return read_parquet(*args, **options)

    monkeypatch.setattr(pl, "read_parquet", replace_then_read)
    assert store.read("signals/icc", SHARD_0)["value"].to_list() == [2.0]


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=8))
def test_columns_of_hex_digits_are_numbers(ids: list[bytes]) -> None:
    output = hex_column(pl.Series([None, *(one.hex() for one in ids)], dtype=pl.String))
    expected = [[int.from_bytes(one[:8], "big"), int.from_bytes(one[8:], "big")] for one in ids]
    assert output.tolist() == expected


@pytest.mark.parametrize("bad", [["0" * 15], ["g" * 16], ["A" * 16], ["0" * 16, "0" * 32]])
def test_columns_of_other_letters_are_refused(bad: list[str]) -> None:
    with pytest.raises(ValueError, match="hex digits"):
        hex_column(pl.Series(bad))


def test_a_manifest_is_read_again_when_its_table_is_written_again(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    for number in range(20):  # faster than a clock may tick
        store.write("signals/icc", pl.DataFrame({"x": [number]}), "pool-000000", code_version=str(number % 10))
        manifest = store.manifest("signals/icc", "pool-000000")
        assert manifest is not None
        assert manifest.code_version == str(number % 10)
        assert store.read("signals/icc", "pool-000000")["x"].to_list() == [number]


@pytest.mark.parametrize("shards", [["b", "b", "a"], ["a", "b", "a"], []])
def test_rows_by_shard(shards: list[str]) -> None:
    frame = pl.DataFrame({"shard": pl.Series(shards, dtype=pl.String), "row": pl.Series(range(len(shards)))})
    parts = by_shard(frame)
    assert parts.keys() == set(shards)
    for shard, part in parts.items():
        assert part.equals(frame.filter(pl.col("shard") == shard))


@given(
    st.lists(st.none() | st.floats() | st.sampled_from([0.0, -0.0])),
    st.lists(st.none() | st.text(max_size=3)),
    st.integers(0, 3),
)
def test_the_hash_of_a_part_is_that_of_its_rows_alone(
    numbers: list[float | None], texts: list[str | None], start: int
) -> None:
    """Values lie somewhere in a larger buffer, and under nulls lies anything."""
    size = min(len(numbers), len(texts))
    frame = pl.DataFrame(
        {
            "number": pl.Series(numbers[:size], dtype=pl.Float64),
            "text": pl.Series(texts[:size], dtype=pl.String),
            "whole": pl.Series(range(size), dtype=pl.Int32),
        }
    )
    masked = frame.with_columns(
        pl.when(pl.col("whole") % 2 == 0).then(pl.col(name)).alias(name) for name in ("number", "text", "whole")
    )
    for some in (frame, masked):
        alone = pl.DataFrame(some[start:].to_dict(as_series=False), schema=some.schema)
        assert frame_sha256(some[start:]) == frame_sha256(alone)


def _put(kind: str, target: Path) -> None:
    if kind == "folder":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    elif kind == "link to nothing":
        target.symlink_to(target.with_name("gone"))
    else:
        target.write_text("mine")


def _write(target: Path, is_folder: bool, meanwhile: Callable[[], None]) -> None:
    with writing_new(target, folder=is_folder) as draft:
        if is_folder:
            draft.mkdir()
        (draft / "a.txt" if is_folder else draft).write_text("theirs")
        meanwhile()


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_lies_where_a_result_is_written_stays(
    tmp_path: Path, is_folder: bool, when: str, kind: str, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*arguments: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "result"
    if when == "before":
        _put(kind, target)
    with pytest.raises(ValueError, match="is never overwritten"):
        _write(target, is_folder, lambda: _put(kind, target))
    left = [path for path in tmp_path.iterdir() if path != target]
    assert left == []
    mine = target / "notes.txt" if kind == "folder" else target
    assert mine.is_symlink() if kind == "link to nothing" else mine.read_text() == "mine"


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_result_that_another_finishes_after_the_last_look_stays(
    tmp_path: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last check and the rename: the system call itself refuses."""
    target = tmp_path / "result"
    for name in ("link", "replace"):
        call = getattr(os, name)

        def late(source: Path, to: Path, call: Any = call) -> None:
            if not target.exists():
                _put("folder" if is_folder else "file", target)
            call(source, to)

        monkeypatch.setattr(os, name, late)
    with pytest.raises((ValueError, OSError)):
        _write(target, is_folder, lambda: None)
    assert (target / "notes.txt" if is_folder else target).read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    with writing_new(tmp_path / "result", folder=True) as draft:
        draft.mkdir()
        (draft / "a.txt").touch()
    with writing_new(tmp_path / "a.txt") as draft:
        draft.write_text("whole")
    assert {path.name for path in tmp_path.rglob("*")} == {"result", "a.txt"}
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_a_file_in_a_configuration_counts_with_its_content(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(b"one")
    config = {"words": file, "recipe": {"files": (file,), "count": 3, "captions": None}}
    one, two = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    assert with_file_hashes(config) == {"words": one, "recipe": {"files": [one], "count": 3, "captions": None}}
    file.write_bytes(b"two")
    assert with_file_hashes(config)["words"] == two
    file.unlink()
    with pytest.raises(FileNotFoundError, match="words"):
        with_file_hashes(config)
