"""Pool declarations: detection, mistakes and their messages, identity of table rows, changed sources."""

import os
import time
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core import settings as settings_module
from curation_assets.core.json_files import DamagedFileError
from curation_assets.core.settings import Settings, load_settings
from curation_assets.numeric.identity import sample_id_of
from curation_assets.sources.declaration import Pool, add_pool, add_world_pool, list_pools, load_pool, save_pool
from curation_assets.sources.download.download import DownloadSettings
from curation_assets.sources.kinds.webdataset import tars_of_pool
from curation_assets.sources.kinds.world import WORLD_TRUTH
from curation_assets.sources.shard_keys import KEYS_FILE
from curation_assets.sources.shards import build_samples, discover_shards, download, register_shard, source_fingerprint
from curation_assets.stores.shard_store import ShardStore
from tests.support.command import curate
from tests.support.killing import Killed, killed_at_rename
from tests.support.lineage_pools import jpeg, write_tar
from tests.support.paths import SHARED_DATA

CAPTIONS = SHARED_DATA / "captions"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path / "home", "embedded")


def write(path: Path, **columns: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(columns, strict=False)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv"])
@pytest.mark.parametrize(("url", "caption"), [("url", "caption"), ("URL", "TEXT"), ("image_url", "Alt_Text")])
def test_columns_are_found_under_their_usual_names(
    tmp_path: Path, settings: Settings, suffix: str, url: str, caption: str
) -> None:
    source = write(tmp_path / f"list.{suffix}", **{url: ["http://x.example/1"], caption: ["007"], "other": [3]})
    pool = add_pool(settings, "listed", source)
    assert (pool.kind, pool.columns["url"], pool.columns["caption"], pool.has_images) == (
        "url_table",
        url,
        caption,
        True,
    )
    rows = register_shard(pool, "listed-000000", settings)
    assert rows["caption"].to_list() == ["007"]  # digits stay text
    assert rows["sample_id"].to_list() == [sample_id_of("http://x.example/1", "007")]
    assert load_pool(settings, "listed") == pool


def test_captions_alone_make_a_pool_without_images(tmp_path: Path, settings: Settings) -> None:
    source = tmp_path / "t.tsv"
    source.write_text('caption\tn\nsay "hi"\t1\n"open quote\t2\n  \t3\n')  # TSV knows no quoting
    pool = add_pool(settings, "texts", source)
    assert not pool.has_images
    assert pool.download_config() == {}
    registered = register_shard(pool, "texts-000000", settings)
    downloads = download(pool, "texts-000000", registered, settings)
    samples = build_samples(pool, "texts-000000", registered, downloads, settings)
    assert samples["caption"].to_list() == ['say "hi"', '"open quote', "  "]
    assert samples["status"].to_list() == ["kept", "kept", "dropped"]
    assert samples["reason"].to_list() == [None, None, "empty_caption"]
    assert samples["has_image"].to_list() == [False] * 3
    assert samples["tar"].null_count() == samples["member"].null_count() == 3


def test_mistakes_are_answered_with_what_to_do(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(ValueError, match="no such file"):
        add_pool(settings, "x", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"expected .parquet, .csv, .tsv files, got none"):
        add_pool(settings, "x", tmp_path / "empty")
    odd = write(tmp_path / "odd.parquet", words=["a"], n=[1])
    with pytest.raises(ValueError, match=r"no caption column; .*\['words', 'n'\].*--caption-column NAME"):
        add_pool(settings, "x", odd)
    with pytest.raises(ValueError, match="has no column 'wrods'"):
        add_pool(settings, "x", odd, columns={"caption": "wrods"})
    with pytest.raises(ValueError, match="must hold strings, got Int64"):
        add_pool(settings, "x", odd, columns={"caption": "n"})
    with pytest.raises(ValueError, match="columns may name"):
        add_pool(settings, "x", odd, columns={"text": "words"})
    assert list_pools(settings) == []  # nothing was declared on the way
    add_pool(settings, "x", odd, columns={"caption": "words"})
    add_pool(settings, "x", odd, columns={"caption": "words"})  # the same again is fine
    with pytest.raises(ValueError, match="declared already, differently"):
        add_pool(settings, "x", odd, columns={"caption": "words"}, shard_size=7)
    with pytest.raises(ValueError, match=r"no pool 'y' .* declared: x"):
        load_pool(settings, "y")
    with pytest.raises(ValueError, match="no shard"):
        register_shard(load_pool(settings, "x"), "x-000009", settings)
    write(tmp_path / "mixed" / "a.csv", caption=["a"])
    write(tmp_path / "mixed" / "b.parquet", caption=["a"])
    with pytest.raises(ValueError, match="files of one format"):
        add_pool(settings, "z", tmp_path / "mixed")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match=r"cannot be read as csv: .*; repair it"):
        add_pool(settings, "ragged", tmp_path / "empty.csv")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"name": "Bad Name"}, "pool name must match"),
        ({"kind": "tars"}, "kind must be one of"),
        ({"shard_size": 0}, r"shard_size must be an integer in \[1, 10000\], got 0"),
        ({"allow_hosts": "127.0.0.1"}, "must be a list"),
        ({"allow_hosts": ["http://127.0.0.1"]}, "entries read host or host:port"),
        ({"roles": {"oracle": "embedded:x"}}, "roles has no role 'oracle'; known: "),
    ],
)
def test_declarations_are_checked(declared: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pool(**{"name": "p", "kind": "url_table", "source": "s", **declared})


def test_yaml_round_trip_and_its_typing_errors(settings: Settings) -> None:
    pool = Pool(
        "p", "url_table", "/data/x.parquet", shard_size=9, columns={"caption": "c", "url": None, "uid": None},
        allow_hosts=("127.0.0.1:80", "[::1]"),
        download=DownloadSettings(threads=2, disallowed_header_directives=("noml",)),
        roles={"student": "embedded:icc_student"}, options={"fraction": 0.3},
    )  # fmt: skip
    path = save_pool(settings, pool)
    assert load_pool(settings, "p") == pool
    text = path.read_text()
    assert "timeout" not in text  # defaults are not spelled out
    path.write_text(text + "shardsize: 3\n")
    with pytest.raises(ValueError, match="no setting 'shardsize'; did you mean 'shard_size'"):
        load_pool(settings, "p")
    path.write_text(text.replace("threads: 2", "treads: 2"))
    with pytest.raises(ValueError, match="download has no setting 'treads'; did you mean 'threads'"):
        load_pool(settings, "p")
    path.write_text(text.replace("name: p", "name: q"))
    with pytest.raises(ValueError, match="expected name: p"):
        load_pool(settings, "p")


def test_duplicates_are_seen_over_all_files_and_shards(tmp_path: Path, settings: Settings) -> None:
    own = "c" * 32
    write(tmp_path / "s" / "a.parquet", url=["u1", "u2", "u1"], caption=["x", "x", "x"], uid=[None, own, "short"])
    write(tmp_path / "s" / "b.parquet", url=["u9", "u3"], caption=["y", None], uid=[own, None])
    pool = add_pool(settings, "dup", tmp_path / "s", shard_size=2)
    shards = discover_shards(pool, settings)
    rows = pl.concat([register_shard(pool, shard, settings) for shard in shards])
    assert rows["shard"].to_list() == ["dup-000000"] * 2 + ["dup-000001"] * 2 + ["dup-000002"]
    assert rows["source_row"].to_list() == [0, 1, 2, 3, 4]
    assert rows["is_duplicate"].to_list() == [False, False, True, True, False]
    assert rows["sample_id"][1] == own
    registered = register_shard(pool, shards[1], settings)
    downloads = download(pool, shards[1], registered, settings)  # both duplicates: nothing is requested
    samples = build_samples(pool, shards[1], registered, downloads, settings)
    assert samples["reason"].to_list() == ["duplicate_sample_id"] * 2
    with pytest.raises(ValueError, match="row by row"):
        build_samples(pool, shards[1], registered, downloads[::-1], settings)


def test_an_unusable_first_copy_does_not_cost_the_sound_second_one(tmp_path: Path, settings: Settings) -> None:
    own = "c" * 32
    source = write(tmp_path / "s.parquet", caption=[" ", "sound", "sound", None, None], uid=[own] * 3 + [None] * 2)
    pool = add_pool(settings, "texts", source)
    registered = register_shard(pool, "texts-000000", settings)
    downloads = download(pool, "texts-000000", registered, settings)
    samples = build_samples(pool, "texts-000000", registered, downloads, settings)
    assert samples["reason"].to_list() == [
        "empty_caption",
        None,
        "duplicate_sample_id",
        "empty_caption",
        "empty_caption",
    ]


def test_a_changed_source_is_a_new_version_of_the_shards_it_changes(tmp_path: Path, settings: Settings) -> None:
    source = write(tmp_path / "s.csv", caption=["a", "b", "c", "d"])
    pool = add_pool(settings, "texts", source, shard_size=2)
    before = [source_fingerprint(pool, shard, settings) for shard in discover_shards(pool, settings)]
    write(source, caption=["a", "b", "c", "changed"])
    after = [source_fingerprint(pool, shard, settings) for shard in discover_shards(pool, settings)]
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert register_shard(pool, "texts-000001", settings)["caption"].to_list() == ["c", "changed"]
    source.unlink()
    with pytest.raises(FileNotFoundError, match=r"source .* is missing; put it back"):
        discover_shards(pool, settings)


def test_a_changed_tar_has_another_fingerprint(tmp_path: Path, settings: Settings) -> None:
    import tarfile

    (tmp_path / "tars").mkdir()
    tar = tmp_path / "tars" / "shard_b.tar"
    for text in ("one", "other"):
        note = tmp_path / "0.txt"
        note.write_text(text)
        with tarfile.open(tar, "w") as archive:
            archive.add(note, "0.txt")
        pool = add_pool(settings, "tars", tmp_path / "tars")
        assert discover_shards(pool, settings) == ["tars-000000"]  # no number in the name: counted
        seen = source_fingerprint(pool, "tars-000000", settings)
        if text == "one":
            first = seen
    assert set(first) == set(seen) == {"shard_b.tar"}
    assert first != seen


def _deliver(folder: Path, *names: str) -> None:
    """Tars of one sample each, told apart by it; a name that ends in _empty has none."""
    for name in names:
        rows = [("0", f"http://a.example/{name}", f"a photo of {name}", jpeg(0))]
        write_tar(folder / f"{name}.tar", [] if name.endswith("_empty") else rows)


def _keys(settings: Settings) -> dict[str, int]:
    tars = tars_of_pool(load_pool(settings, "p"), settings)
    return {tar.stem: int(key.removeprefix("p-")) for key, tar in tars.items()}


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"train-0": 0, "val-0": 1}, {"test-0": 2}),
        ({"train-0": 0, "train-1": 1}, {"test-0": 3, "test-1": 4, "train-2": 2}),  # its own number is free
        ({"000000": 0, "000001": 1, "000007": 7}, {"000002": 2, "a": 8, "b-7": 9}),
        ({"one": 0, "two": 1}, {"a": 2, "three": 3}),
        ({"5": 5}, {"5000000": 6, "a_5": 7}),
        ({"a": 0, "b_empty": 1, "c": 2}, {"aa": 3}),
    ],
)
def test_a_tar_that_comes_later_moves_no_other(
    tmp_path: Path, settings: Settings, first: dict[str, int], later: dict[str, int], is_recorded: bool
) -> None:
    """Without the record the stored tables tell which tar has which key."""
    source = tmp_path / "tars"
    _deliver(source, *first)
    pool = add_pool(settings, "p", source)
    store = ShardStore(settings.work("p"))
    for key in discover_shards(pool, settings):
        source_fingerprint(pool, key, settings)
        store.write("raw/registered_shards", register_shard(pool, key, settings), key, code_version="2")
    assert _keys(settings) == first
    if not is_recorded:
        (settings.work("p") / KEYS_FILE).unlink()
    _deliver(source, *later)
    assert _keys(settings) == first | later
    record = settings.work("p") / KEYS_FILE
    damaged = record.read_bytes().replace(b"numbers", b"numberz")
    record.write_bytes(damaged)
    with pytest.raises(DamagedFileError, match="curate verify p --repair"):
        _keys(settings)
    record.unlink()  # as that does
    assert _keys(settings).items() >= first.items(), "the tables tell"
    for name in first:  # tars that are away for a while come back to their keys
        (source / f"{name}.tar").rename(tmp_path / f"{name}.tar")
    _deliver(source, "again-0", "again-1")
    assert set(_keys(settings).values()).isdisjoint(first.values())
    for name in first:
        (tmp_path / f"{name}.tar").rename(source / f"{name}.tar")
    assert _keys(settings).items() >= first.items()


def test_a_key_under_which_nothing_is_stored_is_free_once_its_tar_is_gone(tmp_path: Path, settings: Settings) -> None:
    source = tmp_path / "tars"
    _deliver(source, "wrong-0", "wrong-1")
    pool = add_pool(settings, "p", source)
    discover_shards(pool, settings)
    for tar in source.iterdir():
        tar.unlink()
    _deliver(source, "000000", "000001")
    assert _keys(settings) == {"000000": 0, "000001": 1}


def test_a_kill_while_keys_are_written_down_changes_none(tmp_path: Path, settings: Settings) -> None:
    _deliver(tmp_path / "tars", "train-0", "val-0")
    discover_shards(add_pool(settings, "p", tmp_path / "tars"), settings)
    _deliver(tmp_path / "tars", "test-0")
    with pytest.MonkeyPatch.context() as monkeypatch:
        killed_at_rename(0, monkeypatch)
        with pytest.raises(Killed):
            _keys(settings)
    assert _keys(settings) == {"train-0": 0, "val-0": 1, "test-0": 2}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("train-000.tar", "test-000.tar"), "test-000.tar, train-000.tar"),
        (("coco_train_0.tar", "coco_val_0.tar", "x.tar"), "coco_train_0.tar, coco_val_0.tar"),
        (("train-0.tar", "training-1.tar", "latest-2.tar"), None),
        (("train.parquet", "validation.parquet"), "train.parquet, validation.parquet"),
        (("TRAIN.csv", "dev.csv"), "TRAIN.csv, dev.csv"),
        (("train/a.jpg", "test/b.jpg"), "test, train"),
        (("part-0.csv", "part-1.csv"), None),
    ],
)
def test_parts_of_a_data_set_that_become_one_pool_are_said(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    source = tmp_path / "source"
    for name in names:
        path = source / name
        match path.suffix:
            case ".tar":
                _deliver(source, path.stem)
            case ".jpg":
                write(path.with_suffix(".txt"), caption=["a dog"])
                path.write_bytes(jpeg(0))
            case _:
                write(path, caption=["a dog"])
    shown = curate("pool", "add", "p", source, home=tmp_path / "home")
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert (f"{said} look like parts of a data set" in text) == (said is not None), text


def _delivered(folder: Path, kind: str) -> tuple[Path, Path]:
    """A source of a kind, and a file of it that holds 'a red dog'."""
    folder.mkdir()
    if kind in ("tar", "table beside a tar"):
        row = ("0", "http://a.example/0.jpg", "a red dog", jpeg(0))
        write_tar(folder / "0.tar", [row])
        if kind == "tar":
            return folder, folder / "0.tar"
        listed = {"key": ["0", "1"], "status": ["success", "a red dog"]}
        pl.DataFrame(listed).write_parquet(folder / "0.parquet", compression="uncompressed", statistics=False)
        return folder, folder / "0.parquet"
    if kind == "csv":
        return write(folder / "s.csv", caption=["a red dog"]), folder / "s.csv"
    (folder / "a.jpg").write_bytes(jpeg(0) + b"a red dog")
    if kind == "image of a table":
        write(folder / "metadata.csv", file_name=["a.jpg"], text=["a cat"])
        return folder, folder / "a.jpg"
    (folder / "a.txt").write_text("a red dog")
    return folder, folder / ("a.txt" if kind == "text beside an image" else "a.jpg")


@pytest.mark.slow
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize(
    "kind", ["tar", "table beside a tar", "csv", "image of a table", "text beside an image", "image beside a text"]
)
def test_other_bytes_of_the_same_size_and_time_are_another_version(
    tmp_path: Path, settings: Settings, kind: str, is_replaced: bool
) -> None:
    source, file = _delivered(tmp_path / "source", kind)
    pool = add_pool(settings, "p", source)
    time.sleep(0.15)  # what was written a moment ago is read again in any case
    before = source_fingerprint(pool, "p-000000", settings)
    assert source_fingerprint(pool, "p-000000", settings) == before
    stat, other = file.stat(), file.read_bytes().replace(b"a red dog", b"a big cat")
    if is_replaced:
        (tmp_path / "draft").write_bytes(other)
        os.utime(tmp_path / "draft", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.replace(tmp_path / "draft", file)
    else:
        file.write_bytes(other)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert source_fingerprint(pool, "p-000000", settings) != before


def test_a_world_is_planted_again_from_its_declaration(settings: Settings) -> None:
    import shutil

    pool = add_world_pool(settings, "scenes", size=20, seed=3, shard_size=10)
    rows = register_shard(pool, "scenes-000001", settings)
    shutil.rmtree(settings.work("scenes"))
    assert register_shard(load_pool(settings, "scenes"), "scenes-000001", settings).equals(rows)
    truth = pl.read_parquet(settings.work("scenes") / WORLD_TRUTH)
    assert truth.height == 20
    assert set(rows["sample_id"]) <= set(truth["sample_id"])
    assert not {"kind", "concreteness", "trouble"} & set(rows.columns)


@pytest.mark.skipif(
    not (CAPTIONS / "flickr8k_captions.parquet").is_file(), reason="../shared/data/captions is not here"
)
def test_real_captions(settings: Settings) -> None:
    flickr = add_pool(settings, "flickr", CAPTIONS / "flickr8k_captions.parquet", shard_size=10_000)
    assert not flickr.has_images
    assert flickr.expected_rows(settings) == 40_455
    assert len(discover_shards(flickr, settings)) == 5
    alt_texts = add_pool(settings, "alt_texts", CAPTIONS / "alt_texts.parquet", shard_size=10_000)
    assert (alt_texts.columns["caption"], alt_texts.columns["url"]) == ("text", "url")
    rows = register_shard(alt_texts, "alt_texts-000002", settings)
    assert rows.height == 5_740


def test_a_pool_with_images_names_the_profile_of_photographs(tmp_path: Path) -> None:
    source = tmp_path / "urls.csv"
    source.write_text("url,caption\nhttp://127.0.0.1/a.jpg,a dog\n")
    settings = load_settings(tmp_path / "home")
    assert add_pool(settings, "photos", source).profile == "photos"
    assert load_pool(settings, "photos").profile == "photos"
    assert add_pool(settings, "captions", source, columns={"url": None}).profile is None
    assert add_pool(settings, "mine", source, profile="hub").profile == "hub"
    assert add_world_pool(settings, "scenes", size=4).profile is None


def test_what_the_caller_chooses_goes_before_the_profile_of_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CURATION_PROFILE", raising=False)
    assert load_settings(tmp_path).for_pool("photos").profile.name == "photos"
    assert load_settings(tmp_path).for_pool(None).profile.name == "embedded"
    assert load_settings(tmp_path, "embedded").for_pool("photos").profile.name == "embedded"
    monkeypatch.setenv("CURATION_PROFILE", "hub")
    assert load_settings(tmp_path).for_pool("photos").profile.name == "hub"


def test_workers_follow_the_profile_of_the_pool_unless_they_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CURATION_PROFILE", raising=False)
    monkeypatch.delenv("CURATION_WORKERS", raising=False)
    monkeypatch.setenv("CURATION_THREADS", "4")
    assert load_settings(tmp_path).workers == 4
    assert load_settings(tmp_path).for_pool("photos").workers == 2  # two threads each
    assert load_settings(tmp_path).for_pool("hub").workers == 1
    monkeypatch.setenv("CURATION_THREADS", "1")
    assert load_settings(tmp_path).for_pool("photos").workers == 1
    monkeypatch.setenv("CURATION_WORKERS", "3")
    assert load_settings(tmp_path).for_pool("photos").workers == 3
    monkeypatch.setenv("CURATION_THREADS", "3")
    assert load_settings(tmp_path).for_pool("photos").workers == 3, "also where it equals the default"


def test_workers_own_the_gpus_of_a_profile_that_uses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CURATION_PROFILE", "CURATION_WORKERS", "CURATION_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    gpus = tmp_path / "gpus"
    monkeypatch.setattr(settings_module, "NVIDIA_GPUS", gpus)
    assert load_settings(tmp_path).for_pool("hub").devices == ()
    (gpus / "0000:01:00.0").mkdir(parents=True)
    assert load_settings(tmp_path).for_pool("hub").devices == (), "one GPU: everything in this process"
    (gpus / "0000:02:00.0").mkdir()
    settings = load_settings(tmp_path).for_pool("hub")
    assert (settings.devices, settings.workers) == (("0", "1"), 2)
    assert [settings.device_of_worker(number) for number in range(3)] == ["0", "1", "0"]
    assert load_settings(tmp_path).for_pool("photos").devices == (), "its models run on the CPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    assert load_settings(tmp_path).for_pool("hub").workers == 3
    monkeypatch.setenv("CURATION_DEVICES", "2")
    assert load_settings(tmp_path).for_pool("hub").devices == ("2",)
    monkeypatch.setenv("CURATION_DEVICES", "0,,1")
    with pytest.raises(ValueError, match="CURATION_DEVICES must name devices"):
        load_settings(tmp_path)


@pytest.mark.parametrize(
    "name", ["temp", "system", "catalog", "information_schema", "pg_catalog", "x_follows", "x_releases"]
)
def test_names_that_other_things_have_are_refused(tmp_path: Path, settings: Settings, name: str) -> None:
    source = write(tmp_path / "captions.csv", caption=["a red kite"])
    for declare in (lambda: add_pool(settings, name, source), lambda: add_world_pool(settings, name, size=4)):
        with pytest.raises(ValueError, match=f"cannot be called '{name}'"):
            declare()
    assert list_pools(settings) == []
    assert add_pool(settings, "select", source).name == "select"
