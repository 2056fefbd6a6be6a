"""The raw stage: downloads with planted trouble, tars with damage; no row disappears, no neighbour is harmed."""

import io
import json
import tarfile
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.core.settings import Settings, load_settings
from curation_assets.numeric.identity import is_sample_id, sample_id_of
from curation_assets.sources.declaration import Pool, add_pool, add_world_pool
from curation_assets.sources.download.download import DownloadSettings, download_shard, write_receipt
from curation_assets.sources.download.reasons import reason_of
from curation_assets.sources.kinds.webdataset import read_tar_rows
from curation_assets.sources.kinds.world import WORLD_TRUTH
from curation_assets.sources.shards import build_samples, discover_shards, download, register_shard
from curation_assets.stores.images import (
    ImageLimits,
    ImageRejected,
    TarIndex,
    check_image,
    decode_image,
    read_member,
)
from curation_assets.stores.samples import REGISTERED_SCHEMA, SAMPLES_SCHEMA
from curation_assets.stores.tar_samples import sample_keys
from curation_assets.world import server as world_server
from curation_assets.world.pool import render
from curation_assets.world.server import (
    TROUBLE_PER_BLOCK,
    WorldServer,
    bomb_png,
    planted,
    trouble_of,
    write_world_urls,
)
from tests.support.paths import SHARED_DATA
from tests.support.tars import encoded, tar_of

PHOTOS = SHARED_DATA / "photos"

#: Kind of trouble → the reason that the download gives (None: the image arrives).
REASON_OF_TROUBLE = {
    "not_found": "download_http_404", "corrupt": "image_undecodable", "truncated_body": "download_truncated",
    "opt_out": "opt_out", "bomb": "image_too_many_pixels", "private_redirect": "url_refused:private_address",
    "slow": None, "redirect": None, "too_slow": "download_timeout",
}  # fmt: skip


def image_of(work: Path, row: Mapping[str, Any]) -> Image.Image:
    """The image of a row of raw/samples."""
    return decode_image(read_member(work / row["tar"], row["member"]))


def expected_reasons(size: int, seed: int) -> Counter[str]:
    """Reasons, with counts, with which the downloads of a world of `size` samples must fail."""
    troubles = (trouble_of(seed, index) for index in range(size))
    reasons = (REASON_OF_TROUBLE[trouble] for trouble in troubles if trouble is not None)
    return Counter(reason for reason in reasons if reason is not None)


PATIENT = DownloadSettings(
    timeout_seconds=10.0, retries=0, threads=16
)  # a busy machine must not look like a slow server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path / "home", "embedded")


def raw_tables(pool: Pool, shard: str, settings: Settings) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    registered = register_shard(pool, shard, settings)
    downloads = download(pool, shard, registered, settings)
    return registered, downloads, build_samples(pool, shard, registered, downloads, settings)


def reasons(samples: pl.DataFrame) -> Counter[str]:
    return Counter(samples["reason"].drop_nulls().to_list())


def jpeg(width: int = 32, height: int = 24, colour: tuple[int, int, int] = (200, 30, 30), **options: Any) -> bytes:
    """A noisy picture: truncation must cut into real data."""
    noise = np.random.default_rng(width * height + sum(colour)).integers(0, 40, (height, width, 3))
    pixels = np.clip(noise + np.array(colour), 0, 255).astype(np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG", **options)


# -- images -------------------------------------------------------------------------------------------------------


def test_images_are_judged_by_their_header_before_a_pixel_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    small = ImageLimits(max_bytes=500, max_pixels=100)
    for data, reason in (
        (b"", "empty"),
        (bytes(501), "too_many_bytes"),
        (bomb_png(), "too_many_pixels"),
        (bomb_png(11, 10), "too_many_pixels"),
        (b"no image at all", "undecodable"),
    ):
        for judge in (check_image, decode_image):
            with pytest.raises(ImageRejected) as rejection:
                judge(data, small)
            assert rejection.value.reason == reason


def test_damaged_and_unwanted_images_have_reasons() -> None:
    whole = jpeg(64, 48)
    tiff = io.BytesIO()
    Image.new("RGB", (4, 4)).save(tiff, "TIFF")
    for data, reason in (
        (whole[: len(whole) // 2], "truncated"),
        (whole[:2] + whole[:1:-1], "undecodable"),
        (tiff.getvalue(), "format_not_allowed"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "undecodable"),
    ):
        for judge in (check_image, decode_image):
            with pytest.raises(ImageRejected) as rejection:
                judge(data)
            assert rejection.value.reason == reason
    facts = check_image(whole)
    assert (facts.width, facts.height) == (64, 48)


def test_images_come_out_upright_rgb_and_on_white() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° to view
    assert decode_image(jpeg(40, 20, exif=exif)).size == (20, 40)
    clear = io.BytesIO()
    with_alpha = Image.new("RGBA", (2, 2), (9, 9, 9, 0))
    with_alpha.putpixel((1, 1), (9, 9, 9, 255))
    with_alpha.save(clear, "PNG")
    image = decode_image(clear.getvalue())
    assert (image.mode, image.getpixel((0, 0))) == ("RGB", (255, 255, 255))
    for mode in ("1", "L", "P", "CMYK", "I;16"):
        buffer = io.BytesIO()
        Image.new(mode, (3, 3)).save(buffer, "JPEG" if mode == "CMYK" else "PNG")
        assert decode_image(buffer.getvalue()).mode == "RGB"


def test_tar_index_reads_by_name_and_reports_damage(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", {"0.txt": b"zero", "1.txt": b"one" * 400, "2.txt": b"two"})
    index = TarIndex(path)
    assert index.damage is None
    assert index.read("2.txt") == b"two"
    with pytest.raises(KeyError, match=r"has no member '9\.txt'"):
        index.read("9.txt")
    whole = path.read_bytes()
    # 512 header + 512 data for 0.txt, 512 header of 1.txt, then some of its data
    path.write_bytes(whole[: 1024 + 512 + 100])
    cut = TarIndex(path)
    assert cut.damage is not None
    assert cut.read("0.txt") == b"zero"
    with pytest.raises(ImageRejected, match="100 of 1200 bytes"):
        cut.read("1.txt")
    path.write_bytes(whole[:1024])  # between two members
    assert TarIndex(path).damage is not None
    with tarfile.open(path, "w") as tar:  # a link out of the archive is not followed, not even listed
        link = tarfile.TarInfo("0.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert TarIndex(path).members == {}


# -- downloads ----------------------------------------------------------------------------------------------------


def test_messages_become_reasons() -> None:
    for status, message, reason in (
        ("failed_to_download", "HTTP Error 404: Not Found", "download_http_404"),
        ("failed_to_download", "<urlopen error timed out>", "download_timeout"),
        ("failed_to_download", "<urlopen error [Errno -2] Name or service not known>", "download_dns_failure"),
        ("failed_to_download", "Use of image disallowed by X-Robots-Tag directive", "opt_out"),
        ("failed_to_download", "url_refused:private_address: got …", "url_refused:private_address"),
        ("failed_to_resize", "image_rejected:too_many_pixels: 9 x 9", "image_too_many_pixels"),
        ("failed_to_resize", "Image decoding error", "image_undecodable"),
        ("failed_to_download", "something new", "download_failed"),
        ("failed_to_resize", None, "image_failed"),
    ):
        assert reason_of(status, message) == reason


def test_planted_trouble_depends_on_seed_and_index_alone() -> None:
    block = Counter(trouble_of(5, index) for index in range(250, 500))
    del block[None]
    assert block == Counter(TROUBLE_PER_BLOCK)
    assert [trouble_of(5, i) for i in range(250)] != [trouble_of(6, i) for i in range(250)]
    assert sum(trouble_of(5, i) == "too_slow" for i in range(2000)) == 1


@pytest.mark.slow
def test_a_world_is_downloaded_with_every_planted_trouble_accounted_for(settings: Settings) -> None:
    size, seed = 300, 4
    pool = add_world_pool(settings, "toy", size=size, seed=seed, shard_size=200, download=PATIENT)
    shards = discover_shards(pool, settings)
    assert shards == ["toy-000000", "toy-000001"]
    assert pool.expected_rows(settings) == size
    done: list[int] = []
    tables = []
    for shard in shards:
        registered = register_shard(pool, shard, settings)
        downloads = download(pool, shard, registered, settings, done.append)
        tables.append(build_samples(pool, shard, registered, downloads, settings))
        assert dict(registered.schema) == dict(REGISTERED_SCHEMA)
    assert sum(done) == size
    samples = pl.concat(tables)
    assert dict(samples.schema) == dict(SAMPLES_SCHEMA)
    assert samples["source_row"].to_list() == list(range(size))
    assert reasons(samples) == expected_reasons(size, seed)
    kept = samples.filter(pl.col("status") == "kept")
    assert kept.height == size - expected_reasons(size, seed).total()
    assert (
        kept.select("tar", "member", "width", "image_sha256", "original_sha256").null_count().sum_horizontal().item()
        == 0
    )
    assert kept["has_image"].all()
    assert not samples.filter(pl.col("status") == "failed")["has_image"].any()
    # the right picture went to the right row
    truth = pl.read_parquet(settings.work("toy") / WORLD_TRUTH)
    assert set(kept["sample_id"]) <= set(truth["sample_id"])
    for row in kept.sample(5, seed=1).iter_rows(named=True):
        expected = np.asarray(render(planted(size, seed)[row["source_row"]]), dtype=float)
        got = np.asarray(image_of(settings.work("toy"), row), dtype=float)
        assert np.abs(got - expected).mean() < 6  # JPEG at quality 92

    # identity does not depend on the server's port, nor content on the run
    again = raw_tables(pool, shards[1], settings)[2]
    assert again.equals(tables[1])


def urls_of(samples: Any, folder: Path, seed: int) -> pl.DataFrame:
    write_world_urls(folder / "urls.parquet", samples, seed)
    return pl.read_parquet(folder / "urls.parquet").rename({"uid": "sample_id"}).with_row_index("source_row")


def test_a_complete_download_is_reused_and_an_incomplete_one_is_not(tmp_path: Path) -> None:
    samples = planted(12, 1)
    urls = urls_of(samples, tmp_path, 1)
    with WorldServer(samples, 1, has_trouble=False) as server:
        served = DownloadSettings(retries=0, connect_to=server.connect_to)

        def fetch() -> tuple[pl.DataFrame, int]:
            server.requests.clear()
            return download_shard(urls, tmp_path / "out", "toy-000003", settings=served), server.requests.total()

        first, asked = fetch()
        assert asked == 12
        assert first["status"].to_list() == ["kept"] * 12
        again, asked = fetch()
        assert asked == 0
        assert again.equals(first)
        folder = tmp_path / "out" / "toy-000003"
        assert sorted(p.name for p in folder.glob("0*")) == ["000003.parquet", "000003.tar"]
        # the uid travels into the tar, as DataComp's resharder expects
        member = TarIndex(folder / "000003.tar").read(first["member"][0].replace(".jpg", ".json"))
        assert json.loads(member)["uid"] == first["sample_id"][0]
        # damaged: begun anew
        tar = folder / "000003.tar"
        tar.write_bytes(tar.read_bytes()[:-5000])
        repaired, asked = fetch()
        assert asked == 12
        assert repaired["status"].to_list() == ["kept"] * 12
        # killed before the receipt: begun anew
        (folder / "receipt.json").unlink()
        assert fetch()[1] == 12
        # another timeout is another request; another number of threads is not
        assert served.config() == DownloadSettings(retries=0, threads=3).config()
        assert served.config() != DownloadSettings(retries=0, timeout_seconds=3).config()


def test_the_tar_is_believed_and_not_the_table_beside_it(tmp_path: Path) -> None:
    samples = planted(3, 1)
    urls = urls_of(samples, tmp_path, 1)
    out, key = tmp_path / "out", "toy-000000"
    with WorldServer(samples, 1, has_trouble=False) as server:
        served = DownloadSettings(retries=0, connect_to=server.connect_to)
        first = download_shard(urls, out, key, settings=served)
    folder = out / key
    index = TarIndex(folder / "000000.tar")
    lost = first["member"][1]
    tar_of(folder / "000000.tar", {name: index.read(name) for name in index.members if name != lost})
    receipt = json.loads((folder / "receipt.json").read_text())
    write_receipt(folder, receipt["request_sha256"])  # of the tar as it is now
    output = download_shard(urls, out, key, settings=served)
    assert output["reason"].to_list() == [None, "missing_in_tar", None]


def test_refused_urls_never_reach_the_network_and_harm_no_neighbour(tmp_path: Path) -> None:
    samples = planted(2, 1)
    urls = urls_of(samples, tmp_path, 1)
    with WorldServer(samples, 1, has_trouble=False) as server:
        bad = ["file:///etc/passwd", f"http://127.0.0.1:{server.port}/000000.jpg", None, "http://2130706433/"]
        ids = [f"{number:032x}" for number in range(4)]
        extra = pl.DataFrame(
            {"source_row": [2, 3, 4, 5], "url": bad, "caption": ["x"] * 4, "sample_id": ids},
            schema_overrides=urls.schema,
        ).select(urls.columns)
        output = download_shard(
            pl.concat([extra, urls]), tmp_path / "out", "toy-000000",
            settings=DownloadSettings(retries=2, connect_to=server.connect_to),
        )  # fmt: skip
        assert server.requests.total() == 2
    assert output["reason"].to_list() == [
        "url_refused:scheme_not_allowed",
        "url_refused:private_address",
        "no_url",
        "url_refused:numeric_host_form",
        None,
        None,
    ]


def test_a_download_ends_where_it_is_stopped_in_the_middle(tmp_path: Path) -> None:
    """Ctrl+C with more rows left than fit in memory: img2dataset's own thread would wait for a place for ever."""
    samples = planted(60, 1)
    urls = urls_of(samples, tmp_path, 1)
    ended = threading.Event()

    def stop(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    def downloaded(connect_to: Mapping[str, str]) -> None:
        settings = DownloadSettings(threads=2, connect_to=connect_to)
        with pytest.raises(KeyboardInterrupt):
            download_shard(urls, tmp_path / "out", "toy-000000", settings=settings, advance=stop)
        ended.set()

    with WorldServer(samples, 1, has_trouble=False) as server:
        threading.Thread(target=downloaded, args=(server.connect_to,), daemon=True).start()
        assert ended.wait(60)
    assert list((tmp_path / "out").iterdir()) == []


def test_large_images_shrink_upright_and_small_ones_keep_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    bodies = {0: jpeg(120, 60, exif=exif), 1: jpeg(30, 20), 2: jpeg(40, 30, exif=exif)}
    samples = planted(3, 1)
    urls = urls_of(samples, tmp_path, 1)
    monkeypatch.setattr(world_server, "encode", lambda sample: bodies[sample.index])
    with WorldServer(samples, 1, has_trouble=False) as server:
        small = DownloadSettings(image_size_px=50, connect_to=server.connect_to)
        output = download_shard(urls, tmp_path / "out", "toy-000000", settings=small)
    index = TarIndex(tmp_path / "out" / "toy-000000" / "000000.tar")
    stored = [index.read(name) for name in output["member"]]
    assert [decode_image(data).size for data in stored] == [(25, 50), (30, 20), (30, 40)]
    assert stored[1] == bodies[1]
    with tarfile.open(index.path) as tar:  # no second header for a fraction of a second
        assert [member.pax_headers for member in tar if member.pax_headers] == []


# -- tars as delivered --------------------------------------------------------------------------------------------


def picture(form: str) -> bytes:
    return encoded(Image.new("RGB", (8, 6), (10, 200, 30)), form)


NAMES = {"jpg": "JPEG", "JPEG": "JPEG", "jfif": "JPEG", "PNG": "PNG", "webp": "WEBP", "gif": "GIF", "GIF": "GIF",
         "bmp": "BMP", "tif": "TIFF", "tiff": "TIFF", "avif": "AVIF", "ppm": "PPM", "ico": "ICO"}  # fmt: skip


@pytest.mark.parametrize("extension", NAMES)
def test_an_image_of_a_tar_is_read_or_its_format_is_refused(tmp_path: Path, settings: Settings, extension: str) -> None:
    members = {
        f"a.{extension}": picture(NAMES[extension]),
        "a.TXT": b"a green thing",
        "a.Json": b'{"url": "http://x.example/a"}',
    }
    pool = add_pool(settings, "formats", tar_of(tmp_path / "tars" / "0.tar", members).parent)
    _, _, samples = raw_tables(pool, "formats-000000", settings)
    is_read = NAMES[extension] in ImageLimits().formats
    assert samples["reason"].to_list() == [None if is_read else "image_format_not_allowed"]
    assert samples.select("caption", "url").rows() == [("a green thing", "http://x.example/a")]
    assert samples["has_image"].to_list() == [is_read]


@pytest.mark.parametrize(
    ("members", "rows"),
    [
        (["a.jpg", "a.gif", "a.txt"], [("a.jpg", "a.txt")]),
        (["a.gif", "a.jpg", "a.txt"], [("a.jpg", "a.txt")]),
        (["a.tif", "a.bmp", "a.txt"], [("a.bmp", "a.txt")]),
        (["a.1.jpg", "a.1.txt", "a.2.png", "a.2.txt"], [("a.1.jpg", "a.1.txt"), ("a.2.png", "a.2.txt")]),
        (["a.jpg", "a.txt", "a.b.jpg", "a.b.txt"], [("a.jpg", "a.txt"), ("a.b.jpg", "a.b.txt")]),
        (["v1.5/a.1.jpg", "v1.5/a.1.txt"], [("v1.5/a.1.jpg", "v1.5/a.1.txt")]),
        (["a.jpg", "a.txt", "a.seg.png", "a.seg.json", "a.left.npy"], [("a.jpg", "a.txt")]),
        (["a.left.jpg", "a.right.jpg", "a.txt"], [(None, "a.txt")]),
        (["a.jpg", "a.caption"], [("a.jpg", "a.caption")]),
        (["a.jpg", "a.text", "a.txt"], [("a.jpg", "a.txt")]),
        (["a.jpg", "a.json"], [("a.jpg", "a.json")]),
        (["a/image.jpg", "a/caption.txt", "b/image.jpg", "b/caption.txt", "b/meta.json"],
         [("a/image.jpg", "a/caption.txt"), ("b/image.jpg", "b/caption.txt")]),
        (["x/a/0.png", "x/a/text.txt"], [("x/a/0.png", "x/a/text.txt")]),
        (["x/0.jpg", "x/1.txt"], [("x/0.jpg", None), (None, "x/1.txt")]),
        (["x/0.jpg", "x/0.txt"], [("x/0.jpg", "x/0.txt")]),
        (["image.jpg", "caption.txt"], [(None, "caption.txt"), ("image.jpg", None)]),
    ],
)  # fmt: skip
def test_no_sample_of_a_tar_is_lost_between_keys(
    tmp_path: Path, members: list[str], rows: list[tuple[str | None, str | None]]
) -> None:
    """Every caption is the name of its member."""
    data = {name: jpeg() for name in members}
    data |= {name: name.encode() for name in members if name.endswith((".txt", ".caption", ".text"))}
    data |= {name: json.dumps({"caption": name}).encode() for name in members if name.endswith(".json")}
    read = read_tar_rows(tar_of(tmp_path / "0.tar", data))
    assert set(read.select("member", "caption").rows()) == set(rows)
    assert read.height == len(rows) == len(sample_keys(tmp_path / "0.tar"))


@pytest.mark.parametrize("listed", ["one", ["one", "two"]])
@pytest.mark.parametrize("name", ["caption", "text"])
def test_a_caption_in_the_json_alone_is_one(tmp_path: Path, name: str, listed: Any) -> None:
    data = {"a.jpg": jpeg(), "a.json": json.dumps({name: listed, "url": "http://x.example/a"}).encode()}
    row = read_tar_rows(tar_of(tmp_path / "0.tar", data)).row(0, named=True)
    assert (row["caption"], row["source_reason"]) == ("one", None)


def test_broken_tars_give_a_row_and_a_reason_for_everything(tmp_path: Path, settings: Settings) -> None:
    whole = jpeg(64, 48)
    own = "ab" * 16
    members = {
        "0000.jpg": whole, "0000.txt": b"a red thing", "0000.json": json.dumps({"uid": own, "url": "http://x.example/0"}).encode(),
        "0001.jpg": whole,  # no txt
        "0002.txt": b"a caption without image",
        "0003.jpg": whole[:300], "0003.txt": b"cut in the file",
        "0004.jpg": b"not an image", "0004.txt": b"garbage",
        "0005.jpg": whole, "0005.txt": b"\xff\xfe not utf-8",
        "0006.jpg": whole, "0006.txt": b"  \n",
        "0007.png": bomb_png(), "0007.txt": b"a bomb",
        "0008.jpg": whole, "0008.txt": b"twice",
        "0009.jpg": whole, "0009.txt": b"twice",
        "0010.jpg": whole, "0010.txt": "schön".encode(), "0010.json": b"{broken",
        "0011.jpg": whole, "0011.txt": b"the last one",
    }  # fmt: skip
    tar = tar_of(tmp_path / "tars" / "000007.tar", members)
    data = tar.read_bytes()
    last_jpeg = TarIndex(tar).members["0011.jpg"]
    tar.write_bytes(data[: last_jpeg.offset + 50])  # truncated inside the last image
    pool = add_pool(settings, "broken", tmp_path / "tars")
    assert discover_shards(pool, settings) == ["broken-000007"]
    registered, downloads, samples = raw_tables(pool, "broken-000007", settings)
    assert registered.height == downloads.height == samples.height == 13
    assert samples["reason"].to_list() == [
        None,
        "missing_txt",
        "missing_image",
        "image_truncated",
        "image_undecodable",
        "txt_not_utf8",
        "empty_caption",
        "image_too_many_pixels",
        None,
        "duplicate_sample_id",
        "json_unreadable:0010.json",
        "image_truncated",
        f"tar_truncated:byte_{last_jpeg.offset + 50}",
    ]
    states = dict(zip(samples["source_row"], samples["status"], strict=True))
    assert [states[i] for i in (0, 1, 6, 9, 10)] == ["kept", "failed", "dropped", "dropped", "failed"]
    assert samples["sample_id"][0] == own
    assert samples["url"][0] == "http://x.example/0"
    assert all(is_sample_id(one) for one in samples["sample_id"])
    assert samples.filter(pl.col("status") == "kept")["tar"].unique().to_list() == [str(tar)]


def test_what_img2dataset_failed_on_stays_in_the_pool(tmp_path: Path, settings: Settings) -> None:
    tar_of(tmp_path / "tars" / "00000.tar", {"000000001.jpg": jpeg(), "000000001.txt": b"arrived"})
    pl.DataFrame(
        {
            "key": ["000000000", "000000001", "000000002"],
            "url": [f"http://x.example/{i}" for i in range(3)],
            "caption": ["gone", "arrived", "promised"],
            "status": ["failed_to_download", "success", "success"],
            "error_message": ["HTTP Error 410: Gone", None, None],
        }
    ).write_parquet(tmp_path / "tars" / "00000.parquet")
    pool = add_pool(settings, "shipped", tmp_path / "tars")
    samples = raw_tables(pool, "shipped-000000", settings)[2]
    assert samples["reason"].to_list() == ["download_http_410", None, "missing_in_tar"]
    assert samples["sample_id"][1] == sample_id_of("http://x.example/1", "arrived")
    assert pool.expected_rows(settings) == 3


def test_samples_without_url_keep_their_id_when_resharded(tmp_path: Path, settings: Settings) -> None:
    first = {"a/000.jpg": jpeg(), "a/000.txt": b"one", "a/001.jpg": jpeg(30, 30), "a/001.txt": b"two"}
    moved = {"x17.jpg": jpeg(30, 30), "x17.txt": b"two"}
    tar_of(tmp_path / "tars" / "000000.tar", first)
    tar_of(tmp_path / "tars" / "000001.tar", moved)
    pool = add_pool(settings, "moved", tmp_path / "tars")
    tables = [raw_tables(pool, shard, settings)[2] for shard in discover_shards(pool, settings)]
    assert tables[0]["sample_id"][1] == tables[1]["sample_id"][0] != tables[0]["sample_id"][0]


@pytest.mark.skipif(not (PHOTOS / "000002.tar").is_file(), reason="../shared/data/photos is not here")
def test_real_photos(settings: Settings) -> None:
    pool = add_pool(settings, "photos", PHOTOS)
    assert discover_shards(pool, settings) == [f"photos-00000{number}" for number in (0, 2, 3, 4, 5)]
    registered, _, samples = raw_tables(pool, "photos-000002", settings)
    listed = pl.read_parquet(PHOTOS / "captions.parquet").filter(pl.col("shard") == "000002").sort("key")
    assert samples["status"].to_list() == ["kept"] * 500
    assert samples["caption"].to_list() == listed["caption"].to_list()
    assert samples["image_sha256"].to_list() == listed["sha256"].to_list()
    assert samples["width"].to_list() == listed["width"].to_list()
    assert registered["sample_id"].n_unique() == 500
    image = image_of(settings.work("photos"), samples.row(7, named=True))
    assert image.size == (listed["width"][7], listed["height"][7])
